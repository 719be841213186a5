"""The variance of estimates' noise, as a function of the place."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.learning.noise_variance import NoiseVariance

DRAWS = np.random.default_rng(0).normal([1.0, -2.0], [0.5, 3.0], size=(4000, 2))
HEIGHTS = -0.5 * np.sum(((DRAWS - [1.0, -2.0]) / [0.5, 3.0]) ** 2, axis=1)


def fitted(slopes, rng, n=300, noise=1.5, others=0.3, wild=None, radial=0.0):
    """Return the variance fitted to n errors, whose log variance has slopes (2,) in sds."""
    Z = rng.standard_normal((n, 2))
    heights = -0.5 * np.sum(Z**2, axis=1)
    away = np.sum(Z**2, axis=1) / 2.0 - 1.0
    variances = noise**2 * np.exp(Z @ slopes + radial * away) + others**2
    values = heights + np.sqrt(variances) * rng.standard_normal(n)
    if wild is not None:
        values[np.argmax(heights)] = wild
    evaluations = SimpleNamespace(X=[1.0, -2.0] + Z * [0.5, 3.0], log_densities=values)
    found = SimpleNamespace(held_out=heights, held_out_sd=np.full(n, np.sqrt(noise**2 + others**2)))
    return NoiseVariance.of(noise, evaluations, found, DRAWS, HEIGHTS)


def test_slopes_are_found():
    found = fitted(np.array([0.5, -0.2]), np.random.default_rng(1), n=2000)
    np.testing.assert_allclose(found.slopes, [0.5, -0.2, 0.0], atol=0.15)
    half, _ = found.half(np.array([[1.0, -2.0]]))
    np.testing.assert_allclose(half, 0.5 * 1.5**2, rtol=0.15)


def test_noise_that_grows_on_all_sides_is_found():
    found = fitted(np.zeros(2), np.random.default_rng(1), n=2000, radial=0.4)
    np.testing.assert_allclose(found.slopes, [0.0, 0.0, 0.4], atol=0.15)


def test_errors_are_those_that_are_stated():
    """Of 100 fits the root mean square of 200 slopes' z has a standard error of .05."""
    scores = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        slopes = rng.normal(
            0.0, rng.choice([1e-3, 0.1, 0.3, 1.0], p=[0.49, 0.17, 0.17, 0.17]), size=2
        )
        found = fitted(slopes, rng)
        sds = np.sqrt(np.diag(found.covariance)[1:3])
        scores.append((found.slopes[:2] - slopes) / sds)
    assert 0.8 < np.sqrt(np.mean(np.square(scores))) < 1.2


def test_a_constant_variance_is_believed():
    found = [fitted(np.zeros(2), np.random.default_rng(seed)) for seed in range(20)]
    slopes = np.array([each.slopes for each in found])
    # Without a prior slopes have a standard deviation of .08.
    assert np.sqrt(np.mean(slopes**2)) < 0.05


@pytest.mark.parametrize("wild", [-1e15, -np.inf, np.nan])
def test_one_evaluation_decides_nothing(wild):
    rngs = np.random.default_rng(3), np.random.default_rng(3)
    expected, found = fitted(np.zeros(2), rngs[0]), fitted(np.zeros(2), rngs[1], wild=wild)
    half, known = found.half(DRAWS)[0], expected.half(DRAWS)[0]
    np.testing.assert_allclose(half, known, rtol=0.3)


def test_gradient_and_errors_are_derivatives():
    found = fitted(np.array([0.5, -0.2]), np.random.default_rng(1), radial=0.4)
    X, step = DRAWS[:5], 1e-6
    half, gradient = found.half(X)
    for j, shift in enumerate(step * np.eye(2)):
        change = found.half(X + shift)[0] - found.half(X - shift)[0]
        np.testing.assert_allclose(gradient[:, j], change / (2 * step), rtol=1e-5)
    slopes = [(found._replace(level=found.level + step).half(X)[0] - half) / step]
    for shift in step * np.eye(3):
        slopes.append((found._replace(slopes=found.slopes + shift).half(X)[0] - half) / step)
    expected = np.transpose(slopes) @ found.covariance @ slopes
    np.testing.assert_allclose(found.errors(X), expected, rtol=1e-4)


def test_it_is_bounded_far_away():
    found = fitted(np.zeros(2), np.random.default_rng(1))._replace(slopes=np.array([0.5, 0, 0.4]))
    half, gradient = found.half(DRAWS.mean(axis=0) + 1e6 * np.eye(2))
    np.testing.assert_allclose(half, 0.5 * np.exp(found.level + 2.0))
    assert not gradient.any()
