"""The documentation: its code runs as printed, its lists are complete, its names exist."""

import ast
import importlib
import json
import logging
import re
import sys
from pathlib import Path

import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.servers import free_port
from tests.snippets import ROOT, python_blocks, run_quickly
from tests.steps import STEPS

DOCS = ROOT / "docs"
if not DOCS.is_dir():
    pytest.skip("The documentation isn't part of this tree.", allow_module_level=True)

PAGES = sorted(DOCS.glob("*.md"))
PACKAGE = Path(kmc.__file__).parent
# What takes long, and what runs in its place.
QUICKER = {
    # The model with a second name is learned as the first one was.
    "black_boxes.md": [
        ("rtol=1e-8", "rtol=1e-4"),
        (
            "kmc.KMC(), tune=1000, draws=1000, chains=2, cores=1",
            "kmc.KMC(learn=False), cores=1",
        ),
    ],
    # Outputs are learned there; that numbers are, tests of the step show.
    "coming_from.md": [("kmc.KMC(), tune=1000, draws=2000)", "kmc.KMC(learn=False))")],
    "diagnose.md": [("at=[100, 500, 2000]", "at=[20, 60]")],
    # What was learned above is not learned again.
    "external_simulators.md": [
        ("umbridge.serve_models(", "from tests.servers import begin; begin("),
        ("4242", str(free_port())),
        # Learned from the server already; each call starts Python.
        ("kmc.KMC(), draws=1000", "kmc.KMC(learn=False), tune=9, draws=9"),
        ("tune=100, draws=100", "tune=9, draws=9"),
    ],
    "learning.md": [
        ("    learned = kmc.learn(model, random_seed=1)\n", "    pass\n"),
        ("ProcessPoolExecutor(4), random_seed=1", "ProcessPoolExecutor(1), max_evaluations=20"),
    ],
    # That estimates are learned, too, the first model of the page shows.
    "noisy_likelihoods.md": [
        ("vars=[intercept, spread])", "vars=[intercept, spread], learn=False)")
    ],
    "on_a_cluster.md": [("draws=64", "draws=4")],
    "partial_posteriors.md": [
        ("1_000_000", "2000"),
        (
            "first_size=4000, alpha=0.9, n_replications=20",
            "first_size=1000, alpha=0.9, n_replications=2",
        ),
    ],
    # That estimates are learned, tests of noisy likelihoods show.
    "simulators.md": [("step=kmc.KMC()", "step=kmc.KMC(learn=False)")],
}


def text(name):
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture
def extension(monkeypatch):
    """Import a module of the documentation's own Sphinx extensions, or a script of it."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    monkeypatch.syspath_prepend(str(DOCS))

    def imported(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return imported


# Pages whose models, and what is learned of them, are compiled as users': NUTS takes many steps,
# and index.md is read first. So are README's and those of notebooks.
COMPILED = ("gradients.md", "index.md", "partial_posteriors.md")
# Pages that take long, on whose subjects notebooks run on the second line of PyMC.
LONG = (
    "black_boxes.md",
    "coming_from.md",
    "external_simulators.md",
    "learning.md",
    "noisy_likelihoods.md",
    "on_a_cluster.md",
    "partial_posteriors.md",
    "simulators.md",
    "stores.md",
)


@pytest.mark.documentation
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.one_line if page.name in LONG else ())
        for page in PAGES
        if python_blocks(page)
    ],
    ids=lambda page: page.name,
)
def test_code_runs_as_printed(page, tmp_path, monkeypatch, request):
    if page.name not in COMPILED:
        request.getfixturevalue("uncompiled")
    monkeypatch.chdir(tmp_path)  # pages write files
    quicker = QUICKER.get(page.name, ())
    run_quickly(python_blocks(page), page.name, quicker)


def without_numbers(lines):
    return [re.sub(r"\d+([_,.:]\d+)*", "#", line) for line in lines]


@pytest.mark.documentation
@pytest.mark.one_line
def test_a_run_says_what_its_page_says(capsys):
    """The model of one page, the lines of its run on another."""
    outputs = re.findall(r"^```\n(.*?)^```", text("what_kmc_does.md"), flags=re.DOTALL | re.M)
    logged, diagnosed = map(str.splitlines, outputs)
    before, learns, _ = python_blocks(DOCS / "learning.md")[0].partition("    learned = kmc.learn(")
    assert learns
    model = run_quickly([before], "learning.md")["model"]
    # What is logged and what is printed, in the order in which a user sees it.
    handler = logging.StreamHandler(sys.stdout)
    logging.getLogger("pymc").addHandler(handler)
    try:
        with model:
            step = kmc.KMC()
            options = {"chains": 4, "cores": 1, "random_seed": 1, "progressbar": False}
            idata = pm.sample(step=step, tune=100, draws=250, **options)
    finally:
        logging.getLogger("pymc").removeHandler(handler)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert without_numbers(said) == without_numbers(logged)
    assert without_numbers(str(kmc.diagnose(idata)).splitlines()[:2]) == without_numbers(diagnosed)
    # Roundings decide about a batch or two.
    (learned,) = re.findall(r"Learned (\d+) ev", "\n".join(logged))
    assert abs(step.posterior.n_evaluations - int(learned)) <= 15


def test_blocks_are_found_and_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\na = 1\n```\n\n```\nno code\n```\n\n```python\nb = a + 1\n```\n")
    assert python_blocks(page) == ["a = 1\n", "b = a + 1\n"]
    assert run_quickly(python_blocks(page), "page", [("= 1", "= 2")])["b"] == 3
    with pytest.raises(NameError):
        run_quickly(["undefined"], "page")


def test_every_public_name_has_a_topic(extension):
    """A name that is missing here belongs into TOPICS of docs/_ext/api.py."""
    api = extension("api")
    documented = {(topic.module, name) for topic in api.TOPICS for name in api.names_of(topic)}
    modules = {topic.module for topic in api.TOPICS}
    public = {
        ("pymc_kmc", name)
        for name in kmc.__all__
        if f"pymc_kmc.{name}" not in modules  # a module, with a topic of its own
    }
    for module in modules - {"pymc_kmc"}:
        if (PACKAGE / module.split(".")[-1]).is_dir():
            names = importlib.import_module(module).__all__
            public |= {(module, name) for name in names}
    assert public <= documented
    inner = {("pymc_kmc", "steps.base.AdaptiveStep")}
    assert documented - inner == public


def test_every_notebook_gets_a_card(extension, tmp_path):
    notebooks = extension("notebooks")
    source = ROOT / "examples" / "notebooks"
    names = notebooks.write_gallery(source, tmp_path / "notebooks")
    page = (tmp_path / "notebooks" / "index.md").read_text(encoding="utf-8")
    assert names == sorted(path.stem for path in source.glob("*.ipynb"))
    for name in names:
        cells = json.loads((source / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        heading = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
        assert f"{{grid-item-card}} {heading}\n:link: {name}\n" in page
        assert (tmp_path / "notebooks" / f"{name}.ipynb").exists()
    assert page.rstrip().endswith("\n".join(names) + "\n```")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_is_named_exists(page):
    """`room/file.py::name` is what an equation became."""
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", page.read_text(encoding="utf-8"))
    for file, name in named:
        node = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        for part in name.split("."):
            node = next((n for n in node.body if getattr(n, "name", None) == part), None)
            assert node is not None, f"{file}::{name}"
    assert bool(named) == (page.name in ("how_it_works.md", "learning.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    page_text = page.read_text(encoding="utf-8")
    for module in set(re.findall(r"python -m (examples[\w.]+\w)", page_text)):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for script in set(re.findall(r"`?(?:python )?((?:examples|docs)/\w+\.py)", page_text)):
        assert (ROOT / script).exists(), script
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert set(re.findall(r"^make ([\w-]+)", page_text, flags=re.M)) <= set(targets)


def test_samplers_of_the_table_are_the_steps():
    rows = re.findall(r"^\| `(\w+)` \|", text("choose.md"), flags=re.M)
    assert set(rows) == set(STEPS)


def test_statistics_of_the_table_are_the_steps():
    rows = [line.split("|")[1] for line in text("statistics.md").splitlines() if line[:3] == "| `"]
    documented = set(re.findall(r"`(\w+)`", " ".join(rows))) - {"lp"}
    with pm.Model():
        pm.Normal("x")
        declared = set()
        for name in STEPS:
            declared |= set(STEPS[name]().stats_dtypes_shapes)
    # What PyMC and every step add: shown elsewhere.
    assert documented == declared - {"warning", "tune"}


def test_links_are_checked(extension, tmp_path):
    check = extension("check_links")
    (tmp_path / "a.html").write_text('<a href="b.html#x"></a><img src="c.png"><a href="#here">')
    (tmp_path / "b.html").write_text('<p id="y"></p><a href="a.html"></a><a href="https://x.y/z">')
    broken = {(path.name, link) for path, link in check.broken_links(tmp_path)}
    assert broken == {("a.html", "b.html#x"), ("a.html", "c.png"), ("a.html", "#here")}


@pytest.mark.parametrize(
    ("latex", "readable"),
    [
        (r"\frac12 p^\top q", r"\frac{1}{2} p^{\top} q"),
        (r"\tfrac c2 \max(z)", r"\tfrac{c}{2} \max(z)"),
        (r"\tfrac2\sigma D", r"\tfrac{2}{\sigma} D"),
        (r"\frac{\frac1n + 2}{\sqrt 2} x_12", r"\frac{\frac{1}{n} + 2}{\sqrt{2}} x_{1}2"),
        (r"\lvert x_{a_1} \rvert, \dots", r"| x_{a_{1}} |, \ldots"),
        (r"x'^2", r"x'^{2}"),
    ],
)
def test_equations_are_read_as_tex_reads_them(extension, latex, readable):
    """docutils takes a whole number for an argument without braces: a half of p was 12 / p."""
    assert extension("latex").readable(latex) == readable
    assert extension("latex").readable(readable) == readable
