"""Panels of pictures, a run's draws, and coordinates with their names."""

from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pytensor
import xarray as xr

from pymc_kmc._compat import as_arviz_plot
from pymc_kmc.notebook import element_names
from pymc_kmc.numerics.checks import check_count
from pymc_kmc.runs import Run
from pymc_kmc.steps.base import AdaptiveStep


class Panels:
    """The axes of a picture by its panels' names; `is_own` if the figure was made here.

    `layout` and `options` are those of `matplotlib.pyplot.subplot_mosaic`, `figsize` is in inches.
    `ax`, if given, has the axes to draw in; a ValueError says that their number is wrong.
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
        self.data[name] = xr.DataArray(np.asarray(values), dims=dims, coords=coords)

    def result(self):
        for ax in self.axes.values():
            ax.title.set_fontsize("medium")
        return as_arviz_plot(self.figure, self.axes, xr.Dataset(self.data))


def run_values(run, name, step=0):
    """Return a statistic along the whole run, (chain, iteration), and the number of tuning ones."""
    values = np.concatenate([phase.values(name)[:, :, step] for phase in run.phases], axis=1)
    return values, 0 if run.tuning is None else run.tuning.shape[1]


def check_step(run, step):
    """Return `step` if it is the number of one of the run's steps, or raise a ValueError."""
    n_steps = run.sampling.shape[2]
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not 0 <= step < n_steps:
        raise ValueError(
            f"step={step!r} must be from 0 to {n_steps - 1}: the run has {n_steps} of this "
            "package's steps, counted in the order in which they were given."
        )
    return step


def draws_of(run: Run, var_names=None, coords=None):
    """Return the run's draws (chain, iteration, element), tuning included, and elements' names."""
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
        labels += element_names(name, shape)
    unknown = set(coords or {}) - set(run.sampling.posterior.dims)
    if unknown:
        raise ValueError(f"coords has {sorted(unknown)}, which idata's variables don't have.")
    return np.concatenate(columns, axis=2), labels


def mark_tuning(ax, n_tuning, label=True):
    if n_tuning:
        ax.axvspan(0, n_tuning, color="0.5", alpha=0.15, lw=0, label="tuning" if label else None)


def bins(n_iterations, n_bins):
    """Return the ends of at most `n_bins` equal intervals of iterations, an array of int."""
    n_bins = min(check_count(n_bins, "n_bins"), n_iterations)
    return np.unique(np.linspace(0, n_iterations, n_bins + 1).astype(int))


# Most draws that are shown, evenly taken from all: transforming one costs a call of a function.
MOST_DRAWS = 1000
# Dimension of draws of all chains: a name that no dimension of a model has.
STACKED = "pymc_kmc draw"


class Element(NamedTuple):
    """One coordinate of a variable: its axis label, and its `coords` by the names of dimensions."""

    variable: str
    label: str
    coords: dict


def elements_of(source, n_dimensions):
    """Return a step's coordinates as a list of :class:`Element`; a surrogate's have numbers."""
    if not isinstance(source, AdaptiveStep):
        return [Element(f"x{i}", f"x{i}", {}) for i in range(n_dimensions)]
    found, target = [], source.target
    model = target.model
    point = model.initial_point()
    for variable, name in zip(source.vars, target.names, strict=True):
        rv = model.values_to_rvs[variable]
        transform = model.rvs_to_transforms[rv]
        suffix = "" if transform is None else f" ({transform.name})"
        shape = np.shape(point[name])
        dims = model.named_vars_to_dims.get(rv.name) or [None] * len(shape)
        for index in np.ndindex(*shape):
            names, coords = [], {}
            for dim, i in zip(dims, index, strict=True):
                values = model.coords.get(dim)
                # A transform may have changed the length.
                is_same = values is not None and (transform is None or i < len(values))
                names.append(str(values[i]) if is_same else str(i))
                if dim is not None:
                    coords[dim] = values[i] if is_same else i
            label = f"{rv.name}[{', '.join(names)}]" if names else rv.name
            found.append(Element(rv.name, label + suffix, coords))
    return found


def choose(elements, var_names, coords, n_needed):
    """Return a list of the indices of chosen elements; a ValueError if fewer than `n_needed`."""
    known = {element.variable for element in elements}
    names = [var_names] if isinstance(var_names, str) else var_names
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"var_names has {unknown[0]!r}; there are {', '.join(sorted(known))}.")
    dims = {dim for element in elements for dim in element.coords}
    strange = sorted(set(coords or {}) - dims)
    if strange:
        raise ValueError(f"coords has {strange}; the dimensions are {sorted(dims)}.")
    chosen = []
    for name in names or dict.fromkeys(element.variable for element in elements):
        for i, element in enumerate(elements):
            wanted = element.variable == name and all(
                element.coords[dim] in np.atleast_1d(values)
                for dim, values in (coords or {}).items()
                if dim in element.coords
            )
            if wanted:
                chosen.append(i)
    if len(chosen) < n_needed:
        raise ValueError(
            f"var_names={var_names!r} and coords={coords!r} choose {len(chosen)} coordinate(s); "
            f"this picture needs {n_needed} of {', '.join(e.label for e in elements)}."
        )
    return chosen


def positions_of(source: Any, idata: Any, n_dimensions: int) -> np.ndarray:
    """Return at most 1000 draws (n, d) in the coordinates of a step or a surrogate.

    With a surrogate the draws must have its coordinates already: no transforms.
    """
    run = Run.of(idata)
    posterior = run.sampling.posterior
    if not isinstance(source, AdaptiveStep):
        draws, labels = draws_of(Run(run.sampling, None))
        if len(labels) != n_dimensions:
            raise ValueError(
                f"idata has {len(labels)} values a draw ({', '.join(labels[:6])}, ...) and the "
                f"surrogate {n_dimensions} coordinates: pass the step that sampled in its place."
            )
        return _thinned(draws.reshape(-1, n_dimensions))
    model = source.target.model
    names = {variable.name for variable in (*model.free_RVs, *source.vars)}
    stacked = posterior[[name for name in posterior.data_vars if name in names]].stack(
        {STACKED: ("chain", "draw")}
    )
    thinned = stacked.isel({STACKED: _thinned(np.arange(stacked.sizes[STACKED]))})
    return np.column_stack([_unconstrained(source, v, thinned) for v in source.vars])


def _thinned(rows):
    return rows[:: -(-len(rows) // MOST_DRAWS)]


def _unconstrained(step, variable, draws: xr.Dataset):
    model = step.target.model
    rv = model.values_to_rvs[variable]
    transform = model.rvs_to_transforms[rv]
    name = variable.name if variable.name in draws else rv.name
    if name not in draws:
        raise ValueError(f"idata has no draws of {rv.name!r}, which the step samples.")
    values = draws[name].transpose(STACKED, ...).values
    if transform is None or name == variable.name:
        return values.reshape(len(values), -1)
    # Bounds of an interval, say, may depend on other variables.
    others = [other for other in model.free_RVs if other.name in draws]
    transformed = transform.forward(rv, *rv.owner.inputs)
    function = pytensor.function(others, transformed, on_unused_input="ignore", mode="FAST_COMPILE")
    columns = [
        np.asarray(draws[other.name].transpose(STACKED, ...).values, dtype=other.dtype)
        for other in others
    ]
    return np.array([np.ravel(function(*row)) for row in zip(*columns, strict=True)])
