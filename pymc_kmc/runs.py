"""Draws and statistics of a run's tuning and sampling, whatever `pm.sample` returned.

An `arviz.InferenceData` (ArviZ 0.x), an `xarray.DataTree` (ArviZ 1.x) and a PyMC `MultiTrace`
(``return_inferencedata=False``) become the same data sets.
"""

import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from pymc.backends.base import MultiTrace
from pymc.util import is_transformed_name

# A statistic that every step of this package reports, and no other step.
OURS = "kmc_accepted"
# ArviZ's names of statistics that differ from PyMC's.
ARVIZ_NAMES = {"model_logp": "lp"}
# Dimensions of everything that a run has drawn.
OF_DRAWS = ("chain", "draw")


@dataclass(frozen=True)
class Phase:
    """Draws and the steps' statistics of tuning or of sampling, with dimensions chain and draw."""

    posterior: xr.Dataset
    statistics: xr.Dataset

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of chains, of iterations and of this package's steps."""
        return self.reported(OURS).shape

    def reported(self, name: str) -> np.ndarray:
        """Return a statistic as (chain, draw, step): PyMC stacks those of several steps."""
        values = np.asarray(self.statistics[name].values)
        return values.reshape(*values.shape[:2], -1)

    def values(self, name: str) -> np.ndarray:
        """Return a statistic as floats (chain, draw, step), NaN where steps don't report it."""
        if name not in self.statistics:
            name = ARVIZ_NAMES.get(name, name)
        if name in self.statistics:
            found = self.reported(name)
            if found.shape == self.shape:
                return found.astype(np.float64)
        return np.full(self.shape, np.nan)


@dataclass(frozen=True)
class Run:
    """A run of this package's steps; `tuning` is None if it was discarded."""

    sampling: Phase
    tuning: Phase | None

    @classmethod
    def of(cls, trace: Any) -> "Run":
        """Convert the result of `pm.sample`; ValueError if it lacks statistics of this package."""
        if isinstance(trace, MultiTrace):
            return _of_multitrace(trace)
        sampling = _phase(trace, "")
        if sampling is None:
            raise ValueError(
                f"idata has no sample statistics of pymc_kmc's steps ({OURS} is missing): pass "
                "what pm.sample(step=kmc.KMC()) returned."
            )
        return cls(sampling, _phase(trace, "warmup_"))

    @staticmethod
    def draws_of(
        trace: Any, name: str = "idata", also: str = "", dims: tuple[str, ...] = OF_DRAWS
    ) -> xr.Dataset:
        """Return the draws, by any step, in a result of `pm.sample` or its group posterior.

        A TypeError says what the argument, called `name`, must be, `also` among other things.
        `dims` are the first dimensions of all draws.
        """
        if isinstance(trace, MultiTrace):
            return _dataset(_draws_in(trace), slice(None))
        is_group = isinstance(trace, xr.Dataset | xr.DataTree) and not {"draw", *dims}.isdisjoint(
            [*trace.dims, *trace.coords]
        )
        posterior = trace if is_group else getattr(trace, "posterior", None)
        if posterior is None:
            raise TypeError(
                f"{name}={reprlib.repr(trace)} must be {also}what pm.sample returned, or its group "
                "posterior."
            )
        return _as_dataset(posterior, dims)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (self.sampling,) if self.tuning is None else (self.tuning, self.sampling)

    def needs_tuning(self, wanted: str) -> Phase:
        """Return the tuning iterations; a ValueError names what needs them, `wanted`."""
        if self.tuning is None:
            raise ValueError(
                f"{wanted} is learned while tuning, and idata has no tuning iterations (PyMC "
                "discards them): sample with pm.sample(..., discard_tuned_samples=False)."
            )
        return self.tuning


def _phase(idata: Any, prefix: str) -> Phase | None:
    statistics = getattr(idata, f"{prefix}sample_stats", None)
    posterior = getattr(idata, f"{prefix}posterior", None)
    if statistics is None or OURS not in statistics:
        return None
    if posterior is None:
        raise ValueError(
            f"idata has no group {prefix}posterior beside {prefix}sample_stats: pass all that "
            "pm.sample returned."
        )
    return Phase(_as_dataset(posterior), _as_dataset(statistics))


def _as_dataset(group: Any, dims: tuple[str, ...] = OF_DRAWS) -> xr.Dataset:
    """Return a group with the dimensions `dims` first, also if one of them was chosen."""
    found = group.to_dataset() if isinstance(group, xr.DataTree) else group
    chosen = [dim for dim in dims if dim in found.coords and dim not in found.dims]
    for dim in chosen:
        if stacked := found.coords[dim].dims:
            raise ValueError(
                f"The draws have {dim} stacked along {stacked[0]!r}: pass what "
                f"posterior.unstack({stacked[0]!r}) returns, or, to PyMC's functions for "
                f"predictions and log likelihoods, sample_dims={list(stacked)}."
            )
    return found.expand_dims(chosen).transpose(*dims, ..., missing_dims="ignore")


def stacked_draws(draws: xr.Dataset, n_dims: int = len(OF_DRAWS)) -> dict[str, np.ndarray]:
    """Return arrays (n, ...) of a data set's draws, those of all chains one after another.

    The first `n_dims` dimensions are those of draws.
    """
    return {
        str(name): np.reshape(values.to_numpy(), (-1, *values.shape[n_dims:]))
        for name, values in draws.items()
    }


def _of_multitrace(trace: MultiTrace) -> Run:
    if OURS not in trace.stat_names:
        raise ValueError(
            f"The MultiTrace has no sample statistics of pymc_kmc's steps ({OURS} is missing): "
            "pass what pm.sample(step=kmc.KMC()) returned."
        )
    n_drawn = getattr(trace.report, "_n_draws", None) or len(trace)
    n_tuned = max(0, len(trace) - n_drawn)
    draws = _draws_in(trace)
    statistics = {
        name: trace.get_sampler_stats(name, combine=False, squeeze=False)
        for name in trace.stat_names
        if name != "warning"
    }
    sampling, tuning = (
        Phase(_dataset(draws, rows), _dataset(statistics, rows))
        for rows in (slice(n_tuned, None), slice(n_tuned))
    )
    return Run(sampling, tuning if n_tuned else None)


def _draws_in(trace: MultiTrace) -> dict[str, list]:
    names = [name for name in trace.varnames if not is_transformed_name(name)]
    return {name: trace.get_values(name, combine=False, squeeze=False) for name in names}


def _dataset(chains_by_name: dict[str, list], iterations: slice) -> xr.Dataset:
    variables = {}
    for name, chains in chains_by_name.items():
        # An interrupted run has a shorter last chain.
        n = min(len(chain) for chain in chains)
        values = np.stack([np.asarray(chain)[:n][iterations] for chain in chains])
        dims = ("chain", "draw", *(f"{name}_dim_{i}" for i in range(values.ndim - 2)))
        variables[name] = (dims, values)
    dataset = xr.Dataset(variables)
    return dataset.assign_coords({dim: np.arange(dataset.sizes[dim]) for dim in ("chain", "draw")})
