"""LogDensityGP: what it represents, what it doesn't mind, errors.

Everything is seeded and without Monte-Carlo error but for the tests with noise, whose bounds are
stated beside them.
"""

import numpy as np
import pytest

from pymc_kmc.surrogates import LogDensityGP, NotFittedError, gp_parts
from pymc_kmc.surrogates.gp_fit import FREE, wall_radius
from pymc_kmc.surrogates.kernels import KERNELS
from tests.log_densities import Banana, Gaussian, distances, relative_error, wavy

every_kernel = pytest.mark.parametrize("kernel", KERNELS)


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
    surrogate = LogDensityGP(rng=0).fit(X, log_density(X), reference=X, whitening=whitening)
    test = test[distances(surrogate, test) < distances(surrogate, X).max()]
    true = gradient(test)
    assert surrogate.kernel_ is None
    assert np.linalg.norm(surrogate.gradient(test) - true) < 0.01 * np.linalg.norm(true)


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


@pytest.mark.parametrize("seed", [1, 2])
def test_few_values_tell_whether_to_believe_the_points_correlations(seed):
    """A rotated Gaussian, standard deviations .03 to 3; errors are .66 if these are shrunk."""
    rng, d = np.random.default_rng(seed), 20
    axes, _ = np.linalg.qr(rng.standard_normal((d, d)))
    sds = np.geomspace(0.03, 3.0, d)
    X, new = (rng.standard_normal((n, d)) * sds @ axes.T for n in (200, 500))
    values, expected = (-0.5 * np.sum((points @ axes / sds) ** 2, axis=1) for points in (X, new))
    surrogate = LogDensityGP(rng=0).fit(X, values, reference=X)
    assert not surrogate.is_full_
    assert np.std(surrogate.log_density(new) - expected) < 0.4 * np.std(expected)


def test_a_quadratic_keeps_the_values_that_it_needs():
    """Of a chain that has come from far: all but the last ones are far below them."""
    rng = np.random.default_rng(11)
    X = rng.standard_normal((200, 10)) + np.linspace(0.0, 300.0, 200)[::-1, None]
    surrogate = LogDensityGP(20, rng=0).fit(X, -0.5 * (X**2).sum(axis=1), reference=X[-20:])
    assert surrogate.is_full_


def test_functions_of_single_coordinates_need_few_values(monkeypatch):
    """A log density that bends along each of eight coordinates, from 400 values."""
    d = 8
    X = np.random.default_rng(0).standard_normal((900, d))
    values = -0.5 * (X**2).sum(axis=1) - 2.0 * np.log1p(np.exp(2.0 * X)).sum(axis=1)

    def error():
        gp = LogDensityGP(rng=0).fit(X[:400], values[:400], reference=X[:400])
        rest = values[400:] - gp.log_density(X[400:])
        return gp, rest.std()

    gp, with_them = error()
    assert gp.additive_variance_ > 0
    monkeypatch.setattr(gp_parts, "FEWEST_COORDINATES", d + 1)
    assert with_them < 0.2 * error()[1]


def test_an_additive_part_that_says_nothing_is_left_out():
    """A ridge across all coordinates."""
    X = np.random.default_rng(0).standard_normal((500, 5))
    values = -0.5 * (X**2).sum(axis=1) + 3.0 * np.sin(X.sum(axis=1))
    assert LogDensityGP(rng=0).fit(X, values, reference=X).additive_variance_ == 0


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", [True, False])
def test_the_wall_is_at_one_of_its_two_places(d, kernel):
    """Far out around a concave quadratic, near where there is a kernel part."""
    X = np.random.default_rng(0).standard_normal((150, d))
    values = wavy(d)(X) if kernel else -0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(rng=0).fit(X, values)
    assert (surrogate.kernel_ is not None) == kernel
    near = wall_radius(distances(surrogate, X[values >= np.median(values)]).max())
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


def test_the_same_generator_gives_the_same_fit(monkeypatch):
    """With more values than a comparison takes, so that the generator is used."""
    X = np.random.default_rng(0).standard_normal((300, 2))
    monkeypatch.setattr(gp_parts, "N_POINTS", 100)

    def parameters(rng):
        return LogDensityGP(rng=rng).fit(X, wavy(2)(X)).parameters_

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
        assert np.isfinite(last.predict(test, return_std=True)).all()


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
    for method in ("log_density", "gradient", "predict"):
        with pytest.raises(ValueError, match=r"takes \(2,\) or \(n, 2\)"):
            getattr(surrogate, method)(np.zeros(3))


def test_not_fitted():
    for method in ("log_density", "gradient", "predict"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(LogDensityGP(), method)(X)
