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

# c_0, c_1, c_2: prior variances of the trend's coefficients, in units of its scale. Quadratic ones
# are of order 1; the centre may be ten standard deviations off.
TREND_VARIANCES = _C0, _C1, _C2 = (100.0, 100.0, 1.0)
# Degrees of freedom of radial terms: beyond the last a Student t is nearly Gaussian.
DEGREES_OF_FREEDOM = np.array([1.0, 4.0, 16.0, 64.0])
# Bounds of log s and log t, and their first values in a search: coefficients are of order 1, and
# coordinates are known to a tenth.
LOG_RADIAL, RADIAL_START = (-16.0, 6.0), (-1.0, -3.0)
# Usual squared length scale a dimension, l_0^2 / d: the unit of the bend's relevances.
BEND_LENGTH = 4.0


class RadialTerms(NamedTuple):
    r"""Terms for a log density with heavy tails, which falls like :math:`\log |z|`, not like |z|^2.

    The terms are those of Student t's with a geometric grid of degrees of freedom :math:`\nu_k`.
    Changes of centre and covariance add, to first order, a quadratic that is damped by w:

    .. math:: \rho_k(z) = \frac{\nu_k}{2} \log\left(1 + \frac{|z|^2}{\nu_k}\right), \qquad
              w_k(z) = \frac{\nu_k}{\nu_k + |z|^2}.

    With independent Gaussian coefficients of standard deviations s and t the sum has the covariance

    .. math:: s^2 \sum_k \rho_k(z) \rho_k(z') + t^2 (1 + z^\top z')^2 \sum_k w_k(z) w_k(z').

    Sums of terms also serve for degrees of freedom between the grid's. On a Student t with five
    degrees of freedom in six dimensions, 120 values and coordinates from 40 draws leave errors of
    .11 to .28 nats at other points, and some nats thirty scales away. A quadratic trend and a
    kernel leave .20 to 1.6 nats, and a hundred. The parameters are log s and log t; the methods are
    AdditiveKernel's.
    """

    log_scale: float
    log_damped_scale: float

    name = "radial"

    @classmethod
    def start(cls, n_dimensions):
        return cls(*RADIAL_START)

    @classmethod
    def unpacked(cls, vector):
        return cls(*vector)

    @property
    def bounds(self):
        return [LOG_RADIAL, LOG_RADIAL]

    @property
    def variances(self):
        return np.exp(2.0 * np.array(self))

    def __call__(self, Z, other):
        of_terms, of_damped = self.variances
        damped = (1.0 + Z @ other.T) ** 2 * (dampings(Z) @ dampings(other).T)
        return of_terms * terms(Z) @ terms(other).T + of_damped * damped

    def triangle(self, Z):
        return np.tril(self(Z, Z))

    def prior(self, Z):
        of_terms, of_damped = self.variances
        damped = (1.0 + np.sum(Z**2, axis=1)) ** 2 * np.sum(dampings(Z) ** 2, axis=1)
        return of_terms * np.sum(terms(Z) ** 2, axis=1) + of_damped * damped

    def parameters_gradient(self, Z, by_triangle):
        both = 2.0 * np.sum(by_triangle * self(Z, Z))
        rho = terms(Z)
        by_scale = 2.0 * self.variances[0] * np.sum((by_triangle @ rho) * rho)
        return np.array([by_scale, both - by_scale])

    def pullback(self, Z, other, by_covariances, by_prior):
        (of_terms, of_damped), w = self.variances, dampings(Z)
        by_terms = by_covariances @ terms(other) + 2.0 * by_prior[:, None] * terms(Z)
        along = of_terms * np.sum(by_terms * w, axis=1)
        # The damped quadratic's: by the inner products, and by the dampings.
        inner, square = 1.0 + Z @ other.T, 1.0 + np.sum(Z**2, axis=1)
        by_inner = 2.0 * by_covariances * inner * (w @ dampings(other).T)
        by_damping = (by_covariances * inner**2) @ dampings(other)
        by_damping += 2.0 * (by_prior * square**2)[:, None] * w
        damped = np.sum(by_damping * -2.0 * w**2 / DEGREES_OF_FREEDOM, axis=1)
        damped += 4.0 * by_prior * square * np.sum(w**2, axis=1)
        return (along + of_damped * damped)[:, None] * Z + of_damped * by_inner @ other


def terms(Z):
    """Return rho (n, 4) at points (n, d)."""
    squares = np.sum(Z**2, axis=1)[:, None]
    return 0.5 * DEGREES_OF_FREEDOM * np.log1p(squares / DEGREES_OF_FREEDOM)


def dampings(Z):
    """Return w (n, 4) at points (n, d); the gradient of rho is w z."""
    squares = np.sum(Z**2, axis=1)[:, None]
    return DEGREES_OF_FREEDOM / (DEGREES_OF_FREEDOM + squares)


# Extensions of the covariance, by name.
EXTENSIONS = {kind.name: kind for kind in (AdditiveKernel, RadialTerms)}


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
        """Return a search's first parameters: s, b, a and sigma^2 as given, the others usual."""
        lengths = np.full(n_dimensions, 0.5 * np.log(BEND_LENGTH * n_dimensions))
        extension = extension and EXTENSIONS[extension].start(n_dimensions)
        return cls(*values, lengths, extension)

    @classmethod
    def unpacked(cls, vector, n_dimensions, extension=None):
        n = 4 + n_dimensions
        extension = extension and EXTENSIONS[extension].unpacked(vector[n:])
        return cls(*vector[:4], vector[4:n], extension)

    @property
    def packed(self):
        """All parameters in a vector (4 + d,), then the extension's; `unpacked` inverts it."""
        return np.hstack([*self[:5], *(self.extension or ())])

    @property
    def factors(self):
        """Variances (3,) of trend, bend and kernel, and the kernel's precisions (d,)."""
        logs = np.array([2.0 * self.log_scale, 2.0 * self.log_bend, self.log_variance])
        return np.exp(logs), np.exp(-2.0 * self.log_lengths)


class Covariances:
    """Covariances (k, n) of points A (k, d) and B (n, d), and sums of their derivatives.

    An extension along axes has the coordinates ``A @ axes.T``. `inner` are inner products (k, n),
    if known.
    """

    def __init__(self, parameters, A, B, axes, inner=None):
        self.A, self.B, self.axes, self.extension = A, B, axes, parameters.extension
        self.variances, self.precisions = parameters.factors
        weighted = A * self.precisions
        # Arguments of compiled sums over pairs: inner products, those weighted by the precisions,
        # half the weighted squares, variances, and the bend's relevance in units of a precision.
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
        """The lower triangle, zeros above it, for A equal to B."""
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
        """Variances (k,) at the points A."""
        prior, extension = self._of_priors[0], self.extension
        return prior if extension is None else prior + extension.prior(self._along_axes[0])

    def pullback(self, by_values, by_prior):
        """Return the gradient (k, d) in A of ``sum(by_values * values) + by_prior @ prior``."""
        inner, weighted, _, rows, _ = _derivatives(by_values, *self._pairs, False)
        _, by_inner, by_weighted = by_prior * self._of_priors
        result = inner @ self.B + self.precisions * (weighted @ self.B)
        by_weighted -= 0.5 * rows
        result += 2.0 * self.A * (by_inner[:, None] + by_weighted[:, None] * self.precisions)
        if self.extension is not None:
            result += self.extension.pullback(*self._along_axes, by_values, by_prior) @ self.axes
        return result

    def parameters_gradient(self, by_triangle):
        """Return the gradient of ``sum(by_triangle * triangle)``; the noise's entry is zero."""
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
    """Write the Gaussians of half squared distances, which rounding must not make negative."""
    n = len(weighted)
    for j in range(n):
        found[j] = min(weighted[j] - square - squares[j], 0.0)
    exp_in_place(found, np.empty(n), n)


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _covariances(inner, weighted, squares, others, variances, relevance, is_triangle):
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
    """Return derivatives of ``sum(by * covariances)``.

    They are those by both kinds of products (k, n), by log s, log b and log a (3,), and minus those
    by half the weighted squares, (k,) and (n,).
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
    """Return variances (n,) at points (n, d), and their derivatives by both kinds of squares."""
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
