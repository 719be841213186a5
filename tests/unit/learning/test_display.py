"""Signs of life while code is compiled."""

from io import StringIO
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from rich.console import Console

from pymc_kmc.learning import display
from pymc_kmc.model.evaluations import Evaluations


def compile_two():
    """Compile a function that calls another."""

    @numba.njit
    def inner(x):
        return x + 1

    @numba.njit
    def outer(x):
        return 2 * inner(x)

    return outer(3)


def test_learning_says_all_in_80_characters(monkeypatch):
    """With as many evaluations, as deep and as wrong as a user may see."""
    console = Console(file=StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    values = np.full(11_084, -123456.78)
    evaluations = Evaluations(("x",), *3 * [values[:, None]], values, values)
    with display.Display(True, SimpleNamespace(limit=11_980)) as line:
        line.say("Learning", evaluations, 1234.5)
        line.progress.refresh()
    last = console.file.getvalue()
    assert "11084 of max 11980 evaluations, best -123456.8, error 1.2e+03 0:00:0" in last


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_compiled_is_shown_on_a_terminal_alone(is_terminal, monkeypatch):
    output = StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=80)
    monkeypatch.setattr(display, "get_console", lambda: console)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with display.Compiling() as compiling:
        assert compile_two() == 8
        if is_terminal:
            compiling.progress.refresh()
    assert compiling.n_compiled == 2 * is_terminal
    assert ("Compiling" in output.getvalue()) == is_terminal
    assert ("function 3, the rest" in output.getvalue()) == is_terminal
    compile_two()  # nobody listens any more
    assert compiling.n_compiled == 2 * is_terminal


def test_beside_a_line_of_somebody_else_nothing_fails(monkeypatch):
    console = Console(file=StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(display, "get_console", lambda: console)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with console.status("Something else"), display.Compiling():
        assert compile_two() == 8


def test_nothing_is_shown_where_the_logger_was_silenced(monkeypatch):
    console = Console(file=StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(display, "get_console", lambda: console)
    monkeypatch.setattr(display, "is_announced", lambda: False)
    with display.Compiling() as compiling:
        compile_two()
    assert compiling.n_compiled == 0
