"""A surrogate for fast moves, distilled from the emulated log density."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.adaptation.fit_to_values import FitToValues
from pymc_kmc.adaptation.fitted import FittedSurrogate
from pymc_kmc.adaptation.history import Record
from pymc_kmc.numerics.threads import single_threaded_blas

# Fewest evaluations at posterior draws from which log weights are measured.
FEWEST_FOR_WEIGHTS = 12


class Distillation(NamedTuple):
    """What the surrogate for fast moves follows from, besides draws: it can be distilled again.

    Attributes
    ----------
    wide_log_densities : ndarray, shape (n,)
        The emulated log densities at the dispersed draws.
    n_landmarks : int
    n_last : int
        Number of the last evaluations, at which log weights are measured.
    seed : int
    """

    wide_log_densities: np.ndarray
    n_landmarks: int
    n_last: int
    seed: int


def distilled(draws, values, wide, evaluations, distillation) -> FittedSurrogate:
    """Return a surrogate for fast moves, fitted to a composite's values at its own draws.

    The composite costs no evaluation, but a hundred times the time of
    :class:`~pymc_kmc.surrogates.LogDensityGP` in compiled code. The same arguments give the same
    surrogate.

    Parameters
    ----------
    draws, wide : ndarray, shape (n, d) and (n', d)
        At temperature 1 and above.
    values : ndarray, shape (n,)
        The composite's log densities at `draws`.
    evaluations : Evaluations
    distillation : Distillation

    Returns
    -------
    FittedSurrogate

    Raises
    ------
    RuntimeError
        If none could be fitted.
    """
    record = Record(draws.shape[1])
    for place, value in zip(draws, values, strict=True):
        record.states.append(place)
        record.log_densities.append(value)
    points = np.vstack([wide, draws])
    for row in np.column_stack([points, np.append(distillation.wide_log_densities, values)]):
        if np.isfinite(row[-1]):
            record.evaluations.append(row)
    fits = FitToValues(distillation.n_landmarks)
    rng = np.random.default_rng(distillation.seed)
    fitted = None
    with single_threaded_blas():
        # The second knows which coordinates and how many kernel functions the first would have
        # liked.
        for _ in range(2):
            fitted = fits.fit(record, fitted, rng) or fitted
        if fitted is None:
            raise RuntimeError(
                "no surrogate could be fitted to what was learned: raise n_landmarks"
            )
        return _weighed(fitted, evaluations, distillation.n_last)


def distilled_error(fitted, composite, X):
    """Return the standard deviation of what a distilled log density is off by at draws (n, d)."""
    errors = composite(X, penalty=0.0).mean - fitted.surrogate.log_density(fitted.warp.forward(X))
    errors += fitted.warp.log_volume(X)
    low, high = np.quantile(errors[np.isfinite(errors)], [0.16, 0.84])
    return float(0.5 * (high - low))


def _weighed(fitted, evaluations, n_last):
    """Return a fitted surrogate with the log weights of the last evaluations, if these suffice."""
    X, values = evaluations.X[-n_last:], evaluations.log_densities[-n_last:]
    finite = np.isfinite(values)
    if finite.sum() < FEWEST_FOR_WEIGHTS:
        return fitted
    return fitted.weighed(X[finite], values[finite])
