"""The unconstrained coordinates of a step or a surrogate: names, choice, draws."""

from typing import Any, NamedTuple

import numpy as np
import pytensor
import xarray as xr

from pymc_kmc.plots.panels import draws_of
from pymc_kmc.runs import Run
from pymc_kmc.steps.base import AdaptiveStep

# Largest number of draws that are brought to unconstrained coordinates, evenly taken from all.
MOST_DRAWS = 1000


class Element(NamedTuple):
    """One coordinate of a model's variable.

    `label` is the text at its axis; `coords` are its coordinates by the names of the variable's
    dimensions.
    """

    variable: str
    label: str
    coords: dict


def elements_of(source, n_dimensions):
    """Return the coordinates' :class:`Element` s of a step; of a surrogate's, just numbers."""
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
    """Return the indices of the chosen elements, a list of at least `n_needed`.

    Raises a ValueError if there are fewer, or a name is unknown.
    """
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
    """Return draws in the coordinates of a step or a surrogate, (n, d), at most 1000.

    With a surrogate, the draws must have its coordinates already: no transforms.
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
    thinned = posterior.stack(sample=("chain", "draw"))
    n = thinned.sizes["sample"]
    thinned = thinned.isel(sample=np.arange(0, n, -(-n // MOST_DRAWS)))
    return np.column_stack([_unconstrained(source, v, thinned) for v in source.vars])


def _thinned(rows):
    return rows[:: -(-len(rows) // MOST_DRAWS)]


def _unconstrained(step, variable, draws: xr.Dataset):
    """Return the draws (n, k) of a value variable."""
    model = step.target.model
    rv = model.values_to_rvs[variable]
    transform = model.rvs_to_transforms[rv]
    name = variable.name if variable.name in draws else rv.name
    if name not in draws:
        raise ValueError(f"idata has no draws of {rv.name!r}, which the step samples.")
    values = draws[name].transpose("sample", ...).values
    if transform is None or name == variable.name:
        return values.reshape(len(values), -1)
    # Bounds of an interval, say, may depend on other variables.
    others = [other for other in model.free_RVs if other.name in draws]
    transformed = transform.forward(rv, *rv.owner.inputs)
    function = pytensor.function(others, transformed, on_unused_input="ignore", mode="FAST_COMPILE")
    columns = [
        np.asarray(draws[other.name].transpose("sample", ...).values, dtype=other.dtype)
        for other in others
    ]
    return np.array([np.ravel(function(*row)) for row in zip(*columns, strict=True)])
