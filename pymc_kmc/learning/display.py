"""Signs of life: what learning is at, and what is compiled after it."""

from contextlib import suppress
from importlib.util import find_spec

from numba.core import event
from rich import get_console
from rich.errors import LiveError
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_kmc.numerics.jit import is_announced

# What it says last.
DONE = "Learned"


def can_be_renewed():
    """Say whether a line of output can be: rich warns about notebooks without ipywidgets."""
    return not get_console().is_jupyter or find_spec("ipywidgets") is not None


def _line(shows, **options):
    """Return a progress bar of one line: a spinner, what is done, figures, the time so far."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        disable=not (shows and can_be_renewed()),
        **options,
    )


class Display:
    """The line of learning: phase, evaluations, best log density, error, and the time so far.

    How long it will take is not known before it ends, and therefore not said.

    Parameters
    ----------
    shows : bool
    run : object
        What learns, with the `limit` of all evaluations.
    """

    def __init__(self, shows, run):
        self.progress, self.run = _line(shows), run

    def __enter__(self):
        self.progress.start()
        self.task = self.progress.add_task("Searching", figures="", total=1)
        return self

    def __exit__(self, *error):
        self.progress.stop()

    def say(self, phase, evaluations=None, error=None):
        """Tell a phase of learning, all evaluations so far, and the error at new draws in nats."""
        figures = ""
        if evaluations is not None:
            most = "" if phase == DONE else f" of at most {self.run.limit}"
            best = evaluations.log_densities.max()
            figures = f"{len(evaluations)}{most} evaluations, best {best:.1f}"
        if error is not None:
            figures += f", error {error:.2g} nats"
        if phase == DONE:
            figures += ", in"
        self.progress.update(
            self.task, description=phase, figures=figures, completed=int(phase == DONE)
        )


class Compiling(event.Listener):
    """A line, within its context, that says which function is being compiled; then it vanishes.

    How many are to come isn't known: numba finds the next one while it compiles, and those that are
    on disk take no time.

    Attributes
    ----------
    n_compiled : int
        Functions so far.
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
        """Called by numba when it begins with a function."""
        self._names.append(event.data["dispatcher"].py_func.__name__)
        if self.task is None:
            self.task = self.progress.add_task("Compiling", figures="", total=None)
            with suppress(LiveError):  # somebody else's line is being shown
                self.progress.start()
        self._say()

    def on_end(self, event):
        """Called by numba when it has compiled a function."""
        self._names.pop()
        self.n_compiled += 1
        self._say()

    def _say(self):
        name = self._names[-1] if self._names else "the rest"
        self.progress.update(self.task, figures=f"function {self.n_compiled + 1}, {name}")
