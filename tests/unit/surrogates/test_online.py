"""A regression that takes in points and features one at a time equals one of all at once."""

import numpy as np
import pytest

from pymc_kmc.surrogates.online import NewFeature, OnlineRegression


def data(n, p, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, p))
    return (
        features,
        features @ rng.standard_normal(p) + rng.standard_normal(n),
        rng.uniform(1, 2, n),
    )


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
    np.testing.assert_allclose(online.variances(features), variances, rtol=1e-9)
    level = np.average(values[:40], weights=weights[:40])
    np.testing.assert_allclose(online.predict(features), level + F @ expected, rtol=1e-10)


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
    np.testing.assert_allclose(online.variances(features), variances, rtol=1e-9)
    level = np.average(values[:50], weights=weights[:50])
    np.testing.assert_allclose(online.predict(features), level + F @ expected, rtol=1e-10)


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
    assert abs(online.predict(new[None, :])[0] - 7.0) < 0.05


def test_a_feature_that_is_there_already_does_no_harm():
    features, values, weights = data(40, 3)
    ridges = np.full(3, 1e-9)
    start = batch(features, values, weights, ridges, 40)[0]
    online = OnlineRegression.of(features, values, weights, ridges, start)
    before = online.predict(features)
    new = NewFeature(features[:, 0].copy(), 1e-9, np.zeros(3))
    online = online.with_point(np.zeros(4), 0.0, 0.0, new)
    assert np.isfinite(online.coefficients).all()
    features = np.column_stack([features, features[:, 0]])
    np.testing.assert_allclose(online.predict(features), before, atol=1e-5)
