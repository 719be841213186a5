r"""The variance of estimates' noise, as a function of the place.

The mean of log estimates is half of the noise's variance :math:`s^2` below the log likelihood, if
the noise is Gaussian and estimates are unbiased. That this is the same everywhere isn't known:

.. math:: \log s^2(x) = \log s_0^2 + a + T \tanh(b^\top z / T),

with coordinates z in which the posterior has unit covariance. Squared leave-one-out errors tell a
and b: each has the variance :math:`s^2(x)` and that of its prediction. The slopes b have a normal
prior, whose standard deviation is averaged over: half of its probability is at no slope at all. The
modes and their curvature (Fisher's information) at each are what is averaged, with weights by
Laplace's approximation of the evidence.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.special import softmax

from pymc_kmc.learning.convergence import lowest_of_mass
from pymc_kmc.numerics.linear_algebra import cholesky_factor
from pymc_kmc.numerics.samples import shrunk

# Largest change of the logarithm of the variance: beyond draws a slope says nothing. With 1 or 4
# errors of learned means were as large.
MOST_CHANGE = 2.0
# Standard deviations of the slopes' prior, a change of the logarithm for a standard deviation of
# the posterior, and their probabilities. Finer ones made no difference; without the largest a slope
# of .7 was halved.
SLOPE_SDS, SLOPE_PROBABILITIES = (1e-3, 0.1, 0.3, 1.0), (1 / 2, 1 / 6, 1 / 6, 1 / 6)
# Standard deviation of the prior of a, which the emulators have already fitted.
LEVEL_SD = 0.5
# Largest leave-one-out error that counts, in its standard deviations: one evaluation of a survival
# model was 1e15 nats deeper than predicted.
LARGEST_Z = 5.0


class NoiseVariance(NamedTuple):
    """The variance of noise, with slopes (d,) of its logarithm about a `centre` (d,).

    `level` is the logarithm at the centre. `covariance` (1 + d, 1 + d) is that of level and slopes.
    """

    level: float
    centre: np.ndarray
    slopes: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, noise, evaluations, found, draws, heights):
        """Return the variance about draws (n, d) with log densities `heights` (n,).

        `noise` is the emulators' standard deviation of it, `found` has their
        :class:`~pymc_kmc.learning.averages.Emulated` predictions of the evaluations.
        """
        near = np.isfinite(evaluations.log_densities) & np.isfinite(found.held_out_sd)
        near &= found.held_out >= lowest_of_mass(heights)
        centre, root = draws.mean(axis=0), cholesky_factor(shrunk(draws))
        Z = solve_triangular(root, (evaluations.X[near] - centre).T, lower=True).T
        expected = found.held_out_sd[near] ** 2
        errors = (evaluations.log_densities - found.held_out)[near]
        squares = np.minimum(errors**2, LARGEST_Z**2 * expected)
        parameters, covariance = _averaged(
            Z, squares, np.maximum(expected / noise**2 - 1.0, 0.0), noise
        )
        to_x = np.eye(len(parameters))
        to_x[1:, 1:] = np.linalg.inv(root).T
        parameters = to_x @ parameters
        level = float(2.0 * np.log(noise) + parameters[0])
        return cls(level, centre, parameters[1:], to_x @ covariance @ to_x.T)

    def half(self, X):
        """Return half of the variance (n,) at X (n, d), and its gradient (n, d)."""
        change, slope = _bounded((X - self.centre) @ self.slopes)
        half = 0.5 * np.exp(self.level + change)
        return half, (half * slope)[:, None] * self.slopes

    def errors(self, X):
        """Return the covariance (n, n) of half of the variance at X (n, d)."""
        away = X - self.centre
        change, slope = _bounded(away @ self.slopes)
        half = 0.5 * np.exp(self.level + change)
        by_parameters = half[:, None] * np.column_stack([np.ones(len(X)), slope[:, None] * away])
        return by_parameters @ self.covariance @ by_parameters.T


def _bounded(change):
    """Return a change of the logarithm within its bounds, and its derivative."""
    share = np.tanh(change / MOST_CHANGE)
    return MOST_CHANGE * share, 1.0 - share**2


def _averaged(Z, squares, others, noise):
    """Return a and b (1 + d,), averaged over priors, and their covariance.

    `squares` (n,) are squared errors at Z (n, d), with `others` (n,) the predictions' variances
    beside the noise's, in units of it.
    """
    fits = [_fit(Z, squares / noise**2, others, sd) for sd in SLOPE_SDS]
    evidences, means, covariances = map(np.array, zip(*fits, strict=True))
    weights = softmax(evidences + np.log(SLOPE_PROBABILITIES))
    mean = weights @ means
    away = means - mean
    return mean, np.tensordot(weights, covariances, 1) + (weights * away.T) @ away


def _fit(Z, squares, others, slope_sd):
    """Return the log evidence of one prior, the mode (1 + d,) and the covariance about it."""
    n, d = Z.shape
    precisions = np.append(LEVEL_SD**-2, np.full(d, slope_sd**-2))

    def parts(parameters):
        change, slope = _bounded(Z @ parameters[1:])
        of_noise = np.exp(parameters[0] + change)
        return of_noise, np.column_stack([np.ones(n), slope[:, None] * Z]), of_noise + others

    def loss(parameters):
        of_noise, by_parameters, variances = parts(parameters)
        ratios = squares / variances
        value = 0.5 * np.sum(np.log(variances) + ratios) + 0.5 * precisions @ parameters**2
        by_log = 0.5 * (1.0 - ratios) * of_noise / variances
        return value, by_log @ by_parameters + precisions * parameters

    found = minimize(loss, np.zeros(1 + d), jac=True, method="L-BFGS-B")
    of_noise, by_parameters, variances = parts(found.x)
    weighted = by_parameters * (of_noise / variances)[:, None]
    information = 0.5 * weighted.T @ weighted + np.diag(precisions)
    log_determinant = np.linalg.slogdet(information)[1]
    evidence = -found.fun + 0.5 * (np.log(precisions).sum() - log_determinant)
    return evidence, found.x, np.linalg.inv(information)
