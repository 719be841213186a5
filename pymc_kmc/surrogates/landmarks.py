r"""Landmarks: a subset of points whose kernel functions stand for those of all points.

A pivoted Cholesky factorisation of the kernel matrix, :math:`K \approx R^\top R`, chooses them one
after another (Fine and Scheinberg, 2001). Each is the point whose kernel function has the largest
part outside the span of those before it. The rows of R are orthonormal functions in the kernel's
space. A ridge on their coefficients is therefore that space's norm.

References
----------
Fine, S. and Scheinberg, K. (2001). Efficient SVM training using low-rank kernel representations.
*Journal of Machine Learning Research* 2, 243-264.
"""

import numpy as np

from pymc_kmc.numerics.jit import njit
from pymc_kmc.surrogates.kernels import kernel_at

#: Squared norm of the part of a kernel function outside the span of those before it, below which
#: it is left out: nearer to linear dependence, rounding errors decide.
PIVOT_TOLERANCE = 1e-10


def pivoted_cholesky(points, kernel, *, n=None, tolerance, weights=None):
    """Factorise the kernel matrix of points (p, r), K ~ R'R; return the pivots (m,) and R (m, p).

    The points are in coordinates whose length scale is one. There are at most `n` pivots, None for
    no limit. The factorisation stops where no diagonal entry of K - R'R exceeds `tolerance`.
    Positive `weights` (p,) multiply these entries where a pivot is chosen.
    """
    most = len(points) if n is None else min(n, len(points))
    roots = np.ones(len(points)) if weights is None else np.sqrt(weights / weights.max())
    return _pivoted_cholesky(np.ascontiguousarray(points), roots, most, kernel.tag, tolerance)


def select_landmarks(points, weights, n, kernel):
    """Choose at most n landmarks; return their indices (m,) and kernel features (p, m).

    The points (p, r) are in coordinates whose length scale is one; `weights` (p,) are their
    positive importance. There are fewer where more would be linearly dependent. ``features @
    features.T`` is the kernel's Nystrom approximation.
    """
    indices, rows = pivoted_cholesky(
        points, kernel, n=n, tolerance=PIVOT_TOLERANCE, weights=weights
    )
    return indices, rows.T


@njit
def _pivoted_cholesky(points, roots, n, kernel, tolerance):
    n_points, r = points.shape
    diagonal = np.ones(n_points)
    rows = np.zeros((min(n, 64), n_points))
    indices = np.zeros(n, np.int64)
    column = np.empty(n_points)
    k = 0
    while k < n:
        pivot = int(np.argmax(diagonal * roots))
        if diagonal[pivot] < tolerance:
            break
        if k == len(rows):  # few pivots often do: room for more is made when it is needed
            more = np.zeros((min(n, 2 * k), n_points))
            for i in range(k):
                for j in range(n_points):
                    more[i, j] = rows[i, j]
            rows = more
        for j in range(n_points):
            square = 0.0
            for a in range(r):
                delta = points[j, a] - points[pivot, a]
                square += delta * delta
            column[j] = kernel_at(kernel, square)
        for i in range(k):
            factor = rows[i, pivot]
            for j in range(n_points):
                column[j] -= factor * rows[i, j]
        scale = 1.0 / np.sqrt(diagonal[pivot])
        for j in range(n_points):
            rows[k, j] = column[j] * scale
            diagonal[j] = max(0.0, diagonal[j] - rows[k, j] * rows[k, j])
        diagonal[pivot] = 0.0
        indices[k] = pivot
        k += 1
    return indices[:k].copy(), rows[:k].copy()
