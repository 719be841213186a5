"""Warps: bijections of the volume that they say, learned where scales depend on coordinates."""

import numpy as np
import pytest

from pymc_kmc.adaptation.warping import learn_warp
from pymc_kmc.numerics.coordinates import IDENTITY
from tests.bananas import Banana


def funnel_draws(n, rng, sd=3.0, d=4):
    """v ~ N(1, sd^2), x_i ~ N(2 v, exp(v))."""
    v = 1.0 + sd * rng.standard_normal(n)
    x = 2.0 * v[:, None] + np.exp(0.5 * v)[:, None] * rng.standard_normal((n, d - 1))
    return np.column_stack([x[:, :1], v, x[:, 1:]])


def test_a_funnel_is_straightened():
    rng = np.random.default_rng(0)
    X = funnel_draws(1000, rng)
    warp = learn_warp(X)
    assert list(warp.drivers) == [1] and list(warp.driven) == [0, 2, 3]
    np.testing.assert_allclose(warp.scale_slopes, np.full((3, 1), 0.5), atol=0.08)
    Y = warp.forward(funnel_draws(1000, rng))[:, warp.driven]
    assert np.std(Y, axis=0).max() < 1.3 * np.std(Y, axis=0).min()
    assert np.abs(np.corrcoef(np.log(np.abs(Y)).T, X[:, 1])[:-1, -1]).max() < 0.1


def test_two_scales():
    rng = np.random.default_rng(1)
    u, v = rng.standard_normal((2, 1000))
    X = np.column_stack(
        [u, np.exp(u) * rng.standard_normal(1000), np.exp(1.5 * v) * rng.standard_normal(1000), v]
    )
    warp = learn_warp(X)
    assert sorted(warp.drivers) == [0, 3] and list(warp.driven) == [1, 2]
    order = np.argsort(warp.drivers)
    np.testing.assert_allclose(warp.scale_slopes[:, order], [[1.0, 0.0], [0.0, 1.5]], atol=0.2)


def test_a_common_mean_is_not_driven():
    """Effects around a mean, as in a hierarchical model that isn't non-centred."""
    rng = np.random.default_rng(5)
    mean, log_spread = rng.standard_normal((2, 800))
    effects = mean[:, None] + np.exp(log_spread)[:, None] * rng.standard_normal((800, 5))
    X = np.column_stack([mean, effects, log_spread])
    warp = learn_warp(X)
    assert list(warp.drivers) == [6] and list(warp.driven) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(warp.location_slopes[:, 0], 1.0, atol=0.05)
    np.testing.assert_allclose(warp.scale_slopes, np.full((5, 1), 1.0), atol=0.1)


@pytest.mark.parametrize("d", [1, 2, 10, 50])
def test_no_warp_for_independent_coordinates(d):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((600, d)) @ rng.standard_normal((d, d))
        assert learn_warp(X) is IDENTITY
        heavy = X / np.sqrt(rng.chisquare(5, 600) / 5)[:, None]
        assert learn_warp(heavy) is IDENTITY


@pytest.mark.filterwarnings("error")
def test_no_warp_from_few_states_or_one_that_does_not_move():
    rng = np.random.default_rng(2)
    X = funnel_draws(1000, rng)
    assert learn_warp(X[:35]) is IDENTITY
    assert learn_warp(np.repeat(X[:35], 10, axis=0)) is IDENTITY
    assert learn_warp(np.tile(X[:1], (500, 1))) is IDENTITY
    X[:, 0] = 3.0
    assert learn_warp(X) is IDENTITY


@pytest.mark.filterwarnings("error")
def test_regressions_that_go_astray_are_not_used():
    rng = np.random.default_rng(9)
    for power in (3, 9, 27):
        X = rng.standard_cauchy((60, 4)) ** power
        warp = learn_warp(X)
        assert np.isfinite(warp.forward(X)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-150, 1e-8, 1e8, 1e150])
def test_units_do_not_matter(size):
    X = funnel_draws(500, np.random.default_rng(3))
    plain, scaled = learn_warp(X), learn_warp(X * [size, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(scaled.driven, plain.driven)
    factors = np.where(plain.driven == 0, size, 1.0)
    np.testing.assert_allclose(
        scaled.forward(X * [size, 1.0, 1.0, 1.0])[:, plain.driven],
        plain.forward(X)[:, plain.driven] * factors,
        rtol=1e-6,
    )


def test_a_curved_ridge_is_no_reason_to_fail():
    """Half of a banana: whatever is learned there, it is a bijection."""
    X = Banana().draws(800, np.random.default_rng(4))
    X = X[X[:, 0] > 0]
    warp = learn_warp(X)
    np.testing.assert_allclose(warp.backward(warp.forward(X)), X, atol=1e-9)
