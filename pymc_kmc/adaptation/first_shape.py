r"""The scales and correlations of a target around a chain's start, from second differences.

Along a coordinate of a Gaussian with standard deviation s, the second difference of the log
density, :math:`\ell(x + h) + \ell(x - h) - 2 \ell(x)`, is :math:`-(h / s)^2` for any x. A search
finds the h at which it is -1, or large against the error of the values (rounding, or the error of
an estimated likelihood). It costs two evaluations a coordinate where a scale of 1 is about right,
and some ten where 1 is wrong by orders of magnitude. A variable that is a logarithm is not tried
beyond one unit: its exponential would soon overflow.

A ridge looks narrow along every coordinate that it is oblique to. Second differences along sums of
two such coordinates give the matrix of curvatures. Searches along its flat eigenvectors give the
length of the ridge.
"""

from math import isfinite
from typing import NamedTuple

import numpy as np

from pymc_kmc.likelihoods.noisy_log_likelihood import EstimatorError

# Fresh estimates at a noisy target's start: with the chain's own, 9 give the noise's standard
# deviation to a quarter.
N_FRESH = 8
# Factor up to which a scale's distance from 1 is ignored: a random walk finds such scales at once.
# Correlations that lengthen no direction by more are ignored too.
USUAL = 10.0
# Bounds of the factor between trials: far away the log density may have another form, and the
# user's function may fail.
TRIAL_FACTORS = (1e-3, 10.0)
# Most trials a direction: ten orders of magnitude upwards.
MOST_TRIALS = 10
# Second difference that is aimed at, in standard errors of a value: it is then known to some 15 %,
# and a scale to 7 %.
AIMED_AT = 20.0
# Second difference, in standard errors of a value, below which it may be error: two of its own.
SEEN = 5.0
# Second differences, in units of the one aimed at, at which the search ends.
NEAR_AIM = (0.25, 4.0)
# Relative rounding error of a number in double precision.
DOUBLE = float(np.finfo(np.float64).eps)
# Rounding error of a value, in units of its precision: sums of many terms lose some digits.
LOST_DIGITS = 50.0
# Most narrow coordinates whose correlations are searched for: each pair takes two evaluations.
MOST_NARROW = 12


class Start(NamedTuple):
    """A chain's start: the target's `log_density(x)`, a `position` (d,) and the `value` there.

    `error` is the standard error of values. If `is_estimated`, another evaluation gives another
    value, and a decisive second difference is evaluated twice.
    """

    log_density: object
    position: np.ndarray
    value: float
    error: float
    is_estimated: bool

    @property
    def change(self):
        """Minus the second difference that the search aims at."""
        return max(1.0, AIMED_AT * self.error)

    def curvature(self, shift):
        """Return minus the second difference along a vector; inf where a side's density is 0."""
        ends = [self.log_density(self.position + sign * shift) for sign in (1.0, -1.0)]
        if -np.inf in ends or np.isnan(ends).any():
            return np.inf
        return 2.0 * self.value - sum(ends)


def shape_around(target, start, rng, observe):
    """Return :func:`first_shape` at a chain's start; `observe` is called for each evaluation."""

    def log_density(position):
        try:
            evaluation = target.propose(position, rng)
        except EstimatorError as error:
            if error.of_executor:
                raise
            return np.nan  # the chain may never come to where the user's function fails
        observe(evaluation)
        return evaluation.log_density

    values = [start.log_density]
    if target.is_noisy and start.log_density > -np.inf:
        values += filter(isfinite, [log_density(start.position) for _ in range(N_FRESH)])
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    place = start.position, float(np.mean(values)), sd
    return first_shape(log_density, *place, target.is_free, target.precision)


def first_shape(log_density, position, value, error=0.0, may_grow=None, precision=DOUBLE):
    """Return a lower triangular matrix (d, d) that maps unit variables to about the target's shape.

    `value` is the log density at `position` (d,), with standard error `error`; if that isn't 0,
    only scales are searched for. `may_grow`, bool (d,), marks the coordinates tried beyond one
    unit, by default all. `precision` is a number's relative rounding error. A scale that is about
    right, or that no search found, stays 1.
    """
    d = len(position)
    scales = np.ones(d)
    if not np.isfinite([value, error]).all():
        return np.diag(scales)
    rounding = LOST_DIGITS * precision * max(1.0, abs(value))
    start = Start(log_density, position, value, np.hypot(error, rounding), error > 0.0)
    for i in range(d):
        grows = may_grow is None or may_grow[i]
        found = _scale_along(np.eye(d)[i], start, 1.0, grows)
        if found is not None and not 1.0 / USUAL <= found <= USUAL:
            scales[i] = found
    narrow = np.flatnonzero(scales < 1.0 / USUAL)
    if not start.is_estimated and 2 <= len(narrow) <= MOST_NARROW:
        return _with_ridges(narrow, scales, start)
    return np.diag(scales)


def _with_ridges(narrow, scales, start):
    """Return the factor of a covariance in which narrow coordinates may be correlated."""
    factor = np.diag(scales)
    shifts = factor[narrow]
    curvatures = np.eye(len(narrow))  # of the coordinates in units of their scales
    h = np.sqrt(start.change)
    for a in range(len(narrow)):
        for b in range(a):
            of_sum = start.curvature(h * (shifts[a] + shifts[b])) / start.change
            curvatures[a, b] = curvatures[b, a] = 0.5 * of_sum - 1.0
    if not np.isfinite(curvatures).all():
        return factor
    values, axes = np.linalg.eigh(curvatures)
    lengths = np.full(len(narrow), USUAL)
    is_long = values < 1.0 / USUAL**2
    lengths[~is_long] = 1.0 / np.sqrt(values[~is_long])
    for i in np.flatnonzero(is_long):
        found = _scale_along(axes[:, i] @ shifts, start, USUAL * h, True)
        lengths[i] = max(found or USUAL, USUAL)
    if is_long.any():
        # A triangular root of axes lengths^2 axes', without forming this matrix.
        root = np.linalg.qr((axes * lengths).T, mode="r").T
        factor[np.ix_(narrow, narrow)] = scales[narrow, None] * root * np.sign(np.diag(root))
    return factor


def _scale_along(direction, start, h, may_grow):
    """Return the scale along a direction (d,), in its units, by a search from `h`, or None."""
    h = max(h, np.sqrt(start.change)) if may_grow else h
    for _ in range(MOST_TRIALS):
        found = start.curvature(h * direction) / start.change
        if start.is_estimated and NEAR_AIM[0] <= abs(found) < np.inf:
            found = 0.5 * (found + start.curvature(h * direction) / start.change)
        if NEAR_AIM[0] <= found <= NEAR_AIM[1]:
            return h / np.sqrt(found * start.change)
        if found < -NEAR_AIM[0]:  # bent upwards: the start is in a tail, which has no scale
            return None
        # Where it is flat nothing is seen at this distance yet.
        is_flat = found * start.change < SEEN * start.error
        factor = np.inf if is_flat else 1.0 / np.sqrt(found)
        if factor > 1.0 and h >= 1.0 and not may_grow:
            return None
        h *= np.clip(factor, *TRIAL_FACTORS)
    return None
