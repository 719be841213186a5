"""Dynamics: the leapfrog map's geometry and order, sequences of transitions, twins in NumPy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_kmc.adaptation.transitions import whitened_hamiltonian
from pymc_kmc.dynamics import (
    Metric,
    SurrogateHamiltonian,
    leapfrog,
    transition_sequence,
    transitions,
)
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.numerics.evaluation import evaluable
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, LogDensityGP, log_density_at
from tests.bananas import Banana
from tests.surrogates import OnlyDensityAndGradient

D = 3
METRIC = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.7]])
MATRIX = np.array([[1.5, 0.2, 0.0], [-0.4, 0.8, 0.1], [0.3, 0.0, 2.0]])
ORIGIN = np.array([0.5, -1.0, 2.0])


POINTS = Banana(spread=1.0, bend=0.4).draws(80, np.random.default_rng(0), d=D)
PLAIN = Coordinates.identity(D)

# With coefficients of moderate size: their sum multiplies the rounding errors of gradients.
FITTED = {
    "lite": KernelExpLite(4.0, 1e-1, penalty="reference", base="gaussian").fit(POINTS),
    "finite": KernelExpFinite(60, 4.0, 1e-2, base="gaussian", rng=1).fit(POINTS),
    "no base": KernelExpLite(4.0, 1e-1).fit(POINTS),
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
    hamiltonian = SurrogateHamiltonian(FITTED[name].parameters_, coordinates, Metric(METRIC))

    def flow(z):
        return np.concatenate(hamiltonian.trajectory(z[:D], z[D:], step_size, n_steps))

    x, p = start(seed)
    matrix = jacobian(flow, np.concatenate([coordinates.backward(x), p]))
    assert np.linalg.det(matrix) == pytest.approx(1.0, abs=1e-5)


@every_surrogate
def test_energy_error_is_of_second_order(name):
    """Halving the step size over the same time divides the error by four."""
    hamiltonian = SurrogateHamiltonian(FITTED[name].parameters_, PLAIN, Metric(METRIC))
    x, p = start(3)
    errors = [abs(hamiltonian.path(x, p, 0.08 / 2**k, 10 * 2**k)[1][-1]) for k in range(4)]
    ratios = np.divide(errors[:-1], errors[1:])
    np.testing.assert_allclose(ratios[1:], 4.0, rtol=0.1)


@every_surrogate
def test_path_has_every_point_of_the_trajectory_and_its_energy(name):
    surrogate, metric = FITTED[name], Metric(METRIC)
    coordinates = Coordinates(ORIGIN, MATRIX)
    hamiltonian = SurrogateHamiltonian(surrogate.parameters_, coordinates, metric)
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
    hamiltonian = SurrogateHamiltonian(FITTED["lite"].parameters_, PLAIN, Metric(METRIC))
    hamiltonian.trajectory(x, p, 0.1, 3)
    hamiltonian.path(x, p, 0.1, 3)
    np.testing.assert_array_equal(x, x_before)
    np.testing.assert_array_equal(p, p_before)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("step_size", [1e4, 1e200])
def test_divergence_gives_numbers_that_are_not_finite(step_size):
    """The Gaussian base pulls harder and harder on a step size beyond its stability limit."""
    hamiltonian = SurrogateHamiltonian(FITTED["lite"].parameters_, PLAIN)
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
    end, momentum = SurrogateHamiltonian(parameters, PLAIN).trajectory(x, p, 1e-3, 1500)
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
    hamiltonian = SurrogateHamiltonian(surrogate.parameters_, coordinates, Metric(METRIC))
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


# Sequences of transitions

BANANA = Banana(spread=1.0, bend=0.5)
SEQUENCE = {"step_size": 0.5, "n_transitions": 12, "n_steps": 6}


@pytest.fixture(scope="module")
def bent():
    """A surrogate of a banana, and draws of that."""
    X = BANANA.draws(300, np.random.default_rng(1))
    return LogDensityGP(80, rng=0).fit(X, BANANA.log_density(X), reference=X), X


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_sequences_leave_the_surrogate_invariant(bent, temperature):
    """Draws from a surrogate on a grid, moved by one sequence: moments stay within 4.5 errors.

    Six comparisons of 4000 independent pairs: false alarm 4e-5.
    """
    surrogate, _ = bent
    hamiltonian = whitened_hamiltonian(surrogate)
    rng = np.random.default_rng(2)
    axes = np.linspace(-9, 9, 400), np.linspace(-9, 25, 600)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(surrogate.log_density(grid) / temperature)
    cell = np.array([axes[0][1] - axes[0][0], axes[1][1] - axes[1][0]])
    starts = grid[rng.choice(len(grid), 4000, p=density / density.sum())]
    starts = starts + cell * rng.uniform(-0.5, 0.5, starts.shape)
    ends = [
        transition_sequence(hamiltonian, x, **SEQUENCE, rng=rng, temperature=temperature)
        for x in starts
    ]
    ends = np.array([end.position for end in ends])
    assert np.mean(np.any(ends != starts, axis=1)) > 0.9
    for g in (lambda x: x, np.square, lambda x: x[:, :1] * x[:, 1:], np.tanh):
        change = g(ends) - g(starts)
        errors = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(len(change)))
        assert np.all(np.abs(errors) < 4.5)


def test_accepting_every_transition_is_found_out(bent):
    """The invariance test's twin: at a large step size the ends' second moment is far off."""
    surrogate, X = bent
    rng = np.random.default_rng(12)
    ends = []
    for x in X:
        end, _, _ = transitions(
            surrogate.parameters_,
            1.0,
            x,
            rng.standard_normal((3, 2)),
            None,
            np.full(3, 1.7),
            np.full(3, 3),
            np.zeros(3),  # accepts whatever is possible at all
        )
        ends.append(end)
    change = np.square(ends)[:, 0] - X[:, 0] ** 2
    assert abs(change.mean()) > 4.5 * change.std() / np.sqrt(len(X))


def test_a_transition_is_rejected_where_it_should_be(bent):
    surrogate, X = bent
    momenta, n_steps = np.random.default_rng(4).standard_normal((2, 2)), np.array([3, 3])

    def run(uniforms, step_size):
        step_sizes = np.full(2, step_size)
        arguments = momenta, None, step_sizes, n_steps, uniforms
        return transitions(surrogate.parameters_, 1.0, X[1], *arguments)

    never = np.ones(2)
    np.testing.assert_array_equal(run(never, 0.1)[0], X[1])
    assert run(never, 0.1)[1] == 0.0
    end, change, acceptance = run(np.zeros(2), 0.1)
    assert 0 < acceptance <= 1
    expected = log_density_at(surrogate.parameters_, end) - surrogate.log_density(X[1])
    assert change == pytest.approx(expected, abs=1e-9)
    end, change, acceptance = run(np.zeros(2), 1e200)  # leaves the finite numbers
    np.testing.assert_array_equal(end, X[1])
    assert (change, acceptance) == (0.0, 0.0)


def test_a_sequence_that_goes_nowhere_ends_where_it_began(bent):
    """Bit by bit, with a ratio of one: the caller can tell, and nothing is evaluated for it."""
    surrogate, X = bent
    far, origin = SEQUENCE | {"step_size": 1e6}, X[0]
    end = transition_sequence(
        whitened_hamiltonian(surrogate), origin, **far, rng=np.random.default_rng(11)
    )
    assert not end.moved and end.log_ratio == 0.0
    assert end.position is origin


def transitions_twin(surrogate, power, x, momenta, step_sizes, n_steps, uniforms):
    """Each transition a trajectory on the surrogate to a power, accepted by its energy's change."""

    def energy(x, p):
        return -power * surrogate.log_density(x) + 0.5 * p @ p

    start, rates = x, []
    for p, size, n, uniform in zip(momenta, step_sizes, n_steps, uniforms, strict=True):
        end, momentum = leapfrog_twin(
            lambda y: power * surrogate.gradient(y), x, p, np.eye(D), size, n
        )
        rates.append(np.exp(min(0.0, energy(x, p) - energy(end, momentum))))
        x = end if uniform < rates[-1] else x
    return x, surrogate.log_density(x) - surrogate.log_density(start), np.mean(rates)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_transitions_equal_their_numpy_twin(power):
    surrogate, rng = FITTED["lite"], np.random.default_rng(13)
    momenta, step_sizes = rng.standard_normal((20, D)), rng.uniform(0.3, 1.2, 20)
    n_steps, uniforms = rng.integers(1, 6, 20), rng.uniform(size=20)
    compiled = transitions(
        surrogate.parameters_, power, POINTS[0], momenta, None, step_sizes, n_steps, uniforms
    )
    twin = transitions_twin(surrogate, power, POINTS[0], momenta, step_sizes, n_steps, uniforms)
    assert 0.2 < twin[2] < 0.98  # some are rejected
    for ours, expected in zip(compiled, twin, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-8, atol=1e-8)


# A surrogate of the user's own: the same dynamics, run by Python


def test_interpreted_dynamics_are_the_compiled_ones():
    """Of the same surrogate, with and without what can be compiled."""
    surrogate, rng = FITTED["lite"], np.random.default_rng(14)
    own = OnlyDensityAndGradient(surrogate)
    coordinates = Coordinates(ORIGIN, MATRIX)
    compiled, interpreted = (
        SurrogateHamiltonian(evaluable(given), coordinates, Metric(METRIC))
        for given in (surrogate, own)
    )
    x, p = coordinates.backward(POINTS[0]), rng.standard_normal(D)

    def sequence(hamiltonian):
        end = transition_sequence(hamiltonian, x, 0.3, 5, 4, np.random.default_rng(15), 1.5)
        return end.position, end.log_ratio

    for run in (
        lambda hamiltonian: hamiltonian.trajectory(x, p, 0.2, 9),
        lambda hamiltonian: hamiltonian.path(x, p, 0.2, 9),
        sequence,
    ):
        own.n_calls = 0
        expected = run(compiled)
        assert own.n_calls == 0
        found = run(interpreted)
        assert own.n_calls > 0
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    assert interpreted.log_density(x) == pytest.approx(compiled.log_density(x), abs=1e-10)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_interpreted_dynamics_diverge_as_the_compiled_ones():
    own = OnlyDensityAndGradient(FITTED["lite"])
    hamiltonian = SurrogateHamiltonian(evaluable(own), PLAIN)
    x, p = start(6)
    end, _ = hamiltonian.trajectory(x, p, 1e4, 200)
    assert not np.isfinite(end).any()
    _, energy_changes = hamiltonian.path(x, p, 1e4, 200)
    assert np.isnan(energy_changes[-1])
    end = transition_sequence(hamiltonian, x, 1e200, 3, 4, np.random.default_rng(15))
    assert not end.moved and end.log_ratio == 0.0
