r"""Hamiltonian dynamics on a surrogate's log density.

With the surrogate f and the kinetic energy :math:`K(p) = \frac12 p^\top M^{-1} p`, the leapfrog
integrator follows :math:`H(x, p) = -f(x) + K(p)`. Whatever f is, a fixed number of leapfrog steps
of a fixed size followed by a flip of the momentum is a volume-preserving involution (Neal, 2011,
section 2.3): with the target's own log density in the acceptance ratio the proposal is exact, and
f decides only how often it is accepted (Strathmann et al., 2015, Algorithm 1).

A *sequence* is many short trajectories, each with a new momentum and accepted or rejected on the
surrogate alone. Each of these transitions is reversible with respect to :math:`e^{f(x) / T}`, T a
temperature. Step sizes and numbers of steps are drawn independently of everything, from one
distribution, so that the whole sequence Q is reversible too, :math:`e^{f(x)/T} Q(x, dx') =
e^{f(x')/T} Q(x', dx)`.

References
----------
Neal, R. M. (2011). MCMC using Hamiltonian dynamics. In *Handbook of Markov Chain Monte Carlo*,
Chapman and Hall/CRC.

Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.
"""

from functools import cache
from types import FunctionType
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dtrtrs

from pymc_kmc.numerics.evaluation import (
    gradient_in,
    is_compiled,
    log_density_in,
    workspace,
)
from pymc_kmc.numerics.jit import njit

# Factors on the step size of a sequence's transitions. The small ones get through where the log
# density is most curved: with one step size the far arms of a strongly curved banana are missed.
STEP_FACTORS = np.array([1.0, 0.35, 0.12])
# Probabilities of these factors.
STEP_PROBABILITIES = np.array([0.6, 0.25, 0.15])
# Bounds of a uniform factor on each step size: fixed ones can resonate (Neal, 2011, section 3.2).
STEP_JITTER = (0.8, 1.2)
# Longest trajectory of a small step size, in numbers of steps of the full one.
LONGEST = 2.5
# Smallest number of leapfrog steps, as a share of the largest: fixed ones can resonate too.
SHORTEST_SHARE = 0.3
# Step size of a compiled loop's first step, which goes nowhere and evaluates the surrogate at the
# start. The surrogate's functions are inlined: a loop that calls each of them once, and not also
# before it begins, compiles in half of the time.
NO_LENGTH = 0.0
# Average number of steps of a trajectory, as a multiple of the number that is asked for.
MEAN_LENGTH = (
    0.5 * (1 + SHORTEST_SHARE) * float(STEP_PROBABILITIES @ np.minimum(LONGEST, 1 / STEP_FACTORS))
)


class Metric:
    """A Gaussian momentum, N(0, M), given by the inverse of its covariance.

    Parameters
    ----------
    inverse : array_like, shape (d, d)
        Inverse of M, positive definite: a good one resembles the target's covariance.

    Attributes
    ----------
    inverse : ndarray, shape (d, d)
    """

    def __init__(self, inverse):
        self.inverse = np.ascontiguousarray(inverse, dtype=np.float64)
        self._factor = np.linalg.cholesky(self.inverse)

    def draw_momentum(self, rng):
        """Draw p from N(0, M), shape (d,)."""
        noise = rng.standard_normal(len(self.inverse))
        return dtrtrs(self._factor.T, noise)[0]  # solve_triangular's checks cost 20 us

    def kinetic_energy(self, momentum):
        """Return p' M^-1 p / 2, -log N(p; 0, M) up to a constant; inf if p isn't finite."""
        if not np.isfinite(momentum).all():
            return np.inf
        return 0.5 * float(np.add.reduce((momentum @ self._factor) ** 2))


class SurrogateHamiltonian:
    """A surrogate's log density in its own coordinates, with a momentum: what trajectories follow.

    A value: nothing of it is changed after it was made.

    Parameters
    ----------
    parameters : NamedTuple or PythonParameters
        Result of :func:`~pymc_kmc.numerics.evaluation.evaluable` for a surrogate.
    coordinates : Coordinates
        Those that the surrogate was fitted in.
    metric : Metric, optional
        In the surrogate's coordinates; by default the identity.
    """

    def __init__(self, parameters, coordinates, metric=None):
        self.parameters = parameters
        self.coordinates = coordinates
        self.metric = metric or Metric(np.eye(len(coordinates.origin)))

    def following(self, parameters):
        """Return the Hamiltonian of other parameters, in the same coordinates."""
        return SurrogateHamiltonian(parameters, self.coordinates, self.metric)

    def log_density(self, position):
        """Return the surrogate's log density at `position` (d,) in the step's coordinates."""
        return runnable(log_density, self.parameters)(
            self.parameters, self.coordinates.forward(position)
        )

    def trajectory(self, position, momentum, step_size, n_steps):
        """Return where a trajectory from `position` ends, and its momentum there.

        Parameters
        ----------
        position : ndarray, shape (d,)
            In the step's coordinates.
        momentum : ndarray, shape (d,)
            In the surrogate's coordinates.
        step_size : float
        n_steps : int

        Returns
        -------
        position, momentum : ndarray, shape (d,)
            Not finite where the trajectory diverged.
        """
        position, momentum = runnable(leapfrog, self.parameters)(
            self.parameters,
            self.coordinates.forward(position),
            momentum,
            self.metric.inverse,
            step_size,
            n_steps,
        )
        return self.coordinates.backward(position), momentum

    def path(self, position, momentum, step_size, n_steps):
        """Return every point of a trajectory and the change of its energy on the surrogate.

        Parameters
        ----------
        position, momentum, step_size, n_steps
            As in :meth:`trajectory`.

        Returns
        -------
        positions : ndarray, shape (n_steps, d)
            In the step's coordinates.
        energy_changes : ndarray, shape (n_steps,)
            NaN from where the trajectory diverged.
        """
        positions, energies = runnable(leapfrog_path, self.parameters)(
            self.parameters,
            self.coordinates.forward(position),
            momentum,
            self.metric.inverse,
            step_size,
            n_steps,
        )
        return self.coordinates.backward(positions), energies[1:] - energies[0]


class SequenceEnd(NamedTuple):
    """Where a sequence of transitions ends.

    Attributes
    ----------
    position : ndarray, shape (d,)
        The very array that the sequence started from, where no transition was accepted.
    log_ratio : float
        (f(x) - f(x')) / T: the surrogate's part of the log acceptance ratio.
    n_steps : int
        Number of leapfrog steps made.
    moved : bool
        Whether any transition was accepted.
    """

    position: np.ndarray
    log_ratio: float
    n_steps: int
    moved: bool


def transition_sequence(
    hamiltonian, position, step_size, n_transitions, n_steps, rng, temperature=1.0
):
    """Make a sequence of HMC transitions with random step sizes and numbers of steps.

    Parameters
    ----------
    hamiltonian : SurrogateHamiltonian
        Its metric is the identity.
    position : ndarray, shape (d,)
        In the step's coordinates.
    step_size : float
        Step size before its random factors.
    n_transitions : int
    n_steps : int
        Longest number of leapfrog steps at this step size.
    rng : numpy.random.Generator
    temperature : float

    Returns
    -------
    SequenceEnd
    """
    factors = rng.choice(STEP_FACTORS, size=n_transitions, p=STEP_PROBABILITIES)
    step_sizes = step_size * factors * rng.uniform(*STEP_JITTER, size=n_transitions)
    lengths = n_steps * np.minimum(LONGEST, 1 / factors)
    numbers = 1 + (lengths * rng.uniform(SHORTEST_SHARE, 1.0, n_transitions)).astype(np.int64)
    parameters, start = hamiltonian.parameters, hamiltonian.coordinates.forward(position)
    end, change, acceptance = runnable(transitions, parameters)(
        parameters,
        1.0 / temperature,
        start,
        rng.standard_normal((n_transitions, len(position))),
        None,
        step_sizes,
        numbers,
        rng.uniform(size=n_transitions),
    )
    moved = acceptance > 0 and not np.array_equal(start, end)
    end = hamiltonian.coordinates.backward(end) if moved else position
    return SequenceEnd(end, -change / temperature, int(numbers.sum()), moved)


def runnable(function, parameters):
    """Return a function of this module for parameters: compiled where these can be compiled.

    A surrogate of the user's own is Python: the same source is then run by Python.

    Parameters
    ----------
    function : callable
        Compiled.
    parameters : NamedTuple or PythonParameters

    Returns
    -------
    callable
    """
    return function if is_compiled(parameters) else _interpreted(function)


@cache
def _interpreted(function):
    """Return a compiled function's source as a Python function, with those that it calls."""
    names = globals()
    sources = {name: value.py_func for name, value in names.items() if hasattr(value, "py_func")}
    return FunctionType(function.py_func.__code__, names | sources)


@njit
def log_density(parameters, position):
    """Return the surrogate's log density at a position (d,)."""
    return log_density_in(parameters, position, workspace(parameters))


@njit(inline="always")
def leapfrog_step(parameters, position, momentum, gradient, inverse_metric, step, kick, space):
    """Move the position, evaluate the gradient there and kick the momentum; all three in place.

    Parameters
    ----------
    parameters : NamedTuple
        Of the surrogate.
    position, momentum, gradient : ndarray, shape (d,)
        Written to.
    inverse_metric : ndarray, shape (d, d), or None
        M^-1; None for the identity.
    step : float
        Step size.
    kick : float
        Factor on the gradient: half of the step where the momentum is asked for at this place, the
        whole step where this kick and the next step's first one are made together.
    space : ndarray
        The surrogate's workspace.
    """
    for i in range(len(position)):
        position[i] += step * velocity(momentum, inverse_metric, i)
    gradient_in(parameters, position, gradient, space)
    for i in range(len(position)):
        momentum[i] += kick * gradient[i]


@njit
def leapfrog(parameters, position, momentum, inverse_metric, step_size, n_steps):
    """Follow the surrogate's dynamics for a number of leapfrog steps.

    A trajectory that leaves the finite numbers can't come back, and is cut short there; nothing
    else ends it early.

    Parameters
    ----------
    parameters : NamedTuple
        The ``parameters_`` of a fitted surrogate.
    position, momentum : ndarray, shape (d,)
        Where to start; not written to.
    inverse_metric : ndarray, shape (d, d)
        M^-1.
    step_size : float
    n_steps : int

    Returns
    -------
    position, momentum : ndarray, shape (d,)
        The end point, NaN or infinite if the trajectory diverged.
    """
    position = position.copy()
    momentum = momentum.copy()
    gradient, space = np.empty_like(position), workspace(parameters)
    for step in range(n_steps + 1):
        length = step_size if step > 0 else NO_LENGTH
        kick = 0.5 * step_size if step == 0 or step == n_steps else step_size
        leapfrog_step(parameters, position, momentum, gradient, inverse_metric, length, kick, space)
        if not np.isfinite(position.sum() + gradient.sum()):
            position[:] = np.nan
            momentum[:] = np.nan
            break
    return position, momentum


@njit
def leapfrog_path(parameters, position, momentum, inverse_metric, step_size, n_steps):
    """Follow the surrogate's dynamics and keep every point; arguments as in :func:`leapfrog`.

    Returns
    -------
    positions : ndarray, shape (n_steps, d)
    energies : ndarray, shape (n_steps + 1,)
        -f(x) + p' M^-1 p / 2, the start's first; NaN from where the trajectory diverged.
    """
    position = position.copy()
    momentum = momentum.copy()
    gradient, space = np.zeros_like(position), workspace(parameters)
    positions = np.full((n_steps + 1, len(position)), np.nan)
    energies = np.full(n_steps + 1, np.nan)
    for step in range(n_steps + 1):
        length = step_size if step > 0 else NO_LENGTH
        kick = 0.5 * length
        for i in range(len(position)):
            momentum[i] += kick * gradient[i]
        leapfrog_step(parameters, position, momentum, gradient, inverse_metric, length, kick, space)
        energies[step] = kinetic_energy(momentum, inverse_metric)
        energies[step] -= log_density_in(parameters, position, space)
        if step > 0 and not np.isfinite(energies[step]):
            energies[step] = np.nan
            break
        for i in range(len(position)):
            positions[step, i] = position[i]
    return positions[1:], energies


@njit
def transitions(
    parameters,
    inverse_temperature,
    position,
    momenta,
    inverse_metric,
    step_sizes,
    n_steps,
    uniforms,
):
    """Make several HMC transitions that leave a surrogate's density, to a power, invariant.

    Each transition is accepted or rejected by its own change of energy.

    Parameters
    ----------
    parameters : NamedTuple
        The ``parameters_`` of a fitted surrogate.
    inverse_temperature : float
        The power.
    position : ndarray, shape (d,)
        Where to start; not written to.
    momenta : ndarray, shape (k, d)
        One draw from N(0, M) for each transition.
    inverse_metric : ndarray, shape (d, d), or None
        M^-1; None for the identity.
    step_sizes : ndarray, shape (k,)
    n_steps : ndarray of int, shape (k,)
    uniforms : ndarray, shape (k,)
        Accept a transition where it is below its acceptance probability.

    Returns
    -------
    position : ndarray, shape (d,)
        Where the sequence ends.
    change : float
        Change of f from start to end.
    acceptance : float
        Mean acceptance probability of the transitions.
    """
    n_transitions, d = momenta.shape
    position = position.copy()
    gradient = np.zeros(d)
    end, momentum, end_gradient = np.empty(d), np.empty(d), np.empty(d)
    space = workspace(parameters)
    value = start_value = acceptance = 0.0
    for k in range(-1, n_transitions):  # -1 is the start
        for i in range(d):
            end[i] = position[i]
            end_gradient[i] = gradient[i]
            momentum[i] = momenta[k, i] if k >= 0 else 0.0
        kinetic = kinetic_energy(momentum, inverse_metric)
        step = step_sizes[k] if k >= 0 else NO_LENGTH
        half = 0.5 * step * inverse_temperature
        for _ in range(n_steps[k] if k >= 0 else 1):
            for i in range(d):
                momentum[i] += half * end_gradient[i]
            leapfrog_step(
                parameters, end, momentum, end_gradient, inverse_metric, step, half, space
            )
        end_value = log_density_in(parameters, end, space)
        is_accepted = False
        if k < 0:
            start_value = end_value
            is_accepted = True
        else:
            end_kinetic = kinetic_energy(momentum, inverse_metric)
            log_ratio = inverse_temperature * (end_value - value) + kinetic - end_kinetic
            if np.isfinite(log_ratio):
                probability = np.exp(min(0.0, log_ratio))
                acceptance += probability / n_transitions
                is_accepted = uniforms[k] < probability
        if is_accepted:
            for i in range(d):
                position[i] = end[i]
                gradient[i] = end_gradient[i]
            value = end_value
    return position, value - start_value, acceptance


@njit(forceinline=True)
def velocity(momentum, inverse_metric, i):
    """Return element i of M^-1 p; `inverse_metric` is None for the identity."""
    if inverse_metric is None:
        return momentum[i]
    total = 0.0
    for j in range(len(momentum)):
        total += inverse_metric[i, j] * momentum[j]
    return total


@njit(forceinline=True)
def kinetic_energy(momentum, inverse_metric):
    """Return p' M^-1 p / 2; `inverse_metric` is None for the identity."""
    kinetic = 0.0
    for i in range(len(momentum)):
        if inverse_metric is None:
            kinetic += 0.5 * momentum[i] * momentum[i]
        else:
            for j in range(len(momentum)):
                kinetic += 0.5 * momentum[i] * inverse_metric[i, j] * momentum[j]
    return kinetic
