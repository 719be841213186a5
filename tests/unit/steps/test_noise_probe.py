"""What steps on noisy likelihoods learn of the noise, whatever their algorithm."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_kmc as kmc
from pymc_kmc.moves import noise_probe
from pymc_kmc.moves.base import MoveKind
from tests.chains import ONE_CHAIN, column, iterate, run
from tests.models import noisy_gaussian
from tests.steps import NOISY_STEPS, STEPS


def number_of_pairs(step):
    return step.progress.noise.variance.n_pairs


@pytest.mark.parametrize("name", NOISY_STEPS)
def test_noise_is_estimated(name, monkeypatch, with_short_sequences):
    """The last 40 of 79 pairs or so: within a factor of 2 of the truth with probability .999."""
    monkeypatch.setattr(noise_probe, "PROBE_EVERY", 10)
    with noisy_gaussian(2.0) as model:
        step = STEPS[name](rng=2)
    _, statistics = run(step, model.initial_point(), 800)
    assert number_of_pairs(step) == 79
    assert np.sum(column(statistics, "kmc_move") == MoveKind.NOISE_PROBE) in (158, 159)
    variance = statistics[-1]["kmc_noise_variance"]
    assert 1.0 < variance < 4.0
    ideal = statistics[-1]["kmc_ideal_acceptance"]
    # A mean of 40 probabilities, whose standard error is .06; .317 is that of variance 2.
    assert ideal == pytest.approx(2 * norm.cdf(-1.0), abs=0.27)
    assert statistics[-1]["kmc_zero_share"] == 0.0
    assert np.all(column(statistics[1:], "kmc_n_evaluations") == 1)
    assert np.all(column(statistics, "kmc_n_replicates") == 1)


def test_no_noise_no_probes():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.AdaptiveMetropolis(rng=3)
    _, statistics = run(step, model.initial_point(), 300)
    assert np.all(column(statistics, "kmc_move") == MoveKind.RANDOM_WALK)
    assert np.all(column(statistics, "kmc_noise_variance") == 0)
    assert np.all(column(statistics, "kmc_ideal_acceptance") == 1)
    assert np.all(column(statistics, "kmc_n_replicates") == 0)


def test_no_probes_after_tuning():
    with noisy_gaussian(2.0) as model:
        step = kmc.AdaptiveMetropolis(rng=4)
    point, _ = run(step, model.initial_point(), 200)
    step.stop_tuning()
    n_pairs = number_of_pairs(step)
    assert n_pairs == 1
    _, statistics = run(step, point, 200)
    assert number_of_pairs(step) == n_pairs
    assert not np.any(column(statistics, "kmc_move") == MoveKind.NOISE_PROBE)


def test_a_probe_leaves_the_chain_where_it_is_and_teaches_no_scale():
    with noisy_gaussian(1.0) as model:
        step = kmc.AdaptiveMetropolis(rng=5)
    before = model.initial_point(), step.adapted.random_walk.scale
    n_probes = 0
    for point, statistics in iterate(step, before[0], 250):
        after = point, step.adapted.random_walk.scale
        if statistics["kmc_move"] == MoveKind.NOISE_PROBE:
            n_probes += 1
            assert not statistics["kmc_accepted"] and after == before
            assert statistics["acceptance_rate"] == 0.0
        before = after
    assert n_probes == 4


def test_noise_is_not_what_a_step_of_other_variables_does(with_short_sequences):
    """Its moves between two estimates change the density too. 19 pairs: sd of their mean .003."""
    with noisy_gaussian(0.01, companion=True) as model:
        step = kmc.KMC([model["x"]], n_landmarks=30, learn=False, rng=8)
    rng = np.random.default_rng(9)
    for point, statistics in iterate(step, model.initial_point(), 2000):  # noqa: B007
        point["z"] = point["x"] / 2 + rng.standard_normal()
    assert number_of_pairs(step) == 19
    assert statistics["kmc_noise_variance"] < 0.025


@pytest.mark.parametrize(("variance", "is_warned"), [(9.0, True), (1.0, False)])
def test_noise_that_will_make_the_chain_stick_is_warned_about(variance, is_warned, caplog):
    with noisy_gaussian(variance):
        pm.sample(step=kmc.AdaptiveMetropolis(), tune=1500, draws=50, random_seed=6, **ONE_CHAIN)
    messages = [
        r.getMessage() for r in caplog.records if "the chain was while tuning" in r.getMessage()
    ]
    assert len(messages) == is_warned
    if is_warned:
        assert "n_replicates='auto'" in messages[0]
