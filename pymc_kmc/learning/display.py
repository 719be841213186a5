"""The progress line of learning, and the line that names functions while they are compiled."""

import logging
from contextlib import suppress
from importlib.util import find_spec

from numba.core import event
from rich import get_console
from rich.errors import LiveError
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_kmc.numerics.jit import is_announced

# PyMC's logger has a handler, and its level.
log = logging.getLogger("pymc.pymc_kmc")

# The last phase.
DONE = "Learned"


def can_be_renewed():
    """Say whether an output line can be updated; in notebooks rich needs ipywidgets."""
    return not get_console().is_jupyter or find_spec("ipywidgets") is not None


def _line(shows, **options):
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        disable=not (shows and can_be_renewed()),
        **options,
    )


class Display:
    """The progress line of learning: phase, evaluations, best log density, error and time."""

    def __init__(self, shows, run):
        self.progress, self.run = _line(shows), run

    def __enter__(self):
        self.progress.start()
        self.task = self.progress.add_task("Searching", figures="", total=1)
        return self

    def __exit__(self, *error):
        self.progress.stop()

    def say(self, phase, evaluations=None, error=None):
        figures = ""
        if evaluations is not None:
            most = "" if phase == DONE else f" of max {self.run.limit}"
            best = evaluations.log_densities.max()
            figures = f"{len(evaluations)}{most} evaluations, best {best:.1f}"
        if error is not None:
            figures += f", error {error:.2g}"
        if phase == DONE:
            figures += " nats, in"
        self.progress.update(
            self.task, description=phase, figures=figures, completed=int(phase == DONE)
        )


class Compiling(event.Listener):
    """A temporary line with the function being compiled and the number of those before.

    The total is unknown: numba finds functions while it compiles, and cached ones take no time.
    """

    def __init__(self):
        self._shows = is_announced() and get_console().is_terminal
        self.progress = _line(self._shows, transient=True)
        self.task, self.n_compiled, self._names = None, 0, []

    def __enter__(self):
        if self._shows:
            event.register("numba:compile", self)
        return self

    def __exit__(self, *error):
        if self._shows:
            event.unregister("numba:compile", self)
            self.progress.stop()

    def on_start(self, event):
        self._names.append(event.data["dispatcher"].py_func.__name__)
        if self.task is None:
            self.task = self.progress.add_task("Compiling", figures="", total=None)
            with suppress(LiveError):  # somebody else's line is being shown
                self.progress.start()
        self._say()

    def on_end(self, event):
        self._names.pop()
        self.n_compiled += 1
        self._say()

    def _say(self):
        name = self._names[-1] if self._names else "the rest"
        self.progress.update(self.task, figures=f"function {self.n_compiled + 1}, {name}")
