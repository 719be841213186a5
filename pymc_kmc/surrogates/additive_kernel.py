r"""A kernel of functions of single coordinates, of pairs of them, of triples, and so on.

With one Gaussian kernel a coordinate, :math:`g_j = \exp(-(u_j - u'_j)^2 / (2 l_j^2))`, it is

.. math:: v P(u, u'), \qquad P = \frac{\prod_j (1 + r g_j) - 1}{r}
          = \sum_j g_j + r \sum_{i < j} g_i g_j + r^2 \sum_{h < i < j} g_h g_i g_j + \dots

(Duvenaud, Nickisch and Rasmussen, 2011, equations 6 and 7, with the variances of orders a geometric
series, as of Stitson et al., 1999). With a small ratio r, functions of nine coordinates are told by
some hundreds of values, for each is one of few coordinates; a Gaussian kernel of all nine has to be
filled with values in all directions.

References
----------
Duvenaud, D., Nickisch, H. and Rasmussen, C. E. (2011). Additive Gaussian processes. *Advances in
Neural Information Processing Systems* 24.

Stitson, M., Gammerman, A., Vapnik, V., Vovk, V., Watkins, C. and Weston, J. (1999). Support vector
regression with ANOVA decomposition kernels. *Advances in Kernel Methods*, 285-292. MIT Press.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import SUM_FLAGS
from pymc_kmc.numerics.jit import njit

# Bounds of the logarithms of v, r and each l, the last in standard deviations of a coordinate.
LOG_VARIANCE, LOG_RATIO, LOG_LENGTH = (-16.0, 12.0), (-12.0, 4.0), (-2.5, 3.5)
# Those that a search begins with: single coordinates above all.
START = (0.0, -2.0, 0.3)


class AdditiveKernel(NamedTuple):
    """Logarithms of the parameters; of the length scales, shape (d,)."""

    log_variance: float
    log_ratio: float
    log_lengths: np.ndarray

    #: Whether its points are coordinates of x itself, in standard deviations.
    is_along_axes = True
    #: Whether a bend goes with it.
    bends = True

    @classmethod
    def start(cls, n_dimensions):
        """Return where a search begins."""
        log_variance, log_ratio, log_length = START
        return cls(log_variance, log_ratio, np.full(n_dimensions, log_length))

    @classmethod
    def unpacked(cls, vector):
        """Return the parameters of a vector (2 + d,)."""
        return cls(*vector[:2], vector[2:])

    @property
    def packed(self):
        """All in a vector (2 + d,)."""
        return np.append(self[:2], self.log_lengths)

    @property
    def bounds(self):
        """Pairs of what the parameters may be."""
        return [LOG_VARIANCE, LOG_RATIO, *[LOG_LENGTH] * len(self.log_lengths)]

    @property
    def n_lengths(self):
        """Number of length scales, the last of the parameters."""
        return len(self.log_lengths)

    @property
    def factors(self):
        """The parameters that compiled code takes: v, r, and the inverses of l."""
        return np.exp(self.log_variance), np.exp(self.log_ratio), np.exp(-self.log_lengths)

    def __call__(self, U, V):
        """Return the covariances of points (n, d) and (k, d), shape (n, k)."""
        variance, ratio, shrinking = self.factors
        return variance * _products(_columns(U * shrinking), _columns(V * shrinking), ratio)

    def prior(self, U):
        """Return the variances at points (n, d), shape (n,); they are the same everywhere."""
        variance, ratio, _ = self.factors
        return np.full(len(U), variance * np.expm1(U.shape[1] * np.log1p(ratio)) / ratio)

    def parameters_gradient(self, U, by_covariances, covariances):
        """Return the gradient of ``sum(by_covariances * covariances)`` by the packed parameters.

        Parameters
        ----------
        U : ndarray, shape (n, d)
        by_covariances, covariances : ndarray, shape (n, n)
        """
        variance, ratio, shrinking = self.factors
        columns = _columns(U * shrinking)
        by_ratio, by_lengths = _parameter_sums(columns, variance * by_covariances, ratio)
        by_variance = np.sum(by_covariances * covariances)
        return np.concatenate([[by_variance, by_ratio - by_variance], by_lengths])

    def pullback(self, U, V, by_covariances, by_prior):
        """Return the gradient by U of what depends on its covariances and its variances.

        Parameters
        ----------
        U, V : ndarray, shapes (n, d) and (k, d)
        by_covariances : ndarray, shape (n, k)
        by_prior : ndarray, shape (n,)

        Returns
        -------
        ndarray, shape (n, d)
        """
        variance, ratio, shrinking = self.factors
        columns = _columns(U * shrinking), _columns(V * shrinking)
        return _pulled(*columns, variance * by_covariances, ratio) * shrinking


def _columns(U):
    """Return coordinates (d, n) one after the other."""
    return np.ascontiguousarray(U.T)


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def gaussians_at(u, V, ratio, gaussians, products):
    """Write the Gaussian kernels g (d, k) of a point and places, and P (k,).

    Parameters
    ----------
    u : ndarray, shape (d,)
    V : ndarray, shape (d, k)
        Both in length scales.
    ratio : float
    """
    d, k = V.shape
    scratch = np.empty(k)
    products[:] = 0.0
    for a in range(d):
        row, gaussian = V[a], gaussians[a]
        for j in range(k):
            away = u[a] - row[j]
            gaussian[j] = -0.5 * away * away
        exp_in_place(gaussian, scratch, k)
        for j in range(k):
            # By this recursion small ratios lose no digits.
            products[j] += gaussian[j] * (1.0 + ratio * products[j])


@njit(error_model="numpy")
def _products(U, V, ratio):
    """Return P of points (d, n) and (d, k), shape (n, k)."""
    d, k = V.shape
    n = U.shape[1]
    found, gaussians = np.empty((n, k)), np.empty((d, k))
    for i in range(n):
        gaussians_at(np.ascontiguousarray(U[:, i]), V, ratio, gaussians, found[i])
    return found


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _parameter_sums(U, by_products, ratio):
    """Return sums of `by_products` (n, n) times derivatives of P.

    By log r of r P, and by each log l.
    """
    d, n = U.shape
    gaussians, products, rest = np.empty((d, n)), np.empty(n), np.empty(n)
    by_ratio, by_lengths = 0.0, np.zeros(d)
    for i in range(n):
        gaussians_at(np.ascontiguousarray(U[:, i]), U, ratio, gaussians, products)
        for j in range(n):
            rest[j] = by_products[i, j] * (1.0 + ratio * products[j])
        for a in range(d):
            u, row, gaussian, total, weighted = U[a, i], U[a], gaussians[a], 0.0, 0.0
            for j in range(n):
                away = u - row[j]
                share = rest[j] * gaussian[j] / (1.0 + ratio * gaussian[j])
                total += share
                weighted += share * away * away
            by_ratio += total
            by_lengths[a] += weighted
    return by_ratio, by_lengths


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _pulled(U, V, by_products, ratio):
    """Return the gradient of ``sum(by_products * P)`` by points (d, n), shape (n, d)."""
    d, k = V.shape
    n = U.shape[1]
    gaussians, products, pulled = np.empty((d, k)), np.empty(k), np.empty((n, d))
    for i in range(n):
        gaussians_at(np.ascontiguousarray(U[:, i]), V, ratio, gaussians, products)
        for j in range(k):
            products[j] = by_products[i, j] * (1.0 + ratio * products[j])
        for a in range(d):
            u, row, gaussian, total = U[a, i], V[a], gaussians[a], 0.0
            for j in range(k):
                share = products[j] * gaussian[j] / (1.0 + ratio * gaussian[j])
                total += share * (row[j] - u)
            pulled[i, a] = total
    return pulled
