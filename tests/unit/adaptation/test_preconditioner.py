"""Preconditioners: the formula, and what they find."""

import numpy as np
import pytest

from pymc_kmc.adaptation.preconditioner import (
    DrawsAndGradients,
    FisherPreconditioner,
    fisher_update,
)
from pymc_kmc.adaptation.speed_measure import SpeedMeasure
from tests.matrices import positive_definite


def test_fisher_update_is_the_inverse_of_the_sum():
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(positive_definite(1, 5))
    signals = rng.standard_normal((20, 5))
    expected = np.linalg.inv(np.linalg.inv(root @ root.T) + signals.T @ signals)
    for signal in signals:
        fisher_update(root, signal)
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-8)


def test_fisher_preconditioner_finds_the_covariance_of_a_gaussian():
    """Differences of gradients have covariance 2 / the target's, up to the damping."""
    covariance = 0.1 * positive_definite(2, 4, spread=0.5)
    precision, rng = np.linalg.inv(covariance), np.random.default_rng(3)
    preconditioner = FisherPreconditioner(4, 0.574)
    x = rng.multivariate_normal(np.zeros(4), covariance, size=(4000, 2))
    for start, end in x:
        preconditioner.learn(-precision @ (end - start), 0.574)
    ratio = preconditioner.factor @ preconditioner.factor.T @ precision
    eigenvalues = np.linalg.eigvals(ratio).real
    assert eigenvalues.max() / eigenvalues.min() < 1.3
    mean_eigenvalue = np.trace(preconditioner.factor @ preconditioner.factor.T) / 4
    assert mean_eigenvalue == pytest.approx(1.0)


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
        proposals.learn(U, V, 0.8, True, x, -precision @ (x - 1.0))
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
        proposals.learn(np.zeros((1, 2)), np.zeros((1, 2)), 0.8, True, x, -x)
    proposals.settle()
    length = proposals.n_steps * proposals.step_size
    assert length == pytest.approx(DrawsAndGradients.LENGTH, rel=0.06)


def test_a_chain_that_stays_where_it_is_gives_no_window():
    proposals = draws_and_gradients(3)
    for _ in range(300):
        proposals.learn(None, None, 0.0, False, np.ones(3), np.ones(3))
    assert not proposals.has_window
    assert np.isfinite(proposals.factor).all()
