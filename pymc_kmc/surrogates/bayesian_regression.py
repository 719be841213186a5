r"""Bayesian linear regression of values on two groups of features, weighted by marginal likelihood.

Values are :math:`y_i = c + q_i^\top \beta + \varphi_i^\top \theta + \varepsilon_i` with weights
:math:`w_i`, a constant c that is profiled out, :math:`\beta \sim N(0, \tfrac{s^2}{\lambda} I)`,
:math:`\theta \sim N(0, \tfrac{s^2}{\kappa} I)` and :math:`\varepsilon_i \sim N(0, s^2 / w_i)`. For
given ridges :math:`\lambda, \kappa` the marginal likelihood, maximised over :math:`s^2`, is

.. math:: \log p(y) = -\tfrac n2 \log \hat s^2 - \tfrac12 \log\det(I + F^\top W F / \Lambda)
          + \text{const}, \qquad
          n \hat s^2 = y^\top W y - y^\top W F (F^\top W F + \Lambda)^{-1} F^\top W y

with F = (q, phi) centred (Rasmussen and Williams, 2006, sections 2.7 and 5.4, see
:class:`~pymc_kmc.surrogates.LogDensityGP`). One Cholesky factorisation for each :math:`\lambda` and
one reduction of the second group's Schur complement to a tridiagonal matrix give the whole path
over :math:`\kappa`.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_kmc.numerics.linear_algebra import triangular_solve

#: Residual variance, relative to the values', below which it is rounding error.
RELATIVE_FLOOR = 1e-14

#: Ridges of the second group tried: from rounding error to a fit that is switched off.
KERNEL_RIDGES = 10.0 ** np.arange(-12.0, 4.0)

#: Smallest ridge in units of a bound of the largest eigenvalue: with less, rounding errors are
#: fitted.
SMALLEST_RIDGE = 1e-15

#: Columns that LAPACK handles at a time, its own usual block.
BLOCK_SIZE = 64


class RegressionFit(NamedTuple):
    """A fitted regression.

    `log_evidence` is the log marginal likelihood up to a constant, -inf for a fit that failed.
    `ridge` and `coefficients` (k,) are those of the first group of features, `kernel_ridge` and
    `kernel_coefficients` (m,) those of the second, which is empty without one. `variance` is the
    residual variance at weight one.
    """

    log_evidence: float
    ridge: float
    kernel_ridge: float
    variance: float
    coefficients: np.ndarray
    kernel_coefficients: np.ndarray


class BayesianRegression:
    """Regression on a first group of features (n, k), to which second groups may be added.

    Weights (n,) are positive; their scale doesn't matter. `ridges` are the first group's to try.
    """

    def __init__(self, features, values, weights, ridges):
        self.n = len(values)
        self._weights = weights / weights.mean()
        self._root = np.sqrt(self._weights)
        self._values = self._centred(values[:, None])[:, 0]
        self._square = float(self._values @ self._values)
        self._features = self._centred(features)
        gram = self._features.T @ self._features
        projected = self._features.T @ self._values
        self._factors = []
        for ridge in ridges:
            factor, info = scipy.linalg.lapack.dpotrf(
                gram + ridge * np.eye(len(gram)), lower=1, clean=1
            )
            if info == 0 and np.isfinite(factor[-1, -1]):
                solution = triangular_solve(factor, projected)
                determinant = 2.0 * np.log(np.diag(factor)).sum() - len(gram) * np.log(ridge)
                self._factors.append((ridge, factor, solution, determinant))

    def _centred(self, features):
        mean = self._weights @ features / self._weights.sum()
        return (features - mean) * self._root[:, None]

    def _variance(self, squared_residuals):
        floor = RELATIVE_FLOOR * self._square + np.finfo(float).tiny
        return np.maximum(squared_residuals, floor) / self.n

    def fit(self):
        """Return the :class:`RegressionFit` of largest evidence for the first group alone."""
        best = None
        for ridge, factor, solution, determinant in self._factors:
            variance = float(self._variance(self._square - solution @ solution))
            evidence = -0.5 * self.n * np.log(variance) - 0.5 * determinant
            if np.isfinite(evidence) and (best is None or evidence > best[0]):
                best = evidence, ridge, factor, solution, variance
        if best is None:
            return self._failure()
        evidence, ridge, factor, solution, variance = best
        coefficients = triangular_solve(factor, solution, transposed=True)
        return RegressionFit(evidence, ridge, np.inf, variance, coefficients, np.zeros(0))

    def fit_with(self, features, kernel_ridges=KERNEL_RIDGES, ridges=None):
        """Return the fit of largest evidence with a second group of features (n, m).

        `kernel_ridges` are the second group's to try, `ridges` some of the first group's; None is
        all.
        """
        features = self._centred(features)
        cross, gram = self._features.T @ features, features.T @ features
        projected = features.T @ self._values
        best = None
        for ridge, factor, solution, determinant in self._factors:
            if ridges is not None and ridge not in ridges:
                continue
            explained = triangular_solve(factor, cross)
            rest = projected - explained.T @ solution
            schur = gram - explained.T @ explained
            if not (np.isfinite(schur).all() and np.isfinite(rest).all()):
                continue
            second = _Shifted(schur, rest)
            for kernel_ridge in kernel_ridges:
                solved = second.solve(kernel_ridge)
                if solved is None:
                    continue
                theta, decrease, second_determinant = solved
                variance = float(self._variance(self._square - solution @ solution - decrease))
                evidence = -0.5 * (self.n * np.log(variance) + determinant + second_determinant)
                if np.isfinite(evidence) and (best is None or evidence > best[0]):
                    parts = factor, solution, explained, second
                    best = evidence, ridge, kernel_ridge, variance, theta, parts
        if best is None:
            return self._failure(features.shape[1])
        evidence, ridge, kernel_ridge, variance, theta, parts = best
        factor, solution, explained, second = parts
        theta = second.back(theta)
        coefficients = triangular_solve(factor, solution - explained @ theta, transposed=True)
        return RegressionFit(
            float(evidence), ridge, float(kernel_ridge), float(variance), coefficients, theta
        )

    def _failure(self, n_kernel=0):
        n_features = self._features.shape[1]
        variance = float(self._variance(self._square))
        return RegressionFit(
            -np.inf, 1.0, np.inf, variance, np.zeros(n_features), np.zeros(n_kernel)
        )


class _Shifted:
    """A matrix S plus multiples of the identity, with one right-hand side b (m,).

    S (m, m) is positive semidefinite up to rounding errors. With S = Q T Q', T tridiagonal, a
    multiple costs next to nothing, and the set-up half the time of eigenvalues and eigenvectors.
    """

    def __init__(self, matrix, rhs):
        lapack = scipy.linalg.lapack
        reflectors, self._diagonal, self._beside, self._scales, _ = lapack.dsytrd(
            matrix, lower=1, lwork=BLOCK_SIZE * len(matrix)
        )
        self._reflectors = reflectors[1:, :-1]
        if len(matrix) == 1:
            self._beside = np.zeros(1)  # LAPACK's wrappers ask for one that isn't used
        self._rhs = self._rotated(rhs, "T")
        # No eigenvalue is larger than the largest sum of absolute values in a row.
        beside = np.abs(np.append(self._beside, 0.0))[: len(matrix)]
        self._largest = np.max(np.abs(self._diagonal) + beside + np.roll(beside, 1), initial=0.0)

    def _rotated(self, vector, transposed):
        vector = vector.copy()
        if len(vector) > 1:
            rest, _, _ = scipy.linalg.lapack.dormqr(
                "L", transposed, self._reflectors, self._scales, vector[1:, None], BLOCK_SIZE
            )
            vector[1:] = rest[:, 0]
        return vector

    def solve(self, shift):
        """Solve (S + shift I) x = b; return Q' x, b' x and log |I + S / shift|.

        The result is None where the shift is below the eigenvalues' rounding errors: the solution
        would fit these.
        """
        if shift < SMALLEST_RIDGE * self._largest:
            return None
        diagonal, beside, info = scipy.linalg.lapack.dpttrf(self._diagonal + shift, self._beside)
        if info != 0:
            return None
        x, _ = scipy.linalg.lapack.dpttrs(diagonal, beside, self._rhs[:, None])
        return x[:, 0], float(self._rhs @ x[:, 0]), float(np.log(diagonal / shift).sum())

    def back(self, rotated):
        return self._rotated(rotated, "N")
