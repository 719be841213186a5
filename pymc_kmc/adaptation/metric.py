"""Metrics: the scale on which a chain's moves are made."""

import numpy as np

from pymc_kmc.surrogates.covariance import symmetric_power

__all__ = ["geometric_mean"]


def geometric_mean(A, B):
    """Return the geometric mean A # B of two positive definite matrices.

    The middle of the geodesic between them (Bhatia, 2007, *Positive Definite Matrices*, chapter
    4): A^(1/2) (A^(-1/2) B A^(-1/2))^(1/2) A^(1/2). For a covariance and an inverse Fisher
    information it is the metric in which draws and gradients have equal spread. It is taken in
    units of A's diagonal, which changes nothing but the rounding.
    """
    units = np.sqrt(np.diag(A))
    units = np.outer(units, units)
    root, inverse_root = symmetric_power(A / units, 0.5), symmetric_power(A / units, -0.5)
    middle = symmetric_power(inverse_root @ (B / units) @ inverse_root, 0.5)
    return units * (root @ middle @ root)
