r"""The normalising constant of an emulated density, by bridge sampling.

There are draws from the density :math:`\tilde\pi`. The proposal q is normalised: a Student t fitted
to half of the draws. Then

.. math:: Z = \frac{E_q[h \tilde\pi]}{E_\pi[h q]}, \qquad h \propto \frac{1}{\tilde\pi + Z q},

is iterated until Z stays, with as many draws from :math:`\pi` as from q (Meng and Wong, 1996). The
error is that of the two means. Draws of an emulator are of :math:`e^{f - V/2}`: the mean of
:math:`e^{V/2}` over them leads to the integral of :math:`e^f`.

A noisy likelihood's estimates are right in the mean, their logarithms are not: with Gaussian noise
of variance :math:`s^2`, to whose mean the emulator is fitted, they are :math:`s^2 / 2` too low.

References
----------
Meng, X.-L. and Wong, W. H. (1996). Simulating ratios of normalizing constants via a simple
identity: a theoretical exploration. *Statistica Sinica* 6, 831-860.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_t

from pymc_kmc.learning.composite import PENALTY

# Degrees of freedom of the proposal: its tails are heavier than most posteriors'.
DEGREES = 5
# Largest number of iterations, and the change of log Z at which they end.
N_ITERATIONS, CHANGE = 200, 1e-8


class LogEvidence(NamedTuple):
    """A log marginal likelihood.

    Attributes
    ----------
    value : float
        Natural logarithm, with all constants of the model's log density.
    error : float
        Standard error.
    """

    value: float
    error: float


def of_emulated(composite, draws, penalised, variances, rng) -> LogEvidence:
    """Return the log integral, a LogEvidence, of an emulated density over one turn of each angle.

    `penalised` (n,) is the log density that the draws (n, d) are from, `variances` (n,) are those
    of the composite's log density there.
    """
    found, inside = of_penalised(composite, draws, penalised, rng)
    taken_off = log_mean(PENALTY * variances[inside])
    error = np.hypot(found.error, taken_off.error)
    return LogEvidence(found.value + taken_off.value, float(error))


def of_penalised(composite, draws, penalised, rng):
    """Return the LogEvidence of the density that the draws are from, and which are in one turn."""
    is_inside = one_turn(draws, composite.model.periods)
    inside = is_inside(draws)

    def log_density(X):
        return np.where(is_inside(X), composite(X).penalised, -np.inf)

    return bridge(draws[inside], penalised[inside], log_density, rng), inside


def one_turn(draws, periods):
    """Return a function that says which points (n, d) lie within one turn of all angles.

    It is the turn about the draws' mean direction with most draws (n, d). `periods` (d,) are
    infinite where a coordinate is no angle.
    """
    angles = np.flatnonzero(np.isfinite(periods))
    X, turns = draws[:, angles], periods[angles]
    directions = np.exp(2j * np.pi * X / turns).mean(axis=0)
    middle = np.angle(directions) / (2.0 * np.pi) * turns
    middle += turns * np.round(np.median((X - middle) / turns, axis=0))

    def is_inside(X):
        return np.all(np.abs(X[:, angles] - middle) <= 0.5 * turns, axis=1)

    return is_inside


def without_noise(evidence, noise, n) -> LogEvidence:
    """Return a log evidence corrected for noise, the standard deviation of n log estimates."""
    value, error = evidence
    half = 0.5 * noise**2
    return LogEvidence(value + half, float(np.hypot(error, half * np.sqrt(2.0 / n))))


def bridge(draws, log_densities, log_density, rng) -> LogEvidence:
    """Return the log integral of a density as a LogEvidence.

    The draws (n, d) from it are nearly independent and have `log_densities` (n,); the function
    `log_density` returns these (n,) at other points (n, d).
    """
    half = len(draws) // 2
    d = draws.shape[1]
    covariance = np.cov(draws[:half].T).reshape(d, d)
    scale = covariance * (DEGREES - 2.0) / DEGREES
    proposal = multivariate_t(draws[:half].mean(axis=0), scale, DEGREES, allow_singular=True)
    n = len(draws) - half
    proposed = proposal.rvs(n, random_state=rng).reshape(n, d)
    at_proposed = log_density(proposed) - proposal.logpdf(proposed)
    at_proposed = np.where(np.isfinite(at_proposed), at_proposed, -np.inf)
    at_draws = log_densities[half:] - proposal.logpdf(draws[half:])
    at_draws = np.reshape(at_draws, n)
    log_z = float(np.median(at_draws))
    for _ in range(N_ITERATIONS):
        # h times the density, and h times the proposal, with equal shares.
        upper, lower = expit(at_proposed - log_z), expit(log_z - at_draws)
        last, log_z = log_z, log_z + float(np.log(upper.mean()) - np.log(lower.mean()))
        if abs(log_z - last) < CHANGE:
            break
    variance = sum(part.var() / part.mean() ** 2 / n for part in (upper, lower))
    return LogEvidence(log_z, float(np.sqrt(variance)))


def log_mean(log_weights) -> LogEvidence:
    n = len(log_weights)
    log_mean = float(logsumexp(log_weights) - np.log(n))
    return LogEvidence(log_mean, float(np.std(np.exp(log_weights - log_mean)) / np.sqrt(n)))
