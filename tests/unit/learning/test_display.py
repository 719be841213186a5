"""Signs of life while code is compiled."""

from io import StringIO

import numba
import pytest
from rich.console import Console

from pymc_kmc.learning import display


def compile_two():
    """Compile a function that calls another."""

    @numba.njit
    def inner(x):
        return x + 1

    @numba.njit
    def outer(x):
        return 2 * inner(x)

    return outer(3)


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
