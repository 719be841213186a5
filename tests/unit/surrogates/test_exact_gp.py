import numpy as np
import pytest

from pymc_kmc.numerics.linear_algebra import ROUNDING
from pymc_kmc.surrogates.covariance import EXTENSIONS, Covariances, Hyperparameters
from pymc_kmc.surrogates.exact_gp import ExactGP, MarginalLikelihood

WHITENING = np.array([[1.0, 0.0], [0.3, 0.5]])
CENTRE = np.array([0.5, -1.0])


# Parameters of what extends the covariance.
OF_EXTENSIONS = {None: [], "additive": [0.4, -0.7, 0.2, -0.5], "radial": [0.1, -0.6]}


def extended(process, extension):
    """The same process, its covariance extended."""
    parameters = [*process.hyperparameters_.packed, *OF_EXTENSIONS[extension]]
    again = ExactGP(process.whitening, process.centre)
    data = process.Z_, process.Y_, process.noise_
    return again.given(*data, Hyperparameters.unpacked(np.array(parameters), 2, extension))


def covariance_of(process):
    """The covariance of a process's values."""
    parameters, Z = process.hyperparameters_, process.Z_
    K = Covariances(parameters, Z, Z, process.axes_).values
    return K + np.diag(np.exp(parameters.log_noise) + ROUNDING * np.diag(K))


@pytest.fixture
def points(rng):
    return rng.normal(size=(25, 2))


@pytest.fixture
def outputs(points):
    x, y = points.T
    return np.column_stack([np.sin(2 * x) + y, x * y - y**2, np.exp(0.3 * x)])


@pytest.fixture
def process(points, outputs):
    return ExactGP(WHITENING, CENTRE).fit(points, outputs)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_values_without_noise_are_met(process, points, outputs):
    prediction = process.predict(points)
    np.testing.assert_allclose(prediction.mean, outputs, atol=1e-3)
    assert np.all(prediction.variance < 1e-4 * process.predict(points + 10.0).variance)


def test_a_quadratic_is_learned_from_as_many_values_as_it_has_coefficients(rng):
    points, fresh = rng.normal(size=(8, 2)), rng.normal(size=(20, 2))

    def quadratic(X):
        return -0.5 * np.einsum("ij,jk,ik->i", X, [[1.0, 0.6], [0.6, 1.0]], X)[:, None] + X[:, :1]

    process = ExactGP(np.eye(2), np.zeros(2)).fit(points, quadratic(points))
    np.testing.assert_allclose(process.predict(fresh).mean, quadratic(fresh), atol=0.1)


def test_a_curved_ridge_goes_on_where_there_are_no_values(rng):
    """Fifteen coefficients of a quartic are learned from 25 values; a kernel forgets."""

    def ridge(X):
        return -0.5 * (X[:, 0] ** 2 + (2.0 * X[:, 1] + X[:, 0] ** 2 - 1.0) ** 2)[:, None]

    points, x = rng.normal(size=(25, 2)), np.array([-4.0, -3.0, 3.0, 4.0])
    arms = np.column_stack([x, 0.5 - 0.5 * x**2])
    prediction = ExactGP(np.eye(2), np.zeros(2)).fit(points, ridge(points)).predict(arms)
    np.testing.assert_allclose(prediction.mean, ridge(arms), atol=0.02)
    assert prediction.variance.max() < 1.0


def test_what_bends_along_one_coordinate_is_learned_from_few_values(rng):
    """With one length scale for all five errors at draws are .21 to .27."""

    def modes(X):
        return (-0.5 * (X**2).sum(axis=1) + np.log(np.cosh(2.5 * X[:, 0])))[:, None]

    def draws(n):
        X = rng.normal(size=(n, 5))
        X[:, 0] += rng.choice([-2.5, 2.5], size=n)
        return X

    points, fresh = draws(120), draws(200)
    process = ExactGP(np.eye(5), np.zeros(5)).fit(points, modes(points))
    lengths = process.hyperparameters_.log_lengths
    assert lengths[0] < lengths[1:].min() - 1.0
    errors = process.predict(fresh).mean - modes(fresh)
    assert np.sqrt(np.mean(errors**2)) < 0.1


def test_a_ridge_that_bends_along_one_of_eight_coordinates_goes_on(rng):
    """The 495 coefficients of a quartic in eight dimensions aren't told by 110 values."""

    def ridge(X):
        return -0.5 * ((X[:, 1:] ** 2).sum(axis=1) + (2.0 * X[:, 0] + X[:, 1] ** 2 - 1.0) ** 2)

    points, x = rng.normal(size=(110, 8)), np.array([-4.0, -3.0, 3.0, 4.0])
    arms = np.zeros((4, 8))
    arms[:, :2] = np.column_stack([0.5 - 0.5 * x**2, x])
    process = ExactGP(np.eye(8), np.zeros(8)).fit(points, ridge(points)[:, None])
    prediction = process.predict(arms)
    np.testing.assert_allclose(prediction.mean[:, 0], ridge(arms), atol=0.5)


@pytest.mark.parametrize("kind", ["as it is", "bends", *EXTENSIONS])
def test_gradients_are_those_of_means_and_variances(kind, process, points, rng):
    X, weights, factors = rng.normal(size=(4, 2)), rng.normal(size=(4, 3)), rng.normal(size=4)
    if kind in EXTENSIONS:
        process = extended(process, kind)
    elif kind == "bends":
        x, y = points.T
        quartic = np.column_stack([(x**2 + y - 1.0) ** 2, x**3 - x, x**4 + y**2])
        process = ExactGP(WHITENING, CENTRE).fit(points, quartic)
        terms = process.hyperparameters_
        assert terms.log_bend > terms.log_variance / 2.0 + 2.0
        assert np.ptp(terms.log_lengths) > 0.5

    def total(X):
        prediction = process.predict(X)
        return (weights * prediction.mean).sum(axis=1) + factors * prediction.variance

    gradient = process.predict(X).pullback(weights, factors)
    for j, step in enumerate(1e-4 * np.eye(2)):
        difference = (total(X + step) - total(X - step)) / 2e-4
        np.testing.assert_allclose(gradient[:, j], difference, rtol=1e-3, atol=1e-4)


def test_values_left_out_are_predicted_as_from_all_others(process, points, outputs):
    mean, variance = process.leave_one_out()
    K = covariance_of(process)
    for i in (0, 7, 24):
        others = np.arange(25) != i
        solved = np.linalg.solve(K[np.ix_(others, others)], K[others, i])
        np.testing.assert_allclose(mean[i], solved @ outputs[others], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(variance[i], K[i, i] - solved @ K[others, i], rtol=1e-3)


@pytest.mark.parametrize("extension", [None, *EXTENSIONS])
def test_compiled_covariances_are_those_of_the_formula(extension, process, rng):
    A, B = rng.normal(size=(4, 2)), rng.normal(size=(6, 2))
    parameters = extended(process, extension).hyperparameters_
    s2, b2, a = np.exp([2 * parameters.log_scale, 2 * parameters.log_bend, parameters.log_variance])
    precisions = np.exp(-2 * parameters.log_lengths)
    t, w = A @ B.T, 8.0 * (A * precisions) @ B.T
    squares = (A[:, None] - B) ** 2 @ precisions
    expected = s2 * (100 + 100 * t + t**2) + b2 * (w**3 + w**4) + a * np.exp(-0.5 * squares)
    axes = rng.normal(size=(2, 2))
    if extension is not None:
        expected += parameters.extension(A @ axes.T, B @ axes.T)
    np.testing.assert_allclose(Covariances(parameters, A, B, axes).values, expected, rtol=1e-10)
    of_same = Covariances(parameters, A, A, axes)
    np.testing.assert_allclose(of_same.triangle, np.tril(of_same.values), rtol=1e-10)


@pytest.mark.parametrize("extension", [None, *EXTENSIONS])
def test_the_covariance_has_the_variances_on_its_diagonal(extension, process, rng):
    X = rng.normal(size=(5, 2))
    process = extended(process, extension)
    np.testing.assert_allclose(
        np.diag(process.covariance(X)), process.predict(X).variance, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("extension", [None, *EXTENSIONS])
def test_the_loss_has_its_gradient(extension, points, outputs, rng):
    noise, axes = rng.uniform(0, 0.1, size=len(points)), rng.normal(size=(2, 2))
    likelihood = MarginalLikelihood(points, outputs, noise, extension, axes)
    parameters = np.array([-0.5, -0.8, 0.3, -3.0, 0.4, 1.1, *OF_EXTENSIONS[extension]])
    _, gradient = likelihood.loss(parameters)
    differences = [
        (likelihood.loss(parameters + step)[0] - likelihood.loss(parameters - step)[0]) / 2e-5
        for step in 1e-5 * np.eye(len(parameters))
    ]
    np.testing.assert_allclose(gradient, differences, rtol=1e-4)


def test_own_noise_lets_values_be_missed(points, outputs):
    noise = np.zeros(len(points))
    noise[0] = 100.0
    wrong = outputs.copy()
    wrong[0] += 5.0
    process = ExactGP(WHITENING, CENTRE).fit(points, wrong, noise)
    assert np.all(np.abs(process.predict(points[:1]).mean - wrong[0]) > 3.0)


def test_more_outputs_than_values_are_kept_as_factors(points, outputs, rng):
    """Nothing of the size of their covariance is made: ten thousand have 800 MB of it."""
    many = outputs @ rng.standard_normal((3, 60)) + 0.1 * np.sin(points @ rng.normal(size=(2, 60)))
    process = ExactGP(WHITENING, CENTRE).fit(points, many)
    assert process.output_factor_.shape == (25, 60)
    likelihood = MarginalLikelihood(process.coordinates(points), many, np.zeros(25))
    assert likelihood.Y.shape == (25, 25)
    K = covariance_of(process)
    covariance = many.T @ np.linalg.solve(K, many) / 25
    found = process.output_factor_.T @ process.output_factor_
    np.testing.assert_allclose(found, covariance, rtol=1e-4, atol=1e-4 * np.abs(covariance).max())
    expected = sum(
        ExactGP(WHITENING, CENTRE)
        .given(process.Z_, one[:, None], np.zeros(25), process.hyperparameters_)
        .log_evidence_
        for one in many.T
    )
    assert process.log_evidence_ == pytest.approx(expected, rel=1e-8)
