r"""Coordinates in which a funnel is none: some variables' scales taken out of others.

In hierarchical models the spread of some variables depends on others, by orders of magnitude: the
effects on their scale. No stationary kernel, no one step size and no one covariance fits such a
target. A warp is a triangular map

.. math:: y_i = \left(x_i - b_i - B_i^\top x_O\right) e^{-A_i^\top x_P}

of the driven coordinates i, given the others O, which stay as they are, with a few drivers P among
them; a transport map of the simplest kind (Parno and Marzouk, 2018). It is what reparametrising the
model by hand, non-centring it, would do (Papaspiliopoulos, Roberts and Sköld, 2007), to the extent
that the chain's states say.
The log density of y is that of x plus :math:`\sum_i A_i^\top x_P`, the log volume.

Location and scale are those of a regression with multiplicative heteroscedasticity (Harvey, 1976),
fitted by his scoring iterations. A driver is a coordinate that explains much of the others' scales:
what the driven coordinates gain in log likelihood a draw must add up to something.

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

__all__ = ["IDENTITY", "ScaleWarp", "learn_warp"]

# Gain in log likelihood, in nats a draw, that makes a coordinate a driven one; and what the gains
# of all that a driver drives must add up to.
SMALLEST_GAIN = 0.03
SMALLEST_TOTAL = 0.25
# Drivers that are compared: so many, of those whose correlation with the log conditional distance
# of another coordinate, squared, is larger.
MOST_CANDIDATES = 3
PROMISING = 0.02
# Most drivers, and fewest distinct states that one is learned from.
MOST_DRIVERS = 3
FEWEST_STATES = 100
# States looked at.
MOST_STATES = 500
# Scoring iterations, and the largest step of a standardised log scale in one.
N_SCORING = 15
LARGEST_STEP = 1.0
# Ridge of the regressions, in states.
RIDGE = 1.0
# Log scales are held so much beyond those of the states.
BEYOND = 2.0


class Identity:
    """No warp."""

    def forward(self, X):
        """Return X."""
        return X

    def backward(self, Y):
        """Return Y."""
        return Y

    def log_volume(self, X):
        """Return 0."""
        return 0.0


IDENTITY = Identity()


class ScaleWarp(NamedTuple):
    """A warp; see the module's docstring.

    Attributes
    ----------
    drivers, driven, others : ndarray of int, shapes (p,), (q,) and (d - q,)
        The others are those that aren't driven, drivers included.
    centre : ndarray, shape (d,)
    location : ndarray, shape (q,)
    location_slopes : ndarray, shape (q, d - q)
    scale_slopes : ndarray, shape (q, p)
    lowest, highest : ndarray, shape (q,)
        Bounds of the log scales.
    """

    drivers: np.ndarray
    driven: np.ndarray
    others: np.ndarray
    centre: np.ndarray
    location: np.ndarray
    location_slopes: np.ndarray
    scale_slopes: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray

    def _location_and_log_scale(self, X):
        u = X - self.centre
        scale = np.clip(u[..., self.drivers] @ self.scale_slopes.T, self.lowest, self.highest)
        return self.location + u[..., self.others] @ self.location_slopes.T, scale

    def forward(self, X):
        """Return y of x, shapes (d,) or (n, d)."""
        location, scale = self._location_and_log_scale(X)
        Y = np.array(X, dtype=np.float64)
        Y[..., self.driven] = (Y[..., self.driven] - location) * np.exp(-scale)
        return Y

    def backward(self, Y):
        """Return x of y, shapes (d,) or (n, d)."""
        location, scale = self._location_and_log_scale(Y)
        X = np.array(Y, dtype=np.float64)
        X[..., self.driven] = location + X[..., self.driven] * np.exp(scale)
        return X

    def log_volume(self, X):
        """Return log |dx / dy| at x or y, (d,) or (n, d): a float or (n,)."""
        return self._location_and_log_scale(X)[1].sum(axis=-1)


def learn_warp(states):
    """Learn a warp from a chain's states.

    Parameters
    ----------
    states : ndarray, shape (n, d)

    Returns
    -------
    ScaleWarp or Identity
        The identity where no coordinate's scale depends much on another.
    """
    X = states[:: max(1, len(states) // MOST_STATES)]
    X = X[np.append(True, np.any(np.diff(X, axis=0) != 0, axis=1))]
    spread = X.std(axis=0)
    if len(X) < FEWEST_STATES or X.shape[1] < 2 or not spread.min() > 0:
        return IDENTITY
    mean = X.mean(axis=0)
    Z = (X - mean) / spread
    best = _Regression(Z, [], [])
    while len(best.drivers) < MOST_DRIVERS:
        candidates = [_regression(Z, [*best.drivers, j]) for j in _promising(Z, best)]
        if not candidates:
            break
        candidate = max(candidates, key=lambda candidate: candidate.gains.sum())
        if candidate.gains.sum() < best.gains.sum() + SMALLEST_TOTAL:
            break
        best = candidate
    if not best.drivers:
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


def _conditional_log_distances(Z):
    """Logs of each coordinate's distance from its regression on all others, (n, d), centred."""
    n, d = Z.shape
    precision = np.linalg.inv((Z.T @ Z + RIDGE * np.eye(d)) / n)
    distances = np.log(np.abs(Z @ (precision / np.diag(precision))) + 1e-12)
    return distances - distances.mean(axis=0)


def _explained(Z):
    """Shares of the variance of log conditional distances (rows) that coordinates explain."""
    distances = _conditional_log_distances(Z)
    products = distances.T @ Z / len(Z)
    return products**2 / (np.mean(distances**2, axis=0)[:, None] + 1e-300)


def _promising(Z, regression):
    """Coordinates that may be drivers, besides those of a regression."""
    explained = _explained(Z)
    np.fill_diagonal(explained, 0.0)
    explained[regression.drivers] = 0.0
    scores = np.maximum(explained - PROMISING, 0.0).sum(axis=0)
    scores[regression.drivers] = 0.0
    best = np.argsort(scores)[::-1][:MOST_CANDIDATES]
    return [int(j) for j in best if scores[j] > 0]


def _regression(Z, drivers):
    """The regression of those that it is worth it for, on drivers."""
    explained = _explained(Z)[:, drivers].sum(axis=1)
    driven = [i for i in range(Z.shape[1]) if i not in drivers and explained[i] > PROMISING / 2]
    best = _Regression(Z, drivers, driven)
    # What the others are scattered around, a common mean, must not be driven itself.
    while len(best.driven) > 1:
        fewer = [
            _Regression(Z, drivers, best.driven[:k] + best.driven[k + 1 :])
            for k in range(len(best.driven))
        ]
        candidate = max(fewer, key=lambda candidate: candidate.gains.sum())
        if candidate.gains.sum() <= best.gains.sum():
            break
        best = candidate
    kept = [i for i, gain in zip(best.driven, best.gains, strict=True) if gain >= SMALLEST_GAIN]
    return _Regression(Z, drivers, kept)


class _Regression:
    """A regression of driven coordinates' locations on all others, and of log scales on drivers.

    Attributes
    ----------
    drivers, driven, others : list of int
        The others are those that aren't driven, drivers included.
    gains : ndarray, shape (q,)
        In log likelihood a draw, over a scale that is the same everywhere.
    location : ndarray, shape (q,)
    location_slopes : ndarray, shape (q, r)
    scale_slopes : ndarray, shape (q, p)
    """

    def __init__(self, Z, drivers, driven):
        n = len(Z)
        self.drivers, self.driven = drivers, driven
        self.others = [i for i in range(Z.shape[1]) if i not in driven]
        Y = Z[:, driven]
        U = np.column_stack([np.ones(n), Z[:, self.others]])
        V = np.column_stack([np.ones(n), Z[:, drivers]])
        gram = V.T @ V + RIDGE * np.eye(V.shape[1])
        ridge = RIDGE * np.eye(U.shape[1])
        location = np.linalg.solve(U.T @ U + ridge, U.T @ Y)
        residuals = Y - U @ location
        plain = 0.5 * np.log(np.mean(residuals**2, axis=0) + 1e-300)
        scale = np.zeros((V.shape[1], len(driven)))
        scale[0] = plain
        for _ in range(N_SCORING):
            roots = np.exp(-V @ scale)
            for k in range(len(driven)):
                W = U * roots[:, k : k + 1]
                unit = np.mean(roots[:, k] ** 2)
                location[:, k] = np.linalg.solve(
                    W.T @ W + unit * ridge, W.T @ (roots[:, k] * Y[:, k])
                )
            residuals = Y - U @ location
            change = 0.5 * np.linalg.solve(gram, V.T @ ((residuals * roots) ** 2 - 1.0))
            scale += np.clip(change, -LARGEST_STEP, LARGEST_STEP)
        log_scales = V @ scale
        squares = (residuals * np.exp(-log_scales)) ** 2
        gains = plain + 0.5 - (log_scales + 0.5 * squares).mean(axis=0)
        self.gains = np.where(np.isfinite(gains), gains, 0.0)
        self.location, self.location_slopes = location[0], location[1:].T
        self.scale_slopes = scale[1:].T
