"""Parts of a Gaussian-process log density: features that its coefficients multiply.

Each part returns its features at points in the surrogate's coordinates, shape (n, k), and their
derivatives, and turns coefficients of the features into parameters for evaluation.

Kernel parts (maps of the coordinates, kernels, length scales and ridges) compete by the marginal
likelihood on a subset of the points. The best without and the best with functions of single
coordinates are then fitted to all points.

References
----------
Radhakrishnan, A., Beaglehole, D., Pandit, P. and Belkin, M. (2024). Mechanism for feature
learning in neural networks and backpropagation-free machine learning models. *Science* 383,
1461-1467.
"""

import itertools
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.linear_algebra import symmetric_power, triangular_solve
from pymc_kmc.numerics.samples import thinned
from pymc_kmc.surrogates.gp_evaluation import values_and_gradients
from pymc_kmc.surrogates.kernels import (
    GAUSSIAN,
    KERNELS,
    N_AVERAGED,
    Kernel,
    select_landmarks,
    squared_distances,
)
from pymc_kmc.surrogates.regression import MORE_RIDGES, BayesianRegression


class Trend:
    """Linear terms, radial terms log(1 + |z|^2 / nu) of nu in `scales` (k,), and a quadratic.

    `pairs` are the quadratic's products of coordinates: rows and columns of the precision's upper
    triangle.
    """

    def __init__(self, d, pairs, scales):
        self.d, self.pairs, self.scales = d, np.array(pairs), scales

    @classmethod
    def of(cls, d, is_full, has_radial):
        """Return a trend with the whole quadratic or its diagonal, and two radial terms or none."""
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

    #: Jitter of the grid's kernel matrix, whose diagonal is 1 and whose rounding errors are 1e-15.
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
        return cls(np.zeros((d, d)), np.zeros(d), 0, variance=0.0)

    def scaled(self, variance, length):
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
    """A kernel part before it has landmarks."""

    kernel: Kernel
    map: np.ndarray  # B (r, d): the kernel's coordinates, with length scale one, are B z
    ridges: list | None  # of the trend's coefficients, to try with this choice; None for all
    additive: AdditivePart


class KernelPart(NamedTuple):
    """Kernel functions on landmarks among a fit's points, after functions of single coordinates.

    `U` (n, r) are the points in the kernel's coordinates, and `indices` (m,) those of the
    landmarks; m is 0 without a kernel part. With `factor` L (m, m), L L' is the landmarks' kernel
    matrix, and the features are L^-1 times the kernel functions.
    """

    choice: KernelChoice
    U: np.ndarray
    indices: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, choice, length, Z, weights, n_landmarks):
        """Return the part with landmarks among Z (n, d), and its features (n, k + m) there."""
        choice = choice._replace(map=choice.map / length)
        U = Z @ choice.map.T
        indices, features = select_landmarks(U, weights, n_landmarks, choice.kernel)
        part = cls(choice, U, indices, np.tril(features[indices]))
        return part, np.hstack([choice.additive(Z), features])

    @classmethod
    def none(cls, Z):
        """Return a part without functions, at points (n, d), and its features (n, 0)."""
        n, d = Z.shape
        choice = KernelChoice(GAUSSIAN, np.zeros((1, d)), None, AdditivePart.none(d))
        part = cls(choice, np.zeros((n, 1)), np.zeros(0, dtype=int), np.zeros((0, 0)))
        return part, np.zeros((n, 0))

    @property
    def landmarks(self):
        return self.U[self.indices]

    def __call__(self, Z):
        """Return features at Z, and squared norms (n,) of k(z, .) outside the landmarks' span."""
        additive = self.choice.additive(Z)
        if not len(self.indices):
            return additive, np.zeros(len(Z))
        squares = squared_distances(Z @ self.choice.map.T, self.landmarks)
        features = triangular_solve(self.factor, self.choice.kernel.values(squares).T).T
        rest = np.maximum(0.0, 1.0 - np.sum(features**2, axis=1))
        return np.hstack([additive, features]), rest

    def with_point(self, z, row=None):
        """Return the part with a point z (d,) more, a landmark if it has a row (m + 1,) of L."""
        part = self._replace(U=np.vstack([self.U, self.choice.map @ z]))
        if row is None:
            return part
        factor = np.pad(self.factor, (0, 1))
        factor[-1] = row
        return part._replace(indices=np.append(self.indices, len(self.U)), factor=factor)

    def split(self, coefficients):
        """Return the parameters that coefficients of the features determine, a dict."""
        additive = self.choice.additive
        grids, kernel = np.split(coefficients, [additive.n_features])
        kernel = triangular_solve(self.factor, kernel, transposed=True)
        return {
            "landmarks": np.ascontiguousarray(self.landmarks.T),
            "coefficients": np.ascontiguousarray(kernel),
            "additive_coefficients": additive.split(grids),
        }

    def derivatives(self, Z):
        kernel, matrix = self.choice.kernel, self.choice.map
        landmarks, U = self.landmarks, Z @ matrix.T
        squares = squared_distances(U, landmarks)
        slopes, curvatures = kernel.slopes(squares), kernel.curvatures(squares)
        pulled = [U @ matrix[:, a][:, None] - landmarks @ matrix[:, a] for a in range(Z.shape[1])]
        lengths = sum(p**2 for p in pulled)
        laplacians = curvatures * lengths - np.trace(matrix.T @ matrix) * slopes
        additive_gradients, additive_laplacians = self.choice.additive.derivatives(Z)
        gradients = (
            np.hstack([additive, triangular_solve(self.factor, -(slopes * p).T).T])
            for additive, p in zip(additive_gradients, pulled, strict=True)
        )
        laplacians = triangular_solve(self.factor, laplacians.T).T
        return gradients, np.hstack([additive_laplacians, laplacians])


def quadratic_form(Z, matrix):
    """Return z' matrix z (n,) for the rows of Z (n, d)."""
    return np.einsum("ni,ij,nj->n", Z, matrix, Z)


#: Points and kernel functions of the comparisons, for their cost.
N_POINTS, N_LANDMARKS = 500, 100

# Maps and length scales of the kernel part

#: Length scales compared, in median distances between points.
LENGTH_SCALES = (1.0, 3.0, 9.0, 27.0)
#: Length scales compared with the last fit's map, in units of the last fit's.
LENGTH_SCALES_AROUND = (0.5, 1.0, 2.0)

#: Floor added to the gradients' outer product, in units of its mean eigenvalue.
GRADIENT_FLOOR = 1e-4
#: Difference of a covariance's entry from the identity's for which its whitening map is tried.
NOT_WHITE = 0.1

# Functions of single coordinates

#: Fewest coordinates for an additive part: with fewer, the kernel part has neighbours everywhere.
FEWEST_COORDINATES = 3
#: Kernel functions a coordinate.
GRID_SIZE = 8
#: Fewest values a kernel function, so that the values determine its coefficient.
VALUES_PER_GRID_POINT = 4
#: Quantiles of the points, without outliers, that the grid covers with one point more at each end.
GRID_ENDS = (0.005, 0.995)
#: Weight above which a point counts for the grid's ends and the wall's radius.
HALF_WEIGHT = 0.5
#: Variances of additive parts compared, in units of the kernel part's.
ADDITIVE_VARIANCES = (1.0, 30.0, 1000.0)
#: Length scales compared, in grid points (the longer one extends beyond the grid), and factors on
#: the kernel part's beside an additive part.
ADDITIVE_LENGTHS = (1.0, 3.0)
#: Fits between two trials of an additive part that lost twice in a row.
RETRIED = 4


def choose_kernels(options, data, features, residuals, ridges, last, rng):
    """Return the :class:`KernelChoice` objects that are worth a fit to all points, a list.

    They have the largest evidence on a subset, one without and one with an additive part; only all
    points can decide between these two. The list is empty where the trend alone has the largest
    evidence. `options` is the LogDensityGP, `features` (n, k) are the trend's, `residuals` (n,) the
    values less the prior's quadratic, `ridges` the trend's to try, and `last` is an earlier fit or
    None.
    """
    n, d = data.Z.shape
    subset = np.arange(n)
    if n > N_POINTS:
        subset = np.sort(rng.choice(n, N_POINTS, replace=False))
    Z, weights = data.Z[subset], data.weights[subset]
    regression = BayesianRegression(features[subset], residuals[subset], weights, ridges)

    def kernels(with_additive):
        return [
            (KERNELS[name], matrix / length)
            for matrix, lengths in _maps(data, Z, last, with_additive)
            for name in options.kernels
            for length in lengths
        ]

    def best(candidates, parts):
        largest, choice = -np.inf, None
        for additive in parts:
            along_coordinates = additive(Z)
            for kernel, matrix in candidates:
                _, candidate = select_landmarks(Z @ matrix.T, weights, N_LANDMARKS, kernel)
                candidate = np.hstack([along_coordinates, candidate])
                fit = regression.fit(candidate, MORE_RIDGES[1::2], ridges[::2])
                if fit.log_evidence > largest:
                    largest = fit.log_evidence
                    choice = KernelChoice(kernel, matrix, [fit.ridge], additive)
        return choice, largest

    choice, evidence = best(kernels(False), [AdditivePart.none(d)])
    choices = [choice] if evidence > regression.fit(np.zeros((len(Z), 0))).log_evidence else []
    additive = _additive_part(data, last)
    if additive is not None and choice is not None:
        if last is not None and last.choice.additive.variance > 0:
            parts = [additive.scaled(last.choice.additive.variance, last.choice.additive.length)]
            choice = best(kernels(True), parts)[0] or choice
        around = [(choice.kernel, choice.map / length) for length in ADDITIVE_LENGTHS]
        scales = itertools.product(ADDITIVE_VARIANCES, ADDITIVE_LENGTHS)
        choice, _ = best(around, [additive.scaled(*scale) for scale in scales])
        if choice is not None:
            choices.append(choice)
    return choices


def _additive_part(data, last):
    """Return an additive part of variance one, or None if points are too few or it lost lately."""
    n, d = data.Z.shape
    n_losses = last.n_additive_losses if last is not None else 0
    if n_losses > 1 and n_losses % RETRIED:
        return None
    if d < FEWEST_COORDINATES or n < VALUES_PER_GRID_POINT * GRID_SIZE * d:
        return None
    inverse = np.linalg.inv(data.whitening)
    X = (data.Z @ inverse.T)[data.weights > HALF_WEIGHT]
    if not len(X):
        return None
    low, high = np.quantile(X, GRID_ENDS, axis=0)
    spacing = (high - low) / (GRID_SIZE - 3)
    low = low - spacing
    if not np.all(spacing > 0):
        return None
    return AdditivePart(inverse / spacing[:, None], low / spacing, GRID_SIZE)


def _maps(data, Z, last, with_additive):
    """Yield candidates for the kernel's map of the coordinates, each with length scales to try.

    They are the given coordinates, those that whiten the reference points, the last fit's, and
    powers of the average outer product of the last kernel part's gradient (Radhakrishnan et al.,
    2024). These powers find the directions in which the log density isn't quadratic.
    """
    d = Z.shape[1]
    inverse = np.linalg.inv(data.whitening)
    maps = [inverse / np.sqrt(np.trace(inverse @ inverse.T) / d), np.eye(d)]
    if not np.allclose(data.covariance, np.eye(d), atol=NOT_WHITE):
        maps.append(symmetric_power(data.covariance, -0.5))
    has_last = last is not None and len(last.parameters.coefficients)
    if has_last:
        p = last.parameters
        change = p.whitening @ inverse
        gradients = _gradients(p, data.reference, with_additive) @ inverse
        product = gradients.T @ gradients
        if np.trace(product) > 0:
            product *= d / np.trace(product)
            product += GRADIENT_FLOOR * np.eye(d)
            maps += [symmetric_power(product, power) for power in (0.5, 0.25)]
    sample = thinned(Z, N_AVERAGED)
    for matrix in maps:
        U = sample @ matrix.T
        scale = np.sqrt(np.median(squared_distances(U, U)))
        if scale > 0:
            yield matrix, scale * np.array(LENGTH_SCALES)
    if has_last:
        yield p.projection @ change, LENGTH_SCALES_AROUND


def _gradients(p, reference, with_additive):
    """Return gradients (n, d) of the last fit's parts that the new kernel part is to represent."""
    X = thinned(reference, N_AVERAGED)
    p = p._replace(linear=0.0 * p.linear, precision=0.0 * p.precision, stiffness=0.0)
    p = p._replace(radial_coefficients=0.0 * p.radial_coefficients)
    if with_additive:
        p = p._replace(additive_coefficients=p.additive_coefficients[:, :0].copy())
    return values_and_gradients(p, np.ascontiguousarray(X))[1]
