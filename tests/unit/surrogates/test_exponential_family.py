"""What values do for exponential families: a Gaussian base, and a correction of scores' fit."""

import numpy as np
import pytest

from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite
from pymc_kmc.surrogates.exponential_family import gaussian_from_values, whitened


def gaussian(d, rng):
    """A mean, a covariance and the log density that belongs to them."""
    root = rng.standard_normal((d, d))
    covariance, mean = root @ root.T + 0.1 * np.eye(d), rng.standard_normal(d)
    precision = np.linalg.inv(covariance)

    def log_density(X):
        return 3.0 - 0.5 * np.einsum("ni,ij,nj->n", X - mean, precision, X - mean)

    return mean, covariance, precision, log_density


def test_gaussian_is_found_from_a_wrong_start():
    rng = np.random.default_rng(2)
    mean, _, precision, log_density = gaussian(4, rng)
    X = rng.standard_normal((200, 4))
    base = gaussian_from_values(X, log_density(X), np.ones(200), np.zeros(4), np.eye(4))
    np.testing.assert_allclose(base.precision, precision, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(base.mean, mean, rtol=1e-3, atol=1e-3)


def test_gaussian_stays_positive_definite_where_the_values_are_convex():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 3))
    values = (X**2).sum(axis=1)
    base = gaussian_from_values(X, values, np.ones(200), np.zeros(3), np.eye(3))
    eigenvalues = np.linalg.eigvalsh(base.precision)
    assert eigenvalues.min() == pytest.approx(1 / 4.5**2)
    assert np.linalg.norm(base.mean) <= 3.0 * np.sqrt(3) + 1e-9


def test_whitened_features_have_the_grams_norm():
    rng = np.random.default_rng(4)
    root = rng.standard_normal((6, 6))
    gram, features = root @ root.T, rng.standard_normal((9, 6))
    new, matrix = whitened(features, gram)
    coefficients = rng.standard_normal(6)
    np.testing.assert_allclose(new @ coefficients, features @ (matrix @ coefficients))
    norm = (matrix @ coefficients) @ gram @ (matrix @ coefficients)
    assert norm == pytest.approx(coefficients @ coefficients)


@pytest.mark.parametrize(
    "surrogate",
    [
        KernelExpLite(8.0, 0.1, penalty="rkhs", base="gaussian"),
        KernelExpFinite(100, 8.0, 1e-3, base="gaussian", rng=0),
    ],
    ids=["lite", "finite"],
)
def test_correction_moves_towards_the_values_and_leaves_the_original(surrogate):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((150, 2))
    X[:, 1] += 0.5 * (X[:, 0] ** 2 - 1)

    def log_density(Y):
        return -0.5 * Y[:, 0] ** 2 - 0.5 * (Y[:, 1] - 0.5 * (Y[:, 0] ** 2 - 1)) ** 2

    surrogate.fit(X)
    before = surrogate.log_density(X)
    corrected = surrogate.corrected(X, log_density(X), np.ones(len(X)))
    new = rng.standard_normal((200, 2))
    errors = [(s.log_density(new) - log_density(new)).std() for s in (surrogate, corrected)]
    assert errors[1] < 0.5 * errors[0]
    np.testing.assert_array_equal(surrogate.log_density(X), before)
    if hasattr(surrogate, "update"):
        corrected.update(new)
        assert surrogate.update(X[:10]).total_weight_ == len(X) + 10
        before = surrogate.log_density(X)
    noisy = 30.0 * rng.standard_normal(len(X))
    unmoved = surrogate.corrected(X, before + noisy, np.ones(len(X)))
    assert np.std(unmoved.log_density(X) - before) < 15.0
