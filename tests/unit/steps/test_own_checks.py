"""What a single chain shows of itself."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.steps.own_checks import MOST_STATES, OwnChecks, Thinned
from tests.steps import STEPS
from tests.targets import sample


def checks_of(states, n_tuning=0):
    """The checks after these states, and numbers of draws at which one was due."""
    checks, due = OwnChecks(), []
    for i, state in enumerate(states):
        checks.observe(state, i < n_tuning)
        if i >= n_tuning and checks.is_due():
            due.append(checks.n_draws)
    return checks, due


def test_memory_stays_and_states_are_spread_evenly():
    thinned = Thinned()
    for i in range(100_000):
        thinned.append(np.array([i]))
    states = thinned.states[:, 0]
    assert MOST_STATES / 2 <= len(states) < MOST_STATES
    assert len(set(np.diff(states))) == 1 and states[-1] > 99_000


def test_when_a_check_is_due():
    states = np.zeros((2000, 1))
    assert checks_of(states)[1] == [512, 768, 1152, 1728]
    checks = OwnChecks()
    checks.n_expected = 600
    due = [i for i in range(1, 601) if checks.observe(np.zeros(1), False) or checks.is_due()]
    assert due == [512, 600]


def test_good_chains_are_left_alone():
    """40 effective draws: 100 chains of 2 coordinates, each of which fails in 2 of 10,000 cases."""
    rng = np.random.default_rng(0)
    innovations = rng.standard_normal((100, 1600, 2))
    correlation = 1.0 - 2.0 / 41.0  # 1600 draws are 40
    n_found = 0
    for innovation in innovations:
        states = np.empty_like(innovation)
        state = rng.standard_normal(2)
        for i, noise in enumerate(innovation):
            state = correlation * state + np.sqrt(1 - correlation**2) * noise
            states[i] = state
        checks, _ = checks_of(states)
        n_found += np.nanmax(checks.split_r_hat()) > 1.3
        assert len(checks.drifting()) == 0
    assert n_found <= 2


def test_a_chain_on_its_way_is_seen():
    rng = np.random.default_rng(1)
    states = np.cumsum(0.1 + rng.standard_normal((1000, 2)), axis=0)
    states[:, 1] = rng.standard_normal(1000)
    checks, _ = checks_of(states)
    first, second = checks.split_r_hat()
    assert first > 1.3 > second
    assert np.isnan(checks_of(np.ones((1000, 1)))[0].split_r_hat()[0])


def test_heavy_tails_are_no_drift():
    """Standard deviations of Cauchy draws grow with their number; quartiles don't."""
    for seed in range(20):
        states = np.random.default_rng(seed).standard_cauchy((3000, 1))
        assert len(checks_of(states, n_tuning=1000)[0].drifting()) == 0


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KAMH", "KMC"])
def test_scales_of_sixteen_orders_of_magnitude(name):
    """2000 draws, 60 of them effective or more: 4.5 standard errors of a log sd are .41."""
    scales = {"small": 1e-8, "one": 1.0, "large": 1e8}
    with pm.Model():
        for variable, sd in scales.items():
            pm.Normal(variable, 0.0, sd)
        posterior = sample(STEPS[name](), draws=2000, tune=1500).posterior
    for variable, sd in scales.items():
        assert abs(np.log(posterior[variable].std() / sd)) < 0.41


@pytest.mark.parametrize("prior", ["improper", "too narrow a ridge"])
def test_what_did_not_converge_says_so(prior, caplog):
    with pm.Model():
        if prior == "improper":
            pm.Flat("x", initval=0.0)
            pm.Normal("fine")
        else:
            pm.Normal("y", pm.Normal("x", 0.0, 7.0), 1e-4)
        step = kmc.AdaptiveMetropolis() if prior == "improper" else kmc.GadMALA()
        sample(step, draws=1000, tune=1000)
    found = " ".join(record.getMessage() for record in caplog.records)
    if prior == "improper":
        assert "range grows and grows along x:" in found and "isn't proper" in found
    else:
        assert "half of this chain's" in found and "differ along x, y" in found
