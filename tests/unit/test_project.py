"""What is written in several places is the same: versions, dependencies, commands, types."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from operator import attrgetter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pymc_kmc as kmc

ROOT = Path(__file__).parents[2]
PACKAGE = Path(kmc.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Declared for packages that import them without declaring them; none at present.
DECLARED_FOR_OTHERS: set[str] = set()
# Extras that the package imports where they are asked for.
OPTIONAL = {"umbridge"}
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def requirements(lines):
    parsed = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


def imported_packages(folder):
    """Top-level names of all imports in a folder's files, inside of functions too."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


def test_the_version_is_one():
    assert metadata.version("pymc-kmc") == kmc.__version__
    assert re.search(r"^version: (.+)$", text("CITATION.cff"), flags=re.M)[1] == kmc.__version__
    latest, *_ = re.findall(r"^## \[(.+?)\]", text("CHANGELOG.md"), flags=re.M)
    assert latest in ("Unreleased", kmc.__version__)


def test_public_names_are_those_that_type_checkers_see():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if ast.unparse(node).startswith("if TYPE_CHECKING")]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert sorted(seen) == sorted(kmc.__all__)
    assert seen.keys() <= set(dir(kmc))
    for name, module in seen.items():
        assert getattr(kmc, name) is getattr(import_module(module), name)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'KMCX'"):
        attrgetter("KMCX")(kmc)
    assert kmc.steps.base.AdaptiveStep  # a module of the package


def test_importing_the_package_imports_nothing_else():
    command = "import sys, pymc_kmc; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, cwd=ROOT)
    loaded = {name for name in run.stdout.split() if name.split(".")[0] in ("pymc_kmc", "pymc")}
    assert loaded == {"pymc_kmc"}


def test_the_licence_is_one():
    assert PROJECT["license"] == "Apache-2.0"
    assert re.search(r"^license: (.+)$", text("CITATION.cff"), flags=re.M)[1] == PROJECT["license"]
    assert "Apache License\n" in text("LICENSE")


def test_every_import_is_declared():
    declared = requirements(PROJECT["dependencies"])
    distributions = metadata.packages_distributions()
    imported = {
        canonicalize_name(distribution)
        for name in imported_packages(PACKAGE) - {"pymc_kmc"}
        for distribution in distributions[name]
    }
    assert imported == set(declared) - DECLARED_FOR_OTHERS | OPTIONAL
    declared |= requirements(
        line for name in OPTIONAL for line in PROJECT["optional-dependencies"][name]
    )
    assert set(declared) >= OPTIONAL
    without_bound = [
        name
        for name, requirement in declared.items()
        if not any(specifier.operator in (">=", "~=", "==") for specifier in requirement.specifier)
    ]
    assert not without_bound


def test_imports_are_found(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("import os, numpy.linalg as la\nfrom . import inner\n")
    (tmp_path / "inner" / "b.py").write_text("def f():\n    from rich.table import Table\n")
    assert imported_packages(tmp_path) == {"numpy", "rich"}


def test_pre_commit_has_the_linter_of_make_lint():
    (revision,) = re.findall(
        r"ruff-pre-commit\n +rev: v([\d.]+)$", text(".pre-commit-config.yaml"), flags=re.M
    )
    dev = requirements(PROJECT["optional-dependencies"]["dev"])
    assert dev["ruff"].specifier.contains(revision)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_make_targets(path):
    targets = set(re.findall(r"^(\w[\w-]*):", text("Makefile"), flags=re.M))
    workflow = path.read_text(encoding="utf-8")
    named = re.findall(r"run: make ([\w-]+)", workflow)
    named += re.findall(r"target: (\w+)", workflow)
    assert named and set(named) <= targets
    # A version that moves under one's feet is none.
    for action, version in re.findall(r"uses: (\S+)@(\S+)", workflow):
        assert re.fullmatch(r"v\d+|release/v\d+", version), action


def test_there_are_workflows():
    assert {path.name for path in WORKFLOWS} >= {"release.yml", "tests.yml"}


def test_what_pytest_leaves_out_is_run_by_the_check_and_by_github():
    options = tomllib.loads(text("pyproject.toml"))["tool"]["pytest"]["ini_options"]["addopts"]
    (left_out,) = (option.removeprefix("-m=") for option in options if "-m=" in option)
    assert left_out == "not documentation and not exactness"
    # All of them in one session; on the wheel all but what the first line has.
    check = text(".ci/run")
    assert "\"$session -m '' --ignore=$notebooks\"" in check and '"$session -m $which"' in check
    assert re.findall(r"""which="'(.*?)'\"""", check) == ["", "not one_line"]
    for marker in ("documentation", "exactness"):
        asked = rf"^([\w-]+): venv\n.*\$\({marker.upper()}\)"
        (target,) = re.findall(asked, text("Makefile"), flags=re.M)
        assert f"{marker.upper()} = -m {marker}\n" in text("Makefile")
        assert f"run: make {target} " in text(".github/workflows/tests.yml")


def test_every_example_is_run_by_a_test():
    for example in (ROOT / "examples").glob("*.py"):
        test = text(f"tests/examples/test_{example.stem}.py")
        assert "run_quickly(" in test or ".main([" in test


def public_callables():
    """Yield (name, function) for what users call: functions, constructors, methods."""
    modules = {"": kmc, "surrogates.": kmc.surrogates, "datasets.": kmc.datasets}
    for prefix, module in modules.items():
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                for method, function in vars(value).items():
                    if inspect.isfunction(function) and (
                        method in ("__init__", "__new__") or not method.startswith("_")
                    ):
                        yield f"{prefix}{name}.{method}", function
            elif callable(value):
                yield f"{prefix}{name}", value


def is_annotated(function):
    signature = inspect.signature(function)
    types = [p.annotation for p in signature.parameters.values() if p.name not in ("self", "cls")]
    if function.__name__ != "__init__":
        types.append(signature.return_annotation)
    return signature.empty not in types


def test_types_are_promised_only_if_they_are_there():
    """py.typed tells type checkers to believe the package's annotations."""
    without = [name for name, function in public_callables() if not is_annotated(function)]
    promised = (PACKAGE / "py.typed").exists()
    assert promised == ("Typing :: Typed" in PROJECT["classifiers"])
    assert not (promised and without), without


def test_annotations_are_looked_at():
    class Sampler:
        def __init__(self, a: int):
            pass

        def run(self, n: int):
            pass

        def stop(self) -> None:
            pass

    def whole(a: int, *rest: int) -> int:
        return a

    def partly(a: int, b=1) -> int:
        return a

    assert all(map(is_annotated, [Sampler.__init__, Sampler.stop, whole]))
    assert not any(map(is_annotated, [Sampler.run, partly, lambda: None]))
    names = {name for name, _ in public_callables()}
    assert {"KMC.__init__", "diagnose", "surrogates.LogDensityGP.fit"} <= names
    assert is_annotated(kmc.diagnose) and is_annotated(kmc.datasets.load_glass)
