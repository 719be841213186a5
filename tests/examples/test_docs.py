"""Pages of docs/: their code is Python, what it names is there, and it runs with shorter chains."""

import re
from pathlib import Path

import pytest

import pymc_kmc as kmc

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page(page):
    blocks = re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, page, "exec")
        for name in re.findall(r"\bkmc((?:\.\w+)+)", block):
            found = kmc
            for part in name.split(".")[1:]:
                assert hasattr(found, part), f"kmc{name} of {page} is missing"
                found = getattr(found, part)


def test_every_plot_is_on_the_page():
    rows = re.findall(r"^\| `(plot_\w+)` \|", PAGES["plots.md"], flags=re.MULTILINE)
    assert sorted(rows) == sorted(kmc.plots.__all__)


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([\w/.-]+)\)", text):
            assert (DOCS / target).exists(), f"{target} of {page}"


def code_of(page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    assert blocks
    return "\n".join(blocks)


@pytest.mark.filterwarnings("ignore:The black box 'populations' raised")
def test_black_boxes(capsys):
    short, n_replaced = re.subn(
        r"tune=\d+, draws=\d+, chains=2",
        "tune=100, draws=50, chains=1, cores=1, progressbar=False",
        code_of("black_boxes.md"),
    )
    assert n_replaced == 1
    namespace = {}
    exec(compile(short, "black_boxes.md", "exec"), namespace)
    assert namespace["idata"].posterior["rates"].shape == (1, 50, 4)
    assert namespace["outputs"].shape == (3, 20, 2) and namespace["succeeded"].all()
    (box,) = kmc.black_boxes(namespace["rejecting"])
    assert 0 < box.n_rejected < 100
    printed = capsys.readouterr().out
    kept = float(re.search(r"prior that is kept: (\S+)", printed)[1])
    assert kept == pytest.approx(1 - box.n_rejected / 100)
    assert "OverflowError" in printed and "Rejection(parameters={'rates'" in printed
