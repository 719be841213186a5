"""The rules for L: against NumPy twins, and what they lead to."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.adaptation.preconditioner import (
    SpeedMeasure,
    additive_update,
    multiplicative_update,
)


def outer_products(seed, d=4, k=2):
    rng = np.random.default_rng(seed)
    factor = np.tril(0.2 * rng.standard_normal((d, d))) + np.eye(d)
    return factor, rng.standard_normal((k, d)), rng.standard_normal((k, d))


@pytest.mark.parametrize("counts", [True, False])
def test_additive_twin(counts):
    """L + rate g / (1 + sqrt(G)), G = .9 G + .1 g^2, G = g^2 at first."""
    factor, U, V = outer_products(0)
    expected, mean_square, rate = factor.copy(), np.zeros_like(factor), 1e-3
    actual, actual_square = factor.copy(), mean_square.copy()
    for first in (True, False):
        gradient = np.tril(counts * U.T @ V) + np.diag(1.7 / np.diag(expected))
        square = gradient**2
        mean_square = square if first else 0.9 * mean_square + 0.1 * square
        expected = expected + rate * gradient / (1 + np.sqrt(mean_square))
        scale = additive_update(actual, actual_square, U, V, counts, 1.7, rate, first)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert scale == pytest.approx(np.prod(np.diag(expected)) ** (1 / 4))


def test_additive_diagonal_has_a_floor():
    factor, U, V = outer_products(1)
    V = -1e6 * np.sign(U) * np.abs(V)
    additive_update(factor, np.zeros_like(factor), U, V, True, 1.0, 2.0, True)
    assert np.all(np.diag(factor) >= 1e-3)


@pytest.mark.parametrize("counts", [True, False])
def test_multiplicative_twin(counts):
    factor, U, V = outer_products(2)
    S = counts * factor.T @ U.T @ V
    symmetric = 0.5 * (S + S.T)
    M = np.tril(2 * symmetric, -1) + np.diag(np.diag(symmetric)) + 0.4 * np.eye(4)
    np.testing.assert_allclose(M + M.T, S + S.T + 0.8 * np.eye(4))
    expected = factor + 1e-3 * factor @ M
    scale, limited = multiplicative_update(factor, U, V, counts, 0.4, 1e-3, 1.0)
    np.testing.assert_allclose(factor, expected, rtol=1e-12)
    assert not limited
    assert scale == pytest.approx(np.prod(np.diag(expected)) ** (1 / 4))


def test_multiplicative_is_equivariant():
    """In the coordinates z = T x with a lower triangular T, L becomes T L."""
    factor, U, V = outer_products(3)
    T = np.tril(np.random.default_rng(4).standard_normal((4, 4))) + 3 * np.eye(4)
    transformed = T @ factor
    multiplicative_update(factor, U, V, True, 0.4, 1e-2, 1.0)
    multiplicative_update(transformed, U @ np.linalg.inv(T), V, True, 0.4, 1e-2, 1.0)
    np.testing.assert_allclose(transformed, T @ factor, rtol=1e-10)


def test_multiplicative_steps_are_limited():
    factor, U, V = outer_products(5)
    before = factor.copy()
    _, limited = multiplicative_update(factor, 1e8 * U, V, True, 1.0, 0.03, 0.1)
    assert limited
    relative = np.linalg.solve(before, factor - before)
    assert np.linalg.norm(relative) < 0.1 * 2
    assert np.all(np.diag(factor) > 0)


def outcome(acceptance_rate, accepted):
    return SimpleNamespace(acceptance_rate=acceptance_rate, accepted=accepted)


def test_beta_does_not_wind_up():
    """However long proposals are cut short, beta may fall to its bound and no further."""
    speed_measure = SpeedMeasure(3, 0.55, 1e-4, "multiplicative")
    U, V = 1e9 * np.ones((1, 3)), -np.ones((1, 3))
    for _ in range(3000):
        speed_measure.learn(U, V, outcome(0.99, True))
    assert speed_measure.beta == 1.0
    for _ in range(3000):
        speed_measure.learn(U, V, outcome(0.0, False))
    assert speed_measure.beta == SpeedMeasure.BETA_RANGE[0]
    speed_measure.learn(None, None, outcome(0.0, False))
    assert np.isfinite(speed_measure.factor).all()


def gaussian_walk(speed_measure, covariance, n, rng, learn_from):
    """A gadRWM on a Gaussian by hand; returns the acceptance rate of the second half."""
    precision = np.linalg.inv(covariance)
    x, rates = np.zeros(len(covariance)), []
    for _ in range(n):
        noise = rng.standard_normal(len(x))
        y = x + speed_measure.factor @ noise
        rate = np.exp(min(0.0, 0.5 * x @ precision @ x - 0.5 * y @ precision @ y))
        accepted = rng.uniform() < rate
        speed_measure.learn(learn_from(precision, y), noise[None], outcome(rate, accepted))
        x = y if accepted else x
        rates.append(rate)
    return np.mean(rates[n // 2 :])


def test_it_learns_shape_and_acceptance():
    """L L' is proportional to the covariance: condition 1e4 of the start falls below 4."""
    covariance = np.array([[1.0, 0.0099], [0.0099, 1e-4]])
    speed_measure = SpeedMeasure(2, 0.25, 5e-5, "multiplicative")
    rate = gaussian_walk(
        speed_measure, covariance, 8000, np.random.default_rng(6), lambda P, y: -(P @ y)[None]
    )
    ratio = speed_measure.factor @ speed_measure.factor.T @ np.linalg.inv(covariance)
    assert np.linalg.cond(ratio) < 4e4
    eigenvalues = np.linalg.eigvals(ratio).real
    assert eigenvalues.max() / eigenvalues.min() < 4
    assert rate == pytest.approx(0.25, abs=0.05)


def test_it_does_not_with_the_wrong_gradient():
    covariance = np.array([[1.0, 0.0099], [0.0099, 1e-4]])
    speed_measure = SpeedMeasure(2, 0.25, 5e-5, "multiplicative")
    gaussian_walk(speed_measure, covariance, 8000, np.random.default_rng(6), lambda P, y: -y[None])
    ratio = speed_measure.factor @ speed_measure.factor.T @ np.linalg.inv(covariance)
    eigenvalues = np.linalg.eigvals(ratio).real
    assert eigenvalues.max() / eigenvalues.min() > 40
