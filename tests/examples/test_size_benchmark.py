"""Counts of the package's lines."""

import ast

import pymc_kmc as kmc
from examples.benchmarks import size

TEXT = '''"""A module.

Of two lines."""

# A comment.
LIMIT, SHARE = 20, 1 / 3  # units
NAMES = ("a", "b")


class Step:
    """Of one line."""

    GAIN = 0.5

    def move(self, x):
        """Return it."""
        return (
            x + self.GAIN
        )
'''


def test_lines_and_constants_are_counted(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(TEXT)
    figures = size.of_file(path)
    assert figures["docstrings"] == 3 + 1 + 1
    # LIMIT, NAMES, class, GAIN, def, and three of the return.
    assert figures["code"] == 8
    assert size.constants(ast.parse(TEXT)) == ["LIMIT", "SHARE", "GAIN"]


def test_files_that_an_iteration_enters_are_named():
    files = size.entered(kmc.AdaptiveMetropolis, 5, 5)
    assert {"steps/base.py", "steps/metropolis.py", "model/target.py"} <= set(files)
    assert not any(file.startswith(("learning/", "surrogates/")) for file in files)
