"""Covariances estimated from a chain's history."""

import numpy as np

__all__ = ["geometric_mean", "shrunk_covariance", "symmetric_power"]

# Eigenvalues below this, relative to the largest, are lifted to it.
EIGENVALUE_FLOOR = 1e-12
# Weight of the diagonal where the states are many.
FAINT = 1e-6
# Relative to the mean variance: keeps a covariance positive definite where a coordinate never
# moved.
JITTER = 1e-9


def shrunk_covariance(states, weights=None):
    """Return the covariance of `states`, shrunk towards its diagonal when they are few.

    Parameters
    ----------
    states : array_like, shape (n, d)
        States of a chain, with their repetitions or with `weights`.
    weights : array_like, shape (n,), optional
        How often each state counts.

    Returns
    -------
    ndarray, shape (d, d)
        Positive definite. With fewer than 2 d distinct states it is half diagonal, else hardly: a
        weight that is seen on a badly conditioned target cuts its narrow directions off.
    """
    states = np.asarray(states, dtype=np.float64)
    n_dimensions = states.shape[1]
    mean = np.average(states, axis=0, weights=weights)
    centred = states - mean
    weighted = centred if weights is None else centred * np.asarray(weights)[:, None]
    total = len(states) if weights is None else np.sum(weights)
    covariance = weighted.T @ centred / total
    n_distinct = 1 + np.count_nonzero(np.any(np.diff(states, axis=0) != 0, axis=1))
    weight = FAINT if n_distinct >= 2 * n_dimensions else 0.5
    diagonal = np.diag(covariance)
    mean_variance = diagonal.mean()
    covariance = (1 - weight) * covariance + weight * np.diag(diagonal)
    jitter = JITTER * mean_variance if mean_variance > 0 else 1.0
    return covariance + jitter * np.eye(n_dimensions)


def symmetric_power(matrix, power):
    """Return a positive semi-definite matrix to a real power, its smallest eigenvalues lifted."""
    eigenvalues, eigenvectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    eigenvalues = np.maximum(eigenvalues, EIGENVALUE_FLOOR * eigenvalues[-1])
    return (eigenvectors * eigenvalues**power) @ eigenvectors.T


def geometric_mean(A, B):
    """Return the geometric mean A # B of two positive definite matrices.

    The middle of the geodesic between them (Bhatia, 2007, *Positive Definite Matrices*, chapter
    4): A^(1/2) (A^(-1/2) B A^(-1/2))^(1/2) A^(1/2). For a covariance and an inverse Fisher
    information it is the metric in which draws and gradients have equal spread.
    """
    root, inverse_root = symmetric_power(A, 0.5), symmetric_power(A, -0.5)
    return root @ symmetric_power(inverse_root @ B @ inverse_root, 0.5) @ root
