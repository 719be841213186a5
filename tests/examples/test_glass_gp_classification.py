"""The main example: its likelihood estimate is unbiased and cheap in variance, and it runs."""

import re

import cloudpickle
import numpy as np
import pytest
from scipy.special import log_expit, logsumexp

from examples import glass_gp_classification as example
from tests.scripts import run_quickly

# A typical point of the posterior (the reference's mean, rounded).
THETA = np.array([-1.3, -1.5, 0.1, -2.1, -2.0, -2.3, -1.0, -2.5, -2.8])


def log_mean(log_values):
    """log of the mean of exp(log_values), and its standard error."""
    log_values = np.asarray(log_values)
    estimate = logsumexp(log_values) - np.log(len(log_values))
    relative = np.exp(log_values - estimate)
    return estimate, relative.std(ddof=1) / len(log_values) ** 0.5


def repeated(classifier, theta, n, seed=0):
    rng = np.random.default_rng(seed)
    return [classifier.log_likelihood_estimate(theta, rng=rng) for _ in range(n)]


@pytest.fixture(scope="module")
def small():
    """A problem small enough for sampling from the prior to be an oracle."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(6, 2)) @ [[1.0, 0.3], [0.0, 2.0]]
    return example.GPClassifier(X, np.array([1.0, 1.0, -1.0, 1.0, -1.0, -1.0]), n_samples=100)


def dense(classifier, theta):
    K = classifier.kernel_matrix(theta)
    return K + np.tril(K, -1).T


def test_kernel_matrix(small):
    theta = np.array([0.4, -0.7])
    rng = np.random.default_rng(5)
    X = rng.normal(size=(6, 2)) @ [[1.0, 0.3], [0.0, 2.0]]
    X = (X - X.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(X.T))).T
    np.testing.assert_allclose(np.cov(X.T), np.eye(2), atol=1e-12)
    difference = X[:, None] - X
    expected = np.exp(-0.5 * np.sum(difference**2 * np.exp(2 * theta), axis=-1))
    np.testing.assert_allclose(dense(small, theta), expected + 1e-3 * np.eye(6), rtol=1e-12)
    assert np.all(np.triu(small.kernel_matrix(theta), 1) == 0)


@pytest.mark.parametrize("theta", [[0.0, 0.0], [-2.0, -1.0], [1.5, 0.5]])
@pytest.mark.parametrize("n_samples", [1, 7, 100])
def test_estimate_is_unbiased_against_draws_from_the_prior(small, theta, n_samples):
    theta = np.array(theta)
    rng = np.random.default_rng(1)
    factor = np.linalg.cholesky(dense(small, theta))
    f = factor @ rng.standard_normal((6, 400_000))
    oracle, oracle_error = log_mean(log_expit(small.y[:, None] * f).sum(axis=0))

    small.n_samples = n_samples
    estimate, error = log_mean(repeated(small, theta, 4000 // n_samples + 200))
    assert abs(estimate - oracle) < 4 * np.hypot(error, oracle_error)
    # Without these the comparison would say little.
    assert oracle_error < 0.005
    assert error < 0.02


def test_one_and_a_hundred_samples_agree_on_glass():
    one, one_error = log_mean(repeated(example.glass_classifier(1), THETA, 3000))
    hundred, hundred_error = log_mean(repeated(example.glass_classifier(100), THETA, 300))
    assert one_error < 0.03
    assert hundred_error < 0.005
    assert abs(one - hundred) < 4 * np.hypot(one_error, hundred_error)


def test_a_hundred_samples_leave_little_noise():
    # Measured at points of the posterior: 0.0015. Noise of variance 1 is where it begins to cost.
    values = repeated(example.glass_classifier(100), THETA, 200)
    assert np.var(values, ddof=1) < 0.01


def test_the_estimate_has_no_memory():
    classifier = example.glass_classifier(10)
    before = repeated(classifier, THETA, 1, seed=3)
    repeated(classifier, np.zeros(9), 3)
    assert repeated(classifier, THETA, 1, seed=3) == before


def test_it_travels_to_another_process():
    classifier = example.glass_classifier(10)
    copy = cloudpickle.loads(cloudpickle.dumps(classifier))
    assert repeated(copy, THETA, 2) == repeated(classifier, THETA, 2)


@pytest.mark.parametrize("value", [-700.0, -40.0, 5.0, 40.0, 700.0])
def test_far_away_points_have_a_finite_likelihood(value):
    [log_likelihood] = repeated(example.glass_classifier(10), np.full(9, value), 1)
    assert np.isfinite(log_likelihood)
    # 214 labels: no fit at all has log(1/2) each.
    assert -214 * 3 < log_likelihood < 0


def test_what_matters_is_said():
    short, long = -np.log(example.SHORT) + 0.1, -np.log(example.SHORT) - 0.1
    theta = np.full((100, 3), short)
    theta[:50, 1] = theta[:, 2] = long
    np.testing.assert_array_equal(example.relevance(theta), [1.0, 0.5, 0.0])
    said = example.say_what_matters(["Mg", "Ca", "Fe"], theta)
    assert "Surely Mg (1.00). Perhaps Ca (0.50). Hardly Fe (0.00)." in said


@pytest.mark.documentation
def test_the_script_runs(tmp_path):
    printed = run_quickly("glass_gp_classification.py", tmp_path)
    assert re.search(r"Learned in \d+ s: LearnedPosterior of 9 ", printed)
    assert "theta[Ba]" in printed
    assert "What tells window glass from other glass? " in printed
    assert "effective draws" in printed  # of kmc.diagnose
