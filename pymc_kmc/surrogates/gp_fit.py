"""Fit of a Gaussian-process log density to values."""

import itertools
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.linear_algebra import symmetric
from pymc_kmc.numerics.samples import count_distinct, shrunk_covariance
from pymc_kmc.numerics.samples import whitening as whitening_of
from pymc_kmc.surrogates.bayesian_regression import BayesianRegression, RegressionFit
from pymc_kmc.surrogates.gp_choice import choose_kernels
from pymc_kmc.surrogates.gp_evaluation import (
    LogDensityGPParameters,
    log_densities,
    quadratic_form,
)
from pymc_kmc.surrogates.gp_parts import KernelPart, Trend
from pymc_kmc.surrogates.gp_posterior import Depth, Posterior, wall_radius
from pymc_kmc.surrogates.scores import score_system, solve_with_scores

# Values that are learned from

#: Depth at which a value counts half, in nats, and a dimension more: a Gaussian's draws lie d / 2
#: below its maximum.
DEPTH, DEPTH_PER_DIMENSION = 5.0, 0.5
#: Depth beyond which values are left out, in units of that.
DEEPEST = 10.0
#: Quantile of the values that is the bulk.
BULK = 0.9
#: Distance in wall radii beyond which points are left out.
FARTHEST = 1.5
#: Values a coefficient of the quadratic that are never left out, however far away or deep: a chain
#: that comes from far has most of its values far below the last ones.
ENOUGH_VALUES = 1.2
#: Fewest values that are kept, and a dimension more.
FEWEST_VALUES, FEWEST_PER_DIMENSION = 20, 3

# The trend

#: Values a coefficient at which the quadratic's off-diagonal is fitted.
VALUES_PER_COEFFICIENT = 1.1
#: Ridges of the trend's coefficients tried.
TREND_RIDGES = 10.0 ** np.array([-8.0, -5.0, -2.0, 0.0, 2.0])
#: Features of the trend above which fewer ridges are tried: each costs a factorisation.
MANY_FEATURES = 400
#: Ridges tried then.
FEW_TREND_RIDGES = 10.0 ** np.array([-11.0, -7.0, -3.0, 0.0])
#: Values a feature of such a trend, below which it is fitted alone.
VALUES_PER_FEATURE = 1.2
#: Smallest eigenvalue of the quadratic, in units of the prior precision's smallest.
SMALLEST_EIGENVALUE = 0.02

# The kernel part, scores and the wall

#: Factors on the chosen length scale that all points decide between.
REFINEMENTS = (0.7, 1.0, 1.4)
#: Most reference points of a score-matching term: they cost as much as values.
N_SCORES = 400
#: Factor on the wall's radius around a concave quadratic, which needs no wall: one would hold a
#: chain back whose history has not seen the target's width yet.
FREE = 100.0
#: Nats below the bulk that the surrogate is to be outside of the wall.
BELOW_BULK = 20.0
#: Distances at which it is to be, in wall radii.
RADII = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0)
#: Reference points in whose directions, and the opposite ones, that is looked at.
N_RAYS = 100
#: Smallest stiffness of the wall.
STIFFNESS = 1.0


class LogDensityFit(NamedTuple):
    """A fitted Gaussian-process log density, as one value.

    `parameters` are for evaluation, `posterior` for predictions and updates. `log_evidence` is the
    log marginal likelihood of a value, up to a constant. Without `is_full` only the quadratic's
    diagonal was fitted. `length_scale` is a root mean square in the surrogate's coordinates; it is
    0, and `kernel` None, without a kernel part. `n_additive_losses` counts fits in a row, this one
    included, in which the additive part lost.
    """

    parameters: LogDensityGPParameters
    posterior: Posterior
    log_evidence: float
    is_full: bool
    score_weight: float
    kernel: str | None
    length_scale: float
    n_additive_losses: int

    @property
    def additive(self):
        """The part of single coordinates; its variance is 0 without one."""
        return self.posterior.additive

    def updated(self, x, value):
        """Return the fit with one more value at x (d,)."""
        posterior, parameters = self.posterior.updated(x, value, self.parameters)
        return self._replace(posterior=posterior, parameters=parameters)


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
    def of(cls, X, values, reference, whitening=None, bulk=None):
        """Choose coordinates and values that are near enough, as for :func:`fit_log_density`."""
        d = X.shape[1]
        centre = reference.mean(axis=0)
        share = min(0.5, d / (count_distinct(reference) + 1.0))
        covariance = shrunk_covariance(reference, share=share)
        if whitening is None:
            whitening = whitening_of(covariance)
        whitening = np.ascontiguousarray(whitening, dtype=np.float64)
        covariance = whitening @ covariance @ whitening.T
        inside = (reference - centre) @ whitening.T
        radius = wall_radius(np.sqrt(np.einsum("nd,nd->n", inside, inside).max()))
        bulk = np.quantile(values, BULK) if bulk is None else bulk
        depth = Depth(bulk, DEPTH + DEPTH_PER_DIMENSION * d)
        depths = depth(values)
        Z = (X - centre) @ whitening.T
        distance = np.linalg.norm(Z, axis=1)
        n_coefficients = 0.5 * d * (d + 3)
        enough = max(FEWEST_VALUES + FEWEST_PER_DIMENSION * d, int(ENOUGH_VALUES * n_coefficients))
        enough = min(len(X) - 1, enough)
        kept = distance <= max(FARTHEST * radius, np.partition(distance, enough)[enough])
        kept &= depths <= max(DEEPEST, np.partition(depths, enough)[enough])
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


class _Solution(NamedTuple):
    """Coefficients of all parts."""

    trend: Trend
    features: np.ndarray  # of the trend
    residuals: np.ndarray  # values less the base's quadratic
    base: np.ndarray  # precision that the trend's quadratic changes
    fit: RegressionFit
    part: KernelPart
    log_evidence: float
    score_weight: float
    is_free: bool  # a concave quadratic, which needs no wall


def fit_log_density(options, X, values, reference, *, whitening, bulk, last, rng):
    """Return the :class:`LogDensityFit` to finite values (n,) of a log density at X (n, d).

    `options` are the LogDensityGP's arguments, not written to. `reference` has shape (n', d),
    `whitening` is (d, d) or None, `bulk` a float or None, and `last` an earlier LogDensityFit or
    None.
    """
    data = FitData.of(X, values, reference, whitening, bulk)
    n, d = data.Z.shape
    is_full = bool(n >= VALUES_PER_COEFFICIENT * (0.5 * d * (d + 3)))
    trend = Trend.of(d, is_full, True)
    features = trend(data.Z)
    residuals = data.values + 0.5 * quadratic_form(data.Z, data.prior)
    n_features = features.shape[1]
    ridges = TREND_RIDGES if n_features <= MANY_FEATURES else FEW_TREND_RIDGES
    choices = []
    if n > VALUES_PER_FEATURE * n_features or n_features <= MANY_FEATURES:
        choices = choose_kernels(options, data, features, residuals, ridges, last, rng)
    parts = [
        KernelPart.of(choice, length, data.Z, data.weights, options.n_landmarks)
        for choice, length in itertools.product(choices, REFINEMENTS)
    ]
    solution = _solve(options, data, trend, features, residuals, ridges, parts)
    if solution.trend.split(solution.fit.coefficients)[1].sum() > 0:
        # A log density that rises for ever: the values didn't say that.
        trend = Trend.of(d, is_full, False)
        solution = _solve(options, data, trend, trend(data.Z), residuals, ridges, parts)
    part = solution.part
    parameters = _parameters(data, solution)
    n_losses = last.n_additive_losses if last is not None else 0
    has_kernel = len(part.indices) > 0
    return LogDensityFit(
        parameters=parameters,
        posterior=Posterior.of(
            solution.trend,
            solution.features,
            solution.residuals,
            solution.base,
            solution.fit,
            part,
            weights=data.weights,
            depth=data.depth,
            n_landmarks=options.n_landmarks,
        ),
        log_evidence=solution.log_evidence,
        is_full=is_full,
        score_weight=solution.score_weight,
        kernel=part.choice.kernel.name if has_kernel else None,
        length_scale=float(np.sqrt(d) / np.linalg.norm(part.choice.map)) if has_kernel else 0.0,
        n_additive_losses=0 if part.choice.additive.variance > 0 else n_losses + 1,
    )


def _solve(options, data, trend, features, residuals, ridges, parts):
    """Fit a trend alone and with each kernel part; return the solution of the largest evidence.

    Eigenvalues of its quadratic that are too small are raised. The other parts are then fitted
    again, to make up for that change.
    """
    regression = BayesianRegression(features, residuals, data.weights, ridges)
    fits = [(regression.fit(), KernelPart.none(data.Z))]
    for part in parts:
        fits.append((regression.fit_with(part.features, ridges=[part.choice.ridge]), part))
    fit, part = max(fits, key=lambda pair: pair[0].log_evidence)
    has_kernel = len(fit.kernel_coefficients) > 0
    base, is_free = data.prior, False
    precision = base + trend.split(fit.coefficients)[2]
    eigenvalues, vectors = np.linalg.eigh(precision)
    smallest = SMALLEST_EIGENVALUE * np.linalg.eigvalsh(data.prior)[0]
    if eigenvalues[0] < smallest:
        base = (vectors * np.maximum(eigenvalues, smallest)) @ vectors.T
        residuals = data.values + 0.5 * quadratic_form(data.Z, base)
        features = trend.others(data.Z)
        again = BayesianRegression(features, residuals, data.weights, [fit.ridge])
        fit = again.fit_with(part.features) if has_kernel else again.fit()
        trend = trend.without_quadratic()
    elif not has_kernel:
        is_free = True
    weights = data.weights / data.weights.mean()
    log_evidence = fit.log_evidence / len(weights) + 0.5 * float(np.log(weights).mean())
    fit, score_weight = _with_scores(options, data, trend, features, residuals, base, fit, part)
    return _Solution(
        trend, features, residuals, base, fit, part, log_evidence, score_weight, is_free
    )


def _with_scores(options, data, trend, features, residuals, base, fit, part):
    """Return the fit with score matching on the reference points in it, and its weight."""
    score_weights = np.asarray(options.score_weights, dtype=np.float64)
    if not score_weights.any():
        return fit, 0.0
    Z = data.reference[:: max(1, len(data.reference) // N_SCORES)] - data.centre
    Z = Z @ data.whitening.T
    n_trend = features.shape[1]
    ridges = np.full(n_trend, fit.ridge)
    gradients, laplacians = trend.derivatives(Z)
    if len(fit.kernel_coefficients):
        features = np.hstack([features, part.features])
        ridges = np.append(ridges, np.full(part.features.shape[1], fit.kernel_ridge))
        kernel_gradients, kernel_laplacians = part.derivatives(Z)
        pairs = zip(gradients, kernel_gradients, strict=True)
        gradients = (np.hstack(pair) for pair in pairs)
        laplacians = np.hstack([laplacians, kernel_laplacians])
    system = score_system(gradients, laplacians, -Z @ base)
    unit = len(data.reference) * fit.variance
    weights = data.weights / data.weights.mean()
    theta, scale = solve_with_scores(
        features, residuals, weights, ridges, system, unit * score_weights
    )
    if theta is None or scale == 0:
        return fit, 0.0
    fit = fit._replace(coefficients=theta[:n_trend], kernel_coefficients=theta[n_trend:])
    return fit, float(scale / unit)


def _parameters(data, solution):
    """Return the parameters of a solution, with a wall that is steep enough."""
    part, additive = solution.part, solution.part.choice.additive
    linear, radial, change = solution.trend.split(solution.fit.coefficients)
    coefficients, additive_coefficients = part.split(solution.fit.kernel_coefficients)
    parameters = LogDensityGPParameters(
        centre=np.ascontiguousarray(data.centre),
        whitening=data.whitening,
        linear=np.ascontiguousarray(linear),
        precision=np.ascontiguousarray(symmetric(solution.base + change)),
        radial_scales=solution.trend.scales,
        radial_coefficients=np.ascontiguousarray(radial),
        radius=float(data.radius * FREE if solution.is_free else data.radius),
        stiffness=STIFFNESS,
        projection=np.ascontiguousarray(part.choice.map),
        landmarks=np.ascontiguousarray(part.U[part.indices].T),
        coefficients=np.ascontiguousarray(coefficients),
        kernel=part.choice.kernel.tag,
        axes=additive.axes / additive.length,
        origin=additive.origin / additive.length,
        spacing=1.0 / additive.length,
        additive_coefficients=additive_coefficients,
    )
    return parameters._replace(stiffness=_stiffness(data, parameters))


def _stiffness(data, parameters):
    """Return the steepness c with which functions that extrapolate upwards stay below the bulk."""
    radius = parameters.radius
    parameters = parameters._replace(centre=np.zeros(data.Z.shape[1]), stiffness=0.0)
    X = data.reference[:: max(1, len(data.reference) // N_RAYS)] - data.centre
    distance = np.linalg.norm(X @ data.whitening.T, axis=1)
    X, distance = X[distance > 0], distance[distance > 0]
    X, distance = np.vstack([X, -X]), np.tile(distance, 2)
    bulk = np.max(log_densities(parameters, X[: len(X) // 2]), initial=-np.inf)
    stiffness = STIFFNESS
    for factor in RADII if len(X) else ():
        beyond = (factor - 1.0) * radius
        rays = X * (factor * radius / distance)[:, None]
        excess = np.max(log_densities(parameters, rays)) - bulk + BELOW_BULK
        stiffness = max(stiffness, 2.0 * excess / beyond**2)
    return float(stiffness)
