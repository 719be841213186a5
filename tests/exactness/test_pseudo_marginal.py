"""Noisy likelihoods: the posterior is the exact one whatever the noise, for every step.

Each check compares a long chain's moment with its exact value in units of its Monte-Carlo error,
which ArviZ estimates. At 4.5 standard errors the false-alarm rate is 7e-6 a check were the error
Gaussian and known, about 1e-4 a check as it is (the effective sample sizes here are a few hundred
to a few thousand), 2 % for the whole file; the seeds are fixed. A step that draws the accepted
estimate anew misses the standard deviation by 15 to 40 % at these noise levels, tens of standard
errors: see `test_the_check_can_fail`.
"""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.chains import QUIET, run
from tests.estimates import TOLERANCE, worst_moment
from tests.models import (
    POSTERIOR_MEAN,
    POSTERIOR_SD,
    NoisyEstimator,
    log_likelihood,
    noisy_gaussian,
)
from tests.steps import STEPS

# All steps keep their estimates in one place and differ in their proposals alone: what depends on
# other things, as the noise that other steps renew, is tested with one random walk and one step on
# a surrogate. Noise that depends on the parameter has Geweke's test in test_steps.py.
ONE_OF_EACH_KIND = ["AdaptiveMetropolis", "KMC"]


# Draws of a chain. Noise sets the effective sample size of all steps, some hundreds to thousands;
# steps on surrogates have more of it, and cost more.
N_DRAWS = 12_000
FEWER_DRAWS = dict.fromkeys(["KMC", "KMCLite", "KMCFinite"], 6000)


def n_draws_of(name):
    return FEWER_DRAWS.get(name, N_DRAWS)


def sample(step, *, seed, draws=N_DRAWS, tune=500, chains=1, **kwargs):
    options = {"cores": 1} | QUIET | kwargs
    return pm.sample(step=step, draws=draws, tune=tune, chains=chains, random_seed=seed, **options)


@pytest.mark.parametrize(
    ("name", "variance"),
    [("AdaptiveMetropolis", 3.0), ("KMC", 3.0)]
    + [
        pytest.param(*case, marks=pytest.mark.one_line)
        for case in (
            ("KMCLite", 3.0),
            ("KMCFinite", 3.0),
            ("KAMH", 3.0),
        )
    ],
)
def test_alone(name, variance):
    with noisy_gaussian(variance):
        idata = sample(STEPS[name](), seed=int(10 * variance) + 1, draws=n_draws_of(name))
    assert worst_moment(idata.posterior["x"], POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE


@pytest.mark.one_line
def test_noise_that_depends_on_the_parameter():
    with noisy_gaussian(1.5, heteroscedastic=True):
        idata = sample(kmc.AdaptiveMetropolis(), seed=3)
    assert worst_moment(idata.posterior["x"], POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE


@pytest.mark.one_line
def test_what_was_learned_before_the_chain():
    """Learning takes the noise for the same everywhere; draws are exact where it isn't."""
    with noisy_gaussian(1.5, heteroscedastic=True):
        step = kmc.KMC(n_landmarks=60)
        assert step.posterior is not None
        idata = sample(step, seed=12, draws=n_draws_of("KMC"), tune=step.default_tune_steps)
    assert worst_moment(idata.posterior["x"], POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE


# That every step makes the same draws with every start method is tested in tests/contract.
@pytest.mark.one_line
def test_on_two_cores():
    with noisy_gaussian(2.0):
        step = STEPS["AdaptiveMetropolis"]()
        idata = sample(step, seed=4, draws=5000, chains=2, cores=2, mp_ctx="fork")
    assert worst_moment(idata.posterior["x"], POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE


# How the other step looks at the noise doesn't depend on which of ours is beside it.
@pytest.mark.parametrize(
    ("name", "other", "variance"),
    [
        ("AdaptiveMetropolis", pm.Metropolis, 3.0),
        ("AdaptiveMetropolis", pm.Slice, 1.0),
        ("KMC", pm.NUTS, 2.0),
    ],
)
def test_beside_pymc_steps(name, other, variance):
    with noisy_gaussian(variance, companion=True) as model:
        step = [STEPS[name](vars=[model["x"]]), other([model["z"]])]
        idata = sample(step, seed=5, draws=n_draws_of(name))
    assert worst_moment(idata.posterior["x"], POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE
    # z | x ~ N(x / 2, 1). z itself is not compared: NUTS's draws are antithetic, which hides the
    # slow part of z, x / 2, from the estimate of its Monte-Carlo error.
    residuals = idata.posterior["z"] - idata.posterior["x"] / 2
    assert worst_moment(residuals, 0.0, 1.0) < TOLERANCE


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_pymc_moves_the_noisy_variable_ours_another(name):
    """The noise is renewed by a step whose own variable isn't in the estimate."""
    with noisy_gaussian(1.0, companion=True) as model:
        step = [pm.Metropolis([model["x"]]), STEPS[name](vars=[model["z"]])]
        idata = sample(step, seed=6, draws=min(n_draws_of(name), 10_000))
    assert worst_moment(idata.posterior["x"], POSTERIOR_MEAN, POSTERIOR_SD) < TOLERANCE


@pytest.mark.one_line
def test_noise_does_not_shrink_the_random_walk():
    """No step is accepted more often than its noise allows: .22 at variance 3, below .234."""
    with noisy_gaussian(3.0) as model:
        step = STEPS["AdaptiveMetropolis"]()
        step.set_rng(np.random.default_rng(8))
        _, statistics = run(step, model.initial_point(), 5000)
    assert statistics[-1]["kmc_scale"] > 0.5


@pytest.mark.one_line
def test_the_check_can_fail():
    """Drawing the accepted estimate anew, as PyMC's own Metropolis does, is found out."""
    rng = np.random.default_rng(0)
    estimator = NoisyEstimator(1.0)
    x, draws = 0.8, np.empty((2, 10_000))
    for chain in range(2):
        for i in range(draws.shape[1]):
            proposal = x + rng.standard_normal()
            log_ratio = estimator(proposal, rng) - estimator(x, rng) - 0.5 * (proposal**2 - x**2)
            if np.log(rng.uniform()) < log_ratio:
                x = proposal
            draws[chain, i] = x
    assert worst_moment(draws, POSTERIOR_MEAN, POSTERIOR_SD) > 2 * TOLERANCE


@pytest.mark.one_line
def test_the_estimator_is_unbiased():
    """With variance 1 of the log, 200,000 estimates' mean is right to 1.3 %, 4.5 errors."""
    rng = np.random.default_rng(1)
    for x in (0.0, 0.8, 1.5):
        estimates = [NoisyEstimator(1.0)(x, rng) for _ in range(200_000)]
        ratio = np.mean(np.exp(np.array(estimates) - log_likelihood(x)))
        assert abs(ratio - 1) < TOLERANCE * np.sqrt((np.e - 1) / 200_000)
