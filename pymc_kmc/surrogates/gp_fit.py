"""Fit of a Gaussian-process log density to values, its predictions and its updates."""

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.linear_algebra import symmetric, triangular_solve
from pymc_kmc.numerics.samples import FAINT, MANY, count_distinct, shrunk_covariance, thinned
from pymc_kmc.numerics.samples import whitening as whitening_of
from pymc_kmc.surrogates.gp_evaluation import LogDensityGPParameters, values_and_gradients
from pymc_kmc.surrogates.gp_parts import (
    HALF_WEIGHT,
    KernelPart,
    Trend,
    choose_kernels,
    quadratic_form,
)
from pymc_kmc.surrogates.kernels import N_AVERAGED, squared_distances
from pymc_kmc.surrogates.regression import (
    BULK,
    BayesianRegression,
    Depth,
    NewFeature,
    OnlineRegression,
    score_system,
    solve_with_scores,
)

# Values that are learned from

#: Depth at which a value has weight 1/2, in nats, below a Gaussian's mean log density.
DEPTH = 5.0
#: Depth beyond which values are left out, in units of that.
MOST_DEPTHS = 10.0
#: Distance beyond which points are left out, in wall radii.
FARTHEST_POINT = 1.5
#: Values a coefficient for a whole quadratic, and for kernels beside the trend. That number of
#: values and FEWEST_VALUES more are never left out: a chain from far away has mostly deep values.
VALUES_PER_COEFFICIENT, FEWEST_VALUES = 1.1, 25

# Trend and kernel part

#: Ridges of the trend's coefficients tried.
TREND_RIDGES = 10.0 ** np.array([-8.0, -5.0, -2.0, 0.0, 2.0])
#: Smallest eigenvalue of the quadratic, in units of the prior precision's smallest.
SMALLEST_EIGENVALUE = 0.02
#: Factors on the chosen length scale, among which the fit to all points decides.
REFINEMENTS = (0.7, 1.0, 1.4)

# The wall

#: Radius of the wall: a factor on the farthest point's distance and an addend, in the surrogate's
#: coordinates. A chain's next state may lie somewhat farther out than all before it.
WALL, WALL_MARGIN = 1.4, 0.5
#: Factor on the wall's radius around a concave quadratic, which needs no wall: it would hold back a
#: chain that has not seen the target's width yet.
FREE = 100.0
#: Nats by which the surrogate is to lie below the bulk outside of the wall.
BELOW_BULK = 20.0
#: Distances at which this is enforced, in wall radii.
WALL_RADII = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0)

# Updates

#: Most kernel functions after updates, in units of `n_landmarks`.
MORE_LANDMARKS = 1.5
#: Squared norm of a new kernel function outside the others' span, below which it is left out.
SMALLEST_REST = 1e-6
#: Distance beyond which an update is refused, in wall radii. Updates extend a surrogate outwards;
#: only points that would ruin the quadratic are refused.
FARTHEST_UPDATE = 10.0


def wall_radius(distance):
    """Return the radius of the wall around points, given their largest distance."""
    return WALL * distance + WALL_MARGIN


class FitData(NamedTuple):
    """The n values of a fit, in the surrogate's coordinates z = whitening @ (x - centre).

    `reference` (n', d) are points where the surrogate matters, in the given coordinates.
    `covariance` is theirs in z, and `prior` its inverse, towards which the quadratic is shrunk.
    `radius` is the wall's. The weights (n,) follow from the values' depths.
    """

    reference: np.ndarray
    centre: np.ndarray
    whitening: np.ndarray
    covariance: np.ndarray
    prior: np.ndarray
    radius: float
    depth: Depth
    Z: np.ndarray
    values: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, X, values, reference, whitening=None, bulk=None, share=None):
        """Return the coordinates of a fit, and the values that are near and high enough for it.

        `share` is the weight of the reference covariance's diagonal, by default d / (n' + 1), at
        most 1/2, with n' distinct points. The other arguments are those of :func:`fit_log_density`.
        """
        d = X.shape[1]
        centre = reference.mean(axis=0)
        if share is None:
            share = min(0.5, d / (count_distinct(reference) + 1.0))
        covariance = shrunk_covariance(reference, share=share)
        if whitening is None:
            whitening = whitening_of(covariance)
        whitening = np.ascontiguousarray(whitening, dtype=np.float64)
        covariance = whitening @ covariance @ whitening.T
        inside = (reference - centre) @ whitening.T
        radius = wall_radius(np.sqrt(np.einsum("nd,nd->n", inside, inside).max()))
        bulk = np.quantile(values, BULK) if bulk is None else bulk
        depth = Depth(bulk, DEPTH + 0.5 * d)  # a Gaussian's draws lie d / 2 below its maximum
        depths = depth(values)
        Z = (X - centre) @ whitening.T
        distance = np.linalg.norm(Z, axis=1)
        enough = FEWEST_VALUES + int(VALUES_PER_COEFFICIENT * 0.5 * d * (d + 3))
        enough = min(len(X) - 1, enough)
        kept = distance <= max(FARTHEST_POINT * radius, np.partition(distance, enough)[enough])
        kept &= depths <= max(MOST_DEPTHS, np.partition(depths, enough)[enough])
        return cls(
            reference=reference,
            centre=centre,
            whitening=whitening,
            covariance=covariance,
            prior=symmetric(np.linalg.inv(covariance)),
            radius=radius,
            depth=depth,
            Z=Z[kept],
            values=values[kept],
            weights=depth.weight(values[kept]),
        )

    def residuals(self, base):
        """Return the values (n,) less the quadratic of a precision (d, d)."""
        return self.values + 0.5 * quadratic_form(self.Z, base)


@dataclass(frozen=True)
class LogDensityFit:
    """A fitted Gaussian-process log density, for predictions and updates. Updates make new ones."""

    parameters: LogDensityGPParameters
    trend: Trend
    part: KernelPart
    base: np.ndarray  # (d, d): the precision that the fitted quadratic changes
    regression: OnlineRegression  # on the features of `trend` and `part`, in this order
    kernel_ridge: float
    variance: float  # residual, of a value of weight one
    depth: Depth
    most_landmarks: int  # of updates
    constant: float  # values less log densities of the parameters
    log_evidence: float  # of a value, up to a constant
    is_full: bool = True  # False: only the quadratic's diagonal was fitted
    n_additive_losses: int = 0  # fits in a row, this one included, without an additive part

    @property
    def choice(self):
        return self.part.choice

    def features(self, Z):
        """Return features at Z (n, d), and squared norms (n,) of k(z, .) outside their span."""
        features, rest = self.part(Z)
        return np.hstack([self.trend(Z), features]), rest

    def predict(self, X):
        """Return predictions (n,) at X (n, d), and variances (n,)."""
        Z = (X - self.parameters.centre) @ self.parameters.whitening.T
        (features, rest), regression = self.features(Z), self.regression
        features -= regression.mean
        mean = regression.level + features @ regression.coefficients
        mean -= 0.5 * quadratic_form(Z, self.base)
        half = triangular_solve(regression.factor.T, features.T)
        variances = np.einsum("kn,kn->n", half, half) + rest / self.kernel_ridge
        return mean, self.variance * variances

    def updated(self, x, value):
        """Return the fit with one more value at x (d,).

        Where new parameters would not be a density's, the old ones stay, with the new landmark at
        coefficient zero. The regression keeps the value for the next update.
        """
        p, part = self.parameters, self.part
        z = (x - p.centre) @ p.whitening.T
        if not np.abs(z).max() <= FARTHEST_UPDATE * p.radius:
            return self
        (features,), (rest,) = self.features(z[None, :])
        new_feature, m = None, len(part.indices)
        if m and rest > SMALLEST_REST and m < self.most_landmarks:
            new_feature = self._new_feature(features, z, np.sqrt(rest))
            features = np.append(features, np.sqrt(rest))
            part = part.with_point(z, features[-m - 1 :])
        elif m:
            part = part.with_point(z)
        weight = self.depth.weight(value)
        target = value + 0.5 * z @ self.base @ z
        regression = self.regression.with_point(features, target, weight, new_feature)
        new = replace(self, regression=regression, part=part)
        functions = functions_of(self.trend, part, self.base, regression.coefficients)
        is_density = all(np.isfinite(array).all() for array in functions.values())
        is_density = is_density and functions["radial_coefficients"].sum() <= 0
        if not (is_density and np.linalg.eigvalsh(functions["precision"])[0] > 0):
            landmarks, missing = functions["landmarks"], len(part.indices) - m
            coefficients = np.append(p.coefficients, np.zeros(missing))
            return replace(
                new, parameters=p._replace(landmarks=landmarks, coefficients=coefficients)
            )
        radius = max(p.radius, wall_radius(np.linalg.norm(z))) if weight > HALF_WEIGHT else p.radius
        p = p._replace(radius=float(radius), **functions)
        return replace(new, parameters=p, constant=regression.constant)

    def _new_feature(self, features, z, root):
        """Return the NewFeature k(z, .) outside the others' span, divided by its norm `root`."""
        part, m = self.part, len(self.part.indices)
        squares = squared_distances(part.U, (part.choice.map @ z)[None, :])[:, 0]
        combination = np.append(np.zeros(len(features) - m), features[-m:] / root)
        return NewFeature(part.choice.kernel.values(squares) / root, self.kernel_ridge, combination)


def functions_of(trend, part, base, coefficients):
    """Return the parameters that a regression's coefficients determine, a dict."""
    linear, radial, change = trend.split(coefficients[: trend.n_features])
    return {
        "linear": np.ascontiguousarray(linear),
        "precision": np.ascontiguousarray(symmetric(base + change)),
        "radial_coefficients": np.ascontiguousarray(radial),
        **part.split(coefficients[trend.n_features :]),
    }


def fit_log_density(options, X, values, reference, *, whitening, bulk, last, rng):
    """Return the :class:`LogDensityFit` to finite values (n,) of a log density at X (n, d).

    `options` is the LogDensityGP. `reference` has shape (n', d), `whitening` is (d, d) or None,
    `bulk` a float or None, and `last` an earlier LogDensityFit or None.
    """
    data = FitData.of(X, values, reference, whitening, bulk)
    n, d = data.Z.shape
    is_full = bool(n >= VALUES_PER_COEFFICIENT * (0.5 * d * (d + 3)))
    trend = Trend.of(d, is_full, True)
    if not is_full and count_distinct(reference) >= MANY * d:
        # The correlations are the reference points': the values tell whether to believe these.
        believing = FitData.of(X, values, reference, whitening, bulk, FAINT)
        data = max(data, believing, key=partial(_evidence_of_trend, trend))
    features, choices = trend(data.Z), []
    if n > VALUES_PER_COEFFICIENT * trend.n_features:
        residuals = data.residuals(data.prior)
        choices = choose_kernels(options, data, features, residuals, TREND_RIDGES, last, rng)
    parts = [KernelPart.none(data.Z)] + [
        KernelPart.of(choice, length, data.Z, data.weights, options.n_landmarks)
        for choice, length in itertools.product(choices, REFINEMENTS)
    ]
    fit = _solve(options, data, trend, parts)
    if fit.parameters.radial_coefficients.sum() > 0:
        # A log density that rises for ever: the values didn't say that.
        fit = _solve(options, data, Trend.of(d, is_full, False), parts)
    n_losses = last.n_additive_losses if last is not None else 0
    n_losses = 0 if fit.choice.additive.variance > 0 else n_losses + 1
    return replace(fit, is_full=is_full, n_additive_losses=n_losses)


def _evidence_of_trend(trend, data):
    """Return the log evidence of a value, for a trend alone."""
    residuals = data.residuals(data.prior)
    regression = BayesianRegression(trend(data.Z), residuals, data.weights, TREND_RIDGES)
    fit = regression.fit(np.zeros((len(residuals), 0)))
    return _evidence_of_a_value(fit, data.weights)


def _evidence_of_a_value(fit, weights):
    log_weights = np.log(weights / weights.mean())
    return float(fit.log_evidence / len(weights) + 0.5 * log_weights.mean())


def _solve(options, data, trend, parts):
    """Return the LogDensityFit of the largest evidence, of a trend with each kernel part.

    Eigenvalues of its quadratic that are too small are raised. The other parts are then fitted
    again, to make up for that change.
    """
    base, features = data.prior, trend(data.Z)
    regression = BayesianRegression(features, data.residuals(base), data.weights, TREND_RIDGES)
    fits = [(regression.fit(more, ridges=part.choice.ridges), part, more) for part, more in parts]
    fit, part, more = max(fits, key=lambda each: each[0].log_evidence)
    change = trend.split(fit.coefficients[: trend.n_features])[2]
    eigenvalues, vectors = np.linalg.eigh(base + change)
    smallest = SMALLEST_EIGENVALUE * np.linalg.eigvalsh(base)[0]
    is_free = eigenvalues[0] >= smallest and not len(part.indices)
    if eigenvalues[0] < smallest:
        base = (vectors * np.maximum(eigenvalues, smallest)) @ vectors.T
        trend = trend.without_quadratic()
        features = trend(data.Z)
        again = BayesianRegression(features, data.residuals(base), data.weights, [fit.ridge])
        fit = again.fit(more)
    features = np.hstack([features, more])
    ridges = np.repeat([fit.ridge, fit.more_ridge], [trend.n_features, more.shape[1]])
    coefficients = _with_scores(options, data, trend, part, features, base, ridges, fit)
    regression = OnlineRegression.of(
        features, data.residuals(base), data.weights, ridges, coefficients
    )
    functions = functions_of(trend, part, base, coefficients)
    return LogDensityFit(
        parameters=_parameters(data, trend, part, is_free, functions),
        trend=trend,
        part=part,
        base=base,
        regression=regression,
        kernel_ridge=fit.more_ridge,
        variance=float(fit.variance),
        depth=data.depth,
        most_landmarks=int(MORE_LANDMARKS * options.n_landmarks),
        constant=regression.constant,
        log_evidence=_evidence_of_a_value(fit, data.weights),
    )


def _with_scores(options, data, trend, part, features, base, ridges, fit):
    """Return coefficients that include score matching on the reference points."""
    score_weights = np.asarray(options.score_weights, dtype=np.float64)
    if not score_weights.any():
        return fit.coefficients
    Z = thinned(data.reference, N_AVERAGED) - data.centre
    Z = Z @ data.whitening.T
    gradients, laplacians = zip(trend.derivatives(Z), part.derivatives(Z), strict=True)
    gradients = (np.hstack(pair) for pair in zip(*gradients, strict=True))
    system = score_system(gradients, np.hstack(laplacians), -Z @ base)
    scales = len(data.reference) * fit.variance * score_weights
    weights = data.weights / data.weights.mean()
    theta, scale = solve_with_scores(
        features, data.residuals(base), weights, ridges, system, scales
    )
    return fit.coefficients if theta is None or scale == 0 else theta


def _parameters(data, trend, part, is_free, functions):
    """Return the parameters of a fit, with a wall that is steep enough."""
    additive = part.choice.additive
    parameters = LogDensityGPParameters(
        centre=np.ascontiguousarray(data.centre),
        whitening=data.whitening,
        radial_scales=trend.scales,
        radius=float(data.radius * FREE if is_free else data.radius),
        stiffness=1.0,
        projection=np.ascontiguousarray(part.choice.map),
        kernel=part.choice.kernel.tag,
        axes=additive.axes / additive.length,
        origin=additive.origin / additive.length,
        spacing=1.0 / additive.length,
        **functions,
    )
    return parameters._replace(stiffness=_stiffness(data, parameters))


def _stiffness(data, parameters):
    """Return the steepness c with which functions that extrapolate upwards stay below the bulk."""
    radius = parameters.radius
    parameters = parameters._replace(centre=np.zeros(data.Z.shape[1]), stiffness=0.0)
    X = thinned(data.reference, N_AVERAGED) - data.centre
    distance = np.linalg.norm(X @ data.whitening.T, axis=1)
    X, distance = X[distance > 0], distance[distance > 0]
    X, distance = np.vstack([X, -X]), np.tile(distance, 2)
    bulk = np.max(values_and_gradients(parameters, X[: len(X) // 2])[0], initial=-np.inf)
    stiffness = 1.0  # at least: coordinates have about unit curvature
    for factor in WALL_RADII if len(X) else ():
        beyond = (factor - 1.0) * radius
        rays = X * (factor * radius / distance)[:, None]
        excess = np.max(values_and_gradients(parameters, rays)[0]) - bulk + BELOW_BULK
        stiffness = max(stiffness, 2.0 * excess / beyond**2)
    return float(stiffness)
