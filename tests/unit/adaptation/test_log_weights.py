"""Log weights of a chain's states, and which of them are large."""

import numpy as np
import pytest

from pymc_kmc.adaptation.fitted import MOST_VALUED, LogWeights


class Surrogate:
    """A standard normal."""

    def log_density(self, x):
        return -0.5 * float(x @ x)


def log_weights(weights, seed=0):
    """Of states at random places with given log weights."""
    X = np.random.default_rng(seed).standard_normal((len(weights), 2))
    return LogWeights.of(Surrogate(), X, -0.5 * (X**2).sum(axis=1) + weights)


def test_are_relative_to_the_median():
    scale = log_weights(np.arange(101.0) + 1000.0)
    assert scale.median == pytest.approx(1050.0)
    assert scale(np.zeros(2), 1053.0) == pytest.approx(3.0)
    assert scale(np.ones(2), 1053.0) == pytest.approx(4.0)


def test_spread_is_that_below_the_median():
    """A chain that sits on large ones for half of its time doesn't take them for usual."""
    noise = 0.7 * np.random.default_rng(1).standard_normal(200)
    assert log_weights(noise).spread == pytest.approx(0.7, rel=0.2)
    stuck = np.r_[noise[:140], np.full(60, 30.0)]
    assert log_weights(stuck).spread < 1.5
    assert log_weights(stuck).excess(np.zeros(2), 30.0) == 1.0


@pytest.mark.parametrize(("sd", "usual", "large"), [(0.0, 1.0, 4.0), (2.0, 4.0, 9.0)])
def test_excess_is_a_ramp(sd, usual, large):
    scale = log_weights(sd * np.random.default_rng(2).standard_normal(200))
    values = [scale.excess(np.zeros(2), w) for w in (-1e9, usual, 0.5 * (usual + large), large)]
    assert values[:2] == pytest.approx([0.0, 0.0], abs=0.05)
    assert 0.0 < values[2] < 1.0
    assert values[3] > 0.95


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_start_where_the_density_is_zero(value):
    """Such states are left out of the scale, and aren't in need of random walks."""
    scale = log_weights(np.r_[np.full(30, value), np.zeros(5)])
    assert (scale.median, scale.spread) == pytest.approx((0.0, 0.0))
    assert scale.excess(np.zeros(2), value) == 0.0
    nothing = log_weights(np.full(30, value))
    assert (nothing.median, nothing.spread) == (0.0, 0.0)


def test_looks_at_a_part_of_a_long_history():
    calls = []

    class Counting(Surrogate):
        def log_density(self, x):
            calls.append(x)
            return super().log_density(x)

    LogWeights.of(Counting(), np.zeros((10_000, 2)), np.zeros(10_000))
    assert len(calls) <= 2 * MOST_VALUED


class Higher(Surrogate):
    def log_density(self, x):
        return super().log_density(x) + 5.0


def test_follow_a_surrogate_whose_constant_changes():
    """Higher by 5 everywhere, which its constant takes back: all log weights are what they were."""
    scale = log_weights(np.zeros(101))
    assert scale(np.zeros(2), 3.0) == pytest.approx(3.0)
    assert scale.following(Surrogate(), 5.0)(np.zeros(2), 3.0 - 5.0) == pytest.approx(3.0)
    assert scale.following(Higher(), 5.0)(np.zeros(2), 3.0) == pytest.approx(3.0)
    assert scale(np.zeros(2), 3.0) == pytest.approx(3.0)
