"""Points with repetitions, such as a chain's states: distinct rows, covariance, whitening."""

import numpy as np
from scipy.stats import rankdata
from scipy.stats.qmc import LatinHypercube

from pymc_kmc.numerics.linear_algebra import LAST_DIGITS, symmetric_power

#: Weight of a covariance's diagonal with many states: it preserves narrow directions.
FAINT = 1e-6
#: Weight of the diagonal with few states, whose correlations are half noise.
FIRM = 0.5
#: Distinct states a dimension from which on there are many.
MANY = 2
#: Share of its scale that is added to a matrix's diagonal, against rounding errors.
JITTER = 1e-9
#: Smallest variance of a coordinate that isn't constant: the square of its reciprocal is finite.
SMALLEST_VARIANCE = 1e-100
#: Levels of the quantiles one standard deviation from a Gaussian's median.
ONE_SD = (0.16, 0.84)


def thinned(X, most):
    """Return every k-th row of X, at least `most` and fewer than twice as many, or all."""
    return X[:: max(1, len(X) // most)]


def has_moved(states):
    """Return the mask (n,) of a chain's states (n, d) that differ from the one before."""
    return np.append(True, np.any(np.diff(states, axis=0) != 0, axis=1))


def count_distinct(states):
    """Return the number of distinct states of a chain (n, d); a return to a state counts again."""
    return np.count_nonzero(has_moved(states))


def distinct_rows(X):
    """Return the first indices (k,) of the distinct rows of X, and each row's distinct row (n,)."""
    # Adding zero makes -0.0 and 0.0 one value.
    _, first, inverse = np.unique(X + 0.0, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return first[order], number[inverse.ravel()]


def unique_rows(X, weights):
    """Return X's distinct rows (k, d) of positive weight, as they appear, and summed weights."""
    first, group = distinct_rows(X)
    totals = np.bincount(group, weights=weights, minlength=len(first))
    kept = totals > 0
    return np.ascontiguousarray(X[first[kept]]), totals[kept]


def mean_values(X, values):
    """Return the distinct rows (k, d) of X (n, d), as they appear, and their mean values (k,)."""
    first, group = distinct_rows(X)
    return X[first], np.bincount(group, weights=values) / np.bincount(group)


def shrunk_covariance(states, weights=None, share=None):
    """Return the covariance (d, d) of states (n, d), with the weight `share` of its diagonal.

    The states are a chain's, with their repetitions or with `weights` (n,). By default the share is
    1/2 with fewer than 2 d distinct states, else 1e-6: a larger share would cut off the narrow
    directions of an ill-conditioned target. The covariance is positive definite for any scales of
    coordinates. A coordinate that never moved has a billionth of the others' mean variance. The
    result is the identity where nothing moved or numbers overflow.
    """
    states = np.asarray(states, dtype=np.float64)
    n_dimensions = states.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.average(states, axis=0, weights=weights)
        centred = states - mean
        weighted = centred if weights is None else centred * np.asarray(weights)[:, None]
        total = len(states) if weights is None else np.sum(weights)
        covariance = weighted.T @ centred / total
    variances = np.diag(covariance)
    moved = variances > np.maximum((LAST_DIGITS * np.abs(mean)) ** 2, SMALLEST_VARIANCE)
    if not moved.any() or not np.isfinite(covariance).all():
        return np.eye(n_dimensions)
    if share is None:
        share = FAINT if count_distinct(states) >= MANY * n_dimensions else FIRM
    scale = np.where(moved, variances, variances[moved].mean())
    return (1 - share) * covariance + np.diag(share * variances + JITTER * scale)


def shrunk(X):
    """Return the covariance (d, d) of draws (n, d), its diagonal with the weight d / (d + n)."""
    n, d = X.shape
    return shrunk_covariance(X, share=d / (d + n))


def robust_spread(X):
    """Return half the range (d,) of the central 68 % of points (n, d)."""
    return 0.5 * np.ptp(np.quantile(X, ONE_SD, axis=0), axis=0)


def whitening(covariance):
    """Return W, shape (d, d), such that W x has unit covariance: "ZCA-cor" of Kessy et al. (2018).

    W standardises the coordinates and applies the symmetric inverse root of their correlations: W x
    differs as little as possible from the standardised coordinates, and coordinates of very
    different scales lose no digits.

    References
    ----------
    Kessy, A., Lewin, A. and Strimmer, K. (2018). Optimal whitening and decorrelation. *American
    Statistician* 72, 309-314.
    """
    scale = np.sqrt(np.diag(covariance))
    return symmetric_power(covariance / np.outer(scale, scale), -0.5) / scale


def far_apart(X, n, known=None):
    """Return indices of n of the points (k, d), each farthest from those before and `known` (m, d).

    Without known points the first is the most central. Repetitions are left out.
    """
    chosen: list[int] = []
    if known is None and len(X):
        chosen.append(int(np.argmin(np.sum((X - np.median(X, axis=0)) ** 2, axis=1))))
    away = np.full(len(X), np.inf)
    for x in X[chosen] if known is None else known:
        away = np.minimum(away, np.sum((X - x) ** 2, axis=1))
    while len(chosen) < n and (farthest := away.max(initial=0.0)) > 0:
        chosen.append(int(np.argmax(away == farthest)))
        away = np.minimum(away, np.sum((X - X[chosen[-1]]) ** 2, axis=1))
    return np.array(chosen, dtype=np.intp)


def apart(X, usable, scales, most):
    """Return the mask (n,) of at most `most` usable points (n, d), far apart in scales (d,)."""
    rows, chosen = np.flatnonzero(usable), np.zeros(len(X), dtype=bool)
    if len(rows):
        chosen[rows[far_apart(X[rows] / np.where(scales > 0, scales, 1.0), most)]] = True
    return chosen


def far_from(known, X, among, scales):
    """Return the mask of X (n, d) at least as far from `known` (k, d) as the median `among`."""
    away = np.min(np.linalg.norm((X[:, None] - known) / scales, axis=2), axis=1)
    # Half of those `among` pass: a mode that looks low from afar gets a search in turn.
    return away >= np.median(away[among])


def spread_out(pool, n, rng):
    """Return n of the draws (N, d) whose ranks are nearest to those of a Latin hypercube."""
    ranks = rankdata(pool, axis=0) / len(pool)
    is_left = np.ones(len(pool), dtype=bool)
    chosen = []
    for wanted in LatinHypercube(pool.shape[1], seed=rng).random(n):
        away = np.where(is_left, ((ranks - wanted) ** 2).sum(axis=1), np.inf)
        chosen.append(int(np.argmin(away)))
        is_left[chosen[-1]] = False
    return pool[chosen]
