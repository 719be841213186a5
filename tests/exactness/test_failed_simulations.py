"""Simulations that fail at a rate that depends on the parameter: the posterior is known on a grid.

A failed simulation has weight 0: the ABC likelihood is the probability of success times the
density of N(mu, 1 + epsilon^2), whatever the number of simulations. Compared are mean and variance
of one chain in units of their Monte-Carlo errors, of which 4.5 are allowed; effective sample sizes
are some hundreds: about 1e-3 false alarms a check, 1 % for the file; the seeds are fixed.
"""

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit, log_expit

import pymc_kmc as kmc
from tests.chains import iterate, run
from tests.estimates import TOLERANCE, worst_moment

OBSERVED, EPSILON = 0.8, 0.5
N_TUNE, N_DRAWS = 500, 6000


def success(mu):
    return expit(-1.5 * mu)


def simulator(mu, rng, size):
    data = rng.normal(mu, 1.0, (size, 1))
    data[rng.random(size) > success(mu)] = np.nan
    return data


def exact_moments(power):
    """Mean and standard deviation with that power of the probability of success."""
    grid = np.linspace(-7, 7, 4001)
    log_density = -0.5 * grid**2 - 0.5 * (OBSERVED - grid) ** 2 / (1 + EPSILON**2)
    weights = np.exp(log_density + power * log_expit(-1.5 * grid))
    weights /= weights.sum()
    mean = weights @ grid
    return mean, np.sqrt(weights @ (grid - mean) ** 2)


def chain(add_likelihood):
    """Draws of mu under a likelihood that a function adds, shape (n,)."""
    with pm.Model():
        add_likelihood(pm.Normal("mu"))
        step = kmc.AdaptiveMetropolis()
    step.set_rng(np.random.default_rng(1))
    point, _ = run(step, {"mu": np.array(-1.0)}, N_TUNE)
    step.stop_tuning()
    return np.array([point["mu"] for point, _ in iterate(step, point, N_DRAWS)])


@pytest.mark.parametrize("n_simulations", [1, 5, 20])
def test_the_posterior_is_the_same_whatever_the_number_of_simulations(n_simulations):
    def add(mu):
        options = {"epsilon": EPSILON, "n_simulations": n_simulations}
        kmc.ABCPotential("abc", simulator, mu, observed=[OBSERVED], **options)

    assert worst_moment(chain(add), *exact_moments(1)) < TOLERANCE


def test_the_check_can_fail():
    """An estimate that is lost with any of its five simulations has another posterior."""

    def estimator(mu, rng):
        distances = simulator(mu, rng, 5) - OBSERVED
        return np.log(np.mean(np.exp(-0.5 * (distances / EPSILON) ** 2)))

    draws = chain(lambda mu: kmc.PseudoMarginalPotential("lost", estimator, mu))
    assert worst_moment(draws, *exact_moments(1)) > 1.5 * TOLERANCE
    assert worst_moment(draws, *exact_moments(5)) < TOLERANCE
