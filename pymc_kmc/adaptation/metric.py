"""Covariances estimated from a chain's history."""

import numpy as np

__all__ = ["shrunk_covariance"]

# Relative to the mean variance: keeps a covariance positive definite where a coordinate never moved.
JITTER = 1e-9


def shrunk_covariance(states):
    """Return the covariance of `states`, shrunk towards its diagonal when they are few.

    Parameters
    ----------
    states : array_like, shape (n, d)
        States of a chain, repetitions included.

    Returns
    -------
    ndarray, shape (d, d)
        Positive definite. The weight of the diagonal is d / (d + number of distinct states), at most
        one half.
    """
    states = np.asarray(states)
    n_dimensions = states.shape[1]
    covariance = np.atleast_2d(np.cov(states, rowvar=False))
    n_distinct = 1 + np.count_nonzero(np.any(np.diff(states, axis=0) != 0, axis=1))
    weight = min(0.5, n_dimensions / (n_dimensions + n_distinct))
    diagonal = np.diag(covariance)
    mean_variance = diagonal.mean()
    covariance = (1 - weight) * covariance + weight * np.diag(diagonal)
    jitter = JITTER * mean_variance if mean_variance > 0 else 1.0
    return covariance + jitter * np.eye(n_dimensions)
