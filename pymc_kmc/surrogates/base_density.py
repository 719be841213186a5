"""Gaussian base densities of surrogates."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import check_choice
from pymc_kmc.numerics.linear_algebra import solve_positive, symmetric
from pymc_kmc.surrogates.evaluation import evaluation

__all__ = [
    "GaussianBase",
    "base_gradient_at",
    "base_log_density_at",
    "check_base",
    "fit_base",
    "gaussian_base",
    "no_base",
]


class GaussianBase(NamedTuple):
    """An unnormalised Gaussian, log q0(x) = -(x - mean)' precision (x - mean) / 2."""

    mean: np.ndarray
    precision: np.ndarray

    def log_density(self, X):
        """Values at the rows of X (n, d)."""
        centred = X - self.mean
        return -0.5 * np.einsum("ni,ij,nj->n", centred, self.precision, centred)

    def gradient(self, X):
        """Gradients (n, d) at the rows of X (n, d)."""
        return -(X - self.mean) @ self.precision

    @property
    def laplacian(self):
        """Sum of the second derivatives, the same everywhere."""
        return -np.trace(self.precision)


def no_base(d):
    """The constant base density as a Gaussian of precision zero."""
    return GaussianBase(np.zeros(d), np.zeros((d, d)))


def gaussian_base(mean, covariance, total_weight):
    """The Gaussian of given moments, its covariance shrunk lightly so that it is positive definite.

    The covariance moves by 1 / (1 + total weight) of the way towards its own diagonal, like one
    additional independent observation. A coordinate without spread gets a millionth of the
    largest variance.
    """
    variance = np.diag(covariance)
    floor = 1e-6 * variance.max()
    shrinkage = 1.0 / (1.0 + total_weight)
    shrunk = (1.0 - shrinkage) * covariance
    shrunk[np.diag_indices_from(shrunk)] = np.maximum(variance, floor)
    precision = solve_positive(shrunk, np.eye(len(mean)))
    return GaussianBase(np.ascontiguousarray(mean), np.ascontiguousarray(symmetric(precision)))


def check_base(base):
    """The argument if it is None, "gaussian" or a :class:`GaussianBase`, or a ValueError."""
    if not isinstance(base, GaussianBase):
        check_choice(base, "base", (None, "gaussian"))
    return base


def fit_base(base, X, weights):
    """The base density that ``base`` stands for, given X (n, d) and weights (n,)."""
    if isinstance(base, GaussianBase):
        return base
    if base is None:
        return no_base(X.shape[1])
    total = weights.sum()
    mean = weights @ X / total
    centred = X - mean
    return gaussian_base(mean, (centred.T * weights) @ centred / total, total)


@evaluation
def base_log_density_at(mean, precision, x):
    """Compiled twin of :meth:`GaussianBase.log_density` for one point."""
    total = 0.0
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        total -= 0.5 * row * (x[i] - mean[i])
    return total


@evaluation
def base_gradient_at(mean, precision, x, out):
    """Compiled twin of :meth:`GaussianBase.gradient` for one point; overwrites ``out``."""
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        out[i] = -row
