"""Score matching beside values: the joint system, and what it is good for."""

import numpy as np

from pymc_kmc.surrogates import LogDensityGP
from pymc_kmc.surrogates.gp_parts import Trend
from pymc_kmc.surrogates.regression import score_system, solve_with_scores

RNG = np.random.default_rng(1)


def test_score_matching_alone_gives_the_maximum_likelihood_gaussian():
    """For a Gaussian family it is the sample mean and precision (Hyvarinen, 2005, section 3.1)."""
    X = np.random.default_rng(2).standard_normal((400, 2)) @ np.array([[1.0, 0.4], [0.0, 0.7]])
    trend = Trend.of(2, True, False)
    system = score_system(*trend.derivatives(X), np.zeros(X.shape))
    theta, _ = solve_with_scores(
        trend(X), np.zeros(400), np.ones(400), np.full(5, 1e-9), system, [1e9]
    )
    linear, _, precision = trend.split(theta)
    covariance = np.cov(X.T, bias=True)
    np.testing.assert_allclose(precision, np.linalg.inv(covariance), rtol=1e-4)
    np.testing.assert_allclose(linear, precision @ X.mean(axis=0), rtol=1e-3, atol=1e-4)


def test_no_weight_is_ridge_regression():
    features, values = RNG.standard_normal((30, 4)), RNG.standard_normal(30)
    weights = RNG.uniform(0.5, 1.5, 30)
    weights /= weights.mean()
    theta, scale = solve_with_scores(
        features, values, weights, np.full(4, 0.3), (np.eye(4), np.ones(4)), [0.0]
    )
    F = features - weights @ features / 30
    y = values - weights @ values / 30
    expected = np.linalg.solve(F.T * weights @ F + 0.3 * np.eye(4), F.T * weights @ y)
    assert scale == 0.0
    np.testing.assert_allclose(theta, expected, rtol=1e-9)


def test_states_help_where_values_are_noisy_and_do_no_harm_where_they_are_not():
    """A bent Gaussian with 1000 exact draws: the gradient's error, with and without them."""
    rng = np.random.default_rng(3)
    draws = rng.standard_normal((20_000, 4))
    bend = draws[:, 1] - 0.5 * draws[:, 0] ** 2
    draws = draws[rng.uniform(size=20_000) < np.exp(-0.25 * bend**2)][:1300]
    states, test = draws[:1000], draws[1000:]
    points = np.vstack([states[:400], states[:400] + 0.7 * rng.standard_normal((400, 4))])

    def log_density(X):
        return -0.5 * (X**2).sum(axis=1) - 0.25 * (X[:, 1] - 0.5 * X[:, 0] ** 2) ** 2

    bend = test[:, 1] - 0.5 * test[:, 0] ** 2
    gradient = -test
    gradient[:, 1] -= 0.5 * bend
    gradient[:, 0] += 0.5 * bend * test[:, 0]

    def error(noise, weights):
        values = log_density(points) + noise * np.random.default_rng(4).standard_normal(800)
        gp = LogDensityGP(100, score_weights=weights, rng=0).fit(points, values, reference=states)
        return ((gp.gradient(test) - gradient) ** 2).sum() / (gradient**2).sum()

    assert error(4.0, (0.0, 0.1, 1.0)) < 0.8 * error(4.0, (0.0,))
    assert error(0.0, (0.0, 0.1, 1.0)) < 1.1 * error(0.0, (0.0,))
