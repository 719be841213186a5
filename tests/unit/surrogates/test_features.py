"""Random features."""

import numpy as np
import pytest

from pymc_kmc.surrogates.finite import features, random_basis


@pytest.mark.parametrize(
    "kernel, value",
    [
        ("gaussian", lambda square: np.exp(-square / 3.0)),
        ("rational_quadratic", lambda square: 1.0 / (1.0 + square / 3.0)),
    ],
)
def test_random_features_have_the_kernel(kernel, value):
    omega, phase = random_basis(200_000, 2, 3.0, kernel, np.random.default_rng(0))
    x = np.array([0.3, -0.2])
    for y in (x, np.array([1.0, 1.0]), np.array([-2.0, 0.5])):
        product = features(x, omega, phase) @ features(y, omega, phase)
        assert product == pytest.approx(value(((x - y) ** 2).sum()), abs=0.01)
