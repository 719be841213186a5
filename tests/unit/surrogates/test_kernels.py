"""Kernels: derivatives, and what compiled code makes of them."""

import numpy as np
import pytest

from pymc_kmc.surrogates.kernels import (
    KERNELS,
    gaussian_kernel,
    kernel_at,
    squared_distances,
    weigh_kernels,
)

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
SQUARES = np.linspace(0.0, 60.0, 37)


def test_squared_distances_far_from_the_origin():
    X = np.random.default_rng(0).normal(size=(10, 3))
    direct = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(X + 1e7, X + 1e7), direct, atol=1e-7)
    np.testing.assert_allclose(gaussian_kernel(X, X, 2.0), np.exp(-direct / 2.0), rtol=1e-13)


@every_kernel
def test_slopes_and_curvatures_are_derivatives_in_half_the_square(kernel):
    squares, step = SQUARES + 1.0, 1e-6  # s = r^2 / 2 moves by half of the step
    ahead, behind = squares + step, squares - step
    slopes = -(kernel.values(ahead) - kernel.values(behind)) / step
    np.testing.assert_allclose(kernel.slopes(squares), slopes, rtol=1e-5, atol=1e-9)
    curvatures = -(kernel.slopes(ahead) - kernel.slopes(behind)) / step
    np.testing.assert_allclose(kernel.curvatures(squares), curvatures, rtol=1e-5, atol=1e-9)


@every_kernel
def test_compiled_twins(kernel):
    one_by_one = [kernel_at(kernel.tag, square) for square in SQUARES]
    np.testing.assert_allclose(one_by_one, kernel.values(SQUARES), rtol=1e-14)
    terms, weights = SQUARES.copy(), np.linspace(-1.0, 2.0, len(SQUARES))
    total = weigh_kernels(kernel.tag, terms, weights, np.empty(len(terms)), len(terms))
    np.testing.assert_allclose(total, weights @ kernel.values(SQUARES), rtol=1e-13)
    np.testing.assert_allclose(terms, weights * kernel.slopes(SQUARES), rtol=1e-13)
