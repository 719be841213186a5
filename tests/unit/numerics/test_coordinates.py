"""Changes of variables: there and back, volumes, gradients."""

import copy

import cloudpickle
import numpy as np
import pytest
from scipy.optimize import approx_fprime

from pymc_kmc.numerics.coordinates import IDENTITY, Coordinates, ScaleWarp

D = 3
MATRIX = np.array([[1.5, 0.2, 0.0], [-0.4, 0.8, 0.1], [0.3, 0.0, 2.0]])
ORIGIN = np.array([0.5, -1.0, 2.0])

# Linear


@pytest.mark.parametrize("shape", [(D,), (5, D)])
def test_coordinates_there_and_back(shape):
    coordinates = Coordinates(ORIGIN, MATRIX)
    X = np.random.default_rng(8).standard_normal(shape)
    U = coordinates.forward(X)
    assert U.shape == shape
    np.testing.assert_allclose(U, np.squeeze([MATRIX @ (x - ORIGIN) for x in np.atleast_2d(X)]))
    np.testing.assert_allclose(coordinates.backward(U), X, atol=1e-12)


def test_identity_changes_nothing():
    coordinates = Coordinates.identity(D)
    X = np.random.default_rng(0).standard_normal((80, D))
    np.testing.assert_array_equal(coordinates.forward(X), X)
    np.testing.assert_array_equal(coordinates.backward(X), X)


def test_gradient_against_finite_differences():
    """Of a quartic: its gradient in u is known."""
    coordinates = Coordinates(ORIGIN, MATRIX)
    X = np.random.default_rng(9).standard_normal((4, D))
    gradients = coordinates.backward_gradient(4.0 * coordinates.forward(X) ** 3)
    for x, gradient in zip(X, gradients, strict=True):
        numerical = approx_fprime(x, lambda x: np.sum(coordinates.forward(x) ** 4), 1e-7)
        np.testing.assert_allclose(gradient, numerical, rtol=1e-4)


# Warps


def any_warp(rng):
    return ScaleWarp(
        drivers=np.array([3, 1]),
        driven=np.array([0, 4]),
        others=np.array([1, 2, 3]),
        centre=rng.standard_normal(5),
        location=rng.standard_normal(2),
        location_slopes=rng.standard_normal((2, 3)),
        scale_slopes=rng.standard_normal((2, 2)),
        lowest=np.array([-0.5, -1.0]),
        highest=np.array([1.0, 0.5]),
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_warp_is_a_bijection_of_the_volume_that_it_says(seed):
    rng = np.random.default_rng(seed)
    warp, X = any_warp(rng), 2.0 * rng.standard_normal((50, 5))
    Y = warp.forward(X)
    assert np.abs(Y - X).max() > 1.0
    np.testing.assert_allclose(warp.backward(Y), X, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(warp.log_volume(Y), warp.log_volume(X), atol=1e-12)
    for x, y, log_volume in zip(X[:5], Y, warp.log_volume(X), strict=False):
        np.testing.assert_allclose(warp.forward(x), y, rtol=1e-12)
        jacobian = approx_fprime(y, warp.backward, 1e-7)
        assert np.log(abs(np.linalg.det(jacobian))) == pytest.approx(log_volume, abs=1e-5)


def test_numbers_out_of_all_proportion_stay_finite():
    """Log scales are bounded: nothing overflows where nobody has been."""
    warp = any_warp(np.random.default_rng(0))
    X = 1e6 * np.random.default_rng(1).standard_normal((20, 5))
    assert np.isfinite(warp.forward(X)).all() and np.isfinite(warp.backward(X)).all()


def test_there_is_one_identity():
    assert copy.deepcopy(IDENTITY) is IDENTITY
    assert cloudpickle.loads(cloudpickle.dumps(IDENTITY)) is IDENTITY
