"""Covariances from few and many states, whatever their scales; whitening."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kmc.numerics.samples import (
    apart,
    count_distinct,
    distinct_rows,
    mean_values,
    shrunk_covariance,
    unique_rows,
    whitening,
)
from tests.matrices import DETERMINED, assert_close, dimensions, positive_definite, seeds

# Covariance


def test_of_many_states_is_the_samples():
    covariance = positive_definite(0, 4)
    X = np.random.default_rng(1).multivariate_normal(np.ones(4), covariance, size=2000)
    assert_close(shrunk_covariance(X), np.cov(X.T, bias=True), rtol=5e-3)


def test_weights_are_repetitions():
    rng = np.random.default_rng(2)
    X, counts = rng.standard_normal((30, 3)), rng.integers(1, 6, 30)
    repeated = shrunk_covariance(np.repeat(X, counts, axis=0))
    assert_close(shrunk_covariance(X, counts), repeated, rtol=1e-12)


@given(seed=seeds, d=dimensions, n=st.integers(1, 12))
@DETERMINED
def test_of_few_states_is_positive_definite_and_shrunk_towards_its_diagonal(seed, d, n):
    X = np.random.default_rng(seed).standard_normal((n, d))
    shrunk, plain = shrunk_covariance(X), np.atleast_2d(np.cov(X.T, bias=True))
    np.linalg.cholesky(shrunk)
    if n > 1:
        assert_close(np.diag(shrunk), np.diag(plain), rtol=1e-6)
        off = ~np.eye(d, dtype=bool)
        assert np.all(np.abs(shrunk[off]) <= np.abs(plain[off]) + 1e-12)
        assert np.all(shrunk[off] * plain[off] >= 0)


@pytest.mark.parametrize("n", [1, 50])
def test_of_a_chain_that_never_moved(n):
    np.linalg.cholesky(shrunk_covariance(np.ones((n, 3))))


def test_of_a_chain_that_never_moved_in_one_coordinate():
    X = np.random.default_rng(3).standard_normal((200, 3))
    X[:, 1] = 7.0
    np.linalg.cholesky(shrunk_covariance(X))


@pytest.mark.parametrize("place", [0.0, 0.7, 1e5 + 0.1])
def test_rounding_is_no_movement(place):
    """The mean of many times 0.7 isn't 0.7."""
    X = np.random.default_rng(4).standard_normal((200, 2))
    X[:, 1] = place
    variances = np.diag(shrunk_covariance(X))
    assert variances[1] == pytest.approx(1e-9 * variances[0], rel=0.01)


def test_scales_don_t_matter():
    """Units that differ by 1e12 lose nothing: neither jitter nor floors know of the largest."""
    scales = np.array([1e-6, 1.0, 1e6])
    X = np.random.default_rng(5).multivariate_normal(np.ones(3), positive_definite(6, 3, 0.5), 100)
    plain, scaled = shrunk_covariance(X), shrunk_covariance(X * scales)
    np.testing.assert_allclose(scaled, plain * np.outer(scales, scales), rtol=1e-6)
    W = whitening(scaled)
    np.testing.assert_allclose(W @ scaled @ W.T, np.eye(3), atol=1e-7)
    np.testing.assert_allclose(W * scales, whitening(plain), rtol=1e-6, atol=1e-9)


def test_the_share_of_the_diagonal_can_be_given():
    X = np.random.default_rng(6).multivariate_normal(np.zeros(2), [[1.0, 0.8], [0.8, 1.0]], 500)
    half, plain = shrunk_covariance(X, share=0.5), np.cov(X.T, bias=True)
    assert half[0, 1] == pytest.approx(0.5 * plain[0, 1])
    np.testing.assert_allclose(np.diag(half), np.diag(plain), rtol=1e-8)


def test_distinct_states_are_those_that_differ_from_the_one_before():
    assert count_distinct(np.zeros((7, 2))) == 1
    assert count_distinct(np.array([[0.0, 1], [0, 1], [0, 2], [3, 2], [3, 2]])) == 3


# Repetitions

ROWS = np.array([[1.0, 2], [0, 3], [1, 2], [-0.0, 3], [5, 5], [1, 2]])


def test_distinct_rows_keep_the_order_of_their_first_appearance():
    first, group = distinct_rows(ROWS)
    np.testing.assert_array_equal(first, [0, 1, 4])
    np.testing.assert_array_equal(group, [0, 1, 0, 1, 2, 0])


def test_merged_rows_have_the_sum_of_the_weights():
    X, weights = unique_rows(ROWS, np.array([1.0, 2, 3, 4, 0, 6]))
    np.testing.assert_array_equal(X, ROWS[:2])  # a row of weight zero is dropped
    np.testing.assert_array_equal(weights, [10.0, 6.0])


def test_merged_rows_have_the_mean_of_the_values():
    X, means = mean_values(ROWS, np.array([1.0, 2, 3, 4, 7, 8]))
    np.testing.assert_array_equal(X, ROWS[[0, 1, 4]])
    np.testing.assert_array_equal(means, [4.0, 3.0, 7.0])


def test_repetitions_and_points_beyond_a_number_are_left_out():
    X, usable = np.random.default_rng(0).normal(size=(30, 1)), np.arange(30) != 7
    chosen = apart(np.vstack([X, X]), np.tile(usable, 2), np.ones(1), 12)
    assert chosen.sum() == 12
    assert not chosen[[7, 37]].any()
    assert apart(np.vstack([X, X]), np.tile(usable, 2), np.ones(1), 100).sum() == 29
