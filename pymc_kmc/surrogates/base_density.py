r"""Base densities of kernel exponential families: constant, or a Gaussian.

A surrogate is an unnormalised log density :math:`f = \log q_0 + \theta^\top \varphi`, fitted by
score matching (Hyvärinen, 2005): the objective over points :math:`x_b` with weights :math:`w_b` is

.. math:: J(f) = \frac{1}{\sum_b w_b} \sum_b w_b \sum_a
          \left[ \partial_a^2 f(x_b) + \tfrac12 (\partial_a f(x_b))^2 \right],

which needs no normalising constant and no gradient of the target. It is quadratic in
:math:`\theta` for any :math:`q_0`: the cross term
:math:`\partial_a \log q_0(x_b)\, \partial_a \varphi_j(x_b)` enters the right-hand side of the
fit's linear system. A Gaussian base makes a surrogate's tails pull inwards.

References
----------
Hyvärinen, A. (2005). Estimation of non-normalized statistical models by score matching. *Journal of
Machine Learning Research* 6, 695-709.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import (
    as_rows,
    check_choice,
    check_points,
    check_weights,
    in_chunks,
)
from pymc_kmc.numerics.evaluation import evaluation
from pymc_kmc.numerics.linear_algebra import solve_positive, symmetric
from pymc_kmc.surrogates.protocol import check_fitted

#: Variance of a coordinate without spread, relative to the largest.
NARROWEST = 1e-6


class GaussianBase(NamedTuple):
    """An unnormalised Gaussian, log q0(x) = -(x - mean)' precision (x - mean) / 2."""

    mean: np.ndarray
    precision: np.ndarray

    def log_density(self, X):
        """Return log densities (n,) at the rows of X (n, d)."""
        centred = X - self.mean
        return -0.5 * np.einsum("ni,ij,nj->n", centred, self.precision, centred)

    def gradient(self, X):
        """Return gradients (n, d) at the rows of X (n, d)."""
        return -(X - self.mean) @ self.precision

    @property
    def laplacian(self):
        """Sum of the second derivatives of the log density, the same everywhere."""
        return -np.trace(self.precision)


class ExponentialFamily(ABC):
    """An exponential family at arrays of points, whatever its features are; fitted."""

    def log_density(self, X):
        """Return the unnormalised log density at X, (d,) or (n, d): a float or (n,)."""
        check_fitted(self)
        X, single = as_rows(X, self.n_features_in_)
        values = in_chunks(self._log_density, X, len(self.coefficients_))
        return float(values[0]) if single else values

    def gradient(self, X):
        """Return the gradient of the log density at X, (d,) or (n, d), in the shape of X."""
        check_fitted(self)
        X, single = as_rows(X, self.n_features_in_)
        gradients = in_chunks(lambda x: self._derivatives(x)[0], X, len(self.coefficients_))
        return gradients[0] if single else gradients

    def loss(self, X, sample_weight=None):
        """Return the score-matching objective on X (n, d), a mean over its rows, unpenalised."""
        check_fitted(self)
        X = check_points(X, d=self.n_features_in_)
        weights = check_weights(sample_weight, len(X))
        columns = in_chunks(
            lambda x: np.column_stack(self._derivatives(x)), X, len(self.coefficients_)
        )
        return score_matching_loss(columns[:, :-1], columns[:, -1], weights)

    @abstractmethod
    def _log_density(self, X):
        """Return log densities (n,) at the rows of X (n, d)."""

    @abstractmethod
    def _derivatives(self, X):
        """Return gradients (n, d) and Laplacians (n,) at the rows of X (n, d)."""


def score_matching_loss(gradients, laplacians, weights):
    """Return the weighted mean of laplacian + |gradient|^2 / 2 over points, gradients (n, d)."""
    pointwise = laplacians + 0.5 * np.einsum("nd,nd->n", gradients, gradients)
    return float(weights @ pointwise / weights.sum())


def no_base(d):
    """Return the constant base density, as a Gaussian of precision zero."""
    return GaussianBase(np.zeros(d), np.zeros((d, d)))


def gaussian_base(mean, covariance, total_weight):
    """Return the Gaussian of given moments, made positive definite by light shrinkage.

    The covariance moves by 1 / (1 + total weight) of the way towards its own diagonal, like one
    additional independent observation. A coordinate without spread gets a millionth of the largest
    variance.
    """
    variance = np.diag(covariance)
    floor = NARROWEST * variance.max()
    shrinkage = 1.0 / (1.0 + total_weight)
    shrunk = (1.0 - shrinkage) * covariance
    shrunk[np.diag_indices_from(shrunk)] = np.maximum(variance, floor)
    precision = solve_positive(shrunk, np.eye(len(mean)))
    return GaussianBase(np.ascontiguousarray(mean), np.ascontiguousarray(symmetric(precision)))


def check_base(base):
    """Return the argument if it is None, "gaussian" or a GaussianBase, or raise a ValueError."""
    if not isinstance(base, GaussianBase):
        check_choice(base, "base", (None, "gaussian"))
    return base


def fit_base(base, X, weights):
    """Return the base density for the argument ``base``, given X (n, d) and weights (n,)."""
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
    """Return the log density at one point; compiled."""
    total = 0.0
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        total -= 0.5 * row * (x[i] - mean[i])
    return total


@evaluation
def base_gradient_at(mean, precision, x, out):
    """Write the gradient at one point; compiled."""
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        out[i] = -row
