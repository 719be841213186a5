"""Powers and means of matrices, updated factors, conjugate gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kmc.numerics.linear_algebra import (
    cholesky_update,
    conjugate_gradients,
    geometric_mean,
    symmetric_power,
)
from tests.matrices import DETERMINED, assert_close, dimensions, positive_definite, seeds


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


def test_geometric_mean_of_very_different_scales():
    scales = np.array([1e-7, 1.0, 1e7])
    units = np.outer(scales, scales)
    A, B = positive_definite(8, 3, 0.5), positive_definite(9, 3, 0.5)
    np.testing.assert_allclose(
        geometric_mean(A * units, B * units), geometric_mean(A, B) * units, rtol=1e-6
    )


def test_cholesky_update():
    rng = np.random.default_rng(0)
    A, V = rng.normal(size=(30, 40)), rng.normal(size=(5, 30))
    P = A @ A.T
    U = np.ascontiguousarray(np.linalg.cholesky(P).T)
    cholesky_update(U, V.copy())
    np.testing.assert_allclose(np.triu(U).T @ np.triu(U), P + V.T @ V, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("is_preconditioned", [False, True])
def test_conjugate_gradients(is_preconditioned):
    A = positive_definite(0, 12)
    x = np.random.default_rng(1).normal(size=12)
    solution, norm = conjugate_gradients(
        lambda v: A @ v,
        A @ x,
        tolerance=1e-10,
        n_iterations=500,
        precondition=(lambda v: v / np.diag(A)) if is_preconditioned else None,
    )
    assert norm <= 1e-10
    assert_close(solution, x, rtol=1e-6)


def test_conjugate_gradients_return_their_best_iterate():
    """Of a matrix that isn't positive definite: a direction of negative curvature ends them."""
    A, b = np.diag([1.0, 2.0, -1.0]), np.array([1.0, 1.0, 0.1])
    solution, norm = conjugate_gradients(lambda v: A @ v, b, tolerance=0.0, n_iterations=50)
    assert norm <= np.linalg.norm(b)
    assert norm == pytest.approx(np.linalg.norm(b - A @ solution))
