"""The benchmarks' targets are the densities that their moments and draws belong to."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from examples.benchmarks import lotka_volterra
from examples.benchmarks.targets import TARGETS

N_DRAWS = 20_000
#: Errors of averages over the draws, in standard errors.
TOLERANCE = 4.5


#: Those with exact draws.
SAMPLED = [name for name in TARGETS if TARGETS[name]().sample is not None]


@pytest.fixture(params=TARGETS, scope="module")
def target(request):
    return TARGETS[request.param]()


@pytest.fixture(params=SAMPLED, scope="module")
def sampled(request):
    return TARGETS[request.param]()


def averages_to(values, expected):
    error = np.abs(values.mean(axis=0) - expected)
    return np.all(error <= TOLERANCE * values.std(axis=0) / np.sqrt(len(values)))


def test_gradient_is_that_of_the_density(target):
    rng = np.random.default_rng(1)
    points = target.mean + 0.5 * target.sd * rng.standard_normal((3, target.dimension))
    steps = 1e-5 * np.eye(target.dimension)
    for point, gradient in zip(points, target.gradient(points), strict=True):
        difference = target.log_density(point + steps) - target.log_density(point - steps)
        np.testing.assert_allclose(gradient, difference / 2e-5, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(target.gradient(point), gradient, rtol=1e-12)


def test_model_has_the_density_and_its_gradient(target):
    point, model = target.start(np.random.default_rng(2)), target.model()
    log_density = model.compile_logp(mode="FAST_COMPILE")({"x": point})
    np.testing.assert_allclose(log_density, target.log_density(point), rtol=1e-10)
    gradient = model.compile_dlogp(mode="FAST_COMPILE")({"x": point})
    np.testing.assert_allclose(gradient, target.gradient(point), rtol=1e-8, atol=1e-10)


def test_draws_are_from_the_density(sampled):
    """E grad log p = 0 and E x_i (grad log p)_i = -1: Stein's identity for 1 and for x_i."""
    x = sampled.sample(N_DRAWS, np.random.default_rng(3))
    gradient = sampled.gradient(x)
    assert averages_to(gradient, 0.0)
    assert averages_to(sampled.along_axes(x) * sampled.along_axes(gradient), -1.0)


def test_moments_are_those_of_the_draws(sampled):
    along = sampled.along_axes(sampled.sample(N_DRAWS, np.random.default_rng(4)))
    assert averages_to(along, sampled.axes_mean)
    assert averages_to((along - sampled.axes_mean) ** 2, sampled.axes_sd**2)


def test_axes_of_a_rotated_target_are_those_of_the_plain_one():
    plain, turned = TARGETS["strong-banana"](), TARGETS["rotated-banana"]()
    np.testing.assert_allclose(turned.axes_sd, plain.sd)
    assert not np.allclose(turned.sd, plain.sd)


def test_lynx_and_hare_follow_the_equations():
    x = lotka_volterra.NEAR_THE_MODE
    alpha, beta, gamma, delta = np.exp(x[:4])

    def slope(t, z):
        return [(alpha - beta * z[1]) * z[0], (delta * z[0] - gamma) * z[1]]

    years = np.arange(21.0)
    exact = solve_ivp(slope, (0, 20), np.exp(x[4:6]), "DOP853", years, rtol=1e-11, atol=1e-11)
    found = lotka_volterra.solve(x, 0, len(years), lotka_volterra.STEPS_A_YEAR)[:, :, 0]
    np.testing.assert_allclose(found, np.log(exact.y.T), atol=1e-5)


def test_lynx_and_hare_reference_agrees_with_the_published_one():
    """The reference is near Carpenter's (2018): alpha .55, beta .028, gamma .80, delta .024."""
    mean, covariance = lotka_volterra.load_reference()
    assert np.exp(mean[:4]) == pytest.approx([0.55, 0.028, 0.80, 0.024], rel=0.05)
    assert np.all(np.linalg.eigvalsh(covariance) > 0)


def test_density_that_overflows_is_zero():
    x = lotka_volterra.NEAR_THE_MODE + np.r_[7.0, np.zeros(3), 7.0, np.zeros(3)]
    assert lotka_volterra.log_density(x) == -np.inf
