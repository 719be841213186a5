"""The random walk's adaptation: it learns a covariance and a scale."""

import numpy as np
import pytest

from pymc_kmc.adaptation.history import RECENT_SHARE, GrowingArray
from pymc_kmc.adaptation.random_walk import RandomWalkAdaptation
from pymc_kmc.adaptation.warping import learn_warp
from pymc_kmc.numerics.samples import shrunk_covariance

COVARIANCE = np.array([[4.0, 1.8], [1.8, 1.0]])


def acceptance_rates(adaptation, log_density, position, n, rng, history):
    """Those of a chain that proposes by the adaptation, and teaches it."""
    for _ in range(n):
        step = adaptation.factor @ rng.standard_normal(len(position))
        proposal = position + adaptation.optimal_scale * adaptation.scale * step
        rate = np.exp(min(0.0, log_density(proposal) - log_density(position)))
        if rng.uniform() < rate:
            position = proposal
        history.append(position)
        adaptation.scale_adaptation.update(rate)
        adaptation.learn_covariance(history)
        yield rate


def test_learns_the_targets_covariance_and_the_acceptance_rate():
    precision = np.linalg.inv(COVARIANCE)
    adaptation, history = RandomWalkAdaptation(2, scale=30.0), GrowingArray(2)

    def log_density(x):
        return -0.5 * x @ precision @ x

    start, rng = np.array([30.0, -30.0]), np.random.default_rng(1)
    rates = list(acceptance_rates(adaptation, log_density, start, 20_000, rng, history))
    expected = RandomWalkAdaptation.TARGET_ACCEPTANCE
    assert np.mean(rates[-10_000:]) == pytest.approx(expected, abs=0.02)
    np.testing.assert_allclose(adaptation.covariance, COVARIANCE, rtol=0.15)


def test_covariance_is_of_the_recent_half():
    """A bad start drops out of it."""
    adaptation, history = RandomWalkAdaptation(1), GrowingArray(1)
    for value in [1000.0] * 100 + [-1.0, 1.0] * 50:
        history.append(np.array([value]))
    adaptation.learn_covariance(history)
    assert adaptation.covariance[0, 0] == pytest.approx(1.0, rel=1e-3)


def test_covariance_waits_for_its_time():
    adaptation, history = RandomWalkAdaptation(2), GrowingArray(2)
    for state in np.random.default_rng(2).standard_normal((19, 2)):
        history.append(state)
        adaptation.learn_covariance(history)
    np.testing.assert_array_equal(adaptation.covariance, np.eye(2))
    history.append(np.ones(2))
    adaptation.learn_covariance(history)
    assert not np.array_equal(adaptation.covariance, np.eye(2))


def test_covariance_must_be_positive_definite():
    with pytest.raises(np.linalg.LinAlgError):
        RandomWalkAdaptation(2, np.diag([1.0, -1.0]))


def test_a_chain_that_sat_still_is_not_learned_from():
    """Its covariance would hold the chain where it is."""
    adaptation, history = RandomWalkAdaptation(2), GrowingArray(2)
    rng = np.random.default_rng(3)
    for state in [np.zeros(2)] * 400 + list(1e-3 * rng.standard_normal((3, 2))):
        history.append(state)
    adaptation.learn_covariance(history)
    np.testing.assert_array_equal(adaptation.covariance, np.eye(2))


def test_a_new_covariance_does_not_meet_a_huge_scale():
    adaptation, history = RandomWalkAdaptation(2, scale=1e5), GrowingArray(2)
    for state in np.random.default_rng(4).standard_normal((50, 2)):
        history.append(state)
    adaptation.learn_covariance(history)
    assert adaptation.scale == RandomWalkAdaptation.LARGEST_SCALE


def test_new_coordinates_have_their_covariance_at_once():
    """Also when they are the old ones again."""
    adaptation, history = RandomWalkAdaptation(2), GrowingArray(2)
    rng = np.random.default_rng(5)
    for v in 2.0 * rng.standard_normal(400):
        history.append(np.array([v, np.exp(v) * rng.standard_normal()]))
    states = history.recent(RECENT_SHARE)
    adaptation.learn_covariance(history)
    plain = adaptation.covariance
    warp = learn_warp(states)
    adaptation.learn_covariance(history, warp)
    np.testing.assert_array_equal(adaptation.covariance, shrunk_covariance(warp.forward(states)))
    assert adaptation.covariance[1, 1] < 0.1 * plain[1, 1]
    adaptation.learn_covariance(history)
    np.testing.assert_array_equal(adaptation.covariance, plain)
