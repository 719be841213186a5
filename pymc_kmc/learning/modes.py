"""Maxima of a log density: found from draws of emulators, compared, recorded and reported."""

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from pymc_kmc.numerics.linear_algebra import ROUNDING, symmetric
from pymc_kmc.numerics.samples import far_apart
from pymc_kmc.surrogates.exact_gp import NO_LOSS

# Number of draws, far apart, from which maxima are climbed to.
N_CLIMBS = 16
# Most iterations of a climb.
CLIMB_ITERATIONS = 100
# Step of the differences for curvatures, and the smallest curvature, in units of the draws' scales.
CURVATURE_STEP, SMALLEST_CURVATURE = 1e-3, 1e-2
# Difference of log masses from which on the smaller maximum is left out.
NEGLIGIBLE_MASS = 7.0
# Depth, in nats, beyond which there is no mass.
NO_MASS = 10.0
# Error of a predicted log density, in nats, that confirms a prediction.
SMALL_ERROR = 1.0
# The same as a share of the depth, for a mode's Gaussian.
MEMBER_SHARE = 0.25
# Most variables, and elements of each, in a sentence.
MOST_NAMED = 4


class Mode(NamedTuple):
    """A maximum x (d,) of the log density, with the covariance (d, d) of the Gaussian around it."""

    x: np.ndarray
    log_density: float
    covariance: np.ndarray

    @property
    def log_mass(self):
        _, log_determinant = np.linalg.slogdet(2.0 * np.pi * self.covariance)
        return self.log_density + 0.5 * log_determinant


def explains(mode, x, log_density, nearest_copy):
    """Say whether a mode's Gaussian about predicts a point's log density, on the nearest copy."""
    away = nearest_copy(x, mode.x) - mode.x
    predicted = 0.5 * away @ np.linalg.solve(mode.covariance, away)
    depth = mode.log_density - log_density
    if not depth < NO_MASS:
        return False
    return abs(predicted - depth) < SMALL_ERROR + MEMBER_SHARE * max(depth, 0.0)


def maxima(composite, X):
    """Return the Modes with mass of an emulated log density, found by climbs from draws (n, d)."""
    scales = np.where((spread := X.std(axis=0)) > 0, spread, 1.0)
    found: list[Mode] = []
    for x in X[far_apart(X / scales, N_CLIMBS)]:
        mode = _climb(composite, x, scales)
        if mode is not None and is_new(mode, found, composite.model.nearest_copy):
            found.append(mode)
    largest = max((mode.log_mass for mode in found), default=0.0)
    return [mode for mode in found if mode.log_mass >= largest - NEGLIGIBLE_MASS]


def is_same(mode, other, nearest_copy):
    """Say whether one of two modes explains the other."""
    pairs = (other, mode), (mode, other)
    return any(explains(a, b.x, b.log_density, nearest_copy) for a, b in pairs)


def is_new(mode, modes, nearest_copy):
    return not any(is_same(mode, known, nearest_copy) for known in modes)


def climb(density, x, factor, start, n_iterations, bounds=None):
    """Maximise a density at x + factor z by L-BFGS-B, from z = `start` (d,).

    ``density(X)`` returns log densities (n,) and gradients (n, d) at places (n, d). `factor` is (d,
    d), `bounds` are those of z. SciPy's result is returned: `x` is z, `fun` the negative log
    density.
    """

    @np.errstate(all="ignore")  # without bounds a line search may leave the numbers
    def loss(z):
        (value,), (gradient,), *_ = density((x + factor @ z)[None])
        slopes = gradient @ factor
        if not np.isfinite(value) or not np.isfinite(slopes).all():
            return NO_LOSS, np.zeros(len(z))
        return -value, -slopes

    options = {"maxiter": n_iterations}
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)


def _climb(composite, x, scales):
    density, factor = partial(composite, penalty=0.0), np.diag(scales)
    found = climb(density, x, factor, np.zeros(len(x)), CLIMB_ITERATIONS)
    if not found.fun < NO_LOSS:
        return None
    top, steps = x + found.x * scales, CURVATURE_STEP * factor
    ahead, behind = (density(top + s * steps).gradient for s in (1, -1))
    H = -(ahead - behind) * scales / (2.0 * CURVATURE_STEP)
    if not np.isfinite(H).all():
        return None
    return Mode(top, float(-found.fun), covariance_of(symmetric(H), scales))


def covariance_of(curvature, scales):
    """Return a Gaussian's covariance (d, d), given its curvature in units of scales (d,)."""
    values, vectors = np.linalg.eigh(curvature)
    values = np.maximum(values, max(SMALLEST_CURVATURE, ROUNDING * values.max()))
    covariance = (vectors / values) @ vectors.T
    return covariance * np.outer(scales, scales)


class LearnedMode(NamedTuple):
    """A maximum of the log density.

    Attributes
    ----------
    x : ndarray, shape (d,)
        The best place that was evaluated there, unconstrained.
    log_density : float
    covariance : ndarray, shape (d, d)
        Of the Gaussian with the log density's curvature there.
    n_searches : int
        Number of searches that ended there; 0 for a maximum found by draws of the emulators.
    log_mass : float
        Logarithm of the integral of that Gaussian.
    was_left_out : bool
        Whether its mass is too small, compared with another's, to be learned.
    variables : dict of str to ndarray
        Its place on the natural scale of the model's free variables.
    """

    x: np.ndarray
    log_density: float
    covariance: np.ndarray
    n_searches: int
    log_mass: float
    was_left_out: bool
    variables: dict


def learned_mode(mode, opaque, n_searches=0, was_left_out=False) -> LearnedMode:
    natural = opaque.natural(mode.x[None]).items()
    variables = {name: np.asarray(values[0]) for name, values in natural}
    found = n_searches, float(mode.log_mass), was_left_out, variables
    return LearnedMode(mode.x, float(mode.log_density), mode.covariance, *found)


def regressed(modes, composite):
    """Return LearnedModes with the heights of a composite that was fitted to noisy values.

    A search's height is what few values told it, and the highest of several is the luckiest.
    """
    if not modes:
        return modes
    heights = composite(np.array([mode.x for mode in modes]), penalty=0.0).mean
    return [
        mode._replace(
            log_density=float(height), log_mass=float(mode.log_mass + height - mode.log_density)
        )
        for mode, height in zip(modes, heights, strict=True)
    ]


def unseen_share(modes):
    """Return the estimated share of searches that would end at unknown maxima, 0 without any.

    It is the share of searches whose maximum no other search has found (Good, 1953).

    References
    ----------
    Good, I. J. (1953). The population frequencies of species and the estimation of population
    parameters. *Biometrika* 40, 237-264.
    """
    n_searches = [mode.n_searches for mode in modes]
    return n_searches.count(1) / max(sum(n_searches), 1)


def of_searches(modes, multistart):
    """Return the warning about searches that may have missed the highest maximum, or None.

    At most one search has ended at it, or under noise all have ended alike.
    """
    n_searches = sum(mode.n_searches for mode in modes)
    if not n_searches:
        return None
    highest = max(mode.log_density for mode in modes)
    # Under noise one that is as high, within an error, is the highest as well.
    lowest = highest - SMALL_ERROR if multistart.is_noisy else highest
    best = max(modes, key=lambda mode: (mode.log_density >= lowest, mode.n_searches))
    if multistart.may_have_missed and best.n_searches > 1:
        heights = [mode.log_density for mode in modes]
        seen = (
            f"All {n_searches} searches that ended at a maximum ended at about the same height, "
            f"log densities of {min(heights):.1f} to {max(heights):.1f}. Under noise, with so many "
            "parameters, all may have missed a higher one."
        )
    elif best.n_searches <= 1 and (len(modes) > 1 or multistart.is_blurred):
        seen = (
            f"Of {n_searches} searches that ended at a maximum of the log density, "
            f"{best.n_searches} ended at the highest of {len(modes)}: about "
            f"{100 * unseen_share(modes):.0f} % of further ones would end at maxima that weren't "
            "seen, and one of these may be higher."
        )
    else:
        return None
    return f"{seen} Learn again with other random_seeds, and compare the log densities of `modes`."


def sentences(modes):
    """Return sentences about modes that were left out, and about modes that may be unknown."""
    out = [mode for mode in modes if mode.was_left_out]
    return [*(_of_left_out(modes, out) if out else []), _of_unseen(modes)]


def _of_unseen(modes):
    n, k = sum(mode.n_searches for mode in modes), sum(mode.n_searches > 0 for mode in modes)
    missed = "one much narrower than the prior may have been missed"
    if not n:
        return f"No search for maxima was needed; {missed}."
    share = unseen_share(modes)
    elsewhere = f"about {100 * share:.0f} %" if share else f"less than about {100 / n:.0f} %"
    searches, maxima = f"{n} search{'es' * (n > 1)}", "one maximum" if k == 1 else f"{k} maxima"
    return (
        f"{searches} from all over the prior ended at {maxima}: {elsewhere} of further ones would "
        f"find others, and {missed}."
    )


def _of_left_out(modes, out):
    largest = max(out, key=lambda mode: mode.log_mass)
    lower = max(mode.log_mass for mode in modes) - largest.log_mass
    place = _place(largest.variables)
    if len(out) == 1:
        which = "A second maximum" if len(modes) == 2 else "Another maximum"
        return [f"{which}, {lower:.0f} nats of mass lower, was left out: {place}."]
    return [
        f"{len(out)} other maxima were left out; the largest is {lower:.0f} nats of mass lower: "
        f"{place}."
    ]


def _place(variables):
    named = list(variables.items())
    parts = [f"{name} = {_shown(value)}" for name, value in named[:MOST_NAMED]]
    return ", ".join([*parts, *["..."][: len(named) > MOST_NAMED]])


def _shown(value):
    if value.ndim == 0:
        return f"{value:.3g}"
    shown = [f"{element:.3g}" for element in value.ravel()[:MOST_NAMED]]
    return f"[{', '.join([*shown, *['...'][: value.size > MOST_NAMED]])}]"
