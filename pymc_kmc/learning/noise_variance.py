r"""The variance of estimates' noise, as a function of the place.

The mean of log estimates is half of the noise's variance :math:`s^2` below the log likelihood, if
the noise is Gaussian and estimates are unbiased. That this is the same everywhere isn't known:

.. math:: \log s^2(x) = \log s_0^2 + a + T \tanh((b^\top z + c r) / T), \qquad
          r = (z^\top z - d) / \sqrt{2 d},

with coordinates z in which the posterior has unit covariance: noise may grow along coordinates, or
away from the middle on all sides. Squared leave-one-out errors tell a, b and c: each has the
variance :math:`s^2(x)` and that of its prediction. The slopes b and c have normal priors, whose
standard deviations are averaged over: half of the probability is at no slope at all. The modes and
their curvature (Fisher's information) at each are what is averaged, with weights by Laplace's
approximation of the evidence.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
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
ALONG = {1e-3: 1 / 2, 0.1: 1 / 6, 0.3: 1 / 6, 1.0: 1 / 6}
# The same for the slope along r, which has unit variance too.
RADIAL = {1e-3: 1 / 2, 0.2: 1 / 4, 0.6: 1 / 4}
# Standard deviation of the prior of a, which the emulators have already fitted.
LEVEL_SD = 0.5
# Largest leave-one-out error that counts, in its standard deviations: one evaluation of a survival
# model was 1e15 nats deeper than predicted.
LARGEST_Z = 5.0


class NoiseVariance(NamedTuple):
    """The variance of noise, in coordinates ``z = (x - centre) @ whitening.T``.

    `level` is its logarithm without slopes. `slopes` (d + 1,) are those along z and r, `covariance`
    (d + 2, d + 2) is that of level and slopes.
    """

    level: float
    centre: np.ndarray
    whitening: np.ndarray
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
        d = draws.shape[1]
        centre, whitening = draws.mean(axis=0), np.linalg.inv(cholesky_factor(shrunk(draws)))
        unknown = cls(0.0, centre, whitening, np.zeros(d + 1), np.eye(d + 2))
        expected = found.held_out_sd[near] ** 2
        errors = (evaluations.log_densities - found.held_out)[near]
        squares = np.minimum(errors**2, LARGEST_Z**2 * expected)
        others = np.maximum(expected / noise**2 - 1.0, 0.0)
        features = unknown.features(evaluations.X[near])
        parameters, covariance = _averaged(features, squares / noise**2, others)
        level = float(2.0 * np.log(noise) + parameters[0])
        return cls(level, centre, whitening, parameters[1:], covariance)

    def features(self, X):
        """Return z and r (n, d + 1) at X (n, d)."""
        Z = (X - self.centre) @ self.whitening.T
        d = Z.shape[1]
        return np.column_stack([Z, (np.sum(Z**2, axis=1) - d) / np.sqrt(2.0 * d)])

    def half(self, X):
        """Return half of the variance (n,) at X (n, d), and its gradient (n, d)."""
        features, half, slope = self._half(X)
        *along, radial = self.slopes
        by_z = along + radial * np.sqrt(2.0 / len(along)) * features[:, :-1]
        return half, (half * slope)[:, None] * by_z @ self.whitening

    def errors(self, X):
        """Return the covariance (n, n) of half of the variance at X (n, d)."""
        features, half, slope = self._half(X)
        ones = np.ones(len(X))
        by_parameters = half[:, None] * np.column_stack([ones, slope[:, None] * features])
        return by_parameters @ self.covariance @ by_parameters.T

    def _half(self, X):
        """Return features, half of the variance, and its logarithm's derivative by the change."""
        features = self.features(X)
        change, slope = _bounded(features @ self.slopes)
        return features, 0.5 * np.exp(self.level + change), slope


def _bounded(change):
    share = np.tanh(change / MOST_CHANGE)
    return MOST_CHANGE * share, 1.0 - share**2


def _averaged(features, squares, others):
    """Return a, b and c (d + 2,), averaged over priors, and their covariance.

    `squares` (n,) are squared errors at `features` (n, d + 1), `others` (n,) the predictions'
    variances beside the noise's, both in units of this.
    """
    d, fits, priors = features.shape[1] - 1, [], []
    for (along, p), (radial, q) in product(ALONG.items(), RADIAL.items()):
        sds = np.array([LEVEL_SD, *[along] * d, radial])
        fits.append(_fit(features, squares, others, sds**-2))
        priors.append(p * q)
    evidences, means, covariances = map(np.array, zip(*fits, strict=True))
    weights = softmax(evidences + np.log(priors))
    mean = weights @ means
    away = means - mean
    return mean, np.tensordot(weights, covariances, 1) + (weights * away.T) @ away


def _fit(features, squares, others, precisions):
    """Return the log evidence of a prior's `precisions` (k,), the mode and covariance about it."""
    ones = np.ones(len(features))

    def parts(parameters):
        change, slope = _bounded(features @ parameters[1:])
        of_noise = np.exp(parameters[0] + change)
        return of_noise, np.column_stack([ones, slope[:, None] * features]), of_noise + others

    def loss(parameters):
        of_noise, by_parameters, variances = parts(parameters)
        ratios = squares / variances
        value = 0.5 * np.sum(np.log(variances) + ratios) + 0.5 * precisions @ parameters**2
        by_log = 0.5 * (1.0 - ratios) * of_noise / variances
        return value, by_log @ by_parameters + precisions * parameters

    found = minimize(loss, np.zeros(len(precisions)), jac=True, method="L-BFGS-B")
    of_noise, by_parameters, variances = parts(found.x)
    weighted = by_parameters * (of_noise / variances)[:, None]
    information = 0.5 * weighted.T @ weighted + np.diag(precisions)
    log_determinant = np.linalg.slogdet(information)[1]
    evidence = -found.fun + 0.5 * (np.log(precisions).sum() - log_determinant)
    return evidence, found.x, np.linalg.inv(information)
