"""Points with repetitions: which are distinct, how they are spread."""

import numpy as np

from pymc_kmc.numerics.linear_algebra import symmetric_power

__all__ = ["count_distinct", "has_moved", "shrunk_covariance", "unique_rows", "whitening"]

# Weight of the diagonal where the points are many.
FAINT = 1e-6
# Relative to each coordinate's variance: keeps a covariance positive definite.
JITTER = 1e-9
# Relative to its mean, a coordinate's spread is rounding error below this.
ROUNDING = 1e-14


def has_moved(states):
    """Say of each state of a chain, shape (n, d), whether it differs from the one before: (n,)."""
    return np.append(True, np.any(np.diff(states, axis=0) != 0, axis=1))


def count_distinct(states):
    """Return how many states of a chain, shape (n, d), are distinct, returns to one apart."""
    return np.count_nonzero(has_moved(states))


def unique_rows(X, weights):
    """Distinct rows of X in order of first appearance, their summed weights, zero weights dropped.

    Returns
    -------
    X_unique : ndarray (k, d)
    weights : ndarray (k,)
    """
    _, first, inverse = np.unique(X + 0.0, axis=0, return_index=True, return_inverse=True)
    totals = np.bincount(inverse.ravel(), weights=weights, minlength=len(first))
    order = np.argsort(first)
    order = order[totals[order] > 0]
    return np.ascontiguousarray(X[first[order]]), totals[order]


def shrunk_covariance(states, weights=None, share=None):
    """Return the covariance of `states`, shrunk towards its diagonal when they are few.

    Parameters
    ----------
    states : array_like, shape (n, d)
        States of a chain, with their repetitions or with `weights`.
    weights : array_like, shape (n,), optional
        How often each state counts.
    share : float, optional
        Weight of the diagonal. By default a half with fewer than 2 d distinct states, else hardly
        any: a weight that is seen on a badly conditioned target cuts its narrow directions off.

    Returns
    -------
    ndarray, shape (d, d)
        Positive definite, whatever the coordinates' scales; a coordinate that never moved has a
        billionth of the others' mean variance.
    """
    states = np.asarray(states, dtype=np.float64)
    n_dimensions = states.shape[1]
    mean = np.average(states, axis=0, weights=weights)
    centred = states - mean
    weighted = centred if weights is None else centred * np.asarray(weights)[:, None]
    total = len(states) if weights is None else np.sum(weights)
    covariance = weighted.T @ centred / total
    variances = np.diag(covariance)
    moved = variances > (ROUNDING * np.abs(mean)) ** 2
    if not moved.any():
        return np.eye(n_dimensions)
    if share is None:
        share = FAINT if count_distinct(states) >= 2 * n_dimensions else 0.5
    scale = np.where(moved, variances, variances[moved].mean())
    return (1 - share) * covariance + np.diag(share * variances + JITTER * scale)


def whitening(covariance):
    """Return W, shape (d, d), such that W x has unit covariance.

    The symmetric inverse root of the correlations, of the standardised coordinates: W x differs
    from these as little as can be (Kessy, Lewin and Strimmer, 2018, "ZCA-cor"), and coordinates
    of very different scales lose no digits.

    References
    ----------
    Kessy, A., Lewin, A. and Strimmer, K. (2018). Optimal whitening and decorrelation. *American
    Statistician* 72, 309-314.
    """
    scale = np.sqrt(np.diag(covariance))
    return symmetric_power(covariance / np.outer(scale, scale), -0.5) / scale
