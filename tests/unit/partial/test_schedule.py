"""Sizes of subsets and probabilities of levels."""

import numpy as np
import pytest

from pymc_kmc.partial.schedule import Schedule


def test_sizes_double_up_to_all_data():
    assert Schedule(100, 7, 0.5).sizes.tolist() == [7, 14, 28, 56, 100]
    assert Schedule(64, 16, 0.5).sizes.tolist() == [16, 32, 64]
    assert Schedule(5, 5, 0.5).sizes.tolist() == [5]


def test_probabilities_are_geometric_on_the_levels_that_there_are():
    schedule = Schedule(100, 7, 0.8)
    probabilities = -np.diff(schedule.reach, append=0.0)
    assert schedule.reach[0] == pytest.approx(1.0)
    np.testing.assert_allclose(probabilities[1:] / probabilities[:-1], 2.0**-0.8)


def test_levels_are_drawn_with_these_probabilities():
    """Chi-squared with 4 degrees of freedom: beyond 23.5 with probability 1e-4."""
    schedule, rng = Schedule(100, 7, 0.8), np.random.default_rng(1)
    counts = np.bincount([schedule.draw(rng) for _ in range(20_000)], minlength=5)
    expected = -20_000 * np.diff(schedule.reach, append=0.0)
    assert np.sum((counts - expected) ** 2 / expected) < 23.5


def test_the_debiased_sum_telescopes_in_expectation():
    """Averaged over all levels with their probabilities, it is the last level's value exactly."""
    schedule = Schedule(100, 7, 0.8)
    path = np.random.default_rng(2).normal(size=(5, 3))
    probabilities = -np.diff(schedule.reach, append=0.0)
    mean = sum(p * schedule.debiased(path[: t + 1]) for t, p in enumerate(probabilities))
    np.testing.assert_allclose(mean, path[-1])


def test_mean_terms():
    schedule = Schedule(100, 7, 0.8)
    probabilities = -np.diff(schedule.reach, append=0.0)
    assert schedule.mean_terms == pytest.approx(probabilities @ np.cumsum(schedule.sizes))


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7])
def test_the_mean_cost_grows_as_a_power(alpha):
    """Exact mean costs of N = 2^14, 2^18, 2^22: exponent within .1 of 1 - alpha."""
    log_sizes = np.array([14, 18, 22])
    costs = [Schedule(2**k, 16, alpha).mean_terms for k in log_sizes]
    assert np.polyfit(log_sizes, np.log2(costs), 1)[0] == pytest.approx(1.0 - alpha, abs=0.1)


@pytest.mark.parametrize("first_size", [0, 101, 2.5, "7", None])
def test_bad_first_sizes(first_size):
    with pytest.raises(ValueError, match="first_size must be a whole number from 1 to .* 100"):
        Schedule(100, first_size, 0.5)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.inf, np.nan, "a", None])
def test_bad_alphas(alpha):
    with pytest.raises(ValueError, match="alpha must be a positive number"):
        Schedule(100, 7, alpha)
