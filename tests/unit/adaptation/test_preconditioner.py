"""Preconditioners: the formula, and what they find."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.adaptation.preconditioner import DrawsAndGradients, SpeedMeasure
from tests.matrices import positive_definite


def moved_to(position, gradient, acceptance_rate=0.8):
    """The part of an outcome that is learned from."""
    end = SimpleNamespace(position=position, gradient=gradient)
    accepted = acceptance_rate > 0
    return SimpleNamespace(end=end, acceptance_rate=acceptance_rate, accepted=accepted)


def draws_and_gradients(d):
    return DrawsAndGradients(d, 0.8, SpeedMeasure(d, 0.55, 1.5e-4, "multiplicative"))


def test_draws_and_gradients_of_a_gaussian_give_its_covariance():
    """From so few draws that their covariance is off by a factor of 10 in some direction."""
    d, n = 30, 60
    covariance = positive_definite(4, d, spread=1.0)
    precision, rng = np.linalg.inv(covariance), np.random.default_rng(5)
    proposals = draws_and_gradients(d)
    proposals.PRIOR_POINTS = 1e-6
    for x in rng.multivariate_normal(np.ones(d), covariance, size=2 * n):
        U, V = np.zeros((1, d)), np.zeros((1, d))
        proposals.learn(U, V, moved_to(x, -precision @ (x - 1.0)))
    assert proposals.has_window
    np.testing.assert_allclose(
        proposals.factor @ proposals.factor.T, covariance, atol=1e-3 * np.abs(covariance).max()
    )
    recent = np.cov(proposals.positions.recent(0.5).T)
    errors = np.linalg.eigvals(recent @ precision).real
    assert errors.max() / errors.min() > 10


def test_trajectories_are_a_quarter_of_a_turn():
    proposals = draws_and_gradients(2)
    rng = np.random.default_rng(6)
    for x in rng.standard_normal((400, 2)):
        proposals.learn(np.zeros((1, 2)), np.zeros((1, 2)), moved_to(x, -x))
    proposals.settle()
    length = proposals.n_steps * proposals.step_size
    assert length == pytest.approx(DrawsAndGradients.LENGTH, rel=0.06)


def test_a_chain_that_stays_where_it_is_gives_no_window():
    proposals = draws_and_gradients(3)
    for _ in range(300):
        proposals.learn(None, None, moved_to(np.ones(3), np.ones(3), acceptance_rate=0.0))
    assert not proposals.has_window
    assert np.isfinite(proposals.factor).all()
