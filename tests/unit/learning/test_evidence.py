"""The log evidence, against closed forms."""

import warnings

import numpy as np
import pymc as pm
from scipy.stats import multivariate_normal, multivariate_t, norm

import pymc_kmc as kmc
from pymc_kmc.learning.evidence import bridge, log_mean


def test_bridge_of_a_gaussian():
    rng = np.random.default_rng(0)
    density = multivariate_normal([3.0, -2.0], [[2.0, 0.9], [0.9, 0.5]])
    X = density.rvs(2000, random_state=rng)
    found = bridge(X, density.logpdf(X) + 7.0, lambda X: density.logpdf(X) + 7.0, rng)
    # Five standard errors: a false-alarm rate below 1e-6.
    assert abs(found.value - 7.0) < 5 * found.error
    assert found.error < 0.03


def test_errors_of_the_bridge_cover():
    # Heavier tails than the proposal's.
    density = multivariate_t(np.zeros(3), np.eye(3), 3)
    z = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X = density.rvs(400, random_state=rng)
        found = bridge(X, density.logpdf(X), density.logpdf, rng)
        z.append(found.value / found.error)
    # The mean of 100 squares of standard normals, five standard errors: 1 +- .7.
    assert 0.3 < np.mean(np.square(z)) < 1.7


def test_one_dimension():
    rng = np.random.default_rng(1)
    X = rng.gamma(5.0, size=(2000, 1))

    def log_density(X):
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(X[:, 0] > 0, 4.0 * np.log(X[:, 0]) - X[:, 0], -np.inf)

    found = bridge(X, log_density(X), log_density, rng)
    assert abs(found.value - np.log(24.0)) < 5 * found.error


def test_log_of_a_mean():
    found = log_mean(np.log([1.0, 3.0]) + 800.0)
    np.testing.assert_allclose(found.value, 800.0 + np.log(2.0))
    np.testing.assert_allclose(found.error, 0.5 / np.sqrt(2))


def test_evidence_of_a_conjugate_model():
    rng = np.random.default_rng(4)
    design, noise = rng.standard_normal((6, 2)), 0.5
    y = rng.standard_normal(6)
    with pm.Model() as model:
        x = pm.Normal("x", 1.0, 2.0, shape=2)
        mean = kmc.BlackBox("line", lambda x: design @ x, x, shape=6)
        pm.Normal("y", mean, noise, observed=y)
    covariance = noise**2 * np.eye(6) + 4.0 * design @ design.T
    exact = multivariate_normal(design @ np.ones(2), covariance).logpdf(y)
    learned = kmc.learn(model, progressbar=False)
    value, error = learned.log_evidence
    # Five standard errors: a false-alarm rate below 1e-6.
    assert abs(value - exact) < 5 * error
    assert error < 0.05


def test_evidence_of_a_noisy_likelihood():
    def estimate(x, rng):
        # Right in the mean of the likelihood, .5 too low in that of its logarithm.
        return norm.logpdf(0.7, x) + rng.standard_normal() - 0.5

    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        kmc.PseudoMarginalPotential("p", estimate, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned = kmc.learn(model, max_evaluations=120, progressbar=False)
    value, error = learned.log_evidence
    # Five standard errors: a false-alarm rate below 1e-6.
    assert abs(value - norm.logpdf(0.7, 0.0, np.sqrt(2.0))) < 5 * error
    assert error < 0.4
