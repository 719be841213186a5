"""Correlated noise, block refreshment and a number of replicates chosen while tuning are exact.

The Gaussian toy of tests/models.py, whose log estimate has a variance of about 10 that depends on
the parameter, with enough correlation that chains move: what a wrong law of the noise does to the
posterior is shown by `test_the_check_can_fail`. Errors of mean and variance are in units of their
Monte-Carlo error, which ArviZ estimates; at 4.5 the false-alarm rate is about 1e-4 a check, .2 %
for the file; the seeds are fixed.
"""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.noise import Normals
from tests.models import POSTERIOR_MEAN, POSTERIOR_SD, log_likelihood
from tests.steps import NOISY_STEPS, STEPS

TOLERANCE = 4.5


def log_estimate(x, normal, sd):
    """Log of a log-normal, unbiased estimate, whose standard deviation grows with x."""
    sd = sd + 0.3 * (x - POSTERIOR_MEAN)
    return log_likelihood(x) + sd * normal - 0.5 * sd**2


def from_u(x, u):
    return log_estimate(x, u.sum() / np.sqrt(len(u)), 10**0.5)


def from_rng(x, rng):
    return log_estimate(x, rng.standard_normal(), 2.0)


def model_of(estimator, **options):
    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", estimator, x, **options)
    return model


@pytest.fixture(scope="module")
def correlated():
    return model_of(from_u, n_normals=4, correlation=0.95)


def draws_of(model, step, *, seed, draws, tune=600):
    step.set_rng(np.random.default_rng(seed))
    point, x = model.initial_point(), np.empty(draws)
    for _ in range(tune):
        point, _ = step.step(point)
    step.stop_tuning()
    for i in range(draws):
        point, (statistics,) = step.step(point)
        x[i] = point["x"]
    return x, statistics


def z_scores(x):
    """Errors of mean and variance in units of their Monte-Carlo error."""
    scores = []
    for values, exact in ((x, POSTERIOR_MEAN), ((x - POSTERIOR_MEAN) ** 2, POSTERIOR_SD**2)):
        ess = float(az.ess(np.stack(np.split(values, 2)), method="mean"))
        scores.append(abs(values.mean() - exact) / (values.std() / np.sqrt(ess)))
    return scores


@pytest.mark.parametrize("name", NOISY_STEPS)
def test_correlated_normal_numbers(name, correlated):
    with correlated:
        step = STEPS[name]()
    draws = 8000 if name == "AdaptiveMetropolis" else 3000
    x, statistics = draws_of(correlated, step, seed=1, draws=draws, tune=1200)
    assert max(z_scores(x)) < TOLERANCE
    # 10 (1 - .95) = .5, from 11 pairs.
    assert 0.1 < statistics["kmc_noise_variance"] < 1.8


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KMC"])
@pytest.mark.parametrize(
    "options", [{"n_replicates": 8, "correlation": 0.75}, {"n_replicates": "auto"}]
)
def test_replicates(name, options):
    model = model_of(from_rng, **options)
    with model:
        step = STEPS[name]()
    draws = 6000 if name == "AdaptiveMetropolis" else 2500
    x, statistics = draws_of(model, step, seed=2, draws=draws)
    assert max(z_scores(x)) < TOLERANCE
    assert statistics["kmc_n_replicates"] > 1


class Contracting(Normals):
    """Isn't reversible with respect to the normal law: it has variance (1 - r) / (1 + r)."""

    def renew(self, noise, rng):
        rho = self.correlation
        return rho * noise + (1.0 - rho) * self.draw(len(noise), rng)


def test_the_check_can_fail(correlated):
    with correlated:
        step = kmc.AdaptiveMetropolis()
    step.target._kinds = [Contracting(4, 0.95)]
    x, _ = draws_of(correlated, step, seed=3, draws=10_000)
    assert max(z_scores(x)) > 2 * TOLERANCE
