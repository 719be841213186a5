"""What steps on noisy likelihoods learn of the noise, whatever their algorithm."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_kmc as kmc
from pymc_kmc.steps import base
from tests.models import noisy_gaussian
from tests.steps import NOISY_STEPS, STEPS

QUIET = {"progressbar": False, "compute_convergence_checks": False, "chains": 1, "cores": 1}


def run(model, step, n, between=None):
    """The chain's points and statistics."""
    point, statistics = model.initial_point(), []
    for _ in range(n):
        point, (s,) = step.step(point)
        statistics.append(s)
        if between is not None:
            between(point)
    return statistics


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("blocked", [True, False])
def test_a_variable_given_twice_is_refused(name, blocked):
    with pm.Model():
        x, y = pm.Normal("x", 2.0, shape=2), pm.Normal("y")
        with pytest.raises(ValueError, match=r"vars has \['x'\] more than once"):
            STEPS[name](vars=[x, y, x], blocked=blocked)


@pytest.mark.parametrize("name", NOISY_STEPS)
def test_noise_is_estimated(name, monkeypatch):
    """The last 40 of 79 pairs or so: within a factor of 2 of the truth with probability .999."""
    monkeypatch.setattr(base, "PROBE_EVERY", 25)
    with noisy_gaussian(2.0) as model:
        step = STEPS[name](rng=2)
    statistics = run(model, step, 2000)
    assert step.progress.noise.n_pairs == 79
    variance = statistics[-1]["kmc_noise_variance"]
    assert 1.0 < variance < 4.0
    ideal = statistics[-1]["kmc_ideal_acceptance"]
    assert ideal == pytest.approx(2 * norm.cdf(-np.sqrt(variance / 2)))
    assert all(s["kmc_n_evaluations"] == 1 for s in statistics[1:])
    assert all(s["kmc_n_replicates"] == 1 for s in statistics)


def test_no_noise_no_probes():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.AdaptiveMetropolis(rng=3)
    statistics = run(model, step, 300)
    assert step.progress.noise.n_pairs == 0
    assert all(s["kmc_noise_variance"] == 0 for s in statistics)
    assert all(s["kmc_ideal_acceptance"] == 1 for s in statistics)
    assert all(s["kmc_n_replicates"] == 0 for s in statistics)


def test_no_probes_after_tuning():
    with noisy_gaussian(2.0) as model:
        step = kmc.AdaptiveMetropolis(rng=4)
    run(model, step, 200)
    step.stop_tuning()
    n_pairs = step.progress.noise.n_pairs
    assert n_pairs == 1
    run(model, step, 200)
    assert step.progress.noise.n_pairs == n_pairs


def test_a_probe_leaves_the_chain_where_it_is_and_teaches_no_scale():
    with noisy_gaussian(1.0) as model:
        step = kmc.AdaptiveMetropolis(rng=5)
    point = model.initial_point()
    n_probes = 0
    for _ in range(250):
        scale, before = step.learned.random_walk.scale, point
        probes = step._probe(np.zeros(1)) is not None
        point, (statistics,) = step.step(point)
        n_probes += probes
        if probes:
            assert not statistics["kmc_accepted"] and point == before
            assert step.learned.random_walk.scale == scale
    assert n_probes == 4


def test_noise_is_not_what_a_step_of_other_variables_does():
    """Its moves between two estimates change the density too. 19 pairs: sd of their mean .003."""
    with noisy_gaussian(0.01, companion=True) as model:
        step = kmc.KMC([model["x"]], n_landmarks=30, rng=8)
    rng = np.random.default_rng(9)

    def between(point):
        point["z"] = point["x"] / 2 + rng.standard_normal()

    statistics = run(model, step, 2000, between)
    assert step.progress.noise.n_pairs == 19
    assert statistics[-1]["kmc_noise_variance"] < 0.025


@pytest.mark.parametrize(("variance", "is_warned"), [(9.0, True), (1.0, False)])
def test_noise_that_will_make_the_chain_stick_is_warned_about(variance, is_warned, caplog):
    with noisy_gaussian(variance):
        pm.sample(step=kmc.AdaptiveMetropolis(), tune=1500, draws=50, random_seed=6, **QUIET)
    messages = [
        r.getMessage() for r in caplog.records if "the chain was while tuning" in r.getMessage()
    ]
    assert len(messages) == is_warned
    if is_warned:
        assert "n_replicates='auto'" in messages[0]
