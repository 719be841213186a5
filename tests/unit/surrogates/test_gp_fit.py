"""Predictions and updates of LogDensityGP."""

import numpy as np
import pytest

from pymc_kmc.surrogates import LogDensityGP
from tests.histories import banana, banana_draws
from tests.log_densities import fitted, wavy

# Standard deviations of predictions


def variance(surrogate, X):
    return surrogate.predict(X, return_std=True)[1] ** 2


def test_the_variance_is_small_at_the_data_and_grows_away():
    X = np.random.default_rng(0).standard_normal((150, 2))
    values = wavy(2)(X) + 0.1 * np.random.default_rng(1).standard_normal(150)
    surrogate = LogDensityGP(rng=0).fit(X, values, reference=X)
    at_data = variance(surrogate, X)
    assert np.all(at_data >= 0)
    assert at_data.mean() < surrogate.variance_
    direction = np.array([0.6, 0.8])
    away = [variance(surrogate, r * direction) for r in (0.0, 4.0, 100.0)]
    assert all(isinstance(one, float) for one in away)
    assert away[2] > 10 * away[1] > 100 * away[0]


@pytest.mark.parametrize("problem", ["gaussian", "wavy", "student"])
def test_the_variance_is_that_of_the_errors(problem):
    """Ten sets of noise; squared errors in units of the variance average to about one.

    Their average over points and sets varies by some .2: a factor of two is five of that, for a
    posterior whose prior is as right as that of a kernel can be.
    """
    log_density = {
        "gaussian": lambda X: -0.5 * (X**2).sum(axis=1),
        "wavy": wavy(2),
        "student": lambda X: -3.0 * np.log1p((X**2).sum(axis=1) / 4.0),
    }[problem]
    rng = np.random.default_rng(2)
    X = 1.5 * rng.standard_normal((200, 2))
    test = rng.standard_normal((50, 2))
    ratios = []
    for _ in range(10):
        values = log_density(X) + 0.3 * rng.standard_normal(200)
        surrogate = LogDensityGP(rng=0).fit(X, values, reference=X)
        depth = np.maximum(np.quantile(values, 0.9) - values, 0.0) / 6.0
        weights = 1.0 / (1.0 + depth**2)
        level = np.average(surrogate.log_density(X) - log_density(X), weights=weights)
        errors = surrogate.log_density(test) - log_density(test) - level
        ratios.append(np.mean(errors**2 / variance(surrogate, test)))
    assert 0.5 < np.mean(ratios) < 2.0


# Updates and predictions


def fitted_to_the_middle(rng, n_landmarks=60):
    """A surrogate of a banana's middle, and places farther out."""
    X = banana_draws(600, rng)
    distance = np.abs(X[:, 0])
    inside = distance < 3
    surrogate = LogDensityGP(n_landmarks, rng=0).fit(X[inside], banana(X[inside]))
    return surrogate, X[inside], X[(distance > 3) & (distance < 6)]


def test_predictions_are_the_log_density_and_a_constant():
    surrogate, inside, outside = fitted_to_the_middle(np.random.default_rng(0))
    X = np.vstack([inside, outside])[::5]
    p = surrogate.parameters_
    X = X[np.linalg.norm((X - p.centre) @ p.whitening.T, axis=1) < p.radius]
    for _ in range(2):
        difference = surrogate.predict(X) - surrogate.log_density(X)
        np.testing.assert_allclose(difference, difference[0], atol=1e-6)
        mean, std = surrogate.predict(X, return_std=True)
        at_one = surrogate.predict(X[3], return_std=True)
        np.testing.assert_allclose(at_one, (mean[3], std[3]), atol=1e-6)
        surrogate = surrogate.updated(outside[:10], banana(outside[:10]))  # and once more after it


def test_an_update_changes_the_functions_of_single_coordinates_too():
    surrogate = fitted(4, "gaussian", n=500)
    before = surrogate.parameters_
    X = np.random.default_rng(8).standard_normal((3, 4))
    surrogate = surrogate.updated(X, wavy(4)(X) + 3.0 * np.exp(-2.0 * (X[:, 0] - 0.5) ** 2))
    assert np.any(surrogate.parameters_.linear != before.linear)  # the last update was taken
    difference = surrogate.predict(X) - surrogate.log_density(X)
    np.testing.assert_allclose(difference, surrogate.constant_, atol=1e-6)


def test_updates_teach_what_is_outside():
    surrogate, inside, outside = fitted_to_the_middle(np.random.default_rng(0))
    half = len(outside) // 2

    def errors(X):
        return np.sqrt(np.mean((surrogate.predict(X) - banana(X)) ** 2))

    before, before_inside = errors(outside[half:]), errors(inside)
    _, std_before = surrogate.predict(outside[half:], return_std=True)
    surrogate = surrogate.updated(outside[:half], banana(outside[:half]))
    _, std = surrogate.predict(outside[half:], return_std=True)
    assert errors(outside[half:]) < 0.1 * before
    assert std.mean() < 0.3 * std_before.mean()
    assert errors(inside) < before_inside + 0.05


def test_an_update_is_the_solution_of_the_larger_regression():
    """The same coefficients as from the normal equations of all features and points at once."""
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    for x, value in zip(outside[:15], banana(outside[:15]), strict=True):
        surrogate = surrogate.updated(x, value)
    regression = surrogate._fit.regression
    gram, right = regression.features.T @ regression.features, regression.values
    ridge = np.diag(regression.factor.T @ regression.factor - gram)
    expected = np.linalg.solve(gram + np.diag(ridge), regression.features.T @ right)
    np.testing.assert_allclose(
        regression.features @ regression.coefficients,
        regression.features @ expected,
        atol=1e-4 * np.ptp(right),
    )
    assert np.all(ridge > 0)


def test_updates_add_no_more_kernel_functions_than_half_as_many():
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    surrogate = surrogate.updated(outside, banana(outside))
    assert 60 < len(surrogate.parameters_.coefficients) <= 90


def test_an_update_of_the_trend_alone():
    X = np.random.default_rng(0).standard_normal((200, 2))
    values = -0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(20, rng=0).fit(X, values)
    assert surrogate.kernel_ is None
    surrogate = surrogate.updated([3.0, 3.0], -9.0)
    np.testing.assert_allclose(surrogate.predict([3.0, 3.0]), -9.0, atol=1e-3)


def test_the_wall_makes_way_for_places_in_the_bulk():
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    radius = surrogate.parameters_.radius
    far = outside[np.argmax(np.abs(outside[:, 0]))] * 2
    surrogate = surrogate.updated(far, -500.0)
    assert surrogate.parameters_.radius == radius
    surrogate = surrogate.updated(far, -0.5)
    assert surrogate.parameters_.radius > radius


def test_an_updates_value_counts_as_much_as_its_depth_allows():
    """At the depth's scale, 6 nats in two dimensions, half as much; deep ones hardly."""
    surrogate, inside, _ = fitted_to_the_middle(np.random.default_rng(0))
    bulk = np.quantile(banana(inside), 0.9)
    for depth, weight in ((0.0, 1.0), (6.0, 0.5), (60.0, 1.0 / 101.0)):
        assert surrogate.weight(bulk - depth) == pytest.approx(weight, rel=1e-6)
    X = np.random.default_rng(0).standard_normal((200, 2))  # no kernel function that gives way
    surrogate = LogDensityGP(20, rng=0).fit(X, -0.5 * (X**2).sum(axis=1))
    surrogate = surrogate.updated([4.0, 0.0], -6000.0)
    np.testing.assert_allclose(surrogate.predict(X), -0.5 * (X**2).sum(axis=1), atol=1.0)


@pytest.mark.parametrize("n_landmarks", [5, 10, 20, 60])
def test_predictions_know_what_no_kernel_function_reaches(n_landmarks):
    """Without the prior's variance there the errors would be 6 to 24 standard deviations."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        surrogate, _, outside = fitted_to_the_middle(rng, n_landmarks=n_landmarks)
        mean, std = surrogate.predict(outside, return_std=True)
        assert 0.2 < np.sqrt(np.mean(((mean - banana(outside)) / std) ** 2)) < 3.0


def test_an_update_never_leaves_something_that_is_no_density():
    """Values that grow outwards bend the quadratic upwards; what was there stays in use."""
    X = np.random.default_rng(0).standard_normal((100, 2))
    surrogate = LogDensityGP(20, rng=0).fit(X, -0.5 * (X**2).sum(axis=1))
    before, constant = surrogate.parameters_, surrogate.constant_
    surrogate = surrogate.updated([[8.0, 0.0], [-8.0, 0.0]], [40.0, 40.0])
    assert surrogate.constant_ == constant
    for field in ("linear", "precision", "radial_coefficients"):
        np.testing.assert_array_equal(getattr(surrogate.parameters_, field), getattr(before, field))
    angles = np.linspace(0.0, 2.0 * np.pi, 600)  # enough of the others, and it is one again
    surrogate = surrogate.updated(
        4.0 * np.column_stack([np.cos(angles), np.sin(angles)]), np.full(600, -8.0)
    )
    precision = surrogate.parameters_.precision
    assert not np.array_equal(precision, before.precision)
    difference = surrogate.predict([1.0, 1.0]) - surrogate.log_density([1.0, 1.0])
    assert surrogate.constant_ == pytest.approx(difference)
    assert np.linalg.eigvalsh(precision)[0] > 0


@pytest.mark.filterwarnings("error")
def test_an_update_from_out_of_all_proportion_is_left_out():
    surrogate, inside, outside = fitted_to_the_middle(np.random.default_rng(0))
    before = surrogate.predict(inside)
    for size in (100.0, 1e30, 1e200):
        surrogate = surrogate.updated([size, 0.0], 0.0)
        np.testing.assert_array_equal(surrogate.predict(inside), before)
    surrogate = surrogate.updated(outside[:20], banana(outside[:20]))
    np.testing.assert_allclose(surrogate.predict(outside[:20]), banana(outside[:20]), atol=0.5)


def test_updates_that_cannot_be_taken():
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"values\[1\] is nan; leave values that aren't finite"):
        surrogate.updated(outside[:2], [0.0, np.nan])
    with pytest.raises(ValueError, match=r"values has shape \(3,\)"):
        surrogate.updated(outside[:2], np.zeros(3))
    with pytest.raises(ValueError, match="not fitted"):
        LogDensityGP().updated([0.0], 0.0)


# Values: the old one stays


def fields(surrogate):
    """Everything that an update could change, copied."""
    posterior = surrogate._fit
    arrays = [*surrogate.parameters_, *posterior.regression, posterior.part.factor]
    return [np.copy(array) for array in [*arrays, posterior.part.U, posterior.constant]]


@pytest.mark.parametrize("is_density", [True, False])
def test_updating_leaves_the_surrogate_as_it_was(is_density):
    """Bit for bit, whether the new value is taken, or remembered for later."""
    surrogate, inside, outside = fitted_to_the_middle(np.random.default_rng(0))
    places, values = outside[:20], banana(outside[:20])
    if not is_density:  # values that grow outwards bend the quadratic upwards
        inside = np.random.default_rng(0).standard_normal((100, 2))
        surrogate = LogDensityGP(20, rng=0).fit(inside, -0.5 * (inside**2).sum(axis=1))
        places, values = np.array([[8.0, 0.0], [-8.0, 0.0]]), [40.0, 40.0]
    before, predictions = fields(surrogate), surrogate.predict(inside)
    new = surrogate.updated(places, values)
    assert new.variance_ == surrogate.variance_ and new.n_landmarks == surrogate.n_landmarks
    for now, then in zip(fields(surrogate), before, strict=True):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_array_equal(surrogate.predict(inside), predictions)
    assert not np.array_equal(new.predict(places), surrogate.predict(places))
    taken = not np.array_equal(new.parameters_.linear, surrogate.parameters_.linear)
    assert taken == is_density


def test_two_successors_of_one_surrogate_do_not_meet():
    surrogate, inside, outside = fitted_to_the_middle(np.random.default_rng(0))
    first = surrogate.updated(outside[:5], banana(outside[:5]))
    second = surrogate.updated(outside[5:10], banana(outside[5:10]))
    again = surrogate.updated(outside[:5], banana(outside[:5]))
    assert not np.array_equal(first.predict(inside), second.predict(inside))
    for a, b in zip(fields(first), fields(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_fit_leaves_the_last_one_and_its_estimator_as_they_were():
    """The same estimator fitted to other values; the earlier fit guides it."""
    surrogate, inside, outside = fitted_to_the_middle(np.random.default_rng(0))
    before = fields(surrogate)
    points = np.vstack([inside, outside])
    LogDensityGP(60, rng=1).fit(points, banana(points), last=surrogate)
    for now, then in zip(fields(surrogate), before, strict=True):
        np.testing.assert_array_equal(now, then)
