"""The regressions behind surrogates against brute force."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_kmc.surrogates.regression import (
    BayesianRegression,
    NewFeature,
    OnlineRegression,
    ridge_regression,
)

RNG = np.random.default_rng(1)
N = 25
FEATURES, KERNEL = RNG.standard_normal((N, 3)), RNG.standard_normal((N, 4))
VALUES = FEATURES @ [1.0, -2.0, 0.5] + 0.3 * RNG.standard_normal(N) + 7.0
WEIGHTS = RNG.uniform(0.3, 2.0, N)
WEIGHTS /= WEIGHTS.mean()
NONE = np.zeros((N, 0))


def brute_force(ridge, kernel_ridge):
    """Largest log likelihood over s^2 of the weighted, centred values; a constant is left out."""
    root = np.sqrt(WEIGHTS)

    def centred(a):
        return ((a - WEIGHTS @ a / N).T * root).T

    F, P, y = centred(FEATURES), centred(KERNEL), centred(VALUES)
    covariance = np.eye(N) + F @ F.T / ridge + P @ P.T / kernel_ridge
    variance = y @ np.linalg.solve(covariance, y) / N
    return multivariate_normal.logpdf(y, cov=variance * covariance), variance


def test_evidence_is_the_marginal_likelihood():
    regression = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.1, 3.0])
    fits = [
        regression.fit(KERNEL, np.array([kernel_ridge]), ridges=[ridge])
        for ridge in (0.1, 3.0)
        for kernel_ridge in (0.01, 5.0)
    ]
    expected = [brute_force(fit.ridge, fit.more_ridge) for fit in fits]
    np.testing.assert_allclose([fit.variance for fit in fits], [v for _, v in expected])
    differences = [fit.log_evidence - e for fit, (e, _) in zip(fits, expected, strict=True)]
    np.testing.assert_allclose(differences, differences[0])
    alone = regression.fit(NONE)
    assert alone.log_evidence - brute_force(alone.ridge, 1e12)[0] == pytest.approx(differences[0])


def test_the_best_of_the_grid_is_chosen_and_solves_the_ridge_problem():
    ridges, kernel_ridges = [0.01, 1.0, 100.0], np.array([0.01, 1.0, 100.0])
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, ridges).fit(KERNEL, kernel_ridges)
    best = max((brute_force(r, k)[0], r, k) for r in ridges for k in kernel_ridges)
    assert (fit.ridge, fit.more_ridge) == best[1:]
    F = np.hstack([FEATURES, KERNEL])
    F = F - WEIGHTS @ F / N
    gram = F.T * WEIGHTS @ F + np.diag([fit.ridge] * 3 + [fit.more_ridge] * 4)
    expected = np.linalg.solve(gram, F.T * WEIGHTS @ (VALUES - WEIGHTS @ VALUES / N))
    solution = fit.coefficients
    np.testing.assert_allclose(solution, expected, rtol=1e-6)


def test_a_second_group_of_one_feature():
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.1]).fit(KERNEL[:, :1], np.ones(1))
    both = np.hstack([FEATURES, KERNEL[:, :1]])
    centred = both - WEIGHTS @ both / N
    rhs = (centred.T * WEIGHTS) @ (VALUES - WEIGHTS @ VALUES / N)
    expected = np.linalg.solve((centred.T * WEIGHTS) @ centred + np.diag([0.1] * 3 + [1.0]), rhs)
    np.testing.assert_allclose(fit.coefficients, expected)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_cannot_be_factorised_is_a_fit_of_no_evidence():
    fit = BayesianRegression(np.full((N, 2), np.inf), VALUES, WEIGHTS, [1.0]).fit(KERNEL)
    assert fit.log_evidence == -np.inf
    assert np.isfinite(fit.coefficients).all()


def test_the_constant_is_the_one_of_the_largest_likelihood():
    """Found by the generalised least squares of the values' own covariance, not by centring."""
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.3]).fit(KERNEL, np.array([2.0]))
    F = np.hstack([FEATURES, KERNEL])
    F = F - WEIGHTS @ F / N
    covariance = np.diag(1 / WEIGHTS) + F * ([1 / 0.3] * 3 + [1 / 2.0] * 4) @ F.T
    inverse = np.linalg.inv(covariance)
    constant = inverse.sum(axis=0) @ VALUES / inverse.sum()
    variance = (VALUES - constant) @ inverse @ (VALUES - constant) / N
    assert fit.variance == pytest.approx(variance)
    # The weights' determinant is the constant that is left out.
    expected = multivariate_normal(np.full(N, constant), variance * covariance).logpdf(VALUES)
    left_out = 0.5 * np.log(WEIGHTS).sum() - 0.5 * N * (1 + np.log(2 * np.pi))
    assert fit.log_evidence == pytest.approx(expected - left_out)


def test_scale_of_the_weights_and_level_of_the_values_do_not_matter():
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.1]).fit(KERNEL)
    moved = BayesianRegression(FEATURES + 3.0, VALUES - 1e4, 50.0 * WEIGHTS, [0.1])
    for value, other in zip(fit, moved.fit(KERNEL - 2.0), strict=True):
        np.testing.assert_allclose(other, value, rtol=1e-6)


def test_evidence_rewards_what_is_there_and_nothing_else():
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal((300, 2)), rng.standard_normal((300, 4))
    noise, ridges = rng.standard_normal(300), 10.0 ** np.arange(-3.0, 3.0)
    absent = BayesianRegression(first, first[:, 0] + noise, np.ones(300), ridges)
    present = BayesianRegression(first, 2.0 * second[:, 1] + noise, np.ones(300), ridges)
    assert absent.fit(second).log_evidence < absent.fit(second[:, :0]).log_evidence + 0.1
    found = present.fit(second)
    assert found.log_evidence > present.fit(second[:, :0]).log_evidence + 50.0
    assert found.variance == pytest.approx(1.0, abs=0.35)  # four standard errors


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_second_group_that_overflows_is_a_fit_of_no_evidence(bad):
    features = KERNEL.copy()
    features[0, 0] = bad
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [1e-3, 1.0]).fit(features)
    assert fit.log_evidence == -np.inf


def test_ridges_below_the_rounding_errors_are_no_candidates():
    """Values that the second group explains, the better the smaller its ridge."""
    rng = np.random.default_rng(9)
    features = 1e6 * rng.standard_normal((40, 2))
    values = features @ [1.0, -2.0]
    regression = BayesianRegression(rng.standard_normal((40, 3)), values, np.ones(40), [1.0])
    for smallest, expected in [(1e-6, 1e2), (1.0, 1.0)]:
        fit = regression.fit(features, np.array([smallest, 1e2]))
        assert fit.more_ridge == expected


def test_constant_values_have_a_finite_fit():
    fit = BayesianRegression(FEATURES, np.full(N, 3.0), WEIGHTS, [0.1]).fit(KERNEL)
    assert np.isfinite(fit.log_evidence)
    np.testing.assert_allclose(fit.coefficients, 0.0, atol=1e-12)


# One point or feature at a time


def data(n, p, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, p))
    return (
        features,
        features @ rng.standard_normal(p) + rng.standard_normal(n),
        rng.uniform(1, 2, n),
    )


def predicted(online, features):
    return online.level + (features - online.mean) @ online.coefficients


def variances_of(online, features):
    half = np.linalg.solve(online.factor.T, (features - online.mean).T)
    return np.sum(half**2, axis=0)


def batch(features, values, weights, ridges, n_first, means=None):
    """Coefficients with everything centred at the first points' means, or features at others."""
    first = weights[:n_first] / weights[:n_first].sum()
    unit = weights[:n_first].mean()
    F = features - (first @ features[:n_first] if means is None else means)
    y = values - first @ values[:n_first]
    gram = F.T @ (F * (weights / unit)[:, None]) + np.diag(ridges)
    return np.linalg.solve(gram, F.T @ (y * weights / unit)), np.linalg.inv(gram), F


def test_points_one_at_a_time():
    features, values, weights = data(60, 5)
    ridges = np.array([0.1, 0.1, 1.0, 1.0, 3.0])
    start = batch(features[:40], values[:40], weights[:40], ridges, 40)[0]
    online = OnlineRegression.of(features[:40], values[:40], weights[:40], ridges, start)
    for row in range(40, 60):
        online = online.with_point(features[row], values[row], weights[row])
    expected, inverse, F = batch(features, values, weights, ridges, 40)
    np.testing.assert_allclose(online.coefficients, expected, rtol=1e-10)
    variances = np.einsum("ni,ij,nj->n", F, inverse, F)
    np.testing.assert_allclose(variances_of(online, features), variances, rtol=1e-9)
    level = np.average(values[:40], weights=weights[:40])
    np.testing.assert_allclose(predicted(online, features), level + F @ expected, rtol=1e-10)


@pytest.mark.parametrize("is_combined", [False, True])
def test_features_one_at_a_time(is_combined):
    """Each with a point."""
    features, values, weights = data(52, 6)
    ridges, n = np.full(6, 0.5), 50
    combination = np.array([0.3, -0.2, 0.5, 0.1]) * is_combined
    start = batch(features[:n, :4], values[:n], weights[:n], ridges[:4], n)[0]
    online = OnlineRegression.of(features[:n, :4], values[:n], weights[:n], ridges[:4], start)
    means = np.average(features[:n, :4], axis=0, weights=weights[:n])
    for k in (4, 5):
        # Centred at its mean over the points before it, the combination at the others' means.
        mean = np.average(features[:n, k], weights=weights[:n])
        means = np.append(means, mean - means @ combination)
        new = NewFeature(features[:n, k].copy(), 0.5, combination)
        features[:, k] -= features[:, :k] @ combination
        online = online.with_point(features[n, : k + 1], values[n], weights[n], new)
        combination, n = np.append(combination, 0.4 * is_combined), n + 1
    expected, inverse, F = batch(features, values, weights, ridges, 50, means)
    np.testing.assert_allclose(online.coefficients, expected, rtol=1e-10)
    variances = np.einsum("ni,ij,nj->n", F, inverse, F)
    np.testing.assert_allclose(variances_of(online, features), variances, rtol=1e-9)
    level = np.average(values[:50], weights=weights[:50])
    np.testing.assert_allclose(predicted(online, features), level + F @ expected, rtol=1e-10)


def test_what_is_added_leaves_the_old_one_as_it_was():
    features, values, weights = data(30, 4)
    start = batch(features[:, :3], values, weights, np.ones(3), 30)[0]
    online = OnlineRegression.of(features[:, :3], values, weights, np.ones(3), start)
    before = [np.copy(field) for field in online]
    online.with_point(np.ones(4), 2.0, 1.0, NewFeature(features[:, 3], 1.0, np.zeros(3)))
    online.with_point(np.ones(3), 2.0, 1.0)
    for field, copy in zip(online, before, strict=True):
        np.testing.assert_array_equal(field, copy)


def test_other_coefficients_change_as_a_regressions_would():
    """A start that isn't the solution keeps its distance to it in the old points' directions."""
    features, values, weights = data(40, 3)
    ridges = np.full(3, 0.1)
    start = np.array([5.0, -5.0, 5.0])
    online = OnlineRegression.of(features, values, weights, ridges, start)
    np.testing.assert_allclose(online.coefficients, start)
    new = np.array([10.0, 0.0, 0.0])
    for _ in range(2000):
        online = online.with_point(new, 7.0, 1.0)
    assert abs(predicted(online, new[None, :])[0] - 7.0) < 0.05


def test_a_feature_that_is_there_already_does_no_harm():
    features, values, weights = data(40, 3)
    ridges = np.full(3, 1e-9)
    start = batch(features, values, weights, ridges, 40)[0]
    online = OnlineRegression.of(features, values, weights, ridges, start)
    before = predicted(online, features)
    new = NewFeature(features[:, 0].copy(), 1e-9, np.zeros(3))
    online = online.with_point(np.zeros(4), 0.0, 0.0, new)
    assert np.isfinite(online.coefficients).all()
    features = np.column_stack([features, features[:, 0]])
    np.testing.assert_allclose(predicted(online, features), before, atol=1e-5)


# Ridge regression


@pytest.mark.parametrize(("n", "k"), [(60, 5), (20, 50)])
def test_ridge_solves_the_weighted_normal_equations(n, k):
    rng = np.random.default_rng(0)
    features, weights = rng.standard_normal((n, k)), rng.uniform(0.5, 2.0, n)
    values = features @ rng.standard_normal(k) + 0.3 * rng.standard_normal(n) + 7.0
    fit = ridge_regression(features, values, weights, np.array([1e-2]))
    w = weights / weights.mean()
    F = features - np.average(features, axis=0, weights=w)
    y = values - np.average(values, weights=w)
    expected = np.linalg.solve((F.T * w) @ F + fit.ridge * np.eye(k), (F.T * w) @ y)
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-8, atol=1e-10)
    hat = np.sqrt(w)[:, None] * F
    hat = hat @ np.linalg.solve(hat.T @ hat + fit.ridge * np.eye(k), hat.T)
    residual = np.sqrt(w) * (y - F @ expected)
    score = np.mean(residual**2) / (1 - (1 + np.trace(hat)) / n) ** 2
    assert fit.score == pytest.approx(score, rel=1e-6)


def test_noise_makes_the_ridge_large_and_the_score_its_variance():
    rng = np.random.default_rng(1)
    features = rng.standard_normal((400, 30))
    signal = features[:, 0]
    exact = ridge_regression(features, signal, np.ones(400))
    noise = ridge_regression(features, 2.0 * rng.standard_normal(400), np.ones(400))
    assert exact.ridge < 1e-6 * noise.ridge
    assert exact.score < 1e-8
    assert noise.score == pytest.approx(4.0, rel=0.2)


def test_nothing_to_learn_from_constant_features():
    fit = ridge_regression(np.ones((10, 3)), np.arange(10.0), np.ones(10))
    assert not fit.coefficients.any()
