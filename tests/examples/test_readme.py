"""The README: its quick start runs as printed, its commands exist."""

import re
from pathlib import Path

import pymc_kmc as kmc
from tests.snippets import ROOT, python_blocks, run_quickly
from tests.steps import STEPS

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEST_FILES = list((ROOT / "tests").rglob("test_*.py"))
BLOCKS = python_blocks(ROOT / "README.md")


def section(heading):
    start = README.index(heading)
    return README[start : README.index("\n## ", start + 1)]


def test_code_runs_as_printed(capsys):
    namespace = run_quickly(BLOCKS, "README.md")
    assert namespace["idata"].posterior["rate"].shape == (2, 30)
    assert "effective draws" in capsys.readouterr().out


def test_links_are_there():
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link


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


def test_benchmarks_are_those_of_the_folder():
    text = (ROOT / "examples" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    names = listed(text, r"^\| `python -m examples\.benchmarks\.(\w+)` \|")
    folder = ROOT / "examples" / "benchmarks"
    # Others are parts of commands.
    commands = {name for name in scripts(folder) if "__main__" in (folder / name).read_text()}
    assert {f"{name}.py" for name in names} == commands


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


def test_the_house_has_the_rooms_of_the_folder():
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    house = guide[guide.index("## The house") : guide.index("\n## A new step")]
    (table,) = re.findall(r"\| room .*?\n\n", house, flags=re.DOTALL)
    named = set(re.findall(r"`([a-z]\w*(?:/|\.py))`", house))
    assert rooms(Path(kmc.__file__).parent) <= named
    columns = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed("\n".join(columns), r"`(\w[\w/]*(?:\.py)?)`")


def test_a_listing_is_of_what_is_there(tmp_path):
    for name in ("steps/kmc.py", "dynamics.py", "_compat.py", "data/x.csv", "__pycache__/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert rooms(tmp_path) == {"steps/", "dynamics.py"}


def test_samplers_of_the_table_are_the_steps():
    names = listed(section("## Which sampler"), r"^\| `(\w+)` \|")
    assert names == set(STEPS)
