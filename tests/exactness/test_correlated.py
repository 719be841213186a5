"""Correlated noise, block refreshment and a number of replicates chosen while tuning are exact.

The Gaussian toy of tests/models.py, whose log estimate has a variance of about 10 that depends on
the parameter, with enough correlation that chains move: what a wrong law of the noise does to the
posterior is shown by `test_the_check_can_fail`. Errors of mean and variance are in units of their
Monte-Carlo error, which ArviZ estimates; at 4.5 the false-alarm rate is about 1e-4 a check, .2 %
for the file; the seeds are fixed.
"""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.noise_schemes import Normals
from tests.chains import iterate, run
from tests.estimates import TOLERANCE, worst_moment
from tests.models import POSTERIOR_MEAN, POSTERIOR_SD, log_likelihood
from tests.steps import NOISY_STEPS, STEPS


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
    """Both halves of a chain, shape (2, draws / 2), and its last statistics."""
    step.set_rng(np.random.default_rng(seed))
    point, _ = run(step, model.initial_point(), tune)
    step.stop_tuning()
    chain = list(iterate(step, point, draws))
    x = np.array([point["x"] for point, _ in chain])
    return np.stack(np.split(x, 2)), chain[-1][1]


@pytest.mark.parametrize("name", NOISY_STEPS)
def test_correlated_normal_numbers(name, correlated):
    with correlated:
        step = STEPS[name]()
    draws = 8000 if name == "AdaptiveMetropolis" else 3000
    x, statistics = draws_of(correlated, step, seed=1, draws=draws, tune=1200)
    assert worst_moment(x, POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE
    # 10 (1 - .95) = .5, from 11 pairs.
    assert 0.1 < statistics["kmc_noise_variance"] < 1.8


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KMC"])
@pytest.mark.parametrize(
    "options", [{"n_replicates": 8, "correlation": 0.75}, {"n_replicates": "auto"}]
)
def test_replicates(name, options):
    """What "auto" chooses is noisy: of six seeds KMC settled on 1, 2, 2, 3, 4 and 6 replicates."""
    model = model_of(from_rng, **options)
    with model:
        step = STEPS[name]()
    draws = 6000 if name == "AdaptiveMetropolis" else 2500
    x, statistics = draws_of(model, step, seed=3, draws=draws)
    assert worst_moment(x, POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE
    assert statistics["kmc_n_replicates"] > 1


class Contracting(Normals):
    """Isn't reversible with respect to the normal law: it has variance (1 - r) / (1 + r)."""

    def renew(self, noise, rng):
        rho = self.correlation
        return rho * noise + (1.0 - rho) * self.draw(len(noise), rng)


def test_the_check_can_fail(correlated, monkeypatch):
    with correlated:
        step = kmc.AdaptiveMetropolis()
    (likelihood,) = step.target.likelihoods
    monkeypatch.setattr(likelihood.op, "noise", Contracting(4, 0.95))
    x, _ = draws_of(correlated, step, seed=3, draws=10_000)
    assert worst_moment(x, POSTERIOR_MEAN, POSTERIOR_SD) > 2 * TOLERANCE
