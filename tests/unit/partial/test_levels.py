"""One level: sampling, counting evaluations, checking chains."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor.compile.ops import wrap_py

import pymc_kmc as kmc
from pymc_kmc.partial.levels import Functional, Sampler, run_level
from tests.subsets import Conjugate, exact, normal_data

SHORT = {"draws": 30, "tune": 20, "chains": 2}


def normal_model(subset):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0)
        pm.Normal("y", theta, 1.0, observed=subset)
    return model


def run(sample, build=normal_model, functional="theta", n=40):
    return run_level(build, Sampler(sample), Functional(functional), normal_data(n), 5)


def sampled(draws):
    """A run whose draws of theta are given."""
    model = Conjugate()
    return run(lambda model, seed: {"theta": np.asarray(draws)}, model.build)


def test_a_step_of_this_package_counts_its_evaluations():
    result = run(SHORT | {"step": kmc.AdaptiveMetropolis})
    # One an iteration, tuning included, one at each chain's start, and a few for the first scale.
    assert result.evaluations == 2 * (20 + 30) + 2 + 2 * 4
    assert result.variables == ("theta",)
    assert result.labels == ["mean of theta", "sd of theta"]


def test_leapfrog_steps_of_nuts_are_counted_while_tuning_too():
    counted = []

    def functional(result):
        counted.append(sum(int(group["n_steps"].sum()) for group in groups(result)))
        return 0.0

    def groups(result):
        return result.warmup_sample_stats, result.sample_stats

    result = run(SHORT, functional=functional)
    assert result.evaluations == counted[0]
    assert result.evaluations > 2 * (20 + 30)


@pytest.fixture
def settings(monkeypatch):
    """Arguments that pm.sample got."""
    seen = []

    def sample(**settings):
        seen.append(settings)
        return {"theta": np.zeros((2, 9)), "x": np.zeros((2, 9))}

    monkeypatch.setattr(pm, "sample", sample)
    return seen


def test_defaults(settings):
    run(None)
    assert "step" not in settings[0]
    assert settings[0]["random_seed"] == 5
    assert settings[0]["chains"] == 2 and settings[0]["cores"] == 1


def test_kmc_where_there_is_no_gradient(settings):
    @wrap_py(itypes=[pt.dvector], otypes=[pt.dscalar])
    def black_box(theta):
        return -(theta @ theta)

    def build(subset):
        with pm.Model() as model:
            # A number of more than 20 parameters isn't learned before there are chains.
            pm.Potential("loglik", black_box(pm.Normal("theta", shape=21)))
        return model

    run(None, build)
    assert isinstance(settings[0]["step"], kmc.KMC)


def test_a_step_is_made_in_the_context_of_the_model(settings):
    contexts = []
    run({"step": lambda: contexts.append(pm.modelcontext(None)), "draws": 7})
    assert "theta" in contexts[0].named_vars
    assert settings[0]["draws"] == 7


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        (3, TypeError, "sample must be None, a dictionary .* got 3"),
        ({"random_seed": 1}, ValueError, r"sample has \['random_seed'\]"),
        ({"step": 3}, TypeError, r"sample\['step'\] is 3, but every subset has a model"),
    ],
)
def test_bad_settings(sample, error, message):
    with pytest.raises(error, match=message):
        Sampler(sample)


def test_a_step_that_was_made_already():
    with normal_model(normal_data(5)):
        step = kmc.AdaptiveMetropolis()
    with pytest.raises(TypeError, match="every subset has a model of its own"):
        Sampler({"step": step})


def test_build_returns_no_model():
    with pytest.raises(TypeError, match="build must return a PyMC model, it returned ndarray"):
        run(SHORT, build=lambda subset: subset)


def test_a_multitrace_is_refused():
    """Functionals take draws by name; it failed with a NotImplementedError of PyMC's."""
    settings = {"draws": 5, "tune": 5, "chains": 1, "progressbar": False, "quiet": True}

    def sample(model, random_seed):
        settings["random_seed"] = random_seed
        return pm.sample(model=model, return_inferencedata=False, **settings)

    with pytest.raises(TypeError, match="sample returned a MultiTrace"):
        run(sample)


def test_draws_of_a_users_function_count_once_each():
    model = Conjugate(n_draws=50)
    result = run(model.sample, model.build)
    mean, sd = exact(normal_data(40))
    assert result.evaluations == 50
    # Four standard errors of a mean of 50 independent draws.
    assert result.value[0] == pytest.approx(mean, abs=4 * sd / np.sqrt(50))
    assert 20 < result.ess < 120


def with_statistics(n_evaluations=None):
    """Draws with statistics: 12 leapfrog steps while tuning and 20 after it, 2 divergences."""
    dims = ("chain", "draw")
    attributes = {} if n_evaluations is None else {"n_evaluations": n_evaluations}
    posterior = xr.Dataset({"theta": (dims, np.arange(10.0).reshape(2, 5))}, attrs=attributes)
    tuning = xr.Dataset({"n_steps": (dims, np.full((2, 3), 2))})
    diverging = np.zeros((2, 5), dtype=bool)
    diverging[0, :2] = True
    drawing = xr.Dataset({"n_steps": (dims, np.full((2, 5), 2)), "diverging": (dims, diverging)})
    return SimpleNamespace(posterior=posterior, warmup_sample_stats=tuning, sample_stats=drawing)


def test_evaluations_and_divergences_of_both_phases():
    result = run(lambda model, seed: with_statistics())
    assert (result.evaluations, result.divergences) == (32, 2)


def test_what_was_learned_before_the_chains_is_counted_once():
    result = with_statistics()
    dims, learned = ("chain", "draw", "step"), np.tile([40, 3], (2, 5, 1))
    result.sample_stats["kmc_n_learning_evaluations"] = dims, learned
    assert run(lambda model, seed: result).evaluations == 32 + 43


def test_a_number_of_evaluations_that_is_declared():
    assert run(lambda model, seed: with_statistics(77)).evaluations == 77
    # A level without evaluations would be one that wasn't reached.
    with pytest.raises(ValueError, match="'n_evaluations'] is 0, but must be 1 or more"):
        run(lambda model, seed: with_statistics(0))


def test_chains_that_agree_and_chains_that_do_not():
    draws = np.random.default_rng(1).normal(size=(4, 500))
    good, bad = sampled(draws), sampled(draws + np.arange(4.0)[:, None])
    assert good.r_hat < 1.01 and 1000 < good.ess < 3000
    assert bad.r_hat > 1.5 and bad.ess < 50
    assert good.spread[0] == pytest.approx(1.35, abs=0.1)


def test_one_chain_is_compared_with_itself():
    draws = np.random.default_rng(1).normal(size=(1, 500))
    assert sampled(draws).r_hat < 1.02
    assert sampled(np.sort(draws)).r_hat > 1.5


def test_a_chain_that_is_stuck():
    assert sampled(np.ones((2, 100))).r_hat == np.inf
    assert sampled(np.full((2, 100), np.nan)).r_hat == np.inf
    # A discrete variable may well have one value.
    assert np.isnan(sampled(np.ones((2, 100), dtype=int)).r_hat)


def test_three_draws_say_nothing():
    assert np.isnan(sampled(np.ones((2, 3))).r_hat)
