"""The progress bar of learning: phase, evaluations, best log density, error, time left."""

from importlib.util import find_spec

from rich import get_console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

# What it says last.
DONE = "Learned"


def can_be_renewed():
    """Say whether a line of output can be: rich warns about notebooks without ipywidgets."""
    return not get_console().is_jupyter or find_spec("ipywidgets") is not None


class Display:
    """The progress bar; the time left is what all evaluations would take.

    Parameters
    ----------
    shows : bool
    run : object
        What learns: with the `evaluations` that are known before, or None, and the `limit` of all.
    """

    def __init__(self, shows, run):
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            disable=not (shows and can_be_renewed()),
        )
        self.n_known = 0 if run.evaluations is None else len(run.evaluations)
        self.run = run

    @property
    def most(self):
        """Most evaluations that are to be made."""
        return max(self.run.limit - self.n_known, 0)

    def __enter__(self):
        self.progress.start()
        self.task = self.progress.add_task("Arriving", total=self.most, figures="")
        return self

    def __exit__(self, *error):
        self.progress.stop()

    def say(self, phase, evaluations=None, error=None):
        """Tell a phase of learning, all evaluations so far, and the error at new draws in nats."""
        done, total, figures = 0, self.most, ""
        if evaluations is not None:
            best = evaluations.log_densities.max()
            figures = f"{len(evaluations)} evaluations, best {best:.1f}"
            done = len(evaluations) - self.n_known
        if error is not None:
            figures += f", error {error:.2g} nats"
        if phase == DONE:
            total, figures = done, f"{figures}, in"
        elif figures:
            figures += ", left at most"
        self.progress.update(
            self.task, description=phase, figures=figures, completed=done, total=total
        )
