"""A regression that takes in points and features one at a time equals one of all at once."""

import numpy as np
import pytest

from pymc_kmc.surrogates.online import OnlineRegression


def data(n, p, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, p))
    return (
        features,
        features @ rng.standard_normal(p) + rng.standard_normal(n),
        rng.uniform(1, 2, n),
    )


def batch(features, values, weights, ridges, n_first):
    """Coefficients with everything centred at the first points' means."""
    first = weights[:n_first] / weights[:n_first].sum()
    unit = weights[:n_first].mean()
    F = features - first @ features[:n_first]
    y = values - first @ values[:n_first]
    gram = F.T @ (F * (weights / unit)[:, None]) + np.diag(ridges)
    return np.linalg.solve(gram, F.T @ (y * weights / unit)), np.linalg.inv(gram), F


def test_points_one_at_a_time():
    features, values, weights = data(60, 5)
    ridges = np.array([0.1, 0.1, 1.0, 1.0, 3.0])
    start = batch(features[:40], values[:40], weights[:40], ridges, 40)[0]
    online = OnlineRegression(features[:40], values[:40], weights[:40], ridges, start)
    for row in range(40, 60):
        online.add_point(features[row], values[row], weights[row])
    expected, inverse, F = batch(features, values, weights, ridges, 40)
    np.testing.assert_allclose(online.coefficients, expected, rtol=1e-10)
    variances = np.einsum("ni,ij,nj->n", F, inverse, F)
    np.testing.assert_allclose(online.variances(features), variances, rtol=1e-9)
    level = np.average(values[:40], weights=weights[:40])
    np.testing.assert_allclose(online.predict(features), level + F @ expected, rtol=1e-10)


@pytest.mark.parametrize("is_combined", [False, True])
def test_features_one_at_a_time(is_combined):
    features, values, weights = data(50, 6)
    ridges = np.full(6, 0.5)
    combination = np.array([0.3, -0.2, 0.5, 0.1]) if is_combined else None
    start = batch(features[:, :4], values, weights, ridges[:4], 50)[0]
    online = OnlineRegression(features[:, :4], values, weights, ridges[:4], start)
    online.add_feature(features[:, 4], 0.5, combination)
    if is_combined:
        features[:, 4] -= features[:, :4] @ combination
        combination = np.append(combination, 0.4)
    online.add_feature(features[:, 5], 0.5, combination)
    if is_combined:
        features[:, 5] -= features[:, :5] @ combination
    expected, inverse, F = batch(features, values, weights, ridges, 50)
    np.testing.assert_allclose(online.coefficients, expected, rtol=1e-10)
    variances = np.einsum("ni,ij,nj->n", F, inverse, F)
    np.testing.assert_allclose(online.variances(features), variances, rtol=1e-9)
    level = np.average(values, weights=weights)
    np.testing.assert_allclose(online.predict(features), level + F @ expected, rtol=1e-10)


def test_points_after_features():
    features, values, weights = data(60, 4)
    ridges = np.full(4, 0.2)
    start = batch(features[:50, :3], values[:50], weights[:50], ridges[:3], 50)[0]
    online = OnlineRegression(features[:50, :3], values[:50], weights[:50], ridges[:3], start)
    online.add_feature(features[:50, 3], 0.2)
    for row in range(50, 60):
        online.add_point(features[row], values[row], weights[row])
    expected = batch(features, values, weights, ridges, 50)[0]
    np.testing.assert_allclose(online.coefficients, expected, rtol=1e-10)


def test_other_coefficients_change_as_a_regressions_would():
    """A start that isn't the solution keeps its distance to it in the old points' directions."""
    features, values, weights = data(40, 3)
    ridges = np.full(3, 0.1)
    start = np.array([5.0, -5.0, 5.0])
    online = OnlineRegression(features, values, weights, ridges, start)
    np.testing.assert_allclose(online.coefficients, start)
    new = np.array([10.0, 0.0, 0.0])
    for _ in range(2000):
        online.add_point(new, 7.0, 1.0)
    assert abs(online.predict(new[None, :])[0] - 7.0) < 0.05


def test_a_feature_that_is_there_already_does_no_harm():
    features, values, weights = data(40, 3)
    ridges = np.full(3, 1e-9)
    start = batch(features, values, weights, ridges, 40)[0]
    online = OnlineRegression(features, values, weights, ridges, start)
    before = online.predict(features)
    online.add_feature(features[:, 0].copy(), 1e-9)
    assert np.isfinite(online.coefficients).all()
    features = np.column_stack([features, features[:, 0]])
    np.testing.assert_allclose(online.predict(features), before, atol=1e-5)
