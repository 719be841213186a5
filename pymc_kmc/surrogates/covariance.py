"""The covariance function of the dense Gaussian process, and sums of its derivatives over pairs.

:mod:`pymc_kmc.surrogates.exact_gp` has the formula. Inner products of points are matrix products;
one compiled pass over them makes covariances, another derivatives.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import SUM_FLAGS
from pymc_kmc.numerics.jit import njit
from pymc_kmc.surrogates.additive_kernel import AdditiveKernel
from pymc_kmc.surrogates.radial_terms import RadialTerms

# What the covariance may be extended by.
EXTENSIONS = {"additive": AdditiveKernel, "radial": RadialTerms}
# Prior variances of the trend's constant, linear and quadratic coefficients, in units of its scale:
# a quadratic log density has coefficients of -1/2 and correlations between -1 and 1; its centre may
# be ten standard deviations off.
TREND_VARIANCES = _C0, _C1, _C2 = (100.0, 100.0, 1.0)
# Squared length scale that is usual, for each dimension: the bend's relevances are in units of it.
BEND_LENGTH = 4.0


class Hyperparameters(NamedTuple):
    """Logarithms of the covariance function's parameters, with length scales (d,)."""

    log_scale: float
    log_bend: float
    log_variance: float
    log_noise: float
    log_lengths: np.ndarray
    extension: AdditiveKernel | RadialTerms | None = None

    @classmethod
    def start(cls, values, n_dimensions, extension=None):
        """Return a search's first parameters: s, b, a and sigma^2 are given, the others usual."""
        lengths = np.full(n_dimensions, usual_log_length(n_dimensions))
        extension = extension and EXTENSIONS[extension].start(n_dimensions)
        return cls(*values, lengths, extension)

    @classmethod
    def unpacked(cls, vector, n_dimensions, extension=None):
        """Return the parameters of a vector (4 + d,), followed by those of an extension, if any."""
        n = 4 + n_dimensions
        extension = extension and EXTENSIONS[extension].unpacked(vector[n:])
        return cls(*vector[:4], vector[4:n], extension)

    @property
    def packed(self):
        """All parameters in a vector (4 + d,), longer with an extension."""
        more = [] if self.extension is None else self.extension.packed
        return np.concatenate([self[:4], self.log_lengths, more])

    @property
    def factors(self):
        """Variances (3,) of trend, bend and kernel, and the kernel's precisions (d,)."""
        logs = np.array([2.0 * self.log_scale, 2.0 * self.log_bend, self.log_variance])
        return np.exp(logs), np.exp(-2.0 * self.log_lengths)


class Covariances:
    """Covariances (k, n) of points A (k, d) and B (n, d), and sums of their derivatives.

    An extension along axes has the coordinates ``A @ axes.T``. `inner` are inner products (k, n),
    if these are known.
    """

    def __init__(self, parameters, A, B, axes, inner=None):
        self.A, self.B, self.axes, self.extension = A, B, axes, parameters.extension
        self.variances, self.precisions = parameters.factors
        weighted = A * self.precisions
        # What compiled sums over pairs need: inner products, those weighted by the precisions, half
        # the weighted squares, the variances, and the bend's relevance in units of a precision.
        self._pairs = (
            A @ B.T if inner is None else inner,
            weighted @ B.T,
            0.5 * np.einsum("ij,ij->i", weighted, A),
            0.5 * (B**2 @ self.precisions),
            self.variances,
            BEND_LENGTH * A.shape[1],
        )

    @property
    def values(self):
        found = _covariances(*self._pairs, False)
        return found if self.extension is None else found + self.extension(*self._along_axes)

    @property
    def triangle(self):
        """The lower triangle, zeros above it, where both points are the same."""
        found = _covariances(*self._pairs, True).T
        if self.extension is not None:
            found += self.extension.triangle(self._along_axes[0])
        return found

    @cached_property
    def _along_axes(self):
        return self.A @ self.axes.T, self.B @ self.axes.T

    @cached_property
    def _of_priors(self):
        return _priors(self.A, self.variances, self.precisions)

    @property
    def prior(self):
        """Variances (k,) at the first points."""
        prior = self._of_priors[0]
        return (
            prior if self.extension is None else prior + self.extension.prior(self._along_axes[0])
        )

    def pullback(self, by_values, by_prior):
        """Return the gradient (k, d) by A of ``sum(by_values * values) + by_prior @ prior``."""
        inner, weighted, _, rows, _ = _derivatives(by_values, *self._pairs, False)
        _, by_inner, by_weighted = by_prior * self._of_priors
        result = inner @ self.B + self.precisions * (weighted @ self.B)
        by_weighted -= 0.5 * rows
        result += 2.0 * self.A * (by_inner[:, None] + by_weighted[:, None] * self.precisions)
        if self.extension is not None:
            result += self.extension.pullback(*self._along_axes, by_values, by_prior) @ self.axes
        return result

    def parameters_gradient(self, by_triangle):
        """Return the gradient of ``sum(by_triangle * triangle)`` by the packed parameters.

        The noise is left out: its entry is zero. `by_triangle` is zero above the triangle.
        """
        _, weighted, by_parts, rows, columns = _derivatives(by_triangle.T, *self._pairs, True)
        products = np.einsum("ij,ij->j", self.A, weighted @ self.A)
        by_lengths = self.precisions * ((rows + columns) @ self.A**2 - 2.0 * products)
        more = []
        if self.extension is not None:
            more = self.extension.parameters_gradient(self._along_axes[0], by_triangle)
        return np.concatenate([by_parts, [0.0], by_lengths, more])


# Loops over pairs: of a triangle, in each row from the i-th column on, with zeros before.


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _trend_and_bend(inner, weighted):
    w = weighted
    return _C0 + (_C1 + _C2 * inner) * inner, (1.0 + w) * w * w * w


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _slopes(inner, weighted):
    return _C1 + 2.0 * _C2 * inner, (3.0 + 4.0 * weighted) * weighted * weighted


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _gaussians(weighted, square, squares, found):
    """Write the Gaussians of half squared distances; rounding makes none of them negative."""
    n = len(weighted)
    for j in range(n):
        found[j] = min(weighted[j] - square - squares[j], 0.0)
    exp_in_place(found, np.empty(n), n)


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _covariances(inner, weighted, squares, others, variances, relevance, is_triangle):
    """Return covariances (k, n)."""
    found = np.empty(inner.shape)
    for i in range(len(squares)):
        first = i if is_triangle else 0
        found[i, :first] = 0.0
        row, of_trend, of_bend = found[i, first:], inner[i, first:], weighted[i, first:]
        _gaussians(of_bend, squares[i], others[first:], row)
        for j in range(len(row)):
            trend, bend = _trend_and_bend(of_trend[j], relevance * of_bend[j])
            row[j] = variances[0] * trend + variances[1] * bend + variances[2] * row[j]
    return found


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _derivatives(by, inner, weighted, squares, others, variances, relevance, is_triangle):
    """Return the derivatives of ``sum(by * covariances)``.

    They are those by both kinds of products (k, n), by the logarithms of s, b and a (3,), and minus
    those by half the weighted squares, (k,) and (n,).
    """
    by_inner, by_weighted = np.empty(inner.shape), np.empty(inner.shape)
    by_parts, rows, columns = np.zeros(3), np.empty(len(squares)), np.zeros(len(others))
    for i in range(len(squares)):
        first = i if is_triangle else 0
        by_weighted[i, :first] = 0.0
        of_trend, of_bend, slope = inner[i, first:], weighted[i, first:], by[i, first:]
        result, gaussian, column = by_inner[i, first:], by_weighted[i, first:], columns[first:]
        _gaussians(of_bend, squares[i], others[first:], gaussian)
        by_trend, by_bend, total = 0.0, 0.0, 0.0
        for j in range(len(slope)):
            trend, bend = _trend_and_bend(of_trend[j], relevance * of_bend[j])
            by_trend += slope[j] * trend
            by_bend += slope[j] * bend
            by_gaussian = slope[j] * variances[2] * gaussian[j]
            total += by_gaussian
            column[j] += by_gaussian
            trend, bend = _slopes(of_trend[j], relevance * of_bend[j])
            result[j] = slope[j] * variances[0] * trend
            gaussian[j] = slope[j] * variances[1] * relevance * bend + by_gaussian
        by_parts[0] += 2.0 * variances[0] * by_trend
        by_parts[1] += 2.0 * variances[1] * by_bend
        by_parts[2] += total
        rows[i] = total
    return by_inner, by_weighted, by_parts, rows, columns


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _priors(Z, variances, precisions):
    """Return the variances (n,) at points (n, d), and derivatives by both kinds of squares."""
    n, d = Z.shape
    found, relevance = np.empty((3, n)), BEND_LENGTH * d
    for i in range(n):
        square, weighted = 0.0, 0.0
        for a in range(d):
            square += Z[i, a] * Z[i, a]
            weighted += precisions[a] * Z[i, a] * Z[i, a]
        trend, bend = _trend_and_bend(square, relevance * weighted)
        found[0, i] = variances[0] * trend + variances[1] * bend + variances[2]
        trend, bend = _slopes(square, relevance * weighted)
        found[1, i], found[2, i] = variances[0] * trend, variances[1] * relevance * bend
    return found


def usual_log_length(n_dimensions):
    """Return the logarithm of the length scale that a search begins with."""
    return 0.5 * np.log(BEND_LENGTH * n_dimensions)
