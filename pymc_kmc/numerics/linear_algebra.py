"""Factors, solutions, powers and means of symmetric matrices of any condition; threads of BLAS."""

import math
from functools import cache

import numpy as np
import scipy.linalg
from threadpoolctl import ThreadpoolController

from pymc_kmc.numerics.jit import njit

#: Last digits of a number in double precision, relative to it: some fifty rounding errors.
LAST_DIGITS = 1e-14
#: What rounding leaves of zero after sums and factorisations, relative to their terms.
ROUNDING = 1e-12
#: Factor by which the jitter grows until the factorisation succeeds.
MORE_JITTER = 100.0
#: Largest jitter: beyond it the matrix is not positive semi-definite.
LAST_JITTER = 1e-4


def symmetric(A):
    return 0.5 * (A + A.T)


def cholesky_factor(A):
    """Return A's lower Cholesky factor, with jitter if needed; None if far from semi-definite."""
    scale = np.trace(A) / len(A)
    jitter = 0.0
    while jitter <= LAST_JITTER:
        shifted = A if jitter == 0.0 else A + jitter * scale * np.eye(len(A))
        L, info = scipy.linalg.lapack.dpotrf(shifted, lower=1, clean=1)
        if info == 0 and np.isfinite(L.diagonal()).all():
            return L
        jitter = LAST_DIGITS if jitter == 0.0 else MORE_JITTER * jitter
    return None


def solve_positive(A, b):
    """Solve A x = b for a semi-definite A, by Cholesky with jitter or else the pseudo-inverse."""
    L = cholesky_factor(A)
    if L is not None:
        x = scipy.linalg.cho_solve((L, True), b, check_finite=False)
        if np.isfinite(x).all():
            return x
    if not np.isfinite(A).all():
        raise ValueError(
            "the linear system overflows; rescale X (its spread should be near 1) or "
            "choose sigma on the scale of its squared distances"
        )
    values, vectors = np.linalg.eigh(A)
    keep = values > len(A) * np.finfo(float).eps * np.abs(values).max()
    return (vectors[:, keep] / values[keep]) @ (vectors[:, keep].T @ b)


def conjugate_gradients(apply, b, *, tolerance, n_iterations, precondition=None):
    """Solve A x = b for a positive definite A by preconditioned conjugate gradients.

    Return the iterate x (n,) of the smallest residual, and that residual's norm. ``apply(v)`` is A
    v, and ``precondition(v)`` approximates A^-1 v. The iteration starts at zero, and stops at a
    residual of norm `tolerance`, or after `n_iterations`. It replaces SciPy's, which returns the
    last iterate: where rounding stops progress, that has gradients thousands of times too large.
    """
    x, residual = np.zeros_like(b), b
    z = residual if precondition is None else precondition(residual)
    direction = z.copy()
    rz = residual @ z
    best, best_norm = x, np.inf
    for _ in range(n_iterations):
        norm = np.linalg.norm(residual)
        if norm < best_norm:
            best, best_norm = x, norm
        if norm <= tolerance:
            break
        Ad = apply(direction)
        curvature = direction @ Ad
        if not curvature > 0.0:
            break
        step = rz / curvature
        x = x + step * direction
        residual = residual - step * Ad
        z = residual if precondition is None else precondition(residual)
        rz, previous = residual @ z, rz
        direction = z + (rz / previous) * direction
    return best, best_norm


def triangular_solve(factor, rhs, transposed=False):
    """Solve L x = rhs, or L' x = rhs, for a lower triangular L, without checks."""
    if not rhs.size:
        return rhs
    return scipy.linalg.solve_triangular(
        factor, rhs, lower=True, trans=1 if transposed else 0, check_finite=False
    )


@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def cholesky_update(U, V):
    """Turn U, the upper triangular factor (m, m) of P = U'U, into that of P + V'V, in place.

    Each row of U is rotated against the rows of V (r, m), which is overwritten, in one pass over U
    (Golub and Van Loan, 2013, *Matrix Computations*, section 6.5.4). The diagonal is positive.
    """
    m = U.shape[0]
    for k in range(m):
        row = U[k, k:]
        for i in range(V.shape[0]):
            v = V[i, k:]
            old = row[0]
            new = math.hypot(old, v[0])
            c = new / old
            s = v[0] / old
            inverse = old / new
            row[0] = new
            for j in range(1, m - k):
                row[j] = (row[j] + s * v[j]) * inverse
                v[j] = c * v[j] - s * row[j]


def symmetric_power(matrix, power):
    """Return a semi-definite matrix to a real power; eigenvalues are raised to a floor first."""
    eigenvalues, eigenvectors = np.linalg.eigh(symmetric(matrix))
    eigenvalues = np.maximum(eigenvalues, ROUNDING * eigenvalues[-1])
    return (eigenvectors * eigenvalues**power) @ eigenvectors.T


def geometric_mean(A, B):
    """Return the geometric mean A # B of two positive definite matrices.

    It is the middle of the geodesic between them (Bhatia, 2007, *Positive Definite Matrices*,
    chapter 4): A^(1/2) (A^(-1/2) B A^(-1/2))^(1/2) A^(1/2). Of a covariance and an inverse Fisher
    information it is the metric in which draws and gradients have equal spread. It is computed in
    units of A's diagonal, which affects only the rounding.
    """
    units = np.sqrt(np.diag(A))
    units = np.outer(units, units)
    root, inverse_root = symmetric_power(A / units, 0.5), symmetric_power(A / units, -0.5)
    middle = symmetric_power(inverse_root @ (B / units) @ inverse_root, 0.5)
    return units * (root @ middle @ root)


def single_threaded_blas():
    """Return a context with single-threaded BLAS; else draws depend on the number of threads."""
    return _thread_pools().limit(limits=1, user_api="blas")


@cache
def _thread_pools():
    """Return NumPy's and SciPy's pools: finding them takes a millisecond, limiting them 20 us."""
    return ThreadpoolController()
