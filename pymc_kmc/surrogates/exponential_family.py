r"""Kernel exponential families: their base densities, and their correction by values.

A surrogate is an unnormalised log density :math:`f = \log q_0 + \theta^\top \varphi`, fitted by
score matching (Hyvärinen, 2005): the objective over points :math:`x_b` with weights :math:`w_b` is

.. math:: J(f) = \frac{1}{\sum_b w_b} \sum_b w_b \sum_a
          \left[ \partial_a^2 f(x_b) + \tfrac12 (\partial_a f(x_b))^2 \right],

which needs no normalising constant and no gradient of the target. It is quadratic in
:math:`\theta` for any :math:`q_0`: the cross term
:math:`\partial_a \log q_0(x_b)\, \partial_a \varphi_j(x_b)` enters the right-hand side of the
fit's linear system. A Gaussian base makes a surrogate's tails pull inwards.

A Metropolis chain pays for a value :math:`y_i \approx \log \pi(x_i)`, up to a constant and noise,
at every proposal. :func:`gaussian_from_values` finds a Gaussian :math:`q_0` from these values.
:meth:`ExponentialFamily.corrected` adds :math:`\delta^\top\varphi`, fitted to the residuals of a
score-matching fit, with a ridge on :math:`\delta` in the norm of the surrogate's regularisation.
Much noise makes the ridge large, and the score-matching fit, or a share of it, stays as it was.

References
----------
Hyvärinen, A. (2005). Estimation of non-normalized statistical models by score matching. *Journal of
Machine Learning Research* 6, 695-709.
"""

import copy
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_kmc.numerics.checks import (
    check_choice,
    check_points,
    check_weights,
    in_chunks,
)
from pymc_kmc.numerics.evaluation import evaluation
from pymc_kmc.numerics.linear_algebra import solve_positive, symmetric
from pymc_kmc.surrogates.gp_parts import Trend
from pymc_kmc.surrogates.kernels import PIVOT_TOLERANCE
from pymc_kmc.surrogates.protocol import AtPoints, check_fitted
from pymc_kmc.surrogates.regression import ridge_regression

#: Variance of a coordinate without spread, relative to the largest.
NARROWEST = 1e-6

#: Shares of a score-matching fit's kernel part that a correction may start from: an early history
#: can mislead score matching so far that none of it is better.
SHARES = (1.0, 0.5, 0.0)


#: Largest width of a fitted Gaussian in any direction, in standard deviations of the Gaussian that
#: it is shrunk towards: values in a small region say little of a wide one.
WIDEST = 4.5

#: Largest Mahalanobis distance between the two Gaussians' means, in square roots of the dimension:
#: beyond it the mean would be extrapolated.
FARTHEST_MEAN = 3.0


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
        """Laplacian of the log density, the same everywhere."""
        return -np.trace(self.precision)


class ExponentialFamily(AtPoints, ABC):
    """A fitted exponential family at arrays of points, for any features."""

    def _log_densities(self, rows):
        return in_chunks(self._log_density, rows, len(self.coefficients_))

    def _gradients(self, rows):
        return in_chunks(lambda x: self._derivatives(x)[0], rows, len(self.coefficients_))

    def loss(self, X, sample_weight=None):
        """Return the score-matching objective on X (n, d), a mean over its rows, unpenalised."""
        check_fitted(self)
        X = check_points(X, d=self.n_features_in_)
        weights = check_weights(sample_weight, len(X))
        columns = in_chunks(
            lambda x: np.column_stack(self._derivatives(x)), X, len(self.coefficients_)
        )
        return score_matching_loss(columns[:, :-1], columns[:, -1], weights)

    def corrected(self, X, values, weights):
        """Return a copy corrected by weighted values (n,) at X (n, d), known up to a constant."""
        features, gram = self.features(X), self.gram()
        kernel_part = features @ self.coefficients_
        residuals = values - (self.log_density(X) - kernel_part)
        features, matrix = (features, None) if gram is None else whitened(features, gram)
        fits = [
            (share, ridge_regression(features, residuals - share * kernel_part, weights))
            for share in SHARES
        ]
        share, fit = min(fits, key=lambda each: each[1].score)
        change = fit.coefficients if matrix is None else matrix @ fit.coefficients
        corrected = copy.copy(self)
        corrected.set_coefficients(share * self.coefficients_ + change)
        return corrected

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

    The covariance moves by 1 / (1 + total weight) of the way towards its diagonal, as by one more
    independent observation. A coordinate without spread gets a millionth of the largest variance.
    """
    variance = np.diag(covariance)
    floor = NARROWEST * variance.max()
    shrinkage = 1.0 / (1.0 + total_weight)
    shrunk = (1.0 - shrinkage) * covariance
    shrunk[np.diag_indices_from(shrunk)] = np.maximum(variance, floor)
    precision = solve_positive(shrunk, np.eye(len(mean)))
    return GaussianBase(np.ascontiguousarray(mean), np.ascontiguousarray(symmetric(precision)))


def check_base(base):
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


def gaussian_from_values(X, values, weights, mean, covariance):
    """Return a GaussianBase fitted to values (n,) at X (n, d), with weights (n,), by regression.

    Values are log densities up to a constant, perhaps noisy. The quadratic regression is shrunk
    towards the Gaussian of the given mean (d,) and positive definite covariance (d, d). The fitted
    Gaussian is positive definite, and in any direction at most 4.5 times as wide as the given one.
    """
    d = len(mean)
    L = np.linalg.cholesky(covariance)
    Z = scipy.linalg.solve_triangular(L, (X - mean).T, lower=True, check_finite=False).T
    trend = Trend.of(d, True, False)
    target = values + 0.5 * np.einsum("nd,nd->n", Z, Z)
    coefficients = ridge_regression(trend(Z), target, weights).coefficients
    linear, _, change = trend.split(coefficients)
    eigenvalues, vectors = np.linalg.eigh(np.eye(d) + change)
    eigenvalues = np.maximum(eigenvalues, WIDEST**-2)
    centre = (vectors / eigenvalues) @ (vectors.T @ linear)
    distance = np.linalg.norm(centre)
    centre *= min(1.0, FARTHEST_MEAN * np.sqrt(d) / distance) if distance > 0 else 1.0
    half = scipy.linalg.solve_triangular(L, vectors * np.sqrt(eigenvalues), lower=True, trans=1)
    return GaussianBase(mean + L @ centre, np.ascontiguousarray(half @ half.T))


def whitened(features, gram):
    """Return features (n, r) in which the norm of `gram` (k, k) is Euclidean, and a matrix (k, r).

    Directions of negligible norm are left out. Coefficients of the given features (n, k) are the
    matrix times those of the new ones.
    """
    eigenvalues, vectors = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
    kept = eigenvalues > PIVOT_TOLERANCE * eigenvalues[-1]
    matrix = vectors[:, kept] / np.sqrt(eigenvalues[kept])
    return features @ matrix, matrix


@evaluation
def base_log_density_at(mean, precision, x):
    total = 0.0
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        total -= 0.5 * row * (x[i] - mean[i])
    return total


@evaluation
def base_gradient_at(mean, precision, x, out):
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        out[i] = -row
