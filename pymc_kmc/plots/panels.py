"""Panels to draw in, and the values that all plots return."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from pymc_kmc._compat import as_arviz_plot
from pymc_kmc.numerics.checks import check_count
from pymc_kmc.runs import Run


class Panels:
    """The axes of a picture, by the names of its panels.

    `layout` and `options` are those of `matplotlib.pyplot.subplot_mosaic`, `figsize` is in inches.
    `ax`, if given, has one of the axes to draw in for each name, else a ValueError is raised;
    `is_own` says that the figure was made here.
    """

    def __init__(self, names, layout, figsize, ax=None, **options):
        self.is_own = ax is None
        if ax is None:
            self.figure, axes = plt.subplot_mosaic(
                layout, figsize=figsize, layout="constrained", **options
            )
            self.axes = {name: axes[name] for name in names}
        else:
            given = np.ravel(np.asarray(ax, dtype=object))
            if len(given) != len(names):
                raise ValueError(
                    f"ax has {len(given)} axes; this picture has {len(names)} panels: "
                    f"{', '.join(names)}."
                )
            self.axes = dict(zip(names, given, strict=True))
            self.figure = given[0].figure
        self.data = {}

    def __getitem__(self, name):
        return self.axes[name]

    def show(self, name, dims, values, **coords):
        """Store a panel's values: the variable of that name in the result's data."""
        self.data[name] = xr.DataArray(np.asarray(values), dims=dims, coords=coords)

    def result(self):
        """Return what ArviZ's plots return."""
        return as_arviz_plot(self.figure, self.axes, xr.Dataset(self.data))


def run_values(run, name, step=0):
    """Return a statistic along the whole run, (chain, iteration), and the number of tuning ones."""
    values = np.concatenate([phase.values(name)[:, :, step] for phase in run.phases], axis=1)
    return values, 0 if run.tuning is None else run.tuning.shape[1]


def check_step(run, step):
    """Return `step` if the run has so many of this package's steps, or raise a ValueError."""
    n_steps = run.sampling.shape[2]
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not 0 <= step < n_steps:
        raise ValueError(
            f"step={step!r} must be from 0 to {n_steps - 1}: the run has {n_steps} of this "
            "package's steps, counted in the order in which they were given."
        )
    return step


def draws_of(run: Run, var_names=None, coords=None):
    """Return the draws along the whole run, (chain, iteration, element), and the elements' names.

    By default they are of all variables; `coords` restricts their coordinates.
    """
    names = [var_names] if isinstance(var_names, str) else var_names
    columns, labels = [], []
    available = list(run.sampling.posterior.data_vars)
    for name in names or available:
        if name not in available:
            raise ValueError(f"var_names has {name!r}; idata has {', '.join(available)}.")
        parts = []
        for phase in run.phases:
            values = phase.posterior[name]
            chosen = {k: np.atleast_1d(v) for k, v in (coords or {}).items() if k in values.dims}
            parts.append(values.sel(chosen))
        shape = parts[0].shape[2:]
        columns.append(np.concatenate([p.values.reshape(*p.shape[:2], -1) for p in parts], axis=1))
        if shape:
            labels += [f"{name}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)]
        else:
            labels.append(name)
    unknown = set(coords or {}) - set(run.sampling.posterior.dims)
    if unknown:
        raise ValueError(f"coords has {sorted(unknown)}, which idata's variables don't have.")
    return np.concatenate(columns, axis=2), labels


def mark_tuning(ax, n_tuning, label=True):
    if n_tuning:
        ax.axvspan(0, n_tuning, color="0.5", alpha=0.15, lw=0, label="tuning" if label else None)


def bins(n_iterations, n_bins):
    """Return the ends of `n_bins` or fewer equal intervals of iterations, an array of int."""
    n_bins = min(check_count(n_bins, "n_bins"), n_iterations)
    return np.unique(np.linspace(0, n_iterations, n_bins + 1).astype(int))
