r"""Regression of log-density *values*, beside score matching.

A Metropolis chain pays for a value :math:`y_i \approx \log \pi(x_i)` (up to a constant, and
noise) at every proposal, accepted or not. A surrogate :math:`f = \log q_0 + \theta^\top \varphi`
is linear in its coefficients. Its fit to values is weighted ridge regression with the constant
profiled out. There are two uses:

- :func:`gaussian_from_values` finds a Gaussian base density :math:`q_0`: a quadratic regression,
  shrunk towards a given Gaussian, made positive definite.
- :func:`correct` moves a surrogate fitted by score matching to the values. It adds
  :math:`\delta^\top\varphi` fitted to the residuals, with a ridge on :math:`\delta` in the norm
  of the surrogate's regularisation. Much noise makes the ridge large, and the score-matching fit,
  or a share of it, stays as it was.

The ridge is chosen by generalised cross-validation (Golub, Heath and Wahba, 1979, equation 1.4):
one eigen-decomposition gives its whole path.

References
----------
Golub, G. H., Heath, M. and Wahba, G. (1979). Generalized cross-validation as a method for
choosing a good ridge parameter. *Technometrics* 21, 215-223.
"""

import copy
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_kmc.surrogates.base_density import GaussianBase
from pymc_kmc.surrogates.gp_parts import Trend

#: Ridges tried, relative to the largest eigenvalue of the weighted Gram matrix: from rounding
#: error to a fit that is switched off.
RELATIVE_RIDGES = 10.0 ** np.arange(-14.0, 3.0)

#: Shares of a score-matching fit's kernel part from which a correction may start: an early history
#: can mislead score matching so far that starting from nothing is better.
SHARES = (1.0, 0.5, 0.0)

#: Eigenvalue of a Gram matrix, relative to the largest, below which it is rounding error.
RELATIVE_RANK = 1e-10

#: Largest width of a fitted Gaussian, in standard deviations of the Gaussian that it is shrunk
#: towards, in any direction: values in a small region say little of a wide one.
WIDEST = 4.5

#: Largest Mahalanobis distance of its mean from the other's, per square root of the dimension: it
#: would be extrapolated beyond.
FARTHEST = 3.0


class RidgeFit(NamedTuple):
    """A ridge regression; `score` is cross-validation's estimate of its mean squared error."""

    coefficients: np.ndarray
    score: float
    ridge: float


def ridge_regression(features, values, weights, relative_ridges=RELATIVE_RIDGES):
    """Fit a weighted ridge regression, the ridge chosen by generalised cross-validation.

    `features` have shape (n, k), `values` and `weights` (n,). Weights are positive, and their scale
    doesn't matter. Ridges are relative to the largest eigenvalue of the weighted Gram matrix.
    """
    root = np.sqrt(weights / weights.mean())
    F = (features - np.average(features, axis=0, weights=weights)) * root[:, None]
    y = (values - np.average(values, weights=weights)) * root
    n, k = F.shape
    gram = F.T @ F if k <= n else F @ F.T
    eigenvalues, vectors = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    largest = eigenvalues[-1]
    if not largest > 0:
        return RidgeFit(np.zeros(k), float(y @ y / n), np.inf)
    kept = eigenvalues > np.finfo(float).eps * len(gram) * largest
    eigenvalues, vectors = eigenvalues[kept], vectors[:, kept]
    projected = vectors.T @ (F.T @ y if k <= n else y)
    squares = projected**2 / eigenvalues if k <= n else projected**2
    ridges = relative_ridges[:, None] * largest
    shrinkage = eigenvalues / (eigenvalues + ridges)
    unexplained = max(float(y @ y - squares.sum()), 0.0)
    residual = unexplained + ((1.0 - shrinkage) ** 2 * squares).sum(axis=1)
    # Below the rounding error of y'y residuals are not to be told from one another.
    residual = np.maximum(residual, n * np.finfo(float).eps * float(y @ y))
    freedom = 1.0 - (1.0 + shrinkage.sum(axis=1)) / n
    # Towards interpolation both vanish; their ratio keeps its limit.
    scores = residual / n / np.maximum(freedom, np.finfo(float).eps) ** 2
    best = int(np.argmin(scores))
    solution = vectors @ (projected / (eigenvalues + ridges[best]))
    return RidgeFit(
        solution if k <= n else F.T @ solution, float(scores[best]), float(ridges[best, 0])
    )


def gaussian_from_values(X, values, weights, mean, covariance):
    """Fit a Gaussian log density to values (n,) at X (n, d), with weights (n,), by regression.

    Values are log densities up to a constant, perhaps noisy. The fit is shrunk towards the Gaussian
    of the given mean (d,) and positive definite covariance (d, d). The resulting GaussianBase is
    positive definite, and in any direction at most 4.5 times as wide as that Gaussian.
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
    centre *= min(1.0, FARTHEST * np.sqrt(d) / distance) if distance > 0 else 1.0
    half = scipy.linalg.solve_triangular(L, vectors * np.sqrt(eigenvalues), lower=True, trans=1)
    return GaussianBase(mean + L @ centre, np.ascontiguousarray(half @ half.T))


def whitened(features, gram):
    """Return features (n, r) in which the norm of `gram` (k, k) is Euclidean, and a matrix (k, r).

    `gram` is positive semi-definite; directions of negligible norm are left out. Coefficients of
    the given features (n, k) are the matrix times those of the new ones.
    """
    eigenvalues, vectors = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
    kept = eigenvalues > RELATIVE_RANK * eigenvalues[-1]
    matrix = vectors[:, kept] / np.sqrt(eigenvalues[kept])
    return features @ matrix, matrix


def correct(surrogate, X, values, weights):
    """Return a copy of a fitted surrogate moved towards log-density values (n,), and its score.

    The surrogate is a KernelExpLite or KernelExpFinite. Values at X (n, d), with weights (n,), are
    known up to a constant and perhaps noisy. The score is generalised cross-validation's estimate
    of the mean squared error of the copy's log density.
    """
    features, gram = surrogate.features(X), surrogate.gram()
    kernel_part = features @ surrogate.coefficients_
    base_part = surrogate.log_density(X) - kernel_part
    matrix = None
    if gram is not None:
        features, matrix = whitened(features, gram)
    best = None
    for share in SHARES:
        fit = ridge_regression(features, values - base_part - share * kernel_part, weights)
        if best is None or fit.score < best[1].score:
            best = share, fit
    share, fit = best
    change = fit.coefficients if matrix is None else matrix @ fit.coefficients
    corrected = copy.copy(surrogate)
    corrected.set_coefficients(share * surrogate.coefficients_ + change)
    return corrected, fit.score
