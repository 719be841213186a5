"""How large the package is: lines of code and of docstrings, files, numeric constants.

    python -m examples.benchmarks.size             # a line a folder, and the whole
    python -m examples.benchmarks.size --files     # a line a file
    python -m examples.benchmarks.size --entered   # the files that an iteration enters

A line of code is one with a token that is neither a comment nor part of a docstring. A numeric
constant is a name in capitals that a module or class assigns numbers to; several on one line count
each. The files entered are those of which a Python function runs, in a hundred iterations of tuning
with KMC(learn=False), and in a hundred draws with KMC(learned); compiled code isn't seen.
"""

import argparse
import ast
import io
import sys
import tokenize
import warnings
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pymc_kmc"
WITHOUT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FIGURES = ("files", "code", "docstrings", "constants", "functions > 50", "classes > 250")
LONGEST_FUNCTION, LONGEST_CLASS = 50, 250  # lines of code


def docstrings(tree):
    """Return the line numbers of all docstrings."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None:
                lines.update(range(first.lineno, first.end_lineno + 1))
    return lines


def code(text, without):
    """Return the line numbers of code."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in WITHOUT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - without


def too_long(tree, lines):
    """Return (node, length) of each function and class that has too many of these lines of code."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            most = LONGEST_CLASS if isinstance(node, ast.ClassDef) else LONGEST_FUNCTION
            length = len(lines.intersection(range(node.lineno, node.end_lineno + 1)))
            if length > most:
                found.append((node, length))
    return found


def is_number(node):
    """Say whether an expression is made of numbers."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) or is_number(node.right)
    if isinstance(node, ast.Tuple | ast.List):
        return bool(node.elts) and all(is_number(element) for element in node.elts)
    return False


def constants(tree):
    """Return the names of numeric constants."""
    found = []
    for body in [tree.body, *(n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]:
        for statement in body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            for target in targets:
                values = [(target, statement.value)]
                if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                    values = zip(target.elts, statement.value.elts, strict=True)
                for name, value in values:
                    if isinstance(name, ast.Name) and name.id.isupper() and is_number(value):
                        found.append(name.id)
    return found


def of_file(path):
    """Count what one file has, a Counter of FIGURES."""
    text = path.read_text()
    tree = ast.parse(text)
    said = docstrings(tree)
    lines = code(text, said)
    figures = Counter(files=1, code=len(lines), docstrings=len(said))
    figures["constants"] = len(constants(tree))
    for node, _ in too_long(tree, lines):
        figures["classes > 250" if isinstance(node, ast.ClassDef) else "functions > 50"] += 1
    return figures


def posterior():
    """Return a model of one curve, a black box of two parameters."""
    import numpy as np
    import pymc as pm

    import pymc_kmc as kmc

    times = np.arange(1.0, 6.0)
    with pm.Model() as model:
        size, rate = pm.LogNormal("size"), pm.LogNormal("rate")
        curve = kmc.BlackBox("curve", lambda a, b: a * np.exp(-b * times), size, rate, shape=(5,))
        pm.Normal("y", curve, 0.1, observed=2.0 * np.exp(-0.5 * times))
    return model


def entered(make, n_before, n=100, tune=True):
    """Return the names of the package's files that n iterations of a step enter.

    Parameters
    ----------
    make : callable
        Returns the step, in the context of a model.
    n_before, n : int
        Iterations that are not looked at, and those that are.
    tune : bool
        Whether the latter are of tuning.
    """
    found = set()

    def look(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found.add(str(path.relative_to(PACKAGE)))

    with posterior() as model:
        step = make()
        step.set_rng(1)
        point = model.initial_point()
        for i in range(n_before + n):
            if i == n_before:
                if not tune:
                    step.stop_tuning()
                sys.setprofile(look)
            point, _ = step.step(point)
        sys.setprofile(None)
    return sorted(found)


def print_entered():
    import pymc_kmc as kmc

    warnings.simplefilter("ignore")
    learned = kmc.learn(posterior(), progressbar=False)
    for name, files in (
        ("tuning with KMC(learn=False)", entered(lambda: kmc.KMC(learn=False), 400)),
        ("draws with KMC(learned)", entered(lambda: kmc.KMC(learned), 50, tune=False)),
    ):
        print(f"{name}: {len(files)} files")
        print(*[f"  {file}" for file in files], sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="a line a file")
    parser.add_argument("--entered", action="store_true", help="the files an iteration enters")
    arguments = parser.parse_args()
    if arguments.entered:
        print_entered()
        return
    by_file = arguments.files
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        name = str(place if by_file else place.parent)
        found[name] = found.get(name, Counter()) + of_file(path)
    found["all"] = sum(found.values(), Counter())
    width = max(map(len, found))
    print(" " * width, *FIGURES, sep="  ")
    for name, figures in found.items():
        print(name.ljust(width), *[str(figures[f]).rjust(len(f)) for f in FIGURES], sep="  ")


if __name__ == "__main__":
    main()
