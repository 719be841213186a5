"""What the covariance of an exact Gaussian process may be extended by."""

from itertools import combinations

import numpy as np
import pytest

from pymc_kmc.surrogates.additive_kernel import AdditiveKernel
from pymc_kmc.surrogates.exact_gp import ExactGP


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("ratio", [1e-9, 0.1, 2.0])
def test_the_additive_kernel_is_a_sum_over_coordinates_and_pairs(ratio, rng):
    U, V, log_lengths = rng.normal(size=(5, 4)), rng.normal(size=(3, 4)), rng.normal(size=4)
    kernel = AdditiveKernel(0.3, np.log(ratio), log_lengths)
    g = np.exp(-0.5 * ((U[:, None] - V) / np.exp(log_lengths)) ** 2)
    pairs = sum(g[:, :, i] * g[:, :, j] for i, j in combinations(range(4), 2))
    expected = np.exp(0.3) * (g.sum(axis=2) + ratio * pairs)
    np.testing.assert_allclose(kernel(U, V), expected, rtol=1e-12)
    np.testing.assert_allclose(kernel.prior(U), np.diag(kernel(U, U)), rtol=1e-12)


def test_grids_take_the_place_of_points(rng):
    """Also of some far from all others, and of points beyond them."""
    U = np.vstack([rng.normal(size=(200, 3)), [[30.0, 0.0, -8.0]]])
    weights = rng.normal(size=(len(U), 2))
    kernel = AdditiveKernel(0.0, -1.0, np.array([-0.5, 0.3, 1.5]))
    knots, linear, pairs = kernel.on_grids(U, weights)
    X = np.vstack([1.5 * rng.normal(size=(200, 3)), [[30.0, 0.5, -7.0]]])
    at = np.hstack(
        [
            np.exp(-0.5 * (x[:, None] - own) ** 2)
            for x, own in zip((X * kernel.factors[2]).T, knots, strict=True)
        ]
    )
    found = at @ linear.T + 0.5 * np.einsum("nk,mkl,nl->nm", at, pairs, at)
    expected = kernel(X, U) @ weights
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


def errors(process, X, values, extension):
    """Errors at the last half of the points of a fit to the first."""
    n = len(X) // 2
    process.fit(X[:n], values[:n, None], extension=extension)
    assert process.extension == extension
    return np.std(process.predict(X[n:]).mean[:, 0] - values[n:])


def test_functions_of_few_coordinates_are_learned_from_few_values(rng):
    """Whatever the directions in which the process has its coordinates."""
    scales = np.array([1e-3, 1.0, 30.0, 1.0, 1.0, 1.0])
    U = rng.normal(size=(320, 6))
    values = np.tanh(2.0 * U).sum(axis=1) + np.sin(2.0 * U[:, 0]) * np.cos(U[:, 1])
    whitening = np.linalg.qr(rng.normal(size=(6, 6)))[0] / scales

    def error(extension):
        return errors(ExactGP(whitening, np.zeros(6)), U * scales, values, extension)

    assert error("additive") < 0.35 * error(None)


@pytest.mark.parametrize("seed", range(4))
def test_heavy_tails_are_learned_from_few_values(seed):
    """Also where the process has its coordinates from an estimate of the covariance.

    Errors at others are .11 to .28 with radial terms, .20 to 1.6 without.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(240, 6)) / np.sqrt(rng.chisquare(5.0, size=(240, 1)) / 5.0)
    values = -5.5 * np.log1p((X**2).sum(axis=1) / 5.0)
    sample = X[:40]
    whitening = np.linalg.inv(np.linalg.cholesky(np.cov(sample.T)))

    def fitted(extension):
        process = ExactGP(whitening, sample.mean(axis=0))
        return process, errors(process, X, values, extension)

    (process, radial), (plain, without) = fitted("radial"), fitted(None)
    assert radial < min(0.8 * without, 0.35)
    far = 30.0 * np.eye(6)
    expected = -5.5 * np.log1p(900.0 / 5.0)
    assert np.abs(process.predict(far).mean - expected).max() < 15.0
    assert np.abs(plain.predict(far).mean - expected).max() > 100.0
