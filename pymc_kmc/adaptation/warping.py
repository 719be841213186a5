r"""Coordinates without funnels: a map that divides some variables by scales that others determine.

In hierarchical models the spread of the effects depends on their scale, by orders of magnitude. No
stationary kernel, no one step size and no one covariance fits such a target. A warp is the
triangular map

.. math:: y_i = \left(x_i - b_i - B_i^\top x_O\right) e^{-s_i(x_P)}

of the driven coordinates i, given the others O, which are unchanged, with a few drivers P among
them; a transport map of the simplest kind (Parno and Marzouk, 2018). It replaces non-centring the
model by hand (Papaspiliopoulos, Roberts and Sköld, 2007). The log density of y is that of x plus
the log volume :math:`\sum_i s_i(x_P)`, so that any warp is exact. The log scales :math:`s_i` are
linear in the drivers.

A regression with multiplicative heteroscedasticity (Harvey, 1976), by his scoring iterations,
learns them from the chain's states. Drivers are the coordinates that explain most of the others'
log distances; each must gain enough log likelihood a draw, summed over the driven coordinates. A
coordinate that the driven ones scatter around, a common mean, is left out of these: it explains the
part that their locations have in common.

References
----------
Harvey, A. C. (1976). Estimating regression models with multiplicative heteroscedasticity.
*Econometrica* 44, 461-465.

Papaspiliopoulos, O., Roberts, G. O. and Sköld, M. (2007). A general framework for the
parametrization of hierarchical models. *Statistical Science* 22, 59-73.

Parno, M. D. and Marzouk, Y. M. (2018). Transport map accelerated Markov chain Monte Carlo.
*SIAM/ASA Journal on Uncertainty Quantification* 6, 645-682.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.coordinates import IDENTITY, ScaleWarp
from pymc_kmc.numerics.linear_algebra import ROUNDING
from pymc_kmc.numerics.samples import MANY, has_moved, thinned

# Smallest gain, in nats a draw, for which a coordinate is taken out of the driven ones.
WORTH_LEAVING_OUT = 0.1
# Share of the variance of a coordinate's log distance that another must explain to count.
FAINT_SHARE = 0.01
# Smallest gain of a driven coordinate, in nats a draw.
FAINT_GAIN = 0.03
# Smallest gain of a driver, in nats a draw.
SMALLEST_GAIN = 0.25
# Most drivers, and most candidates for the next one.
MOST_DRIVERS = 3
# Fewest distinct states for a warp.
FEWEST_STATES = 40
# Most states in a regression, for its cost.
MOST_REGRESSED = 500
# Scoring iterations.
N_SCORING = 15
# Largest change of a coefficient of the log scales in one of them.
LARGEST_STEP = 1.0
# Ridge of the log scales' regression, in states.
SCALE_RIDGE = 1.0
# Ridge of the locations' regression, in states: with 1 a funnel's neck was missed.
LOCATION_RIDGE = 1e-6
# Margin around the states' log scales outside of which a warp's are clipped.
BEYOND = 2.0


def learn_warp(states):
    """Return a warp learned from states (n, d), the identity if scales hardly depend on others."""
    X = thinned(states, MOST_REGRESSED)
    X = X[has_moved(X)]
    spread, d = X.std(axis=0), X.shape[1]
    if d < 2 or len(X) < max(FEWEST_STATES, MANY * d) or not spread.min() > 0:
        return IDENTITY
    mean = X.mean(axis=0)
    Z = (X - mean) / spread
    with np.errstate(all="ignore"):  # a regression that diverges isn't chosen
        best = _choose(Z, _LogDistances(Z))
    if not (best.driven and np.isfinite(best.location_slopes).all()):
        return IDENTITY
    drivers, driven, others = (np.array(k) for k in (best.drivers, best.driven, best.others))
    log_scales = Z[:, drivers] @ best.scale_slopes.T
    return ScaleWarp(
        drivers=drivers,
        driven=driven,
        others=others,
        centre=mean,
        location=mean[driven] + spread[driven] * best.location,
        location_slopes=spread[driven, None] * best.location_slopes / spread[others],
        scale_slopes=best.scale_slopes / spread[drivers],
        lowest=log_scales.min(axis=0) - BEYOND,
        highest=log_scales.max(axis=0) + BEYOND,
    )


class _Regression(NamedTuple):
    """A regression of driven coordinates' locations on all others, and of log scales on drivers."""

    drivers: list  # of int
    driven: list
    others: list  # those that aren't driven, drivers included
    location: np.ndarray  # (q,)
    location_slopes: np.ndarray  # (q, r)
    scale_slopes: np.ndarray  # (q, p)
    gains: np.ndarray  # (q,): in nats a draw, over scales that are the same everywhere


def _choose(Z, distances):
    """Return the best regression; drivers are added one by one while each gains enough."""
    best = _regress(Z, [], [])
    while len(best.drivers) < MOST_DRIVERS:
        scores = distances.scores.copy()
        scores[best.drivers] = 0.0
        promising = [int(j) for j in np.argsort(scores)[::-1][:MOST_DRIVERS] if scores[j] > 0]
        candidates = [_choose_driven(Z, distances, [*best.drivers, j]) for j in promising]
        candidate = max(candidates, key=lambda candidate: candidate.gains.sum(), default=best)
        if candidate.gains.sum() < best.gains.sum() + SMALLEST_GAIN:
            break
        best = candidate
    return best


def _choose_driven(Z, distances, drivers):
    """Return the regression without driven coordinates that gain little or are a common mean."""
    shares = distances.shares[:, drivers].sum(axis=1)
    shares[drivers] = 0.0
    driven = [int(i) for i in np.flatnonzero(shares > FAINT_SHARE)]
    gains = list(_regress(Z, drivers, driven).gains)
    while len(driven) > 1:
        without = [
            _dependence(distances.precision, driven[:k] + driven[k + 1 :])
            for k in range(len(driven))
        ]
        saved = _dependence(distances.precision, driven) - np.array(without) - gains
        k = int(np.argmax(saved))
        if saved[k] < WORTH_LEAVING_OUT:
            break
        del driven[k], gains[k]
    gains = zip(driven, _regress(Z, drivers, driven).gains, strict=True)
    return _regress(Z, drivers, [i for i, gain in gains if gain >= FAINT_GAIN])


def _dependence(precision, driven):
    """Return the dependence, in nats, of Gaussian coordinates given all others."""
    covariance = np.linalg.inv(precision[np.ix_(driven, driven)])
    return 0.5 * (np.log(np.diag(covariance)).sum() - np.linalg.slogdet(covariance)[1])


def _regress(Z, drivers, driven):
    n = len(Z)
    others = [i for i in range(Z.shape[1]) if i not in driven]
    U = np.column_stack([np.ones(n), Z[:, others]])
    V = np.column_stack([np.ones(n), Z[:, drivers]])
    location, scale, gains = _scoring(U, V, Z[:, driven])
    gains = np.where(np.isfinite(gains), gains, 0.0)
    return _Regression(drivers, driven, others, location[0], location[1:].T, scale[1:].T, gains)


def _least_squares(U, Y, ridge, roots=None):
    ridge = ridge * np.eye(U.shape[1])
    if roots is None:
        return np.linalg.solve(U.T @ U + ridge, U.T @ Y)
    weighted = roots.T[:, :, None] * U  # (q, n, r)
    grams = weighted.transpose(0, 2, 1) @ weighted
    grams += np.mean(roots**2, axis=0)[:, None, None] * ridge
    rights = weighted.transpose(0, 2, 1) @ (roots * Y).T[:, :, None]
    return np.linalg.solve(grams, rights)[:, :, 0].T


class _LogDistances:
    """Shares of the variance of a coordinate's log distance that the other coordinates explain."""

    def __init__(self, Z):
        self.precision = np.linalg.inv((Z.T @ Z + SCALE_RIDGE * np.eye(Z.shape[1])) / len(Z))
        distances = np.abs(Z @ (self.precision / np.diag(self.precision)))
        centred = np.log(distances + ROUNDING)
        centred -= centred.mean(axis=0)
        variances = np.mean(centred**2, axis=0)
        # (d, d): of the variance of a coordinate's log distance, the share that another explains.
        self.shares = (centred.T @ Z / len(Z)) ** 2 / (variances[:, None] + 1e-300)
        np.fill_diagonal(self.shares, 0.0)
        # (d,): the sum of the shares that each coordinate explains.
        self.scores = np.where(self.shares > FAINT_SHARE, self.shares, 0.0).sum(axis=0)


def _scoring(U, V, Y):
    """Return coefficients of Y (n, q) on U, of log scales on V, and gains (q,) in nats a draw."""
    residuals = Y - U @ _least_squares(U, Y, LOCATION_RIDGE)
    plain = 0.5 * np.log(np.mean(residuals**2, axis=0) + 1e-300)
    scale = np.zeros((V.shape[1], Y.shape[1]))
    scale[0] = plain
    for _ in range(N_SCORING):
        roots = np.exp(-V @ scale)
        location = _least_squares(U, Y, LOCATION_RIDGE, roots)
        squares = ((Y - U @ location) * roots) ** 2
        step = _least_squares(V, 0.5 * (squares - 1.0), SCALE_RIDGE)
        scale += np.clip(step, -LARGEST_STEP, LARGEST_STEP)
    log_scales = V @ scale
    squares = ((Y - U @ location) * np.exp(-log_scales)) ** 2
    return location, scale, plain + 0.5 - (log_scales + 0.5 * squares).mean(axis=0)
