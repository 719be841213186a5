r"""A kernel for functions of single coordinates and of pairs of them.

With one Gaussian kernel a coordinate, :math:`g_j = \exp(-(u_j - u'_j)^2 / (2 l_j^2))`, it is

.. math:: v P(u, u'), \qquad P = \sum_j g_j + r \sum_{i < j} g_i g_j

(Duvenaud, Nickisch and Rasmussen, 2011, equations 6 and 7, with two orders; see
:mod:`pymc_kmc.surrogates.log_density_gp`). Each term depends on few coordinates, so that some
hundreds of values determine a function of nine coordinates. Terms of three and more coordinates are
left to a Gaussian kernel of all coordinates: on Glass the ratio r is .003, and in a geometric
series of all orders those above the second contribute .01 of 1.6 nats.

Fast moves use Gaussians about the knots of a grid, and products of two
(:meth:`AdditiveKernel.on_grids`): some tens of knots an axis replace all points of the fit.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import pinvh

from pymc_kmc.numerics.elementary import gaussian_of
from pymc_kmc.numerics.evaluation import SUM_FLAGS
from pymc_kmc.numerics.jit import njit

# Bounds of log v, log r and each log l, l in standard deviations of a coordinate.
LOG_VARIANCE, LOG_RATIO, LOG_LENGTH = (-16.0, 12.0), (-12.0, 4.0), (-2.5, 3.5)
# First values of log v, log r and log l in a search: single coordinates dominate pairs.
ADDITIVE_START = (0.0, -2.0, 0.3)

# Distance of knots, in length scales. On Glass, 1102 points in nine dimensions have 177 knots, and
# the error at draws is at most 3e-4 nats; with .6 it is .02, with .75 it is .4.
SPACING = 0.5
# Knots about a point, in spacings from the last one below it.
ABOUT = (-1.0, 0.0, 1.0, 2.0)
# Eigenvalue of the knots' covariance, relative to the largest, below which it is rounding error.
KNOT_ROUNDING = 1e-13


class AdditiveKernel(NamedTuple):
    """Logarithms of v, r and the length scales l (d,)."""

    log_variance: float
    log_ratio: float
    log_lengths: np.ndarray

    name = "additive"

    @classmethod
    def start(cls, n_dimensions):
        log_variance, log_ratio, log_length = ADDITIVE_START
        return cls(log_variance, log_ratio, np.full(n_dimensions, log_length))

    @classmethod
    def unpacked(cls, vector):
        return cls(*vector[:2], vector[2:])

    @property
    def bounds(self):
        return [LOG_VARIANCE, LOG_RATIO, *[LOG_LENGTH] * len(self.log_lengths)]

    @property
    def factors(self):
        """The parameters for compiled code: v, r and 1 / l."""
        return np.exp(self.log_variance), np.exp(self.log_ratio), np.exp(-self.log_lengths)

    def __call__(self, U, V):
        """Return the covariances (n, k) of points (n, d) and (k, d)."""
        variance, ratio, shrinking = self.factors
        return variance * _products(U * shrinking, _columns(V * shrinking), ratio, False)

    def triangle(self, U):
        """Return the lower triangle of the covariance (n, n) of points (n, d), zeros above it."""
        variance, ratio, shrinking = self.factors
        return variance * _products(U * shrinking, _columns(U * shrinking), ratio, True).T

    def prior(self, U):
        """Return the variances (n,) at points (n, d), the same everywhere."""
        variance, ratio, _ = self.factors
        d = U.shape[1]
        return np.full(len(U), variance * d * (1.0 + 0.5 * ratio * (d - 1)))

    def parameters_gradient(self, U, by_triangle):
        """Return the gradient of ``sum(by_triangle * triangle)`` in the packed parameters."""
        variance, ratio, shrinking = self.factors
        points = U * shrinking, _columns(U * shrinking)
        return variance * _sums(*points, by_triangle.T, ratio, True)[0]

    def pullback(self, U, V, by_covariances, by_prior):
        """Return the gradient in U of ``sum(by_covariances * k(U, V)) + by_prior @ prior(U)``."""
        variance, ratio, shrinking = self.factors
        points = U * shrinking, _columns(V * shrinking)
        return variance * _sums(*points, by_covariances, ratio, False)[1] * shrinking

    def on_grids(self, U, weights):
        """Return weighted sums of covariances with U (n, d) in terms of Gaussians about knots.

        There is a sum for each column of `weights` (n, m). With the Gaussians g of all M knots it
        is ``linear @ g + g @ pairs @ g / 2``. The result is each axis's knots in length scales, a
        list, `linear` (m, M) and `pairs` (m, M, M).
        """
        variance, ratio, shrinking = self.factors
        grids = [_Grid.about(column) for column in (U * shrinking).T]
        shares = np.vstack([grid.shares for grid in grids])
        pairs = np.stack([(shares * column) @ shares.T for column in weights.T])
        axis = np.repeat(np.arange(len(grids)), [len(grid.knots) for grid in grids])
        pairs[:, axis[:, None] == axis] = 0.0
        linear = variance * (shares @ weights).T
        return [grid.knots for grid in grids], linear, variance * ratio * pairs


class _Grid(NamedTuple):
    """Gaussians about M knots of a line, whose `shares` (M, n) replace n points (Nystroem)."""

    knots: np.ndarray
    shares: np.ndarray

    @classmethod
    def about(cls, points):
        cells = np.unique(np.floor(points / SPACING)[:, None] + ABOUT)
        knots = SPACING * cells
        inverse = pinvh(_gaussians(knots, knots), rtol=KNOT_ROUNDING)
        return cls(knots, inverse @ _gaussians(knots, points))


def _gaussians(a, b):
    return np.exp(-0.5 * (a[:, None] - b) ** 2)


def _columns(U):
    return np.ascontiguousarray(U.T)


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _gaussians_at(u, V, first, gaussians, sums, pairs):
    """Write g (d, k) of u and V, its sums and its pairwise products' sums (k,), from `first` on."""
    sums[first:] = 0.0
    pairs[first:] = 0.0
    of_singles, of_pairs = sums[first:], pairs[first:]
    for a in range(len(V)):
        row, gaussian, at = V[a, first:], gaussians[a, first:], u[a]
        for j in range(len(row)):
            g = gaussian_of(at - row[j])
            gaussian[j] = g
            of_pairs[j] += g * of_singles[j]
            of_singles[j] += g


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _products(U, V, ratio, is_triangle):
    """Return P (n, k) of points (n, d) and (d, k); from the i-th column on if it is a triangle."""
    (d, k), n = V.shape, len(U)
    found, gaussians, pairs = np.zeros((n, k)), np.empty((d, k)), np.empty(k)
    for i in range(n):
        first = i if is_triangle else 0
        _gaussians_at(U[i], V, first, gaussians, found[i], pairs)
        for j in range(first, k):
            found[i, j] += ratio * pairs[j]
    return found


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _sums(U, V, by_products, ratio, is_triangle):
    """Return derivatives of ``sum(by_products * P)`` by the parameters (2 + d,) and U (n, d)."""
    (d, k), n = V.shape, len(U)
    gaussians, sums, pairs = np.empty((d, k)), np.empty(k), np.empty(k)
    by_parameters, by_points = np.zeros(2 + d), np.empty((n, d))
    for i in range(n):
        first = i if is_triangle else 0
        _gaussians_at(U[i], V, first, gaussians, sums, pairs)
        by, singles = by_products[i, first:], sums[first:]
        of_pairs = ratio * np.sum(by * pairs[first:])
        by_parameters[0] += np.sum(by * singles) + of_pairs
        by_parameters[1] += of_pairs
        for a in range(d):
            u, row, gaussian, total, pulled = U[i, a], V[a, first:], gaussians[a, first:], 0.0, 0.0
            for j in range(len(row)):
                away, g = row[j] - u, gaussian[j]
                term = by[j] * g * (1.0 + ratio * (singles[j] - g)) * away
                pulled += term
                total += term * away
            by_points[i, a] = pulled
            by_parameters[2 + a] += total
    return by_parameters, by_points
