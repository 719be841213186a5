"""NoisyLogLikelihood: errors that can be reproduced, remembered values, noise of its own."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.user_function import CACHE_SIZE
from tests.models import FailingEstimator, NoisyEstimator
from tests.targets import sample


def test_the_last_values_are_remembered():
    """A chain that stays where it is keeps its estimate while another step moves."""
    estimator = NoisyEstimator(1.0)
    with pm.Model():
        op = kmc.PseudoMarginalPotential("loglik", estimator, pm.Normal("x")).owner.op
    seeds = op.noise.draw(2 * CACHE_SIZE, np.random.default_rng(1))[:, None]
    first = op.evaluate(seeds[0], 0.5)
    assert op.evaluate(seeds[0], 0.25) != first
    n_calls = estimator.n_calls
    for noise in seeds[1 : CACHE_SIZE - 1]:
        op.evaluate(noise, 0.5)
    assert op.evaluate(seeds[0], 0.5) == first
    op.refresh(seeds[0])
    assert estimator.n_calls == n_calls + CACHE_SIZE - 2
    op.evaluate(seeds[CACHE_SIZE], 0.5)
    op.evaluate(seeds[0], 0.25)
    assert estimator.n_calls == n_calls + CACHE_SIZE - 1
    for noise in seeds[CACHE_SIZE:]:
        op.evaluate(noise, 0.5)
    n_calls = estimator.n_calls
    assert op.evaluate(seeds[0], 0.5) == first  # the same value, estimated again
    assert estimator.n_calls == n_calls + 1


def test_what_is_remembered_is_of_the_datas_shape():
    with pm.Model() as model:
        data = pm.Data("data", np.ones((1, 4)))
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", lambda x, data, rng: -len(data) * x, x, data)
    density = model.compile_logp()
    one = density({"x": np.array(1.0)})
    model.set_data("data", np.ones((4, 1)))
    assert density({"x": np.array(1.0)}) == pytest.approx(one - 3)


def test_an_error_has_the_parameters_and_the_seed_that_reproduce_it():
    with pm.Model():
        x = pm.Normal("x", initval=0.0)
        kmc.PseudoMarginalPotential("loglik", FailingEstimator(), x)
        with pytest.raises(kmc.EstimatorError, match="estimator of 'loglik' raised") as caught:
            sample(kmc.AdaptiveMetropolis())
    message = str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    value = float(message.split("x=")[1].split()[0])
    seed = int(message.split("PCG64(")[1].split(")")[0])
    with pytest.raises(ZeroDivisionError) as again:
        FailingEstimator()(value, rng=np.random.Generator(np.random.PCG64(seed)))
    assert str(again.value) in message


def test_an_error_in_another_process_reaches_the_user():
    """Pickled, however the process was started."""
    with pm.Model():
        x = pm.Normal("x", initval=0.0)
        kmc.PseudoMarginalPotential("loglik", FailingEstimator(), x)
        with pytest.raises(Exception) as caught:
            sample(kmc.AdaptiveMetropolis(), chains=2, cores=2, mp_ctx="fork")
    shown = "".join(str(error) for error in (caught.value, caught.value.__cause__))
    assert "solver failed" in shown
    assert "PCG64(" in shown


def test_noise_that_nothing_renews_is_warned_about():
    """PyMC's own steps alone would sample the posterior of one realisation of the noise."""
    with pm.Model():
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", lambda x, rng: rng.standard_normal(), x)
        with pytest.warns(UserWarning, match="has stayed the same for"):
            sample(pm.Metropolis(), draws=1500)


def test_two_estimates_have_noise_of_their_own():
    def estimator(x, rng):
        return rng.standard_normal()

    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("first", estimator, x)
        kmc.PseudoMarginalPotential("second", estimator, x)
        step = kmc.AdaptiveMetropolis()
        _, (statistics,) = step.step(model.initial_point())
    (first,), (second,) = step.target.noise
    assert first != second
    assert "kmc_loglik" in statistics
