"""The README: its quick start runs as printed, its commands exist."""

import re
from pathlib import Path

import matplotlib
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.documents import ROOT, python_blocks, run_blocks
from tests.steps import STEPS

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEST_FILES = list((ROOT / "tests").rglob("test_*.py"))
BLOCKS = python_blocks(ROOT / "README.md")


def section(heading):
    start = README.index(heading)
    return README[start : README.index("\n## ", start + 1)]


def quick_start():
    (block,) = [block for block in BLOCKS if "az.summary" in block]
    return block


def test_quick_start_runs(capsys, monkeypatch):
    matplotlib.use("Agg")
    namespace = run_blocks([quick_start()], "README.md", monkeypatch)
    assert namespace["idata"].posterior["spread"].shape == (2, 50)
    printed = capsys.readouterr().out
    assert "intercept" in printed
    assert "spread" in printed


def test_the_simulator_runs(monkeypatch):
    """It goes on where the quick start ends."""
    (block,) = [block for block in BLOCKS if "ABCPotential(" in block]
    namespace = {"np": np, "pm": pm, "kmc": kmc, "data_rng": np.random.default_rng(1)}
    run_blocks([block], "README.md", monkeypatch, namespace)
    assert np.ptp(namespace["idata"].posterior["shape"].values) > 0


def test_every_block_is_python():
    assert len(BLOCKS) >= 2
    for block in BLOCKS:
        compile(block, "README.md", "exec")


def test_commands_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE)
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"make ([\w-]+)(?=`| {2,})", README + guide))
    assert {"demo", "test", "lint", "typecheck"} <= commands
    assert commands <= set(targets)


def scripts(folder):
    return {path.name for path in folder.glob("*.py") if path.name != "__init__.py"}


def listed(text, pattern):
    """Names in a text, none twice."""
    names = re.findall(pattern, text, flags=re.MULTILINE)
    assert len(names) == len(set(names))
    return set(names)


def test_examples_are_those_of_the_folder():
    names = listed(section("## Installing"), r"^- `examples/(\w+\.py)`")
    assert names == scripts(ROOT / "examples")


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (section("## Installing"), r"^\| `(\w+)` \|"),
        (
            (ROOT / "examples" / "benchmarks" / "README.md").read_text(encoding="utf-8"),
            r"^\| `python -m examples\.benchmarks\.(\w+)` \|",
        ),
    ],
    ids=["README", "benchmarks/README"],
)
def test_benchmarks_are_those_of_the_folder(text, pattern):
    names = listed(text, pattern)
    assert {f"{name}.py" for name in names} == scripts(ROOT / "examples" / "benchmarks")


def rooms(folder):
    """What a listing of a folder names: its public modules, and its folders of them with "/"."""
    names = set()
    for path in folder.iterdir():
        if path.name.startswith(("_", ".")):
            continue
        if path.is_dir() and any(path.rglob("*.py")):
            names.add(f"{path.name}/")
        elif path.suffix == ".py":
            names.add(path.name)
    return names


def test_folders_hang_together_as_listed():
    (listing,) = re.findall(r"```\n(pymc_kmc/\n.*?)```", section("## How the folders"), flags=re.S)
    assert listed(listing, r"^  (\w[\w/]*(?:\.py)?) ") == rooms(Path(kmc.__file__).parent)
    for name in listed(listing, r"^([\w./]\S*) "):
        assert (ROOT / name).exists(), name
    # A folder of tests is named in the line of the tests.
    (tests,) = re.findall(r"^tests/ (.*?)^\S", listing, flags=re.MULTILINE | re.DOTALL)
    kinds = {path.parent.relative_to(ROOT / "tests").parts[0] for path in TEST_FILES}
    assert set(re.findall(r"(\w+)(?: \(|,|$)", tests.strip())) >= kinds


def test_a_listing_is_of_what_is_there(tmp_path):
    for name in ("steps/kmc.py", "dynamics.py", "_compat.py", "data/x.csv", "__pycache__/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert rooms(tmp_path) == {"steps/", "dynamics.py"}


@pytest.mark.parametrize(
    "name", re.findall(r"^\| `(\w+)` \|", section("## Which sampler"), flags=re.M)
)
def test_samplers_of_the_table_are_there(name):
    assert hasattr(kmc, name)


def test_statistics_of_the_table_are_the_steps():
    lines = section("## Sample statistics").splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    documented = set(re.findall(r"`(\w+)`", " ".join(rows))) - {"lp"}
    with pm.Model():
        pm.Normal("x")
        declared = set()
        for name in STEPS:
            step = STEPS[name]()
            declared |= set(step.stats_dtypes_shapes)
    # What PyMC and every step add: shown elsewhere.
    assert documented == declared - {"warning", "tune"}
