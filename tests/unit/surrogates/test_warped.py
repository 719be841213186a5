"""A surrogate in other coordinates: its density is transformed, its gradient follows."""

import numpy as np
import pytest

from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.surrogates.protocol import WarpedPredictor, WarpedSurrogate
from tests.fitted import stretching_warp

X = np.random.default_rng(0).normal(size=(6, 2))


class Normal:
    n_features_in_ = 2

    def log_density(self, X):
        return -0.5 * np.sum(X**2, axis=-1)

    def gradient(self, X):
        return -np.asarray(X)

    def predict(self, X, return_std=False):
        means = self.log_density(X) + 7.0
        return (means, np.abs(X[..., 0])) if return_std else means


@pytest.mark.parametrize("warp", [stretching_warp(), Coordinates([1.0, 2.0], [[2.0, 0], [1, 3]])])
def test_density_and_gradient(warp):
    """By the determinant of the map's Jacobian, and by differences of the density."""
    surrogate = WarpedSurrogate(Normal(), warp)
    found, steps = surrogate.log_density(X), 1e-5 * np.eye(2)
    for x, value in zip(X, found, strict=True):
        jacobian = np.array([(warp.forward(x + h) - warp.forward(x - h)) / 2e-5 for h in steps])
        expected = -0.5 * np.sum(warp.forward(x) ** 2) + np.log(abs(np.linalg.det(jacobian)))
        assert value == pytest.approx(expected, abs=1e-6)
        assert surrogate.log_density(x) == pytest.approx(value)
    for i, h in enumerate(steps):
        slopes = (surrogate.log_density(X + h) - surrogate.log_density(X - h)) / 2e-5
        np.testing.assert_allclose(surrogate.gradient(X)[:, i], slopes, atol=1e-5)
    np.testing.assert_allclose(surrogate.gradient(X[0]), surrogate.gradient(X)[0])


def test_predictions():
    warp = stretching_warp()
    surrogate = WarpedPredictor(Normal(), warp)
    means, stds = surrogate.predict(X, return_std=True)
    np.testing.assert_allclose(means, surrogate.log_density(X) + 7.0)
    np.testing.assert_allclose(stds, np.abs(warp.forward(X)[:, 0]))
    assert surrogate.predict(X[0]) == pytest.approx(means[0])
    assert not hasattr(WarpedSurrogate(Normal(), warp), "predict")
