"""The Gaussian-process surrogate: what it represents, what it doesn't mind, compiled evaluation.

Everything is seeded and without Monte-Carlo error but for the tests with noise, whose bounds are
stated beside them.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pymc_kmc.dynamics import transitions
from pymc_kmc.surrogates import LogDensityGP, NotFittedError, gradient_at, log_density_at
from pymc_kmc.surrogates.evidence import KERNELS
from pymc_kmc.surrogates.gp import FREE, WALL
from tests.records import banana, banana_draws

every_kernel = pytest.mark.parametrize("kernel", KERNELS)


class Gaussian:
    """A correlated one far from the origin."""

    def __init__(self, d, seed=0, mean=None):
        rng = np.random.default_rng(seed)
        root = rng.standard_normal((d, d))
        self.d, self.covariance = d, root @ root.T + 0.1 * np.eye(d)
        self.mean = 10.0 * rng.standard_normal(d) if mean is None else mean
        self.root = np.linalg.cholesky(self.covariance)
        self.precision = np.linalg.inv(self.covariance)

    def draws(self, n, seed):
        return self.mean + np.random.default_rng(seed).standard_normal((n, self.d)) @ self.root.T

    def log_density(self, X):
        return 3.0 - 0.5 * np.einsum("ni,ij,nj->n", X - self.mean, self.precision, X - self.mean)

    def gradient(self, X):
        return -(X - self.mean) @ self.precision


class Banana:
    """x1 ~ N(0, 9), x2 | x1 ~ N((x1^2 - 9) / 5, 1)."""

    d = 2

    def draws(self, n, seed):
        rng = np.random.default_rng(seed)
        x = 3 * rng.standard_normal(n)
        return np.stack([x, 0.2 * (x**2 - 9) + rng.standard_normal(n)], axis=1)

    def log_density(self, X):
        return -0.5 * X[:, 0] ** 2 / 9 - 0.5 * (X[:, 1] - 0.2 * (X[:, 0] ** 2 - 9)) ** 2

    def gradient(self, X):
        residual = X[:, 1] - 0.2 * (X[:, 0] ** 2 - 9)
        return np.stack([-X[:, 0] / 9 + 0.4 * X[:, 0] * residual, -residual], axis=1)


def wavy(d):
    """A log density without symmetries, in any dimension."""
    frequencies = 1.0 + 0.3 * np.arange(d)
    return lambda X: -0.5 * (X**2).sum(axis=1) + np.sin(X * frequencies).sum(axis=1)


def fitted(d, kernel="gaussian", n=300, seed=0, **options):
    X = np.random.default_rng(seed).standard_normal((n, d))
    return LogDensityGP(kernels=(kernel,), rng=0, **options).fit(X, wavy(d)(X), reference=X)


def relative_error(surrogate, problem, X):
    """Mean squared error of the gradient, relative to its mean square."""
    true = problem.gradient(X)
    return ((surrogate.gradient(X) - true) ** 2).sum() / (true**2).sum()


def distances(surrogate, X):
    """|z| of the surrogate's coordinates."""
    p = surrogate.parameters_
    return np.linalg.norm((np.atleast_2d(X) - p.centre) @ p.whitening.T, axis=1)


# What it represents


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("away", [0.0, 1.0, 1e4])
def test_a_gaussian_is_exact(d, away):
    """Whatever its centre, and though the values are from one side of it."""
    problem = Gaussian(d, mean=np.full(d, away))
    X = problem.draws(200, 1) + 0.5 * np.sqrt(np.diag(problem.covariance))
    surrogate = LogDensityGP(rng=0).fit(X, problem.log_density(X))
    test = problem.draws(100, 2)
    assert relative_error(surrogate, problem, test) < 1e-12
    assert surrogate.kernel_ is None and surrogate.is_full_
    difference = surrogate.log_density(test) - problem.log_density(test)
    assert np.ptp(difference) < 1e-6


@pytest.mark.parametrize(("d", "factor"), [(2, 4), (5, 4), (3, 1)])
def test_a_student_t_needs_radial_terms_and_no_kernel(d, factor):
    """With as many degrees of freedom as one of the radial terms, to a per cent.

    Not exact: eigenvalues of the quadratic can't be zero.
    """
    gaussian, nu = Gaussian(d), factor * d

    def log_density(X):
        square = 2.0 * (3.0 - gaussian.log_density(X))
        return -0.5 * (nu + d) * np.log1p(square / nu)

    def gradient(X):
        square = 2.0 * (3.0 - gaussian.log_density(X))
        return (nu + d) / (nu + square)[:, None] * gaussian.gradient(X)

    rng = np.random.default_rng(3)

    def draws(n):
        scale = np.sqrt(nu / rng.chisquare(nu, n))[:, None]
        steps = rng.standard_normal((n, d)) @ gaussian.root.T * scale
        return np.vstack([gaussian.mean + steps, gaussian.mean - steps])

    X, test = draws(150), draws(100)
    whitening = np.linalg.inv(gaussian.root)
    with_radial, without = (
        LogDensityGP(radial=radial, rng=0).fit(X, log_density(X), reference=X, whitening=whitening)
        for radial in (True, False)
    )
    test = test[distances(with_radial, test) < distances(with_radial, X).max()]

    def error(surrogate):
        true = gradient(test)
        return np.linalg.norm(surrogate.gradient(test) - true) / np.linalg.norm(true)

    assert with_radial.kernel_ is None and without.kernel_ is not None
    assert error(with_radial) < 0.01
    assert error(with_radial) < 0.7 * error(without)


@every_kernel
def test_gradient_of_a_banana(kernel):
    problem = Banana()
    X = problem.draws(700, 1)
    surrogate = LogDensityGP(kernels=(kernel,), rng=0).fit(X, problem.log_density(X), reference=X)
    assert surrogate.kernel_ == kernel
    test = problem.draws(500, 2)
    test = test[np.abs(test[:, 0]) < 6]
    assert np.sqrt(relative_error(surrogate, problem, test)) < 0.02
    again = LogDensityGP(kernels=(kernel,), rng=0).fit(
        X, problem.log_density(X), reference=X, last=surrogate
    )
    assert np.sqrt(relative_error(again, problem, test)) < 0.02


def test_noise_averages_out():
    """Three sets of noise of sd 1; the residual variance of 1600 values is known to .035."""
    problem, test = Banana(), Banana().draws(400, 9)
    errors = {}
    for n in (200, 1600):
        X = problem.draws(n, 1)
        fits = [
            LogDensityGP(rng=0).fit(
                X,
                problem.log_density(X) + np.random.default_rng(50 + i).standard_normal(n),
                reference=X,
            )
            for i in range(3)
        ]
        errors[n] = np.mean([relative_error(fit, problem, test) for fit in fits])
    assert errors[1600] < 0.5 * errors[200]
    assert np.mean([fit.variance_ for fit in fits]) == pytest.approx(1.0, abs=0.12)


def test_few_values_fit_a_diagonal_quadratic():
    """Until there is a value for each coefficient of the whole one, and a tenth more."""
    d = 8
    precision = np.diag(np.linspace(0.3, 3.0, d))
    axes = np.sqrt(d) * np.vstack([np.eye(d), -np.eye(d)])

    def fit(n):
        X = np.random.default_rng(4).standard_normal((n, d))
        values = -0.5 * np.einsum("ni,ij,nj->n", X - 0.5, precision, X - 0.5)
        return LogDensityGP(rng=0).fit(X, values, reference=axes, whitening=np.eye(d))

    n_enough = int(np.ceil(1.1 * d * (d + 3) / 2))
    few = fit(n_enough - 1)
    assert not few.is_full_
    fitted_precision = few.parameters_.precision
    np.testing.assert_allclose(fitted_precision, np.diag(np.diag(fitted_precision)), atol=1e-9)
    x = np.linspace(-1, 1, d)
    np.testing.assert_allclose(few.gradient(x), -(x - 0.5) @ precision, rtol=1e-3, atol=1e-3)
    assert fit(n_enough).is_full_


def test_a_quadratic_keeps_the_values_that_it_needs():
    """Of a chain that has come from far: all but the last ones are far below them."""
    rng = np.random.default_rng(11)
    X = rng.standard_normal((200, 10)) + np.linspace(0.0, 300.0, 200)[::-1, None]
    surrogate = LogDensityGP(20, rng=0).fit(X, -0.5 * (X**2).sum(axis=1), reference=X[-20:])
    assert surrogate.is_full_


def test_functions_of_single_coordinates_need_few_values():
    """A log density that bends along each of eight coordinates, from 400 values."""
    d = 8
    X = np.random.default_rng(0).standard_normal((900, d))
    values = -0.5 * (X**2).sum(axis=1) - 2.0 * np.log1p(np.exp(2.0 * X)).sum(axis=1)

    def error(**options):
        gp = LogDensityGP(rng=0, **options).fit(X[:400], values[:400], reference=X[:400])
        rest = values[400:] - gp.log_density(X[400:])
        return gp, rest.std()

    gp, with_them = error()
    assert gp.additive_variance_ > 0
    assert with_them < 0.2 * error(additive=False)[1]


def test_an_additive_part_that_says_nothing_is_left_out():
    """A ridge across all coordinates."""
    X = np.random.default_rng(0).standard_normal((500, 5))
    values = -0.5 * (X**2).sum(axis=1) + 3.0 * np.sin(X.sum(axis=1))
    assert LogDensityGP(rng=0).fit(X, values, reference=X).additive_variance_ == 0


# Evaluation


def trend_alone():
    problem = Gaussian(3)
    X = problem.draws(100, 1)
    return LogDensityGP(rng=0).fit(X, problem.log_density(X))


def radial_surrogate():
    """A Student t's, without a kernel part."""
    X = np.random.default_rng(5).standard_normal((200, 2)) * [1.0, 3.0]
    X = np.vstack([X, -X])
    values = -3.0 * np.log1p((X**2 / [1.0, 9.0]).sum(axis=1) / 8.0)
    return LogDensityGP(rng=0).fit(X, values, reference=X, whitening=np.diag([1.0, 1 / 3]))


CASES = {
    "gaussian": lambda: fitted(3, "gaussian"),
    "rational_quadratic": lambda: fitted(3, "rational_quadratic"),
    "one dimension": lambda: fitted(1, "rational_quadratic", n=60),
    "more landmarks than a block": lambda: fitted(5, "gaussian", n=500, additive=False),
    "additive part": lambda: fitted(4, "gaussian", n=500),
    "trend alone": trend_alone,
    "radial terms": radial_surrogate,
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    surrogate = CASES[request.param]()
    kernel_is_expected = request.param not in ("trend alone", "radial terms")
    assert (surrogate.kernel_ is not None) == kernel_is_expected
    if request.param == "more landmarks than a block":
        assert len(surrogate.parameters_.coefficients) > 256
    if request.param == "additive part":
        assert surrogate.additive_variance_ > 0
    return surrogate


def everywhere(surrogate):
    """Points in the middle, on both sides of the wall, and far beyond it."""
    p, rng = surrogate.parameters_, np.random.default_rng(6)
    directions = rng.standard_normal((24, surrogate.n_features_in_))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    radii = p.radius * np.repeat([0.01, 0.3, 0.8, 0.999, 1.001, 1.2, 3.0, 20.0], 3)
    return p.centre + (radii[:, None] * directions) @ np.linalg.inv(p.whitening).T


def test_gradient_is_the_derivative(case):
    X = everywhere(case)
    gradients = case.gradient(X)
    inverse = np.linalg.inv(case.parameters_.whitening)
    for x, gradient in zip(X, gradients, strict=True):
        step = 1e-5 * max(1.0, distances(case, x)[0])
        for direction in inverse.T:  # a unit of the surrogate's coordinates
            ahead = case.log_density(x + step * direction)
            behind = case.log_density(x - step * direction)
            slope = (ahead - behind) / (2 * step)
            assert slope == pytest.approx(gradient @ direction, rel=1e-3, abs=1e-3)


def test_compiled_evaluation_is_that_of_the_methods(case):
    X = everywhere(case)
    values, gradients = case.log_density(X), case.gradient(X)
    out = np.empty(X.shape[1])
    for x, value, gradient in zip(X, values, gradients, strict=True):
        assert log_density_at(case.parameters_, x) == pytest.approx(value, rel=1e-9, abs=1e-7)
        assert case.log_density(x) == pytest.approx(value, rel=1e-9, abs=1e-7)
        gradient_at(case.parameters_, x, out)
        np.testing.assert_allclose(out, gradient, rtol=1e-12)
        np.testing.assert_allclose(case.gradient(x), gradient, rtol=1e-12)


def test_transitions_follow_the_surrogate_that_is_there(case):
    """Against the methods. Where this fails after an edit, numba's cache is stale.

    What a compiled caller inlines is not among what numba compares a cached function with: delete
    the .nbi files.
    """
    p, step_size, n_steps = case.parameters_, 0.1, 4
    x = p.centre + np.linalg.inv(p.whitening) @ np.full(case.n_features_in_, 0.2)
    momentum = np.full(case.n_features_in_, 0.3)
    end, change, _ = transitions(
        p,
        0.7,
        x,
        momentum[None],
        np.array([step_size]),
        np.array([n_steps]),
        np.zeros(1),
    )
    position = x
    for _ in range(n_steps):
        momentum = momentum + 0.5 * step_size * 0.7 * case.gradient(position)
        position = position + step_size * momentum
        momentum = momentum + 0.5 * step_size * 0.7 * case.gradient(position)
    np.testing.assert_allclose(end, position, rtol=1e-8, atol=1e-8)
    expected = case.log_density(position) - case.log_density(x)
    assert change == pytest.approx(expected, rel=1e-7, abs=1e-6)


def test_falls_beyond_the_wall(case):
    """At least quadratically: integrable whatever the data say."""
    p = case.parameters_
    directions = np.random.default_rng(7).standard_normal((50, case.n_features_in_))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    far = p.radius * np.array([4.0, 8.0, 16.0])
    inverse = np.linalg.inv(p.whitening)
    values = [case.log_density(p.centre + r * directions @ inverse.T) for r in far]
    assert np.all(values[0] - values[1] > 0)
    assert np.all(values[1] - values[2] > 2.0 * (values[0] - values[1]))


def test_loss_is_the_score_matching_objective():
    """For a Gaussian's own surrogate on its draws minus half the mean squared score."""
    problem = Gaussian(3)
    X = problem.draws(100, 1)
    surrogate = LogDensityGP(rng=0).fit(X, problem.log_density(X))
    scores = problem.gradient(X)
    expected = -np.trace(problem.precision) + 0.5 * (scores**2).sum(axis=1).mean()
    assert surrogate.loss(X) == pytest.approx(expected, rel=1e-5)


def test_numbers_that_are_not_finite_are_passed_on(case):
    x = np.full(case.n_features_in_, np.nan)
    assert np.isnan(case.log_density(x)) and np.isnan(case.gradient(x)).all()
    assert np.isnan(log_density_at(case.parameters_, x))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", [True, False])
def test_the_wall_is_at_one_of_its_two_places(d, kernel):
    """Far out around a concave quadratic, near where there is a kernel part."""
    X = np.random.default_rng(0).standard_normal((150, d))
    values = wavy(d)(X) if kernel else -0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(rng=0).fit(X, values)
    assert (surrogate.kernel_ is not None) == kernel
    near = WALL * distances(surrogate, X[values >= np.median(values)]).max() + 0.5
    assert surrogate.parameters_.radius == pytest.approx(near if kernel else FREE * near)


# What doesn't matter


def test_a_constant_doesnt_matter():
    X = np.random.default_rng(0).standard_normal((200, 2))
    values = wavy(2)(X)
    surrogate = LogDensityGP(rng=0).fit(X, values)
    moved = LogDensityGP(rng=0).fit(X, values + 1000.0)
    assert surrogate.kernel_ == moved.kernel_ is not None
    np.testing.assert_allclose(moved.gradient(X), surrogate.gradient(X), atol=1e-4)


@pytest.mark.parametrize("change", ["shift", "scale", "rotation"])
@every_kernel
def test_coordinates_dont_matter(change, kernel):
    """Shifted, rotated or scaled, a banana's surrogate is shifted, rotated or scaled.

    Up to rounding, which nearly dependent kernel functions multiply.
    """
    matrix = {
        "shift": np.eye(2),
        "scale": 1e-3 * np.eye(2),
        "rotation": np.array([[0.6, -0.8], [0.8, 0.6]]),
    }[change]
    shift = np.array([5.0, -30.0]) if change == "shift" else np.zeros(2)
    problem = Banana()
    X, test = problem.draws(150, 1), problem.draws(50, 2)
    values = problem.log_density(X)

    def fit(points):
        return LogDensityGP(kernels=(kernel,), rng=0).fit(points, values, reference=points)

    plain, changed = fit(X), fit(X @ matrix.T + shift)
    assert changed.length_scale_ == pytest.approx(plain.length_scale_, rel=1e-4)
    gradients = changed.gradient(test @ matrix.T + shift) @ matrix
    scale = np.abs(plain.gradient(test)).max()
    np.testing.assert_allclose(gradients, plain.gradient(test), atol=1e-2 * scale)


def test_the_same_generator_gives_the_same_fit():
    """With more values than a comparison takes, so that the generator is used."""
    X = np.random.default_rng(0).standard_normal((300, 2))

    def parameters(rng):
        surrogate = LogDensityGP(n_comparison_points=100, rng=rng)
        return surrogate.fit(X, wavy(2)(X)).parameters_

    for first, second in zip(parameters(3), parameters(np.random.default_rng(3)), strict=True):
        np.testing.assert_array_equal(first, second)
    others = zip(parameters(3), parameters(4), strict=True)
    assert not all(np.array_equal(first, second) for first, second in others)


def same_parameters(first, second):
    for a, b in zip(first.parameters_, second.parameters_, strict=True):
        np.testing.assert_array_equal(a, b)


def test_values_that_are_not_finite_are_left_out():
    X = np.random.default_rng(0).standard_normal((120, 2))
    values = wavy(2)(X)
    bad = np.arange(120) % 4 == 0
    spoiled = np.where(bad, np.resize([-np.inf, np.nan, np.inf], 120), values)
    clean = LogDensityGP(rng=0).fit(X[~bad], values[~bad])
    same_parameters(LogDensityGP(rng=0).fit(X, spoiled), clean)


@pytest.mark.parametrize("where", ["far away", "deep"])
def test_points_that_say_nothing_do_no_harm(where):
    problem, rng = Banana(), np.random.default_rng(8)
    X, test = problem.draws(300, 1), problem.draws(200, 2)
    more = np.vstack([X[:40] + rng.standard_normal((40, 2)), 300.0 * rng.standard_normal((40, 2))])
    values = problem.log_density(more)
    if where == "deep":
        more, values = more[:40], -(10.0 ** rng.uniform(3, 9, 40))
    everything = np.vstack([X, more]), np.append(problem.log_density(X), values)
    if where == "far away":
        everything = np.vstack([X, more[40:]]), np.append(problem.log_density(X), values[40:])
    clean = LogDensityGP(rng=0).fit(X, problem.log_density(X), reference=X, bulk=-1.0)
    same_parameters(LogDensityGP(rng=0).fit(*everything, reference=X, bulk=-1.0), clean)
    # Nor where nothing is known of the bulk.
    surrogate = LogDensityGP(rng=0).fit(*everything, reference=X)
    assert relative_error(surrogate, problem, test) < 2.0 * relative_error(clean, problem, test)


LINE = np.outer(np.random.default_rng(9).standard_normal(40), [1.0, 2.0, 3.0])
PLANE = np.random.default_rng(10).standard_normal((60, 2))
DEGENERATE = {
    "duplicates": np.repeat(PLANE[:20], 5, axis=0),
    "one point": np.full((30, 2), 0.7),
    "two points": np.repeat(PLANE[:2], 10, axis=0),
    "one dimension": PLANE[:, :1],
    "three values in one dimension": PLANE[:3, :1],
    "five values in three dimensions": np.random.default_rng(11).standard_normal((5, 3)),
    "ten values in eight dimensions": np.random.default_rng(11).standard_normal((10, 8)),
    "collinear": LINE,
    "a constant first coordinate": np.column_stack([np.ones(60), PLANE]),
    "a constant last coordinate": np.column_stack([PLANE, np.ones(60)]),
    "tiny": 1e-8 * PLANE,
    "huge": 1e8 * PLANE,
    "different scales": PLANE * [1e-6, 1e6],
    "far from the origin": PLANE + 1e8,
}
VALUES = {
    "gaussian": lambda X: -0.5 * (X**2).sum(axis=1),
    "noisy": lambda X: np.random.default_rng(12).standard_normal(len(X)),
    "constant": lambda X: np.full(len(X), -1e5),
    "convex": lambda X: 0.5 * (X**2).sum(axis=1),
    "a spike": lambda X: np.where(np.arange(len(X)) == 1, 1e4, 0.0),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("points", DEGENERATE)
def test_degenerate_data_give_finite_answers(points, values):
    X = DEGENERATE[points]
    Y = VALUES[values](X)
    test = np.vstack([X[:3], X.mean(axis=0) + 2.0 * (X[:3] - X.mean(axis=0)) + 1e-3])
    last = None
    for _ in range(2):
        last = LogDensityGP(50, rng=0).fit(X, Y, last=last)
        assert all(np.isfinite(array).all() for array in last.parameters_)
        assert np.isfinite(last.log_density(test)).all()
        assert np.isfinite(last.gradient(test)).all()
        assert np.isfinite(last.predictive_variance(test)).all()


def test_different_scales_are_whitened():
    """A banana with coordinates of sizes 1 and 1e6 is not harder than one without."""
    problem = Banana()
    X, test = problem.draws(300, 1), problem.draws(200, 2)
    scale = np.array([1.0, 1e-6])
    values = problem.log_density(X)
    surrogate = LogDensityGP(rng=0).fit(X * scale, values, reference=X * scale)
    gradients, true = surrogate.gradient(test * scale) * scale, problem.gradient(test)
    plain = LogDensityGP(rng=0).fit(X, values, reference=X)
    error = ((gradients - true) ** 2).sum() / (true**2).sum()
    assert error < 3.0 * relative_error(plain, problem, test)


@pytest.mark.parametrize("last", ["kernel", "trend", "other coordinates", "one dimension"])
def test_an_earlier_fit_is_accepted(last):
    d = 1 if last == "one dimension" else 2
    X = np.random.default_rng(0).standard_normal((150, d))
    values, options = wavy(d)(X), {}
    if last == "trend":
        earlier = LogDensityGP(rng=0).fit(X, -0.5 * (X**2).sum(axis=1))
        assert earlier.kernel_ is None
    else:
        if last == "other coordinates":
            options = {"whitening": np.array([[0.2, 0.1], [-0.4, 1.5]])}
        earlier = LogDensityGP(rng=0).fit(X, values, **options)
        assert earlier.kernel_ is not None
    surrogate = LogDensityGP(rng=0).fit(X, values, reference=X, last=earlier)
    assert np.std(surrogate.log_density(X) - values) < 0.01


# Predictive variance


def test_predictive_variance_is_small_at_the_data_and_grows_away():
    X = np.random.default_rng(0).standard_normal((150, 2))
    values = wavy(2)(X) + 0.1 * np.random.default_rng(1).standard_normal(150)
    surrogate = LogDensityGP(rng=0).fit(X, values, reference=X)
    at_data = surrogate.predictive_variance(X)
    assert np.all(at_data >= 0)
    assert at_data.mean() < surrogate.variance_
    direction = np.array([0.6, 0.8])
    away = [surrogate.predictive_variance(r * direction) for r in (0.0, 4.0, 100.0)]
    assert all(isinstance(variance, float) for variance in away)
    assert away[2] > 10 * away[1] > 100 * away[0]


@pytest.mark.parametrize("problem", ["gaussian", "wavy", "student"])
def test_predictive_variance_is_that_of_the_errors(problem):
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
        ratios.append(np.mean(errors**2 / surrogate.predictive_variance(test)))
    assert 0.5 < np.mean(ratios) < 2.0


# Errors


X = np.random.default_rng(0).standard_normal((30, 2))
Y = -0.5 * (X**2).sum(axis=1) - 0.1 * X[:, 0] ** 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[:, 0], Y), r"X has shape \(30,\).*pass an \(n, d\) array"),
        ((X, Y[:5]), r"values has shape \(5,\); pass one a row of X: \(30,\)"),
        ((X, Y[:, None]), r"values has shape \(30, 1\)"),
        ((X[:3], Y[:3]), "3 of the values are finite.*2 dimensions needs at least 4"),
        ((X, np.full(30, -np.inf)), "0 of the values are finite"),
        ((np.where(X > 1, np.nan, X), Y), r"X\[.*\] is nan; remove or repair"),
    ],
)
def test_bad_data_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        LogDensityGP().fit(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": X[:, :1]}, "reference has 1 columns"),
        ({"reference": np.full((3, 2), np.nan)}, "reference.*is nan"),
        ({"whitening": np.eye(3)}, "whitening"),
        ({"whitening": np.zeros((2, 2))}, "whitening"),
        ({"whitening": np.full((2, 2), np.nan)}, "whitening"),
        ({"bulk": np.nan}, "bulk"),
        ({"last": LogDensityGP()}, "not fitted"),
    ],
)
def test_bad_options_of_a_fit_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LogDensityGP(rng=0).fit(X, Y, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_landmarks": -1}, "n_landmarks=-1"),
        ({"kernels": ("matern",)}, "kernels.*matern"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LogDensityGP(rng=0, **options).fit(X, Y)


def test_points_of_another_dimension():
    surrogate = LogDensityGP(rng=0).fit(X, Y)
    for method in ("log_density", "gradient", "predictive_variance"):
        with pytest.raises(ValueError, match=r"takes \(2,\) or \(n, 2\)"):
            getattr(surrogate, method)(np.zeros(3))


def test_not_fitted():
    for method in ("log_density", "gradient", "predictive_variance", "loss"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(LogDensityGP(), method)(X)


# Compiled code from the cache

FUNCTIONS = ("gradient", "log_density", "path", "transitions")

EVALUATE = """
import sys
import numpy as np
from pymc_kmc.dynamics import leapfrog_path, transitions
from pymc_kmc.surrogates import LogDensityGP, gradient_at, log_density_at

def evaluate(function, parameters, rng):
    d = len(parameters.centre)
    x = rng.standard_normal((2, d))
    if function == "gradient":
        out = np.empty(d)
        gradient_at(parameters, x[0], out)
        return [out]
    if function == "log_density":
        return [log_density_at(parameters, x[0])]
    if function == "path":
        return leapfrog_path(parameters, x[0], x[1], np.eye(d), 0.05, 40)
    k = 30
    momenta, step_sizes = rng.standard_normal((k, d)), rng.uniform(0.05, 0.3, k)
    n_steps = rng.integers(1, 12, k)
    return transitions(parameters, 0.7, x[0], momenta, step_sizes, n_steps, rng.uniform(size=k))

for d in (1, 2, 3, 4, 7):
    X = np.random.default_rng(0).standard_normal((250, d))
    values = np.sin(X * (1.0 + 0.3 * np.arange(d))).sum(axis=1) - 0.5 * (X**2).sum(axis=1)
    for kernel in ("gaussian", "rational_quadratic"):
        surrogate = LogDensityGP(70, kernels=(kernel,), rng=0).fit(X, values, reference=X)
        assert surrogate.kernel_ == kernel
        results = {"fit": surrogate.parameters_}
        for function in sys.argv[1].split(","):
            rng = np.random.default_rng(1)
            results[function] = evaluate(function, surrogate.parameters_, rng)
        for name, values_ in results.items():
            bits = b"".join(np.asarray(value).tobytes() for value in values_)
            print(d, kernel, name, bits.hex())
"""


def test_results_are_those_of_code_from_the_cache_bit_by_bit(tmp_path):
    """In a process that compiles everything and in others that load it, in two orders.

    Callees compiled with fast-math flags have copies in the machine code of every caller, which
    round differently; a process uses the copy that it met first unless all are inlined.
    """
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def results(functions):
        command = [sys.executable, "-W", "ignore", "-c", EVALUATE, ",".join(functions)]
        root = Path(__file__).parents[3]
        output = subprocess.run(
            command, env=environment, cwd=root, check=True, capture_output=True, text=True
        ).stdout
        return dict(line.rsplit(" ", 1) for line in output.splitlines())

    compiled = results(FUNCTIONS)
    assert len(compiled) == 5 * 2 * (len(FUNCTIONS) + 1)
    for functions in (FUNCTIONS, FUNCTIONS[::-1]):
        loaded = results(functions)
        different = [key for key, bits in loaded.items() if bits != compiled[key]]
        assert not different


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
        np.testing.assert_allclose(std**2, surrogate.predictive_variance(X))
        assert abs(mean[3] - surrogate.predict(X[3])) < 1e-6
        surrogate.update(outside[:10], banana(outside[:10]))  # and once more after updates


def test_an_update_changes_the_functions_of_single_coordinates_too():
    surrogate = CASES["additive part"]()
    before = surrogate.parameters_
    X = np.random.default_rng(8).standard_normal((3, 4))
    surrogate.update(X, wavy(4)(X) + 3.0 * np.exp(-2.0 * (X[:, 0] - 0.5) ** 2))
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
    surrogate.update(outside[:half], banana(outside[:half]))
    _, std = surrogate.predict(outside[half:], return_std=True)
    assert errors(outside[half:]) < 0.1 * before
    assert std.mean() < 0.3 * std_before.mean()
    assert errors(inside) < before_inside + 0.05


def test_an_update_is_the_solution_of_the_larger_regression():
    """The same coefficients as from the normal equations of all features and points at once."""
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    for x, value in zip(outside[:15], banana(outside[:15]), strict=True):
        surrogate.update(x, value)
    regression = surrogate._posterior.regression
    gram, right = regression._features.T @ regression._features, regression._values
    ridge = np.diag(regression._factor.T @ regression._factor - gram)
    expected = np.linalg.solve(gram + np.diag(ridge), regression._features.T @ right)
    np.testing.assert_allclose(
        regression._features @ regression.coefficients,
        regression._features @ expected,
        atol=1e-4 * np.ptp(right),
    )
    assert np.all(ridge > 0)


def test_updates_add_no_more_kernel_functions_than_half_as_many():
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    surrogate.update(outside, banana(outside))
    assert 60 < len(surrogate.parameters_.coefficients) <= 90


def test_an_update_of_the_trend_alone():
    X = np.random.default_rng(0).standard_normal((200, 2))
    values = -0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(20, rng=0).fit(X, values)
    assert surrogate.kernel_ is None
    surrogate.update([3.0, 3.0], -9.0)
    np.testing.assert_allclose(surrogate.predict([3.0, 3.0]), -9.0, atol=1e-3)


def test_the_wall_makes_way_for_places_in_the_bulk():
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    radius = surrogate.parameters_.radius
    far = outside[np.argmax(np.abs(outside[:, 0]))] * 2
    surrogate.update(far, -500.0)
    assert surrogate.parameters_.radius == radius
    surrogate.update(far, -0.5)
    assert surrogate.parameters_.radius > radius


def test_an_updates_value_counts_as_much_as_its_depth_allows():
    """At the depth's scale, 6 nats in two dimensions, half as much; deep ones hardly."""
    surrogate, inside, _ = fitted_to_the_middle(np.random.default_rng(0))
    bulk = np.quantile(banana(inside), 0.9)
    for depth, weight in ((0.0, 1.0), (6.0, 0.5), (60.0, 1.0 / 101.0)):
        assert surrogate.weight(bulk - depth) == pytest.approx(weight, rel=1e-6)
    X = np.random.default_rng(0).standard_normal((200, 2))  # no kernel function that gives way
    surrogate = LogDensityGP(20, rng=0).fit(X, -0.5 * (X**2).sum(axis=1))
    surrogate.update([4.0, 0.0], -6000.0)
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
    surrogate.update([[8.0, 0.0], [-8.0, 0.0]], [40.0, 40.0])
    assert surrogate.constant_ == constant
    for field in ("linear", "precision", "radial_coefficients"):
        np.testing.assert_array_equal(getattr(surrogate.parameters_, field), getattr(before, field))
    angles = np.linspace(0.0, 2.0 * np.pi, 600)  # enough of the others, and it is one again
    surrogate.update(4.0 * np.column_stack([np.cos(angles), np.sin(angles)]), np.full(600, -8.0))
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
        surrogate.update([size, 0.0], 0.0)
        np.testing.assert_array_equal(surrogate.predict(inside), before)
    surrogate.update(outside[:20], banana(outside[:20]))
    np.testing.assert_allclose(surrogate.predict(outside[:20]), banana(outside[:20]), atol=0.5)


def test_updates_that_cannot_be_taken():
    surrogate, _, outside = fitted_to_the_middle(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"values\[1\] is nan; leave values that aren't finite"):
        surrogate.update(outside[:2], [0.0, np.nan])
    with pytest.raises(ValueError, match=r"values has shape \(3,\)"):
        surrogate.update(outside[:2], np.zeros(3))
    with pytest.raises(ValueError, match="not fitted"):
        LogDensityGP().update([0.0], 0.0)
