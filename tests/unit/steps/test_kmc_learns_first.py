"""KMC() calls learn() where that is safe, and nowhere else."""

import logging
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning import multistart
from tests.learned import OBSERVED, curve, decay, learned_curve, scalar
from tests.models import noisy_gaussian

# The package has a function of the same name.
learning = import_module("pymc_kmc.learning.unasked")
QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 4}


class Counted:
    """The curve, and how often it was called; a black box tries it out twice by itself."""

    def __init__(self):
        self.n_calls = -2

    def __call__(self, size, rate):
        self.n_calls += 1
        return decay(size, rate)


@pytest.mark.exactness
def test_it_is_learned_where_the_step_is_made(caplog):
    function = Counted()
    with curve(function) as model, caplog.at_level(logging.INFO):
        step = kmc.KMC([model["rate"], model["size"]], n_landmarks=50)  # in another order
    assert step.posterior.has_converged
    assert step.posterior.names == ("rate_log__", "size_log__")
    means = step.posterior.summary()["mean"]
    assert means["size"] > 2.0 > 1.0 > means["rate"]
    assert function.n_calls == step.posterior.n_evaluations < 100
    assert "KMC: learning curve for all chains" in caplog.text
    assert step.default_tune_steps == 50
    # What was learned goes to other processes with the step, which learn nothing.
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    np.testing.assert_array_equal(copy.posterior.positions, step.posterior.positions)
    assert function.n_calls == step.posterior.n_evaluations


@pytest.mark.one_line
def test_learning_has_the_step_s_n_parallel_and_else_the_number_of_workers(monkeypatch):
    found = []

    def learned_by(opaque, rng):
        found.append(opaque.n_parallel)
        return None, None

    monkeypatch.setattr(learning, "_unasked", learned_by)
    with curve(), ThreadPoolExecutor(3) as pool:
        for options in (
            {"n_parallel": 16},
            {"n_parallel": 16, "executor": pool},
            {"executor": pool},
        ):
            kmc.KMC(n_landmarks=50, **options)
    assert found == [16, 16, 3]


@pytest.mark.exactness
@pytest.mark.one_line
def test_a_log_likelihood_is_learned_where_searches_agree():
    with scalar():
        step = kmc.KMC(n_landmarks=50)
    assert step.posterior.has_converged
    assert step.posterior.n_evaluations < 150


@pytest.mark.one_line
def test_an_estimate_is_learned_and_a_warning_says_if_noise_may_hide_a_higher_maximum(monkeypatch):
    with noisy_gaussian(1.0):
        assert kmc.KMC().posterior.has_converged
        monkeypatch.setattr(multistart.MultiStart, "may_have_missed", True)
        monkeypatch.setattr(multistart, "FEW_INPUTS", 0)
        with pytest.warns(UserWarning, match="may have missed a higher one") as told:
            assert kmc.KMC().posterior is not None
    assert told[0].filename == __file__


@pytest.mark.one_line
def test_a_log_likelihood_that_is_not_learned_is_left_to_the_chains(caplog, monkeypatch):
    monkeypatch.setattr(learning, "most_evaluations", lambda d: 30)
    with scalar(), caplog.at_level(logging.INFO):
        step = kmc.KMC(n_landmarks=50)
    assert step.posterior is None
    assert "chains can't start from what was learned of loglik" in caplog.text
    assert "each chain learns by itself, from these evaluations and its own" in caplog.text
    n = len(step.evaluations)
    assert n >= 30
    np.testing.assert_array_equal(step.history_[0], step.evaluations.X)


@pytest.mark.parametrize(
    ("modes", "highest", "agree"),
    [
        ([], 0.0, True),  # nothing had to be searched for
        ([(-1.0, 0), (1.0, 0)], 2.0, True),  # nor here, where draws have found two
        ([(-1.0, 4), (1.0, 0)], 2.0, False),  # searches have missed what draws found
        ([(-40.0, 5), (1.0, 2)], 2.0, True),
        ([(-40.0, 5), (1.0, 1)], 2.0, False),  # the best one was found once
        ([(-40.0, 6)], 2.0, False),  # rounds have found what searches have missed
    ],
)
def test_searches_agree_on_what_two_of_them_have_found(modes, highest, agree):
    learned = SimpleNamespace(
        modes=[SimpleNamespace(log_density=value, n_searches=n) for value, n in modes],
        evaluations=SimpleNamespace(log_densities=np.array([-90.0, highest])),
        n_dimensions=3,
    )
    assert (learning.why_searches_disagree(learned) is None) == agree


@pytest.mark.parametrize(
    ("may_hide_modes", "has_converged", "n_searches", "is_trusted"),
    [
        (True, False, 1, True),
        (False, True, 1, False),
        (False, False, 2, False),
        (False, True, 2, True),
    ],
)
def test_chains_begin_there_anyway_where_they_would_miss_maxima(
    may_hide_modes, has_converged, n_searches, is_trusted
):
    learned = SimpleNamespace(
        has_converged=has_converged,
        error=1.0,
        r_hat=1.0,
        modes=[SimpleNamespace(log_density=1.0, n_searches=n_searches)],
        evaluations=SimpleNamespace(log_densities=np.zeros(1), outputs=np.zeros((1, 1))),
        n_dimensions=3,
    )
    run = SimpleNamespace(
        rounds=SimpleNamespace(is_hopeless=False),
        opaque=SimpleNamespace(nodes=[], returns_outputs=False),
        multistart=SimpleNamespace(may_hide_modes=may_hide_modes),
        limit=100,
    )
    assert (learning.why_not_trusted(learned, run) is None) == is_trusted


@pytest.mark.parametrize(
    ("d", "has_small_nodes", "returns_outputs", "is_learned"),
    [
        (50, False, True, True),
        (51, False, True, False),
        (250, True, True, True),
        (20, False, False, True),
        (21, False, False, False),
    ],
)
def test_how_many_values_are_learned(d, has_small_nodes, returns_outputs, is_learned):
    opaque = SimpleNamespace(has_small_nodes=has_small_nodes, returns_outputs=returns_outputs)
    assert (learning.why_too_large(d, opaque) is None) == is_learned
    assert "251 values are more than the 250" in learning.why_too_large(251, None)


@pytest.mark.one_line
def test_the_draws_are_those_of_what_learn_returns(with_short_sequences):
    options = {"tune": 30, "draws": 30, "chains": 1, "cores": 1} | QUIET
    learned = learned_curve()
    with curve():
        unasked = pm.sample(step=kmc.KMC(n_landmarks=50), **options)
        asked = pm.sample(step=kmc.KMC(learned), **options)
    np.testing.assert_array_equal(unasked.posterior["rate"], asked.posterior["rate"])


def with_a_gradient():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    return model


def of_many_dimensions():
    with pm.Model() as model:
        x = pm.Normal("x", shape=51)
        mean = kmc.BlackBox("slice", lambda x: x[:5], x, shape=(5,))
        pm.Normal("y", mean, 1.0, observed=OBSERVED)
    return model


def a_number_of_many_dimensions():
    with pm.Model() as model:
        x = pm.Normal("x", shape=21)
        pm.Potential("p", kmc.BlackBox("loglik", lambda x: -(x @ x), x))
    return model


@pytest.mark.parametrize(
    "build",
    [a_number_of_many_dimensions, with_a_gradient, of_many_dimensions],
    ids=["a number, dimensions", "gradient", "dimensions"],
)
def test_elsewhere_chains_learn(build):
    with build():
        assert kmc.KMC().posterior is None


@pytest.mark.parametrize(
    "arguments",
    [{"learn": False}, {"vars": "size"}, {"adaptation": "vanishing"}, {"blocked": False}],
    ids=lambda arguments: next(iter(arguments)),
)
def test_chains_learn_where_that_was_asked_for(arguments):
    function = Counted()
    with curve(function) as model:
        if "vars" in arguments:
            arguments = {"vars": [model[arguments["vars"]]]}
        steps = kmc.KMC(**arguments)
    steps = getattr(steps, "methods", [steps])
    assert all(step.posterior is None for step in steps)
    assert function.n_calls == 0


def test_what_was_evaluated_before_an_error_is_kept():
    function = Counted()

    def fails(size, rate):
        if function.n_calls == 12:
            raise ArithmeticError("no solution")
        return function(size, rate)

    with curve(fails), pytest.raises(kmc.BlackBoxError) as failure:
        kmc.KMC()
    assert len(failure.value.evaluations) == 12
