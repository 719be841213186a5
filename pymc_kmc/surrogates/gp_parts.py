"""Parts of a Gaussian-process log density: features that its coefficients multiply.

Each part returns its features at points in the surrogate's coordinates, shape (n, k), and their
derivatives, and turns coefficients of the features into parameters for evaluation.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.linear_algebra import triangular_solve
from pymc_kmc.surrogates.kernels import GAUSSIAN, Kernel, squared_distances
from pymc_kmc.surrogates.landmarks import select_landmarks


class Trend:
    """Linear terms, radial terms and a quadratic.

    `pairs` are the quadratic's products of coordinates, as rows and columns of the precision's
    upper triangle. `scales` (k,) are nu of the radial terms log(1 + |z|^2 / nu).
    """

    def __init__(self, d, pairs, scales):
        self.d, self.pairs, self.scales = d, np.array(pairs), scales

    @classmethod
    def of(cls, d, is_full, has_radial):
        """Return a trend with the whole quadratic or its diagonal, and two radial terms or none.

        The radial terms have nu = d and 4 d: log densities with heavy tails grow like log |z|. A
        Student t with as many degrees of freedom is one of them.
        """
        pairs = np.triu_indices(d) if is_full else (np.arange(d), np.arange(d))
        return cls(d, pairs, np.array([d, 4.0 * d]) if has_radial else np.zeros(0))

    @property
    def n_features(self):
        return self.d + len(self.scales) + self.pairs.shape[1]

    def without_quadratic(self):
        return Trend(self.d, self.pairs[:, :0], self.scales)

    def __call__(self, Z):
        squares = np.einsum("nd,nd->n", Z, Z)[:, None]
        radial = 0.5 * self.scales * np.log1p(squares / self.scales)
        # The ridge is then the Frobenius norm of the change of the precision.
        products = Z[:, self.pairs[0]] * Z[:, self.pairs[1]] * self._factors
        return np.hstack([Z, radial, products])

    @property
    def _factors(self):
        return np.where(self.pairs[0] == self.pairs[1], np.sqrt(0.5), 1.0)

    def derivatives(self, Z):
        """Return the features' derivatives, one coordinate after another, and Laplacians."""
        n, d = Z.shape
        squares = np.einsum("nd,nd->n", Z, Z)[:, None]
        inverse = 1.0 / (self.scales + squares)
        rows, columns = self.pairs
        factors = self._factors

        def gradients():
            for a in range(d):
                linear = np.zeros((n, d))
                linear[:, a] = 1.0
                radial = self.scales * inverse * Z[:, a : a + 1]
                quadratic = factors * ((rows == a) * Z[:, columns] + (columns == a) * Z[:, rows])
                yield np.hstack([linear, radial, quadratic])

        radial = self.scales * (d * inverse - 2.0 * squares * inverse**2)
        quadratic = np.tile(2.0 * factors * (rows == columns), (n, 1))
        return gradients(), np.hstack([np.zeros((n, d)), radial, quadratic])

    def split(self, coefficients):
        """Return linear coefficients, radial ones, and the change of the precision."""
        n = self.d + len(self.scales)
        linear, radial = coefficients[: self.d], 0.5 * self.scales * coefficients[self.d : n]
        change = np.zeros((self.d, self.d))
        change[self.pairs[0], self.pairs[1]] = -self._factors * coefficients[n:]
        return linear, radial, change + change.T


class AdditivePart:
    """Functions of single coordinates: features orthonormal in the norm of their kernel.

    Grid coordinates are ``axes @ z - origin``, with a kernel function at each integer below `size`.
    The length scale is in units of the grid. `factor` (size, size) is the Cholesky factor of the
    functions' kernel matrix, over the root of the variance.
    """

    #: Added to the diagonal of the grid's kernel matrix, whose rounding errors are some 1e-15.
    JITTER = 1e-8

    def __init__(self, axes, origin, size, variance=1.0, length=1.0):
        self.axes, self.origin = np.ascontiguousarray(axes), np.ascontiguousarray(origin)
        self.size, self.variance, self.length = size, variance, length
        self.n_features = size * len(axes)
        self._grid = np.arange(size)
        gram = np.exp(-0.5 * ((self._grid[:, None] - self._grid) / length) ** 2)
        self.factor = np.linalg.cholesky(gram + self.JITTER * np.eye(size)) / np.sqrt(variance)

    @classmethod
    def none(cls, d):
        part = cls(np.zeros((d, d)), np.zeros(d), 0)
        part.variance = 0.0
        return part

    def scaled(self, variance, length):
        """Return functions on the same grid with another variance and length scale."""
        return AdditivePart(self.axes, self.origin, self.size, variance, length)

    def __call__(self, Z):
        return self._orthonormal(np.exp(-0.5 * self._distances(Z) ** 2))

    def derivatives(self, Z):
        T = self._distances(Z)
        values = np.exp(-0.5 * T**2)
        gradients = (self._orthonormal(-T * values * a[:, None]) for a in self.axes.T / self.length)
        lengths = np.sum((self.axes / self.length) ** 2, axis=1)[:, None]
        return gradients, self._orthonormal((T**2 - 1.0) * values * lengths)

    def split(self, coefficients):
        """Return the coefficients (d, g) of the grid's functions."""
        if not self.n_features:
            return np.zeros((len(self.axes), 0))
        rows = coefficients.reshape(-1, self.size)
        return np.ascontiguousarray(triangular_solve(self.factor, rows.T, transposed=True).T)

    def _distances(self, Z):
        return ((Z @ self.axes.T - self.origin)[:, :, None] - self._grid) / self.length

    def _orthonormal(self, values):
        """Combine the grid's functions (n, d, g); return features (n, d g)."""
        if not self.n_features:
            return np.zeros((len(values), 0))
        features = triangular_solve(self.factor, values.reshape(-1, self.size).T)
        return features.T.reshape(len(values), -1)


class KernelChoice(NamedTuple):
    """A kernel part before it has landmarks.

    `map` is B (r, d): the kernel's coordinates, with length scale one, are B z. `ridges` are those
    of the trend's coefficients to try with this choice, None for all, and `additive` is the part of
    single coordinates beside it.
    """

    kernel: Kernel
    map: np.ndarray
    ridges: list | None
    additive: AdditivePart


class KernelPart(NamedTuple):
    """Kernel functions on landmarks among a fit's points, after functions of single coordinates.

    `U` (n, r) are the points in the kernel's coordinates. `indices` (m,) are those of the
    landmarks; m is 0 without a kernel part. With `landmark_factor` L (m, m), L L' is their kernel
    matrix, and L^-1 times the kernel functions are the features. `features` (n, k + m) are those at
    the points, functions of single coordinates first.
    """

    choice: KernelChoice
    U: np.ndarray
    indices: np.ndarray
    landmark_factor: np.ndarray
    features: np.ndarray

    @classmethod
    def of(cls, choice, length, Z, weights, n_landmarks):
        """Choose landmarks among points Z (n, d) of weights (n,); `length` scales the kernel."""
        choice = choice._replace(map=choice.map / length)
        U = Z @ choice.map.T
        indices, features = select_landmarks(U, weights, n_landmarks, choice.kernel)
        factor = np.tril(features[indices])
        return cls(choice, U, indices, factor, np.hstack([choice.additive(Z), features]))

    @classmethod
    def none(cls, Z):
        """Return a part without functions, at points (n, d)."""
        n, d = Z.shape
        choice = KernelChoice(GAUSSIAN, np.zeros((1, d)), None, AdditivePart.none(d))
        indices = np.zeros(0, dtype=int)
        return cls(choice, np.zeros((n, 1)), indices, np.zeros((0, 0)), np.zeros((n, 0)))

    def derivatives(self, Z):
        kernel, matrix = self.choice.kernel, self.choice.map
        landmarks, U = self.U[self.indices], Z @ matrix.T
        squares = squared_distances(U, landmarks)
        slopes, curvatures = kernel.slopes(squares), kernel.curvatures(squares)
        pulled = [U @ matrix[:, a][:, None] - landmarks @ matrix[:, a] for a in range(Z.shape[1])]
        lengths = sum(p**2 for p in pulled)
        laplacians = curvatures * lengths - np.trace(matrix.T @ matrix) * slopes
        additive_gradients, additive_laplacians = self.choice.additive.derivatives(Z)
        gradients = (
            np.hstack([additive, triangular_solve(self.landmark_factor, -(slopes * p).T).T])
            for additive, p in zip(additive_gradients, pulled, strict=True)
        )
        laplacians = triangular_solve(self.landmark_factor, laplacians.T).T
        return gradients, np.hstack([additive_laplacians, laplacians])


def quadratic_form(Z, matrix):
    """Return z' matrix z (n,) for the rows of Z (n, d)."""
    return np.einsum("ni,ij,nj->n", Z, matrix, Z)
