r"""Kernels of the kernel exponential families and of Gaussian processes, and landmarks.

The kernel exponential families have :math:`k(x, y) = \exp(-|x - y|^2 / \sigma)` with :math:`\sigma`
in squared units of the points (Strathmann et al., 2015). The kernels of Gaussian processes are
functions of the squared distance :math:`r^2` in coordinates whose length scale is one, with
:math:`k(0) = 1`:

- Gaussian: :math:`\exp(-r^2 / 2)`;
- rational quadratic: :math:`(1 + r^2 / 3)^{-3/2}` (Rasmussen and Williams, 2006, equation 4.19,
  with :math:`\alpha = 3/2`).

A kernel is an object in Python and its tag in compiled code; a new one needs a class here and a
branch in both compiled functions. :class:`~pymc_kmc.surrogates.KernelExpLite` and
:class:`~pymc_kmc.surrogates.LogDensityGP` have the references.

*Landmarks* are points whose kernel functions stand for those of all points. A pivoted Cholesky
factorisation of the kernel matrix, :math:`K \approx R^\top R`, chooses them one after another (Fine
and Scheinberg, 2001): each is the point whose kernel function has the largest part outside the span
of those before it. The rows of R are orthonormal functions in the kernel's space, so that a ridge
on their coefficients is that space's norm.

References
----------
Fine, S. and Scheinberg, K. (2001). Efficient SVM training using low-rank kernel representations.
*Journal of Machine Learning Research* 2, 243-264.
"""

import numpy as np

from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import part
from pymc_kmc.numerics.jit import njit

#: Points that medians and averages are taken over where there are more: they need not be exact.
N_AVERAGED = 400


def squared_distances(X, Y):
    """Return squared distances (n, m) of rows of X (n, d) and Y (m, d), both centred on Y first."""
    centre = Y.mean(axis=0) if len(Y) else 0.0
    X, Y = X - centre, Y - centre
    D = np.einsum("nd,nd->n", X, X)[:, None] + np.einsum("md,md->m", Y, Y) - 2.0 * X @ Y.T
    return np.maximum(D, 0.0, out=D)


def gaussian_kernel(X, Y, sigma):
    """Return the kernel matrix (n, m) of the rows of X (n, d) and Y (m, d).

    >>> import numpy as np
    >>> gaussian_kernel(np.zeros((1, 2)), np.array([[1.0, 1.0]]), sigma=2.0).round(4)
    array([[0.3679]])
    """
    return np.exp(-squared_distances(X, Y) / sigma)


def median_squared_distance(X, rng):
    """Return the median over pairs of distinct rows of X (n, d), of a subset if many; 1 if none."""
    if len(X) > N_AVERAGED:
        X = X[rng.choice(len(X), size=N_AVERAGED, replace=False)]
    D = squared_distances(X, X)[np.triu_indices(len(X), 1)]
    return float(np.median(D[D > 0])) if (D > 0).any() else 1.0


class Kernel:
    """A kernel as a function of s = r^2 / 2, r in length scales; `tag` is its compiled name.

    At squared distances r^2, an array of any shape, a subclass returns its `values` k, `slopes`
    -dk/ds, which are positive, and `curvatures` d^2 k / ds^2.
    """

    name: str
    tag: int

    def __repr__(self):
        return f"<{self.name} kernel>"


class _Gaussian(Kernel):
    name, tag = "gaussian", 0

    def values(self, squares):
        return np.exp(-0.5 * squares)

    slopes = curvatures = values


class _RationalQuadratic(Kernel):
    name, tag = "rational_quadratic", 1

    def values(self, squares):
        return (1.0 + squares / 3.0) ** -1.5

    def slopes(self, squares):
        return (1.0 + squares / 3.0) ** -2.5

    def curvatures(self, squares):
        return 5.0 / 3.0 * (1.0 + squares / 3.0) ** -3.5


GAUSSIAN, RATIONAL_QUADRATIC = _Gaussian(), _RationalQuadratic()

#: Kernels of Gaussian processes by name.
KERNELS = {kernel.name: kernel for kernel in (GAUSSIAN, RATIONAL_QUADRATIC)}

GAUSSIAN_TAG = GAUSSIAN.tag


@njit(forceinline=True)
def kernel_at(tag, square):
    if tag == GAUSSIAN_TAG:
        return np.exp(-0.5 * square)
    q = 1.0 / (1.0 + square / 3.0)
    return q * np.sqrt(q)


@part
def write_squared_distances(landmarks, u, start, stop, out):
    n = stop - start
    for i in range(n):
        out[i] = 0.0
    for a in range(landmarks.shape[0]):
        row, u_a = landmarks[a, start:stop], u[a]
        for i in range(n):
            out[i] += (u_a - row[i]) * (u_a - row[i])


@part
def add_pulls(landmarks, u, start, stop, terms, out):
    """Add the terms of a block times the landmarks' positions relative to u."""
    n = stop - start
    for a in range(landmarks.shape[0]):
        row, u_a, total = landmarks[a, start:stop], u[a], 0.0
        for i in range(n):
            total += terms[i] * (row[i] - u_a)
        out[a] += total


@part
def weigh_kernels(tag, squares, weights, scratch, n):
    """Replace ``squares[:n]`` by weighted slopes, and return the weighted sum of kernel values."""
    total = 0.0
    if tag == GAUSSIAN_TAG:
        for i in range(n):
            squares[i] *= -0.5
        exp_in_place(squares, scratch, n)
        for i in range(n):
            squares[i] *= weights[i]
            total += squares[i]
    else:
        for i in range(n):
            q = 1.0 / (1.0 + squares[i] / 3.0)
            value = weights[i] * q * np.sqrt(q)
            total += value
            squares[i] = value * q
    return total


#: Share of a kernel matrix's diagonal below which rounding errors decide: of a kernel function's
#: squared norm outside the span of others, or of an eigenvalue.
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

    The points (p, r) are in coordinates whose length scale is one, with positive weights (p,).
    There are fewer landmarks where more would be linearly dependent. ``features @ features.T`` is
    the kernel's Nystrom approximation.
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
