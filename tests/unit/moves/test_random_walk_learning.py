"""The random walk learns a covariance and a scale."""

import numpy as np
import pytest

from pymc_kmc.adaptation.history import RECENT_SHARE, GrowingArray
from pymc_kmc.adaptation.warping import learn_warp
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.numerics.samples import shrunk_covariance

COVARIANCE = np.array([[4.0, 1.8], [1.8, 1.0]])


def acceptance_rates(walk, log_density, position, n, rng, history):
    """Those of a chain that proposes by the walk, and teaches it."""
    for _ in range(n):
        step = walk.cholesky @ rng.standard_normal(len(position))
        proposal = position + walk.optimal_scale * walk.scale * step
        rate = np.exp(min(0.0, log_density(proposal) - log_density(position)))
        if rng.uniform() < rate:
            position = proposal
        history.append(position)
        walk.scale_adaptation.update(rate)
        walk.learn_covariance(history)
        yield rate


def test_learns_the_targets_covariance_and_the_acceptance_rate():
    precision = np.linalg.inv(COVARIANCE)
    walk, history = RandomWalk(2, scale=30.0), GrowingArray(2)

    def log_density(x):
        return -0.5 * x @ precision @ x

    start, rng = np.array([30.0, -30.0]), np.random.default_rng(1)
    rates = list(acceptance_rates(walk, log_density, start, 20_000, rng, history))
    expected = RandomWalk.TARGET_ACCEPTANCE
    assert np.mean(rates[-10_000:]) == pytest.approx(expected, abs=0.02)
    np.testing.assert_allclose(walk.covariance, COVARIANCE, rtol=0.15)


def test_covariance_is_of_the_recent_half():
    """A bad start drops out of it."""
    walk, history = RandomWalk(1), GrowingArray(1)
    for value in [1000.0] * 100 + [-1.0, 1.0] * 50:
        history.append(np.array([value]))
    walk.learn_covariance(history)
    assert walk.covariance[0, 0] == pytest.approx(1.0, rel=1e-3)


def test_covariance_waits_for_its_time():
    walk, history = RandomWalk(2), GrowingArray(2)
    for state in np.random.default_rng(2).standard_normal((19, 2)):
        history.append(state)
        walk.learn_covariance(history)
    np.testing.assert_array_equal(walk.covariance, np.eye(2))
    history.append(np.ones(2))
    walk.learn_covariance(history)
    assert not np.array_equal(walk.covariance, np.eye(2))


def test_covariance_must_be_positive_definite():
    with pytest.raises(np.linalg.LinAlgError):
        RandomWalk(2, np.diag([1.0, -1.0]))


def test_a_chain_that_sat_still_is_not_learned_from():
    """Its covariance would hold the chain where it is."""
    walk, history = RandomWalk(2), GrowingArray(2)
    rng = np.random.default_rng(3)
    for state in [np.zeros(2)] * 400 + list(1e-3 * rng.standard_normal((3, 2))):
        history.append(state)
    walk.learn_covariance(history)
    np.testing.assert_array_equal(walk.covariance, np.eye(2))


def test_a_new_covariance_does_not_meet_a_huge_scale():
    walk, history = RandomWalk(2, scale=1e5), GrowingArray(2)
    for state in np.random.default_rng(4).standard_normal((50, 2)):
        history.append(state)
    walk.learn_covariance(history)
    assert walk.scale == RandomWalk.LARGEST_SCALE


def test_new_coordinates_have_their_covariance_at_once():
    """Also when they are the old ones again."""
    walk, history = RandomWalk(2), GrowingArray(2)
    rng = np.random.default_rng(5)
    for v in 2.0 * rng.standard_normal(400):
        history.append(np.array([v, np.exp(v) * rng.standard_normal()]))
    states = history.recent(RECENT_SHARE)
    walk.learn_covariance(history)
    plain = walk.covariance
    warp = learn_warp(states)
    walk.learn_covariance(history, warp)
    np.testing.assert_array_equal(walk.covariance, shrunk_covariance(warp.forward(states)))
    assert walk.covariance[1, 1] < 0.1 * plain[1, 1]
    walk.learn_covariance(history)
    np.testing.assert_array_equal(walk.covariance, plain)
