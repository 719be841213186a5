"""How a figure or table is made: runs with a progress bar, a CSV to go on from, a table, a PNG."""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from examples.benchmarks.targets import markdown


class Experiment(NamedTuple):
    """A figure or table of a paper.

    Attributes
    ----------
    name, about : str
        What the command line and the files call it, and a line of help.
    settings : callable
        ``settings(quick, seeds)`` is a list of dictionaries with the same keys, one a run.
    run : callable
        ``run(**setting)`` returns the run's results, a list of dictionaries.
    table : callable
        ``table(results)`` makes a table of strings from all results and their settings.
    draw : callable
        ``draw(results, figure)``.
    seeds : int
        Number of seeds by default.
    size : tuple of float
        The figure's, in inches.
    runs : str, optional
        Name of the CSV, for experiments that share their runs; by default `name`.
    """

    name: str
    about: str
    settings: Callable
    run: Callable
    table: Callable
    draw: Callable
    seeds: int
    size: tuple = (8.0, 4.0)
    runs: str | None = None


def execute(experiment, folder, quick=False, seeds=None):
    """Make what is missing, write `folder`/NAME.csv and .png, and print the table."""
    settings = experiment.settings(quick, seeds or (1 if quick else experiment.seeds))
    path = folder / f"{experiment.runs or experiment.name}.csv"
    known = pd.read_csv(path) if path.exists() else pd.DataFrame()
    done = set(map(tuple, _keys(known, settings)))
    missing = [setting for setting in settings if tuple(map(str, setting.values())) not in done]
    folder.mkdir(parents=True, exist_ok=True)
    for setting in track(missing, experiment.name, console=Console(stderr=True)):
        rows = pd.DataFrame([setting | row for row in experiment.run(**setting)])
        known = pd.concat([known, rows], ignore_index=True)
        # A run that is interrupted while it writes leaves the file as it was.
        known.to_csv(path.with_suffix(".new"), index=False, float_format="%.6g")
        path.with_suffix(".new").replace(path)
    known = pd.read_csv(path)
    wanted = {tuple(map(str, setting.values())) for setting in settings}
    results = known[[tuple(key) in wanted for key in _keys(known, settings)]]
    table = experiment.table(results)
    print(markdown(list(table.columns), table.astype(str).to_numpy().tolist()))
    figure = Figure(figsize=experiment.size, layout="constrained")
    experiment.draw(results, figure)
    picture = folder / f"{experiment.name}.png"
    figure.savefig(picture, dpi=120)
    print(f"\n{path}\n{picture}")
    return table


def _keys(results, settings):
    """The settings of each row, as strings, (n, k)."""
    if results.empty:
        return []
    return results[list(settings[0])].astype(str).to_numpy()


def averages(results, by, formats):
    """A table of means over all but `by`, +- their standard errors; `formats` by column."""
    groups = results.groupby(by, sort=False)
    table = groups.size().reset_index()[by]
    for column, form in formats.items():
        means, errors = groups[column].mean(), groups[column].sem()
        table[column] = [
            format(mean, form) + (f" +- {format(error, form)}" if error == error else "")
            for mean, error in zip(means, errors, strict=True)
        ]
    return table


def with_published(table, by, published):
    """Add a column with what a paper has, from a dictionary by the value(s) of column(s) `by`."""
    keys = table[by] if isinstance(by, str) else table[by].itertuples(index=False, name=None)
    return table.assign(published=[published.get(key, "") for key in keys])


def lines(axes, results, x, y, by):
    """Draw the mean of y against x, a line for each value of `by`."""
    for name, group in results.groupby(by, sort=False):
        mean = group.groupby(x)[y].mean()
        axes.plot(mean.index, mean, marker="." if len(mean) < 20 else "", label=name)
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["right", "top"]].set_visible(False)
