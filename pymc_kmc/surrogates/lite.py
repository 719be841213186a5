r"""KMC lite: a kernel expansion on the points themselves (Strathmann et al., 2015, Proposition 1).

.. math:: f(x) = \log q_0(x) + \sum_i \alpha_i k(x_i, x), \qquad
          \alpha = -\tfrac{\sigma}{2} (C + \lambda P)^{-1} b

over :math:`n` distinct points with multiplicities :math:`w`. With :math:`K` the kernel matrix and
:math:`D` that of squared distances,

.. math:: b_i = \sum_b w_b K_{bi} \left[\tfrac{2}{\sigma} D_{bi} - d
                - (x_b - x_i)^\top \nabla \log q_0(x_b) \right], \qquad
          C_{ij} = \sum_b w_b K_{bi} K_{bj} (x_b - x_i)^\top (x_b - x_j)

(sums, not means; Proposition 1 is :math:`w = 1` and :math:`q_0` constant). The inner product is
:math:`(D_{bi} + D_{bj} - D_{ij}) / 2`, hence

.. math:: C = \tfrac12 \left[ B^\top K + K^\top B - D \circ (K^\top W K) \right],
          \qquad B = W (D \circ K),

two matrix products in place of one for every dimension. With ``rank`` or ``tolerance``, incomplete
Cholesky with pivoting gives :math:`K \approx R^\top R`, and conjugate gradients solve the system
without a matrix of order :math:`n` (equations 4-6 and Appendix A of the paper, which
:class:`KernelExpLite` cites): O(n r d) an iteration.

Repeated rows are merged, and their weights added: at a repeated point a narrow kernel bump lowers
the objective without bound.
"""

import warnings
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_kmc.numerics.checks import (
    check_between,
    check_choice,
    check_count,
    check_distinct,
    check_points,
    check_positive,
    check_weights,
)
from pymc_kmc.numerics.evaluation import BLOCK, evaluation, register
from pymc_kmc.numerics.linear_algebra import (
    ROUNDING,
    cholesky_factor,
    conjugate_gradients,
    solve_positive,
    symmetric,
)
from pymc_kmc.numerics.samples import unique_rows
from pymc_kmc.surrogates.exponential_family import (
    ExponentialFamily,
    base_gradient_at,
    base_log_density_at,
    check_base,
    fit_base,
)
from pymc_kmc.surrogates.kernels import (
    GAUSSIAN,
    GAUSSIAN_TAG,
    add_pulls,
    gaussian_kernel,
    pivoted_cholesky,
    squared_distances,
    weigh_kernels,
    write_squared_distances,
)

PENALTIES = ("coefficients", "reference", "rkhs")

#: Most iterations of conjugate gradients: a well-conditioned system takes some tens.
CG_ITERATIONS = 1000
#: Relative residual above which a fit warns.
CG_ACCEPTABLE = 1e-6

#: Most directions in the preconditioner, whose set-up costs as many products with C.
PRECONDITIONER_RANK = 200

#: Share of the identity in the low-rank "rkhs" penalty, which doesn't penalise the null space of
#: K ~ R'R.
RKHS_IDENTITY = 1e-8


class LiteParameters(NamedTuple):
    """Arrays and numbers of a fitted :class:`KernelExpLite`, for compiled code."""

    points: np.ndarray  # (d, n): the innermost loops run over points
    coefficients: np.ndarray  # (n,)
    sigma: float
    base_mean: np.ndarray  # (d,)
    base_precision: np.ndarray  # (d, d), zero without a base density


class KernelExpLite(ExponentialFamily):
    """Kernel exponential family on the points themselves, "KMC lite".

    The log density is log q0(x) + sum_i alpha_i k(x_i, x) with a base density q0, fitted to the
    points x_i by score matching (Strathmann et al., 2015, Proposition 1).

    Parameters
    ----------
    sigma : float
        Bandwidth in squared units of X: ``k(x, y) = exp(-|x - y|^2 / sigma)``.
    regularisation : float
        lambda, added to sums over points: the effect of a value falls as points are added.
    penalty : {"coefficients", "reference", "rkhs"}
        Matrix P of the penalty: the identity (the paper), K + identity (its authors' code), or the
        kernel matrix K, for the norm in the reproducing kernel Hilbert space.
    base : None, "gaussian" or GaussianBase
        Base density: a constant (None), or a Gaussian, fitted to X or given. A Gaussian makes the
        tails pull inwards.
    rank : int, optional
        Most pivots of an incomplete Cholesky factorisation of K; by default no limit.
    tolerance : float, optional
        The factorisation stops where no residual diagonal entry of K, whose diagonal is 1, exceeds
        it. With neither ``rank`` nor ``tolerance`` the system is solved exactly, in O(n^3).

    Attributes
    ----------
    points_ : ndarray (n, d)
        The distinct points x_i, in the order of their first appearance.
    weights_ : ndarray (n,)
        Their summed weights.
    coefficients_ : ndarray (n,)
        alpha.
    rank_ : int
        Number of pivots of a low-rank fit; n for an exact fit.
    parameters_ : LiteParameters
        For evaluation by ``log_density_at`` and ``gradient_at``, from compiled code too.

    References
    ----------
    Strathmann, H., Sejdinovic, D., Livingstone, S., Szabó, Z. and Gretton, A. (2015). Gradient-free
    Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(1).normal(size=(200, 2))
    >>> surrogate = KernelExpLite(sigma=10.0, regularisation=0.01).fit(X)
    >>> surrogate.gradient(np.array([1.0, -1.0])).round(1)  # of the true density: (-1, 1)
    array([-1.2,  0.9])
    """

    def __init__(
        self,
        sigma,
        regularisation,
        penalty="coefficients",
        base=None,
        rank=None,
        tolerance=None,
    ):
        self.sigma = sigma
        self.regularisation = regularisation
        self.penalty = penalty
        self.base = base
        self.rank = rank
        self.tolerance = tolerance

    def fit(self, X, sample_weight=None):
        """Fit by score matching.

        Parameters
        ----------
        X : array_like (n, d)
            Points; repeated rows are merged.
        sample_weight : array_like (n,), optional
            Multiplicities: a weight of 2 is the point given twice.

        Returns
        -------
        self : KernelExpLite

        Raises
        ------
        ValueError
            If an argument is out of its range, an entry of X isn't finite, or fewer than two points
            are distinct.
        """
        sigma = check_positive(self.sigma, "sigma")
        regularisation = check_positive(self.regularisation, "regularisation")
        check_choice(self.penalty, "penalty", PENALTIES)
        check_base(self.base)
        if self.rank is not None:
            check_count(self.rank, "rank")
        if self.tolerance is not None:
            # The kernel is at most 1: with more there is no pivot.
            check_between(self.tolerance, "tolerance", 0.0, 1.0)
        X = check_points(X)
        X, weights = unique_rows(X, check_weights(sample_weight, len(X)))
        check_distinct(len(X))
        base = fit_base(self.base, X, weights)

        if self.rank is None and self.tolerance is None:
            b, C = score_matching_system(X, weights, X, sigma, base)
            C += regularisation * penalty_matrix(self.penalty, gaussian_kernel(X, X, sigma))
            solution = solve_positive(C, b)
            rank = len(X)
        else:
            tolerance = self.tolerance or np.finfo(float).eps
            units = np.sqrt(2.0 / sigma)  # in which the kernel's length scale is one
            pivots, R = pivoted_cholesky(units * X, GAUSSIAN, n=self.rank, tolerance=tolerance)
            R[:, pivots] = np.triu(R[:, pivots])  # of rounding errors
            solution = _solve_low_rank(X, weights, R, sigma, regularisation, self.penalty, base)
            rank = len(R)

        self.points_ = X
        self.weights_ = weights
        self.coefficients_ = -0.5 * sigma * solution
        self.rank_ = rank
        self.base_ = base
        self.n_features_in_ = X.shape[1]
        self.parameters_ = LiteParameters(
            points=np.ascontiguousarray(X.T),
            coefficients=self.coefficients_.copy(),
            sigma=sigma,
            base_mean=base.mean.copy(),
            base_precision=base.precision.copy(),
        )
        return self

    def features(self, X):
        """Return kernel functions (n, k) at the rows of X (n, d), one for each coefficient."""
        return gaussian_kernel(X, self.points_, self.parameters_.sigma)

    def gram(self):
        """Return inner products (k, k) of the features in the reproducing kernel Hilbert space."""
        return self.features(self.points_)

    def set_coefficients(self, coefficients):
        """Replace alpha (k,); makes a new ``parameters_``."""
        self.coefficients_ = np.array(coefficients, dtype=np.float64)
        self.parameters_ = self.parameters_._replace(coefficients=self.coefficients_.copy())

    def _log_density(self, X):
        K = gaussian_kernel(X, self.points_, self.parameters_.sigma)
        return K @ self.coefficients_ + self.base_.log_density(X)

    def _derivatives(self, X):
        return derivatives(X, self.points_, self.coefficients_, self.parameters_.sigma, self.base_)


def penalty_matrix(penalty, K):
    if penalty == "rkhs":
        return K
    identity = np.eye(len(K))
    return identity if penalty == "coefficients" else K + identity


def score_matching_system(X, weights, points, sigma, base):
    """Return b (n,) and C (n, n) of Proposition 1, sums over X (k, d), for points (n, d)."""
    D = squared_distances(X, points)
    K = np.exp(-D / sigma)
    half = (D * K).T @ (weights[:, None] * K)
    C = 0.5 * (half + half.T - squared_distances(points, points) * (K.T @ (weights[:, None] * K)))
    b = weights @ (K * ((2.0 / sigma) * D - X.shape[1]))
    centre = X.mean(axis=0)
    gradients = base.gradient(X)
    return b - _base_term(X - centre, points - centre, weights, gradients, lambda V: K.T @ V), C


def _base_term(X, points, weights, base_gradients, apply_K):
    """Return for every i the sum over b of w_b K_bi (x_b - x_i)' grad log q0(x_b)."""
    slopes = weights[:, None] * base_gradients
    along = np.einsum("nd,nd->n", X, slopes)
    smoothed = apply_K(np.column_stack([along, slopes]))
    return smoothed[:, 0] - np.einsum("nd,nd->n", points, smoothed[:, 1:])


def derivatives(X, points, coefficients, sigma, base):
    """Return gradients (n, d) and Laplacians (n,) of a kernel expansion at the rows of X (n, d)."""
    D = squared_distances(X, points)
    weighted = np.exp(-D / sigma) * coefficients
    centre = points.mean(axis=0)
    totals = weighted.sum(axis=1)
    gradients = (2.0 / sigma) * (weighted @ (points - centre) - (X - centre) * totals[:, None])
    laplacians = (4.0 / sigma**2) * np.einsum("nm,nm->n", weighted, D)
    laplacians -= (2.0 * X.shape[1] / sigma) * totals
    return gradients + base.gradient(X), laplacians + base.laplacian


# --------------------------------------------------------------------------------------------------
# Low rank (Appendix A)
# --------------------------------------------------------------------------------------------------


def _solve_low_rank(X, weights, R, sigma, regularisation, penalty, base):
    """Return (C + lambda P)^-1 b with K ~ R'R throughout, by preconditioned conjugate gradients."""

    def apply_K(V):
        return R.T @ (R @ V)

    d = X.shape[1]
    centred = X - X.mean(axis=0)
    squares = np.einsum("nd,nd->n", centred, centred)
    smoothed = apply_K(np.column_stack([weights, weights * squares, weights[:, None] * centred]))
    expected_distance = (
        smoothed[:, 1]
        + squares * smoothed[:, 0]
        - 2.0 * np.einsum("nd,nd->n", centred, smoothed[:, 2:])
    )
    b = (2.0 / sigma) * expected_distance - d * smoothed[:, 0]
    b -= _base_term(centred, centred, weights, base.gradient(X), apply_K)

    def apply_C(V):
        KV = apply_K(V)
        total = np.zeros_like(V)
        for coordinate in centred.T:
            x = coordinate if V.ndim == 1 else coordinate[:, None]
            w = weights if V.ndim == 1 else weights[:, None]
            U = w * (apply_K(x * V) - x * KV)
            total += x * apply_K(U) - apply_K(x * U)
        return total if penalty == "coefficients" else total + regularisation * KV

    shift = regularisation * (RKHS_IDENTITY if penalty == "rkhs" else 1.0)
    precondition = _nystrom_preconditioner(apply_C, R, shift)
    solution, error = conjugate_gradients(
        lambda v: apply_C(v) + shift * v,
        b,
        tolerance=ROUNDING * np.linalg.norm(b),
        n_iterations=CG_ITERATIONS,
        precondition=precondition,
    )
    if error > CG_ACCEPTABLE * np.linalg.norm(b):
        warnings.warn(
            f"conjugate gradients stopped at a relative residual of "
            f"{error / np.linalg.norm(b):.1e}; a larger `regularisation` conditions the system",
            RuntimeWarning,
            stacklevel=3,
        )
    return solution


def _nystrom_preconditioner(apply_A, R, shift):
    """Return the inverse of a rank-r approximation of A + shift I, as a function of a vector.

    It is the Nyström preconditioner of Frangella, Tropp and Udell (2023), equation (1.3), on the
    dominant kernel directions, from the row space of R, in place of random ones.
    """
    Q = np.linalg.qr(R[:PRECONDITIONER_RANK].T)[0]
    Y = apply_A(Q)
    nu = np.finfo(float).eps * np.linalg.norm(Y)
    L = cholesky_factor(symmetric(Q.T @ Y) + nu * np.eye(Q.shape[1]))
    if L is None:
        return lambda v: v
    B = scipy.linalg.solve_triangular(L, (Y + nu * Q).T, lower=True, check_finite=False).T
    U, singular, _ = scipy.linalg.svd(B, full_matrices=False, lapack_driver="gesvd")
    values = np.maximum(singular**2 - nu, 0.0)
    gain = (values[-1] + shift) / (values + shift) - 1.0
    return lambda v: v + U @ (gain * (U.T @ v))


# --------------------------------------------------------------------------------------------------
# Compiled evaluation
# --------------------------------------------------------------------------------------------------


@evaluation
def _gradient_in(parameters, x, out, workspace):
    """Write the gradient, and return the log density."""
    points, scale = parameters.points, 2.0 / parameters.sigma
    terms, scratch = workspace[:BLOCK], workspace[BLOCK : 2 * BLOCK]
    total = base_log_density_at(parameters.base_mean, parameters.base_precision, x)
    base_gradient_at(parameters.base_mean, parameters.base_precision, x, out)
    for start in range(0, points.shape[1], BLOCK):
        stop = min(start + BLOCK, points.shape[1])
        write_squared_distances(points, x, start, stop, terms)
        for i in range(stop - start):
            terms[i] *= scale
        weights = parameters.coefficients[start:stop]
        total += weigh_kernels(GAUSSIAN_TAG, terms, weights, scratch, stop - start)
        for i in range(stop - start):
            terms[i] *= scale
        add_pulls(points, x, start, stop, terms, out)
    return total


@evaluation
def _log_density_in(parameters, x, workspace):
    return _gradient_in(parameters, x, workspace[2 * BLOCK :], workspace)


@evaluation
def _workspace_size(parameters):
    return 2 * BLOCK + parameters.points.shape[0]


register(LiteParameters, _log_density_in, _gradient_in, _workspace_size)
