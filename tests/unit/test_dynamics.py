"""Dynamics: the leapfrog map's geometry, its order, its twin in NumPy; the metric."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_kmc.dynamics import Metric, SurrogateHamiltonian, leapfrog
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite

D = 3
METRIC = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.7]])
MATRIX = np.array([[1.5, 0.2, 0.0], [-0.4, 0.8, 0.1], [0.3, 0.0, 2.0]])
ORIGIN = np.array([0.5, -1.0, 2.0])


def points(seed=0, n=80):
    X = np.random.default_rng(seed).standard_normal((n, D))
    X[:, 1] += 0.4 * X[:, 0] ** 2
    return X


# With coefficients of moderate size: their sum multiplies the rounding errors of gradients.
FITTED = {
    "lite": KernelExpLite(4.0, 1e-1, penalty="reference", base="gaussian").fit(points()),
    "finite": KernelExpFinite(60, 4.0, 1e-2, base="gaussian", rng=1).fit(points()),
    "no base": KernelExpLite(4.0, 1e-1).fit(points()),
}

every_surrogate = pytest.mark.parametrize("name", FITTED)
# The same examples every time: no rare bad rounding in somebody else's run.
QUIETLY = settings(deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
step_sizes = st.floats(1e-3, 0.3)
lengths = st.integers(1, 25)


def start(seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(D), rng.standard_normal(D)


def leapfrog_twin(gradient, x, p, inverse_metric, step_size, n_steps):
    """Half-kick, drift, half-kick, step after step (Neal, 2011, equations 2.28-2.30)."""
    for _ in range(n_steps):
        p = p + 0.5 * step_size * gradient(x)
        x = x + step_size * inverse_metric @ p
        p = p + 0.5 * step_size * gradient(x)
    return x, p


@every_surrogate
@given(seed=seeds, step_size=step_sizes, n_steps=lengths)
@settings(QUIETLY, max_examples=25)
def test_leapfrog_equals_its_numpy_twin(name, seed, step_size, n_steps):
    surrogate = FITTED[name]
    x, p = start(seed)
    compiled = leapfrog(surrogate.parameters_, x, p, METRIC, step_size, n_steps)
    twin = leapfrog_twin(surrogate.gradient, x, p, METRIC, step_size, n_steps)
    np.testing.assert_allclose(compiled, twin, rtol=1e-9, atol=1e-9)


@every_surrogate
@given(seed=seeds, step_size=step_sizes, n_steps=lengths)
@settings(QUIETLY, max_examples=25)
def test_leapfrog_is_reversible(name, seed, step_size, n_steps):
    parameters = FITTED[name].parameters_
    x, p = start(seed)
    there, momentum = leapfrog(parameters, x, p, METRIC, step_size, n_steps)
    back, flipped = leapfrog(parameters, there, -momentum, METRIC, step_size, n_steps)
    scale = 1 + np.abs(there).max() + np.abs(momentum).max()
    np.testing.assert_allclose(back, x, atol=1e-10 * scale)
    np.testing.assert_allclose(-flipped, p, atol=1e-10 * scale)


def jacobian(function, z, epsilon=1e-5):
    columns = [
        (function(z + e) - function(z - e)) / (2 * epsilon) for e in epsilon * np.eye(len(z))
    ]
    return np.stack(columns, axis=1)


@every_surrogate
@given(seed=seeds, step_size=step_sizes, n_steps=st.integers(1, 10))
@settings(QUIETLY, max_examples=10)
def test_leapfrog_preserves_volume(name, seed, step_size, n_steps):
    """In the step's coordinates, where the chain lives."""
    coordinates = Coordinates(ORIGIN, MATRIX)
    hamiltonian = SurrogateHamiltonian(FITTED[name].parameters_, Metric(METRIC), coordinates)

    def flow(z):
        return np.concatenate(hamiltonian.trajectory(z[:D], z[D:], step_size, n_steps))

    x, p = start(seed)
    matrix = jacobian(flow, np.concatenate([coordinates.backward(x), p]))
    assert np.linalg.det(matrix) == pytest.approx(1.0, abs=1e-5)


@every_surrogate
def test_energy_error_is_of_second_order(name):
    """Halving the step size over the same time divides the error by four."""
    hamiltonian = SurrogateHamiltonian(FITTED[name].parameters_, Metric(METRIC))
    x, p = start(3)
    errors = [abs(hamiltonian.path(x, p, 0.08 / 2**k, 10 * 2**k)[1][-1]) for k in range(4)]
    ratios = np.divide(errors[:-1], errors[1:])
    np.testing.assert_allclose(ratios[1:], 4.0, rtol=0.1)


@every_surrogate
def test_path_has_every_point_of_the_trajectory_and_its_energy(name):
    surrogate, metric = FITTED[name], Metric(METRIC)
    coordinates = Coordinates(ORIGIN, MATRIX)
    hamiltonian = SurrogateHamiltonian(surrogate.parameters_, metric, coordinates)
    x, p = start(4)
    x = coordinates.backward(x)

    def energy(position, momentum):
        f = float(surrogate.log_density(coordinates.forward(position)))
        return -f + metric.kinetic_energy(momentum)

    positions, energy_changes = hamiltonian.path(x, p, 0.2, 7)
    assert positions.shape == (7, D)
    assert energy_changes.shape == (7,)
    for n, (position, change) in enumerate(zip(positions, energy_changes, strict=True), start=1):
        end, momentum = hamiltonian.trajectory(x, p, 0.2, n)
        np.testing.assert_allclose(position, end, rtol=1e-9, atol=1e-12)
        assert change == pytest.approx(energy(end, momentum) - energy(x, p), rel=1e-9, abs=1e-11)


def test_the_start_is_not_written_to():
    x, p = start(5)
    x_before, p_before = x.copy(), p.copy()
    hamiltonian = SurrogateHamiltonian(FITTED["lite"].parameters_, Metric(METRIC))
    hamiltonian.trajectory(x, p, 0.1, 3)
    hamiltonian.path(x, p, 0.1, 3)
    np.testing.assert_array_equal(x, x_before)
    np.testing.assert_array_equal(p, p_before)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("step_size", [1e4, 1e200])
def test_divergence_gives_numbers_that_are_not_finite(step_size):
    """The Gaussian base pulls harder and harder on a step size beyond its stability limit."""
    hamiltonian = SurrogateHamiltonian(FITTED["lite"].parameters_)
    x, p = start(6)
    end, momentum = hamiltonian.trajectory(x, p, step_size, 200)
    assert not np.isfinite(end).any()
    positions, energy_changes = hamiltonian.path(x, p, step_size, 200)
    assert not np.isfinite(positions[-1]).any()
    assert np.isnan(energy_changes[-1])


def test_trajectory_of_a_gaussian_base_is_the_exact_one():
    """Without a kernel part the surrogate is N(0, I), whose flow is a rotation of (x, p)."""
    parameters = FITTED["lite"].parameters_
    parameters = parameters._replace(
        coefficients=np.zeros_like(parameters.coefficients),
        base_mean=np.zeros(D),
        base_precision=np.eye(D),
    )
    x, p = start(10)
    end, momentum = SurrogateHamiltonian(parameters).trajectory(x, p, 1e-3, 1500)
    np.testing.assert_allclose(end, x * np.cos(1.5) + p * np.sin(1.5), atol=1e-5)
    np.testing.assert_allclose(momentum, p * np.cos(1.5) - x * np.sin(1.5), atol=1e-5)


# Metric


def test_momentum_has_the_metrics_covariance():
    """30,000 draws; each entry of the covariance within 4.5 standard errors."""
    rng = np.random.default_rng(7)
    metric, n = Metric(METRIC), 30_000
    momenta = np.array([metric.draw_momentum(rng) for _ in range(n)])
    covariance = np.linalg.inv(METRIC)
    variances = np.diag(covariance)
    assert np.all(np.abs(momenta.mean(axis=0)) < 4.5 * np.sqrt(variances / n))
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / n)
    assert np.all(np.abs(momenta.T @ momenta / n - covariance) < 4.5 * errors)


@given(seed=seeds)
@settings(QUIETLY, max_examples=20)
def test_kinetic_energy_is_the_momentums_negative_log_density(seed):
    _, p = start(seed)
    normal = scipy.stats.multivariate_normal(np.zeros(D), np.linalg.inv(METRIC))
    metric = Metric(METRIC)
    assert metric.kinetic_energy(p) == pytest.approx(0.5 * p @ METRIC @ p, rel=1e-12)
    expected = normal.logpdf(np.zeros(D)) - normal.logpdf(p)
    assert metric.kinetic_energy(p) == pytest.approx(expected, rel=1e-9)


def test_metric_must_be_positive_definite():
    with pytest.raises(np.linalg.LinAlgError):
        Metric(np.diag([1.0, -1.0]))


# In coordinates


@every_surrogate
@given(seed=seeds, step_size=step_sizes, n_steps=lengths)
@settings(QUIETLY, max_examples=15)
def test_trajectory_in_coordinates_is_a_plain_one_of_the_transformed_density(
    name, seed, step_size, n_steps
):
    """Momentum q = A' p and inverse metric A^-1 M^-1 A^-T in x give the same path as p in u."""
    surrogate, coordinates = FITTED[name], Coordinates(ORIGIN, MATRIX)
    hamiltonian = SurrogateHamiltonian(surrogate.parameters_, Metric(METRIC), coordinates)
    x, p = start(seed)
    x = coordinates.backward(x)

    def gradient(y):
        return coordinates.backward_gradient(surrogate.gradient(coordinates.forward(y)))

    inverse = np.linalg.inv(MATRIX)
    plain, plain_momentum = leapfrog_twin(
        gradient, x, MATRIX.T @ p, inverse @ METRIC @ inverse.T, step_size, n_steps
    )
    end, momentum = hamiltonian.trajectory(x, p, step_size, n_steps)
    np.testing.assert_allclose(end, plain, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(MATRIX.T @ momentum, plain_momentum, rtol=1e-8, atol=1e-8)
