"""Predictions and updates of a fitted Gaussian-process log density."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.evaluation import SUM_FLAGS
from pymc_kmc.numerics.jit import njit
from pymc_kmc.numerics.linear_algebra import symmetric, triangular_solve
from pymc_kmc.surrogates.gp_evaluation import quadratic_form
from pymc_kmc.surrogates.gp_parts import AdditivePart, Trend
from pymc_kmc.surrogates.kernels import kernel_at, kernel_with_tag, squared_distances
from pymc_kmc.surrogates.online import NewFeature, OnlineRegression

#: Radius of the wall in distances of the farthest point inside, and added to it, in units of the
#: surrogate's coordinates: a chain's next state may lie somewhat farther out than all before it.
WALL, BEYOND = 1.4, 0.5
#: Kernel functions, in units of `n_landmarks`, up to which updates add more.
MORE_LANDMARKS = 1.5
#: Squared norm of a new kernel function's part outside the others' span, below which it is left
#: out: it would teach nothing.
SMALLEST_REST = 1e-6
#: Distance in wall radii beyond which an update is left out. Updates are there to go outwards; only
#: what would ruin the quadratic is refused.
FARTHEST_UPDATE = 10.0
#: Weight above which a value's place belongs inside of the wall.
INSIDE = 0.5


def wall_radius(distance):
    """Return the radius of a wall outside of points, given their largest distance."""
    return WALL * distance + BEYOND


class Depth(NamedTuple):
    """Depths of values below `bulk`, in units of the depth `scale` at which a value counts half."""

    bulk: float
    scale: float

    def __call__(self, values):
        return np.maximum(self.bulk - values, 0.0) / self.scale

    def weight(self, values):
        return 1.0 / (1.0 + self(values) ** 2)


@dataclass(frozen=True)
class Posterior:
    """A fit's regression, for predictions and updates. Updates make new ones.

    The regression has the coefficients of trend, additive part and kernel part, in this order;
    `n_trend` of its features are the trend's. `base` (d, d) is the precision that the fitted
    quadratic changes. With `landmark_factor` L (m, m), L L' is the kernel matrix of the landmarks.
    `U` (n, r) are all points in the kernel's coordinates. `variance` is the residual variance of a
    value of weight one. Updates add no kernel functions beyond `most_landmarks`. `constant` is the
    difference of values and log densities of the parameters in use.
    """

    trend: Trend
    additive: AdditivePart
    base: np.ndarray
    regression: OnlineRegression
    n_trend: int
    landmark_factor: np.ndarray
    U: np.ndarray
    kernel_ridge: float
    variance: float
    depth: Depth
    most_landmarks: int
    constant: float

    @classmethod
    def of(cls, trend, features, residuals, base, fit, part, *, weights, depth, n_landmarks):
        """Return the posterior of a solved regression of `residuals`, values less the quadratic."""
        n_trend = len(fit.coefficients)
        ridges, coefficients = np.full(n_trend, fit.ridge), fit.coefficients
        if len(fit.kernel_coefficients):
            features = np.hstack([features, part.features])
            ridges = np.append(ridges, np.full(part.features.shape[1], fit.kernel_ridge))
            coefficients = np.append(coefficients, fit.kernel_coefficients)
        regression = OnlineRegression.of(features, residuals, weights, ridges, coefficients)
        return cls(
            trend=trend,
            additive=part.choice.additive,
            base=base,
            regression=regression,
            n_trend=n_trend,
            landmark_factor=part.landmark_factor,
            U=part.U,
            kernel_ridge=fit.kernel_ridge,
            variance=fit.variance,
            depth=depth,
            most_landmarks=int(MORE_LANDMARKS * n_landmarks),
            constant=regression.constant,
        )

    @property
    def n_before(self):
        """Number of features before those of the kernel part."""
        return self.n_trend + self.additive.n_features

    def predict(self, X, p, with_variances):
        """Return predictions (n,) at X (n, d), and variances (n,) or None, for parameters `p`."""
        Z = (X - p.centre) @ p.whitening.T
        features, rest = self._features(Z, p)
        mean = self.regression.predict(features) - 0.5 * quadratic_form(Z, self.base)
        if not with_variances:
            return mean, None
        variances = self.regression.variances(features)
        if len(self.landmark_factor):
            variances = variances + rest / self.kernel_ridge
        return mean, self.variance * variances

    def predict_at(self, x, p):
        """Return the predicted value at one place x (d,), and its standard deviation."""
        mean, variance = _predict_at(p, self._prediction, x)
        return mean, float(np.sqrt(variance))

    def __post_init__(self):
        regression = self.regression
        prediction = _Prediction(
            pairs=np.array(self.trend.pairs),
            base=self.base,
            grid_factor=self.additive.factor,
            landmark_factor=self.landmark_factor,
            mean=regression.mean,
            level=regression.level,
            factor=regression.factor,
            coefficients=regression.coefficients,
            variance=float(self.variance),
            kernel_variance=1.0 / self.kernel_ridge,
        )
        object.__setattr__(self, "_prediction", prediction)

    def updated(self, x, value, p):
        """Return posterior and parameters after one more value at x (d,); `p` are those in use.

        Where new parameters would not be a density's, `p` stays, with the new landmark at
        coefficient zero. The posterior keeps the value for the next update.
        """
        z = (x - p.centre) @ p.whitening.T
        if not np.abs(z).max() <= FARTHEST_UPDATE * p.radius:
            return self, p
        features, rest = self._features(z[None, :], p)
        features, landmarks, new_feature = features[0], p.landmarks, None
        factor, U = self.landmark_factor, self.U
        if len(factor):
            u = p.projection @ z
            if rest[0] > SMALLEST_REST and len(factor) < self.most_landmarks:
                root = np.sqrt(rest[0])
                new_feature = self._new_feature(features, u, root, kernel_with_tag(p.kernel))
                factor = _bordered(factor, features[self.n_before :], root)
                features = np.append(features, root)
                landmarks = np.ascontiguousarray(np.hstack([landmarks, u[:, None]]))
            U = np.vstack([U, u])
        weight = self.depth.weight(value)
        target = value + 0.5 * z @ self.base @ z
        regression = self.regression.with_point(features, target, weight, new_feature)
        coefficients = regression.coefficients
        linear, radial, change = self.trend.split(coefficients[: self.n_trend])
        precision = symmetric(self.base + change)
        is_density = np.isfinite(coefficients).all() and radial.sum() <= 0
        if not (is_density and np.linalg.eigvalsh(precision)[0] > 0):
            missing = np.zeros(landmarks.shape[1] - p.landmarks.shape[1])
            p = p._replace(landmarks=landmarks, coefficients=np.append(p.coefficients, missing))
            return replace(self, regression=regression, landmark_factor=factor, U=U), p
        radius = p.radius
        if weight > INSIDE:
            radius = max(radius, wall_radius(np.linalg.norm(z)))
        p = p._replace(
            linear=np.ascontiguousarray(linear),
            precision=np.ascontiguousarray(precision),
            radial_coefficients=np.ascontiguousarray(radial),
            radius=float(radius),
            landmarks=landmarks,
            coefficients=np.ascontiguousarray(
                triangular_solve(factor, coefficients[self.n_before :], transposed=True)
            ),
            additive_coefficients=self.additive.split(coefficients[self.n_trend : self.n_before]),
        )
        constant = regression.constant
        return replace(
            self, regression=regression, landmark_factor=factor, U=U, constant=constant
        ), p

    def _features(self, Z, p):
        """Return features (n, k), and the part (n,) of a kernel function outside their span."""
        features = self.trend(Z)
        if not len(self.landmark_factor):
            return features, np.zeros(len(Z))
        squares = squared_distances(Z @ p.projection.T, p.landmarks.T)
        kernel = kernel_with_tag(p.kernel).values(squares)
        kernel = triangular_solve(self.landmark_factor, kernel.T).T
        rest = np.maximum(1.0 - np.einsum("nk,nk->n", kernel, kernel), 0.0)
        return np.hstack([features, self.additive(Z), kernel]), rest

    def _new_feature(self, features, u, root, kernel):
        """Return the part, of norm `root`, of the kernel function at u (r,) that is new."""
        values = kernel.values(squared_distances(self.U, u[None, :]))[:, 0]
        spanned = features[self.n_before :]
        combination = np.append(np.zeros(self.n_before), spanned / root)
        return NewFeature(values / root, self.kernel_ridge, combination)


def _bordered(factor, row, last):
    """Return a triangular factor (m, m) with one more row, which ends in `last`."""
    m = len(factor)
    bordered = np.zeros((m + 1, m + 1))
    bordered[:m, :m], bordered[m, :m], bordered[m, m] = factor, row, last
    return bordered


class _Prediction(NamedTuple):
    """A posterior's data for compiled predictions, besides the surrogate's parameters."""

    pairs: np.ndarray  # (2, q), of the quadratic
    base: np.ndarray
    grid_factor: np.ndarray  # (g, g), of the additive part's kernel functions
    landmark_factor: np.ndarray
    mean: np.ndarray
    level: float
    factor: np.ndarray
    coefficients: np.ndarray
    variance: float
    kernel_variance: float


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _predict_at(p, q, x):
    """Return mean and variance at one place, as :meth:`Posterior.predict` does; compiled."""
    d, m, g = len(x), len(q.landmark_factor), len(q.grid_factor)
    z = p.whitening @ (x - p.centre)
    features, rest = np.empty(len(q.mean)), 0.0
    features[:d] = z
    square, k = z @ z, d
    for scale in p.radial_scales:
        features[k] = 0.5 * scale * np.log1p(square / scale)
        k += 1
    for i in range(q.pairs.shape[1]):
        row, column = q.pairs[0, i], q.pairs[1, i]
        features[k] = z[row] * z[column] * (np.sqrt(0.5) if row == column else 1.0)
        k += 1
    if m > 0:
        for a in range(d if g > 0 else 0):
            place = p.axes[a] @ z - p.origin[a]
            for i in range(g):
                features[k + i] = np.exp(-0.5 * (place - p.spacing * i) ** 2)
            _solve_lower(q.grid_factor, features[k : k + g])
            k += g
        u, kernel = p.projection @ z, features[k:]
        for j in range(m):
            distance = 0.0
            for a in range(len(u)):
                distance += (u[a] - p.landmarks[a, j]) ** 2
            kernel[j] = kernel_at(p.kernel, distance)
        _solve_lower(q.landmark_factor, kernel)
        rest = max(0.0, 1.0 - kernel @ kernel) * q.kernel_variance
    features -= q.mean
    mean = q.level + features @ q.coefficients - 0.5 * (z @ (q.base @ z))
    variance = rest
    for i in range(len(features)):  # U' h = features
        h = features[i] / q.factor[i, i]
        variance += h * h
        row = q.factor[i]
        for j in range(i + 1, len(features)):
            features[j] -= h * row[j]
    return mean, q.variance * variance


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _solve_lower(factor, rhs):
    for i in range(len(rhs)):
        row, total = factor[i], rhs[i]
        for j in range(i):
            total -= row[j] * rhs[j]
        rhs[i] = total / row[i]
