"""The chain's history and systematic sampling from it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_kmc.adaptation.history import GrowingArray, systematic_sample


def filled(n, d=2):
    states = np.arange(n * d, dtype=float).reshape(n, d)
    history = GrowingArray(d)
    for state in states:
        history.append(state)
    return history, states


@pytest.mark.parametrize("n", [1, 255, 256, 257, 2000])
def test_keeps_every_state_in_order(n):
    history, states = filled(n)
    assert len(history) == n
    np.testing.assert_array_equal(history.recent(1.0), states)


@pytest.mark.parametrize(("fraction", "n_kept"), [(0.5, 150), (0.501, 151), (0.001, 1), (1.0, 300)])
def test_recent_is_the_end(fraction, n_kept):
    history, states = filled(300)
    np.testing.assert_array_equal(history.recent(fraction), states[-n_kept:])


def test_a_state_changed_later_is_kept_as_it_was():
    history, state = GrowingArray(2), np.zeros(2)
    history.append(state)
    state[:] = 1.0
    np.testing.assert_array_equal(history.recent(1.0), [[0.0, 0.0]])


def test_empty():
    history = GrowingArray(3)
    assert len(history) == 0
    assert history.recent(0.5).shape == (0, 3)


@given(
    weights=st.lists(st.integers(0, 20), min_size=1, max_size=40).filter(any),
    n=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, derandomize=True)
def test_counts_are_the_expected_ones_rounded(weights, n, seed):
    weights = np.array(weights, dtype=float)
    indices, counts = systematic_sample(weights, n, np.random.default_rng(seed))
    assert np.all(np.diff(indices) > 0)
    assert counts.sum() == n
    drawn = np.zeros(len(weights))
    drawn[indices] = counts
    assert np.all(np.abs(drawn - n * weights / weights.sum()) < 1 + 1e-9)
    assert not drawn[weights == 0].any()


def test_counts_are_unbiased():
    """20,000 samples of 3 out of 4; a count has an sd of at most .5: within 4.5 standard errors."""
    rng = np.random.default_rng(0)
    weights, total = np.array([1.0, 2.5, 0.5, 4.0]), np.zeros(4)
    for _ in range(20_000):
        indices, counts = systematic_sample(weights, 3, rng)
        total[indices] += counts
    assert np.all(np.abs(total / 20_000 - 3 * weights / 8) < 4.5 * 0.5 / np.sqrt(20_000))


def test_a_sample_as_large_as_the_counts_is_everything():
    indices, counts = systematic_sample(np.array([2.0, 1.0, 3.0]), 6, np.random.default_rng(1))
    np.testing.assert_array_equal(indices, [0, 1, 2])
    np.testing.assert_array_equal(counts, [2, 1, 3])
