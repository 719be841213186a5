"""Covariances from few and many states; powers and geometric means of matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_kmc.adaptation.metric import geometric_mean, shrunk_covariance, symmetric_power

DETERMINED = settings(deadline=None, derandomize=True)
seeds = st.integers(0, 10_000)
dimensions = st.integers(1, 6)


def positive_definite(seed, d, spread=2.0):
    """With eigenvalues from 10^-spread to 10^spread."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (Q * 10 ** rng.uniform(-spread, spread, d)) @ Q.T


def assert_close(A, B, rtol=1e-8):
    np.testing.assert_allclose(A, B, rtol=0, atol=rtol * max(np.abs(A).max(), np.abs(B).max()))


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


# Powers


@given(seed=seeds, d=dimensions, power=st.floats(-2, 2))
@DETERMINED
def test_powers(seed, d, power):
    A = positive_definite(seed, d, spread=1.0)
    B = symmetric_power(A, power)
    assert_close(B, B.T)
    assert_close(np.linalg.eigvalsh(B), np.sort(np.linalg.eigvalsh(A) ** power))
    assert_close(B @ symmetric_power(A, 1 - power), A)


def test_power_of_a_singular_matrix_is_finite():
    A = np.diag([1.0, 0.0])
    assert np.all(np.isfinite(symmetric_power(A, -0.5)))
    assert_close(symmetric_power(A, 0.5), A, rtol=1e-5)


# Geometric mean


@given(seed=seeds, d=dimensions)
@DETERMINED
def test_geometric_mean_solves_its_equation(seed, d):
    """G A^-1 G = B, and G is symmetric and positive definite: there is only one such matrix."""
    A, B = positive_definite(seed, d), positive_definite(seed + 1, d)
    G = geometric_mean(A, B)
    assert_close(G, G.T)
    assert np.linalg.eigvalsh(0.5 * (G + G.T))[0] > 0
    assert_close(G @ np.linalg.solve(A, G), B, rtol=1e-6)


@given(seed=seeds, d=dimensions)
@DETERMINED
def test_geometric_mean_is_symmetric_in_its_arguments(seed, d):
    A, B = positive_definite(seed, d), positive_definite(seed + 1, d)
    assert_close(geometric_mean(A, B), geometric_mean(B, A), rtol=1e-6)


def test_geometric_mean_where_it_is_known():
    A, B = np.diag([1.0, 4.0]), np.diag([9.0, 25.0])
    assert_close(geometric_mean(A, B), np.diag([3.0, 10.0]))
    C = positive_definite(5, 4)
    assert_close(geometric_mean(C, C), C)
    assert_close(geometric_mean(C, np.linalg.inv(C)), np.eye(4))


def test_geometric_mean_does_not_depend_on_the_coordinates():
    A, B = positive_definite(6, 3), positive_definite(7, 3)
    T = np.array([[1.0, 0.3, 0.0], [0.0, 2.0, -0.5], [0.7, 0.0, 1.0]])
    assert_close(
        geometric_mean(T @ A @ T.T, T @ B @ T.T), T @ geometric_mean(A, B) @ T.T, rtol=1e-6
    )
