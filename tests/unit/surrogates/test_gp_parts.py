"""Features of a Gaussian-process log density's parts, and their derivatives."""

import numpy as np
import pytest

from pymc_kmc.surrogates.gp_parts import AdditivePart, KernelChoice, KernelPart, Trend
from pymc_kmc.surrogates.kernels import KERNELS, squared_distances

RNG = np.random.default_rng(1)
Z = RNG.standard_normal((7, 3))
STEP = 1e-5


def numerical_derivatives(features, Z):
    gradients, laplacians = [], 0.0
    for shift in np.eye(Z.shape[1]):
        ahead, here, behind = (features(Z + k * STEP * shift) for k in (1, 0, -1))
        gradients.append((ahead - behind) / (2 * STEP))
        far = features(Z + 1e-3 * shift) - 2 * here + features(Z - 1e-3 * shift)
        laplacians = laplacians + far / 1e-6
    return gradients, laplacians


def assert_derivatives(derivatives, features):
    gradients, laplacians = derivatives(Z)
    expected, expected_laplacians = numerical_derivatives(features, Z)
    for gradient, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-6)
    np.testing.assert_allclose(laplacians, expected_laplacians, atol=1e-3)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("radial", [True, False])
def test_derivatives_of_the_trend(full, radial):
    trend = Trend.of(3, full, radial)
    assert_derivatives(trend.derivatives, trend)
    assert_derivatives(trend.without_quadratic().derivatives, trend.without_quadratic())


AXES = np.array([[1.0, 0.3, 0.0], [-0.2, 0.8, 0.1], [0.0, 0.0, 2.0]])
ADDITIVE = {
    "none": AdditivePart.none(3),
    "some": AdditivePart(AXES, -np.ones(3), 5, 30.0, 2.0),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("additive", ADDITIVE.values(), ids=ADDITIVE)
def test_derivatives_of_the_kernel_part(kernel, additive):
    X = RNG.standard_normal((40, 3))
    matrix = np.array([[0.5, 0.1, 0.0], [0.0, 0.3, 0.2]])
    choice = KernelChoice(kernel, 2.0 * matrix, None, additive)
    part, features = KernelPart.of(choice, 2.0, X, np.ones(40), 12)
    again, rest = part(X)
    np.testing.assert_allclose(again, features, atol=1e-8)
    kernels = kernel.values(squared_distances(X @ matrix.T, X @ matrix.T))
    products = features[:, -12:] @ features[:, -12:].T
    np.testing.assert_allclose(rest, np.diag(kernels - products), atol=1e-8)
    assert_derivatives(part.derivatives, lambda Z: part(Z)[0])


def test_features_of_the_additive_part_are_orthonormal():
    """Their products are the kernel's values: the variance times a Gaussian of each coordinate."""
    grid = np.arange(5)
    U = np.column_stack([grid, grid[::-1], np.roll(grid, 1)])
    part = AdditivePart(np.eye(3), np.zeros(3), 5, 30.0, 2.0)
    features = part(U)
    kernel = sum(np.exp(-0.5 * ((u[:, None] - u) / 2.0) ** 2) for u in U.T)
    np.testing.assert_allclose(features @ features.T, 30.0 * kernel, rtol=1e-5)
