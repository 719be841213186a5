"""Averages and log evidence of a learned posterior: standard errors cover, closed forms hold."""

import warnings
from functools import partial

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal, multivariate_t, norm

import pymc_kmc as kmc
from pymc_kmc.learning.averages import (
    N_GROUPS,
    Averages,
    Emulated,
    bridge,
    calibration,
    control_variates,
    flattened,
    jackknifed,
    jumps,
    log_mean,
)
from pymc_kmc.learning.composite import Values
from tests.learned import learned_curve, on_grid

N = 2000
LABELS = ["a", "b"]
LINES = np.full(2, np.inf)
MEAN, FACTOR = np.array([3.0, -40.0]), np.array([[2.0, 0.0], [1.0, 0.1]])


def gaussian(n, seed):
    """Draws of a Gaussian, and gradients of its log density."""
    X = MEAN + np.random.default_rng(seed).standard_normal((n, 2)) @ FACTOR.T
    return X, -np.linalg.solve(FACTOR @ FACTOR.T, (X - MEAN).T).T


def without_controls(X, covariance=None, **kwargs):
    covariance = np.zeros((10, 10)) if covariance is None else covariance
    return Averages(np.zeros(len(X)), np.zeros((len(X), 0)), covariance, 1.0, **kwargs)


def test_control_variates_leave_no_error_of_a_gaussians_moments():
    X, gradients = gaussian(500, 1)
    controls = control_variates(X, gradients, LINES)
    assert controls.shape == (500, 2 + 3)
    table = Averages(np.zeros(500), controls, np.zeros((5, 5)), 1.0).table(X, LABELS, (0.5,))
    sds = np.sqrt(np.diag(FACTOR @ FACTOR.T))
    np.testing.assert_allclose(table["mean"], MEAN, atol=1e-9)
    np.testing.assert_allclose(table["sd"], sds, rtol=1e-9)
    assert np.all(table[["se_mean", "se_sd"]] < 1e-9)
    assert np.all(np.abs(table["50%"] - MEAN) < 4 * table["se_50%"])
    plain = without_controls(X).table(X, LABELS, (0.5,))
    assert np.all(np.abs(plain["mean"] - MEAN) > 1e-3 * sds)


def on_a_cylinder(n, seed, kappa=2.0):
    """Draws of an angle about .5, in three turns, and of a line that follows it; gradients."""
    rng = np.random.default_rng(seed)
    angle = rng.vonmises(0.5, kappa, n) + 2.0 * np.pi * rng.integers(-1, 2, n)
    line = np.cos(angle) + rng.standard_normal(n)
    away = line - np.cos(angle)
    gradients = np.column_stack([-kappa * np.sin(angle - 0.5) - away * np.sin(angle), -away])
    return np.column_stack([angle, line]), gradients


def test_control_variates_of_an_angle_have_mean_zero():
    """That of x^2 was off by .15, as its gradient has no period."""
    X, gradients = on_a_cylinder(400_000, 1)
    controls = control_variates(X, gradients, np.array([2.0 * np.pi, np.inf]))
    assert controls.shape[1] == 5
    z = controls.mean(axis=0) / controls.std(axis=0) * np.sqrt(len(X))
    assert np.all(np.abs(z) < 5.0)  # of five: a false-alarm rate of 3e-6


def test_standard_deviation_of_an_angle_by_control_variates():
    """With that of x^2 the mean error of these seeds was 2.4 standard errors."""
    angles = np.linspace(-np.pi, np.pi, 10_001)
    density = np.exp(2.0 * np.cos(angles))
    exact = np.sqrt(density @ angles**2 / density.sum())
    z, shares = [], []
    for seed in range(100):
        x = np.random.default_rng(seed).vonmises(0.0, 2.0, (2000, 1))
        controls = control_variates(x, -2.0 * np.sin(x), np.array([2.0 * np.pi]))
        found = Averages(np.zeros(2000), controls, np.zeros((0, 0)), 1.0).table(x, ["a"], ())
        row, without = found.loc["a"], without_controls(x).table(x, ["a"], ()).loc["a"]
        z.append((row["sd"] - exact) / row["se_sd"])
        shares.append(row["se_sd"] / without["se_sd"])
    # Of these standard errors 1.25 draws are worth one: the mean's is .09, and five are allowed.
    assert abs(np.mean(z)) < 0.45
    assert np.mean(shares) < 0.75


def with_a_jump(X, penalty, size):
    """A Gaussian log density of X (n, d) with a bend at 0 and a jump at 1, both in x_1."""
    x = X[:, 0]
    values = -0.5 * np.sum(X**2, axis=1) - np.abs(x)
    values = np.where(x > 1.0, values + size, values)
    gradient = -X - np.sign(x)[:, None] * (np.arange(X.shape[1]) == 0)
    return Values(values, gradient, values, *np.zeros((3, len(X))))


@pytest.mark.parametrize("d", [1, 2, 10])
def test_jumps_are_found_between_draws_and_bends_are_none(d):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        draws = rng.standard_normal((500, d))
        assert not jumps(partial(with_a_jump, size=0.0), draws, rng)
        # 16 % of the draws are beyond: 64 lines cross it but for one case in 1e8.
        assert jumps(partial(with_a_jump, size=0.1), draws, rng)
        inside = draws[draws[:, 0] <= 1.0]
        assert jumps(partial(with_a_jump, size=-np.inf), inside, rng)


def test_derivatives_that_are_wrong_everywhere_are_as_jumps():
    """And it doesn't take all memory to find that out."""
    sizes = []

    def composite(X, penalty):
        sizes.append(len(X))
        values = 1e9 * np.sin(X[:, 0])
        return Values(values, np.zeros_like(X), values, *np.zeros((3, len(X))))

    draws = np.random.default_rng(0).uniform(np.pi / 2 - 1e-4, np.pi / 2 + 1e-4, (500, 1))
    assert jumps(composite, draws, np.random.default_rng(0))
    assert max(sizes) <= 2 * 4096


@pytest.mark.parametrize(("d", "n", "n_controls"), [(3, 500, 9), (8, 500, 16), (20, 500, 20)])
def test_there_are_fewer_control_variates_in_many_dimensions(d, n, n_controls):
    X = np.random.default_rng(0).standard_normal((n, d))
    controls = control_variates(X, -X, np.full(d, np.inf))
    assert controls.shape == (n, n_controls)
    # Each is of order one: z of 6 of n draws; the false-alarm rate is below 1e-6.
    assert np.all(np.abs(controls.mean(axis=0)) < 6 * controls.std(axis=0) / np.sqrt(n))
    assert control_variates(X[:50], -X[:50], np.full(d, np.inf)).shape[1] <= 2


@pytest.mark.parametrize("column", ["mean", "sd", "5%", "50%"])
def test_standard_errors_of_draws_cover(column):
    truth = {"mean": 0.0, "sd": 1.0, "5%": -1.6449, "50%": 0.0}[column]
    z = []
    for seed in range(200):
        X = np.random.default_rng(seed).standard_normal((400, 1))
        row = without_controls(X).table(X, ["a"], (0.05, 0.5)).iloc[0]
        z.append((row[column] - truth) / row[f"se_{column}"])
    # Standard errors are for draws of which 1.25 are worth one: 1 / 1.25 = .8, and its own
    # error is a tenth; five of these are a false-alarm rate below 1e-5.
    assert 0.45 < np.mean(np.square(z)) < 1.15


def test_an_error_of_the_surrogate_is_in_the_standard_errors():
    # The error's covariance is that of a x + b (x^2 - 1), with independent a, b of variance .01:
    # they move mean and standard deviation by a and b.
    x = np.random.default_rng(2).standard_normal(N)
    parts = np.column_stack([x, x**2 - 1])
    table = without_controls(x[:, None], 0.01 * parts @ parts.T).table(x[:, None], ["a"], ())
    sampling = np.sqrt(1.25 / N)
    np.testing.assert_allclose(table["se_mean"], np.hypot(0.1, sampling), rtol=0.1)
    np.testing.assert_allclose(table["se_sd"], np.hypot(0.1, sampling / np.sqrt(2)), rtol=0.15)


def test_what_emulators_know_nothing_of_is_in_the_standard_errors():
    x = np.random.default_rng(2).standard_normal((N, 1))
    averages = without_controls(x, unknown=0.5)
    np.testing.assert_allclose(averages.table(x, ["a"], ())["se_mean"], 0.5, rtol=0.1)
    np.testing.assert_allclose(averages.constant_error, 0.5)


def test_errors_include_those_of_the_fit():
    # Fits without a group of evaluations are off by c x, or so wrong that they are no fits.
    x = np.random.default_rng(4).standard_normal((50, 1))
    slopes, zero, left_out = np.array([-0.3, -0.1, 0.1, 0.3]), np.zeros(50), []
    found = Emulated((), zero, zero, 0.01 * np.eye(50))

    def fit_without(slopes):
        def fit(mask):
            left_out.append(mask)
            slope = slopes[len(left_out) % N_GROUPS]
            return lambda X: Values(*[0.1 + slope * X[:, 0]] * 6)

        return fit

    rng = np.random.default_rng(5)
    errors = jackknifed(found, fit_without(slopes), 102, x, zero, 2.0, rng)
    assert np.array_equal(np.sum(left_out, axis=0), np.ones(102))
    expected = 0.01 * np.eye(50) + 3 * np.mean(slopes**2) * x @ x.T
    np.testing.assert_allclose(errors.covariance, expected)
    for wild in (1e6, np.nan):
        wrong = np.array([-0.3, -0.1, 0.1, wild])
        errors = jackknifed(found, fit_without(wrong), 102, x, zero, 2.0, rng)
        assert errors.covariance.max() < 0.01 + 3 * 2.0**2


def test_draws_are_weighted_by_what_the_penalty_took_off():
    # Draws of a standard normal, of which a variance of x^2 / 2 took x^2 / 4 off: the density
    # without it has precision 1 / 2.
    x = np.random.default_rng(3).standard_normal((20_000, 1))
    averages = Averages(0.5 * x[:, 0] ** 2, np.zeros((len(x), 0)), np.zeros((5, 5)), 1.0)
    table = averages.table(x, ["a"], ())
    np.testing.assert_allclose(table["sd"], np.sqrt(2.0), rtol=0.1)


def test_weights_that_few_draws_would_have_are_softened():
    variances = np.zeros(100)
    variances[0] = 50.0
    weights = Averages(variances, np.zeros((100, 0)), np.zeros((5, 5)), 1.0).weights
    np.testing.assert_allclose(weights, 0.01)


def test_one_draw_does_not_count_for_forty():
    """It is far out in a tail of which the emulators know nothing."""
    variances = np.zeros(2048)
    variances[0] = 2.0 * np.log(40.0)
    weights = Averages(variances, np.zeros((2048, 0)), np.zeros((5, 5)), 1.0).weights
    assert weights.max() <= 0.01


def test_the_calibration_is_that_of_errors_that_were_predicted():
    errors, sds = np.full(96, 3.0), np.ones(96)
    np.testing.assert_allclose(calibration(errors, sds), np.sqrt((4 + 96 * 9) / 100))
    assert calibration(0.1 * errors, sds) == 1.0
    assert calibration(np.array([np.nan, np.inf, 1.0]), np.array([1.0, 1.0, 0.0])) == 1.0


def test_rows_have_the_elements_names():
    values, labels = flattened({"a": np.arange(3.0), "b": np.arange(12.0).reshape(3, 2, 2)})
    assert labels == ["a", "b[0, 0]", "b[0, 1]", "b[1, 0]", "b[1, 1]"]
    np.testing.assert_array_equal(values[1], [1, 4, 5, 6, 7])


def test_summary_of_a_learned_curve():
    places, weights = on_grid(800)
    natural = np.exp(places)
    means = weights @ natural
    sds = np.sqrt(weights @ (natural - means) ** 2)
    table = learned_curve().summary((0.1, 0.9))
    assert list(table.index) == ["size", "rate"]
    order = np.argsort(natural, axis=0)
    exact = {"mean": means, "sd": sds}
    for p in (0.1, 0.9):
        columns = [
            natural[rows, j][np.searchsorted(np.cumsum(weights[rows]), p)]
            for j, rows in enumerate(order.T)
        ]
        exact[f"{100 * p:g}%"] = np.array(columns)
    for name, truth in exact.items():
        # The grid's own error, and five standard errors of eight numbers: a false-alarm rate below
        # 1e-5.
        assert np.all(np.abs(table[name] - truth) < 5 * table[f"se_{name}"] + 2e-3 * sds), name
        assert np.all(table[f"se_{name}"] < 0.06 * sds), name
    with pytest.raises(ValueError, match="quantiles"):
        learned_curve().summary((0.0, 0.5))


def test_control_variates_are_left_out_where_the_density_jumps():
    """exp(-x) from 0 on: no gradient tells of the jump, so that Stein's identity is wrong."""
    X = np.random.default_rng(0).exponential(size=(2000, 1))
    controls = control_variates(X, -np.ones_like(X), np.array([np.inf]))
    found = Averages(np.zeros(2000), controls, np.zeros((0, 0)), 1.0)
    table = found.table(X, ["x"], (0.5,))
    # 2000 draws: beyond four of these standard errors by chance in one case of 10,000.
    assert abs(table["mean"]["x"] - 1.0) < 4.0 * np.sqrt(1.25 / 2000)
    assert abs(table["mean"]["x"] - X.mean()) < 1e-12


def test_bridge_of_a_gaussian():
    rng = np.random.default_rng(0)
    density = multivariate_normal([3.0, -2.0], [[2.0, 0.9], [0.9, 0.5]])
    X = density.rvs(2000, random_state=rng)
    found = bridge(X, density.logpdf(X) + 7.0, lambda X: density.logpdf(X) + 7.0, rng)
    # Five standard errors: a false-alarm rate below 1e-6.
    assert abs(found.value - 7.0) < 5 * found.error
    assert found.error < 0.03


def test_bridge_of_variables_on_scales_far_apart():
    rng = np.random.default_rng(0)
    sds = np.array([1e6, 1e-6])
    X = sds * rng.standard_normal((2000, 2))

    def log_density(X):
        return norm.logpdf(X, 0.0, sds).sum(axis=1)

    found = bridge(X, log_density(X), log_density, rng)
    # Five standard errors: a false-alarm rate below 1e-6.
    assert abs(found.value) < 5 * found.error < 0.15


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
