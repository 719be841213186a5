"""Imports run downwards only, functions and classes are short: CONTRIBUTING.md's house."""

import ast
import pkgutil
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import pymc_kmc
from examples.benchmarks.size import code, docstrings, too_long

PACKAGE = Path(pymc_kmc.__file__).parent
# From top to bottom; what stands in one line may import each other's modules, but not in circles.
ROOMS = (
    ("__init__",),
    (
        "advice",
        "diagnostics",
        "discrepancy",
        "exact_averages",
        "findings",
        "kept",
        "partial",
        "plots",
    ),
    ("runs",),
    ("steps",),
    ("moves",),
    ("learning",),
    ("adaptation",),
    ("model",),
    ("likelihoods",),
    ("surrogates",),
    ("dynamics",),
    ("numerics",),
    ("_compat", "datasets", "notebook"),
)
DEPTH = {room: depth for depth, rooms in enumerate(ROOMS) for room in rooms}
DIARY = "What was tried"
COMPILERS = {"jit", "njit"}
DECORATORS = COMPILERS | {"evaluation", "overload"}
# The one place that decides whether compiled code is kept on disk.
CACHING_MODULE = "numerics.jit"


class Tree:
    """The modules of a package, by their names: "__init__", "steps", "steps.kmc".

    Parameters
    ----------
    folder : Path
        The package's folder; its name is the package's.
    """

    def __init__(self, folder):
        self.package = folder.name
        self.sources = {}
        self.paths = {}
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
            self.sources[".".join(parts)] = path.read_text(encoding="utf-8")
            self.paths[".".join(parts)] = path.relative_to(folder)
        self.nodes = {name: ast.parse(source) for name, source in self.sources.items()}

    def imports(self, name):
        """Yield (line, module of this package) for each import of a module, functions' included."""
        found = _Imports()
        found.visit(self.nodes[name])
        for node in found.nodes:
            for target in self._targets(name, node):
                if target is not None:
                    yield node.lineno, target

    def _targets(self, name, node):
        if isinstance(node, ast.Import):
            return [self._module(alias.name) for alias in node.names]
        base = node.module or ""
        if node.level:
            here = [self.package, *(name.split(".") if name != "__init__" else [])]
            is_package = self.paths[name].name == "__init__.py"
            here = here[: len(here) - node.level + is_package]
            base = ".".join([*here, *filter(None, [node.module])])
        # A name that is imported from a package may be one of its modules.
        return [
            self._module(f"{base}.{alias.name}", exactly=True) or self._module(base)
            for alias in node.names
        ]

    def _module(self, dotted, exactly=False):
        first, _, rest = dotted.partition(".")
        if first != self.package:
            return None
        rest = rest or "__init__"
        assert exactly or rest in self.sources, f"{dotted} is imported and not there"
        return rest if rest in self.sources else None


class _Imports(ast.NodeVisitor):
    """Collects imports that are carried out: not those for type checkers alone."""

    def __init__(self):
        self.nodes = []

    def visit_Import(self, node):
        self.nodes.append(node)

    visit_ImportFrom = visit_Import

    def visit_If(self, node):
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)


def long_functions_and_classes(tree):
    found = []
    for name, module in tree.nodes.items():
        lines = code(tree.sources[name], docstrings(module))
        for node, n in too_long(module, lines):
            found.append(f"{tree.paths[name]}:{node.lineno}: {node.name} has {n} lines of code")
    return found


def homeless_modules(tree):
    return [str(tree.paths[name]) for name in tree.sources if name.split(".")[0] not in DEPTH]


def upward_imports(tree):
    found = {}
    for name in tree.sources:
        for line, target in tree.imports(name):
            here, there = name.split(".")[0], target.split(".")[0]
            is_upward = here in DEPTH and there in DEPTH and DEPTH[there] < DEPTH[here]
            # Data know of nothing, not even of what stands beside them.
            if is_upward or "datasets" == here != there:
                found[f"{tree.paths[name]}:{line}: {here} imports {there}"] = None
    return list(found)


def import_circles(tree):
    graph = {name: {target for _, target in tree.imports(name)} for name in tree.sources}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def diaries(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{tree.paths[name]}:{getattr(node, 'lineno', 1)}"
        for name in tree.sources
        for node in ast.walk(tree.nodes[name])
        if isinstance(node, kinds) and DIARY.lower() in (ast.get_docstring(node) or "").lower()
    ]


def caches_of_their_own(tree):
    return [
        f"{tree.paths[name]}:{node.lineno}"
        for name in tree.sources
        for node in ast.walk(tree.nodes[name])
        if name != CACHING_MODULE
        and isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in COMPILERS
        and any(keyword.arg == "cache" for keyword in node.keywords)
    ]


def arrays_assigned_to_slices(tree):
    """numba compiles an error message for each: four seconds of a first run. Loops are free."""
    return [
        f"{tree.paths[name]}:{node.lineno}"
        for name in tree.sources
        for function in ast.walk(tree.nodes[name])
        if isinstance(function, ast.FunctionDef) and is_compiled(function)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AugAssign)
        and not isinstance(node.value, ast.Constant | ast.Attribute)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Subscript)
        and any(isinstance(part, ast.Slice) for part in ast.walk(target.slice))
    ]


def is_compiled(function):
    return any(
        getattr(name, "attr", getattr(name, "id", None)) in DECORATORS
        for decorator in function.decorator_list
        for name in [getattr(decorator, "func", decorator)]
    )


CHECKS = (
    long_functions_and_classes,
    homeless_modules,
    upward_imports,
    import_circles,
    diaries,
    caches_of_their_own,
    arrays_assigned_to_slices,
)


@pytest.fixture(scope="module")
def package():
    return Tree(PACKAGE)


@pytest.mark.parametrize("check", CHECKS)
def test_the_package(package, check):
    found = check(package)
    assert not found, "\n" + "\n".join(found)


def test_the_package_is_read(package):
    assert {"__init__", "steps.kmc", "surrogates", "datasets"} <= set(package.sources)
    assert {"notebook", "runs"} <= {t for _, t in package.imports("diagnostics")}


def of_length(head, n):
    """Return source whose first line, `head`, has n - 1 more lines of code."""
    return head + "    x = 0\n" * (n - 1)


# A package without fault, and one change to it at a time.
GOOD = {
    "__init__.py": "from pymc_kmc import datasets\nfrom pymc_kmc.steps import KMC\n",
    "advice.py": "from pymc_kmc.diagnostics import diagnose\n",
    "diagnostics.py": "def diagnose():\n    '''Say what limits.'''\n",
    "steps/__init__.py": "from .kmc import KMC\n",
    "steps/base.py": "import numpy\n",
    "steps/kmc.py": "from pymc_kmc.moves import walk\nfrom pymc_kmc.steps.base import Step\n",
    "moves/__init__.py": "",
    "moves/walk.py": "from pymc_kmc.numerics.jit import njit\n\n@njit(error_model='numpy')\n"
    "def move():\n    pass\n",
    "numerics/__init__.py": "",
    "numerics/jit.py": "import numba\n\ndef njit(f):\n    return numba.njit(cache=True)(f)\n",
    "datasets/__init__.py": "from ._glass import load\n",
    "datasets/_glass.py": of_length("def load():\n    'Return it.'\n\n", 50)
    + of_length("class Glass:\n", 250),
}


def write(folder, **changes):
    folder = folder / "pymc_kmc"
    for name, source in (GOOD | changes).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return Tree(folder)


def test_a_good_package_passes(tmp_path):
    tree = write(tmp_path)
    assert [check(tree) for check in CHECKS] == [[]] * len(CHECKS)


@pytest.mark.parametrize(
    ("check", "name", "source", "found"),
    [
        (
            long_functions_and_classes,
            "steps/base.py",
            of_length("class A:\n    def f(self):\n        pass\n\n", 249),
            "steps/base.py:1: A has 251 lines of code",
        ),
        (
            long_functions_and_classes,
            "steps/base.py",
            "import numpy\n\n" + of_length("def f():\n", 51),
            "steps/base.py:3: f has 51 lines of code",
        ),
        (homeless_modules, "helpers.py", "", "helpers.py"),
        (homeless_modules, "attic/box.py", "", "attic/box.py"),
        (
            upward_imports,
            "moves/walk.py",
            "from pymc_kmc.steps.base import Step\n",
            "moves/walk.py:1: moves imports steps",
        ),
        (
            upward_imports,
            "moves/walk.py",
            "def move():\n    from pymc_kmc.steps import base\n",
            "moves/walk.py:2: moves imports steps",
        ),
        (
            upward_imports,
            "numerics/jit.py",
            "class A:\n    def f(self):\n        import pymc_kmc.moves.walk\n",
            "numerics/jit.py:3: numerics imports moves",
        ),
        (
            upward_imports,
            "numerics/jit.py",
            "from ..moves import walk\n",
            "numerics/jit.py:1: numerics imports moves",
        ),
        (
            upward_imports,
            "steps/base.py",
            "import pymc_kmc\n",
            "steps/base.py:1: steps imports __init__",
        ),
        (
            upward_imports,
            "datasets/_glass.py",
            "from pymc_kmc import _compat\n",
            "datasets/_glass.py:1: datasets imports _compat",
        ),
        (
            import_circles,
            "steps/base.py",
            "def f():\n    from pymc_kmc.steps.kmc import KMC\n",
            "steps.base <- steps.kmc <- steps.base",
        ),
        (
            import_circles,
            "diagnostics.py",
            "from . import advice\n",
            "advice <- diagnostics <- advice",
        ),
        (diaries, "steps/base.py", '"""A step.\n\nWhat was tried\n---\n"""\n', "steps/base.py:1"),
        (
            diaries,
            "steps/base.py",
            'def f():\n    """F.\n\n    What was tried: all.\n    """\n',
            "steps/base.py:1",
        ),
        (
            caches_of_their_own,
            "moves/walk.py",
            "import numba\n\n@numba.njit(cache=True)\ndef f():\n    pass\n",
            "moves/walk.py:3",
        ),
        (
            caches_of_their_own,
            "moves/walk.py",
            "from numba import njit\nf = njit(\n    parallel=True,\n    cache=True,\n)\n",
            "moves/walk.py:2",
        ),
        (
            arrays_assigned_to_slices,
            "moves/walk.py",
            "@njit(error_model='numpy')\ndef f(a, b):\n    a[:] = 0.0\n    a[1:] += b\n",
            "moves/walk.py:4",
        ),
    ],
)
def test_each_check_can_fail(tmp_path, check, name, source, found):
    tree = write(tmp_path, **{"_compat.py": "", name: source})
    (line,) = check(tree)
    assert set(line.split(" <- ")) == set(found.split(" <- "))


def test_imports_for_type_checkers_do_not_count(tmp_path):
    source = "if TYPE_CHECKING:\n    from pymc_kmc.steps.base import Step\n"
    tree = write(tmp_path, **{"moves/walk.py": source})
    assert upward_imports(tree) == import_circles(tree) == []


def test_no_public_name_hides_a_module():
    """Else pytest and a reader's import of the module find a function."""
    for info in pkgutil.walk_packages(pymc_kmc.__path__, "pymc_kmc."):
        module = import_module(info.name)
        package, _, name = info.name.rpartition(".")
        assert getattr(import_module(package), name) is module, info.name
