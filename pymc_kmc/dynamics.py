r"""Hamiltonian dynamics on a surrogate's log density.

With the surrogate f and the kinetic energy :math:`K(p) = \frac12 p^\top M^{-1} p`, the leapfrog
integrator follows :math:`H(x, p) = -f(x) + K(p)`. Whatever f is, a fixed number of leapfrog steps
of a fixed size followed by a flip of the momentum is a volume-preserving involution (Neal, 2011,
section 2.3). With the target's own log density in the acceptance ratio the proposal is exact; f
only affects the acceptance rate (Strathmann et al., 2015, Algorithm 1).

A *sequence* consists of many short HMC transitions, each accepted or rejected on the surrogate
alone and reversible with respect to :math:`e^{f(x) / T}`, with a temperature T. Step sizes and
numbers of steps are independent draws from one distribution: the sequence Q is reversible too,
:math:`e^{f(x)/T} Q(x, dx') = e^{f(x')/T} Q(x', dx)`.

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

# Factors on the step size of a sequence's transitions. Small steps are accepted where the log
# density is most curved: with one step size the far arms of a strongly curved banana are missed.
STEP_FACTORS = np.array([1.0, 0.35, 0.12])
# Probabilities of these factors.
STEP_PROBABILITIES = np.array([0.6, 0.25, 0.15])
# Bounds of a uniform factor on each step size: fixed ones can resonate (Neal, 2011, section 3.2).
STEP_JITTER = (0.8, 1.2)
# Largest factor on the number of leapfrog steps of a small step size.
LONGEST = 2.5
# Smallest number of leapfrog steps, as a share of the largest: fixed ones can resonate too.
SHORTEST_SHARE = 0.3
# Step size of a compiled loop's first step, which evaluates the surrogate at the start: a loop that
# has the surrogate's inlined functions once, not also before it, compiles in half the time.
NO_LENGTH = 0.0
# Mean number of leapfrog steps of a trajectory, as a multiple of the largest at the full step size.
MEAN_LENGTH = (
    0.5 * (1 + SHORTEST_SHARE) * float(STEP_PROBABILITIES @ np.minimum(LONGEST, 1 / STEP_FACTORS))
)


class Metric:
    """A momentum N(0, M), given by M^-1 (d, d), which should resemble the target's covariance."""

    def __init__(self, inverse):
        self.inverse = np.ascontiguousarray(inverse, dtype=np.float64)
        self._factor = np.linalg.cholesky(self.inverse)
        self.is_identity = np.array_equal(self.inverse, np.eye(len(self.inverse)))

    def draw_momentum(self, rng):
        return self.draw_momenta(rng, 1)[0]

    def draw_momenta(self, rng, n):
        noise = rng.standard_normal((n, len(self.inverse)))
        if self.is_identity:
            return noise
        # solve_triangular's checks cost 20 us
        return np.ascontiguousarray(dtrtrs(self._factor.T, noise.T)[0].T)

    def lengths(self, vectors):
        """Return the norms (n,) of vectors (n, d) in standard deviations of the inverse metric."""
        return np.linalg.norm(dtrtrs(self._factor, vectors.T, lower=1)[0].T, axis=1)

    def kinetic_energy(self, momentum):
        """Return p' M^-1 p / 2, -log N(p; 0, M) up to a constant; inf if p isn't finite."""
        if not np.isfinite(momentum).all():
            return np.inf
        return 0.5 * float(np.add.reduce((momentum @ self._factor) ** 2))


class SurrogateHamiltonian:
    """A surrogate's log density with a momentum, in the surrogate's coordinates; never changed.

    `parameters` come from :func:`~pymc_kmc.numerics.evaluation.evaluable`; `coordinates` are those
    of the fit; `metric` is the identity by default.
    """

    def __init__(self, parameters, coordinates, metric=None):
        self.parameters = parameters
        self.coordinates = coordinates
        self.metric = metric or Metric(np.eye(len(coordinates.origin)))

    def following(self, parameters):
        return SurrogateHamiltonian(parameters, self.coordinates, self.metric)

    def log_density(self, position):
        """Return the surrogate's log density at `position` (d,) in the step's coordinates."""
        return runnable(log_density, self.parameters)(
            self.parameters, self.coordinates.forward(position)
        )

    def trajectory(self, position, momentum, step_size, n_steps):
        """Return a trajectory's last position (d,) and momentum (d,), not finite if it diverged.

        Positions are in the step's coordinates, momenta in the surrogate's.
        """
        position, momentum = self._run(leapfrog, position, momentum, step_size, n_steps)
        return self.coordinates.backward(position), momentum

    def path(self, position, momentum, step_size, n_steps):
        """Return a :meth:`trajectory`'s positions (n_steps, d) and changes of energy (n_steps,).

        The energy is the surrogate's; its change is NaN from the step on at which the trajectory
        diverged.
        """
        positions, energies = self._run(leapfrog_path, position, momentum, step_size, n_steps)
        return self.coordinates.backward(positions), energies[1:] - energies[0]

    def _run(self, integrator, position, momentum, *numbers):
        start, metric = self.coordinates.forward(position), self.metric.inverse
        return runnable(integrator, self.parameters)(
            self.parameters, start, momentum, metric, *numbers
        )


class SequenceEnd(NamedTuple):
    """The end of a sequence of transitions.

    `position` (d,) is the array object of the start if no transition was accepted (not `moved`).
    `log_ratio` is (f(x) - f(x')) / T, the surrogate's part of the log acceptance ratio. `n_steps`
    counts leapfrog steps.
    """

    position: np.ndarray
    log_ratio: float
    n_steps: int
    moved: bool


def transition_sequence(
    hamiltonian, position, step_size, n_transitions, n_steps, rng, temperature=1.0
):
    """Make HMC transitions with random step sizes and numbers of steps; return a SequenceEnd.

    `position` (d,) is in the step's coordinates, `step_size` the size before its random factors,
    and `n_steps` the largest number of leapfrog steps at this size.
    """
    factors = rng.choice(STEP_FACTORS, size=n_transitions, p=STEP_PROBABILITIES)
    step_sizes = step_size * factors * rng.uniform(*STEP_JITTER, size=n_transitions)
    lengths = n_steps * np.minimum(LONGEST, 1 / factors)
    numbers = 1 + (lengths * rng.uniform(SHORTEST_SHARE, 1.0, n_transitions)).astype(np.int64)
    parameters, start = hamiltonian.parameters, hamiltonian.coordinates.forward(position)
    metric = hamiltonian.metric
    end, change, acceptance = runnable(transitions, parameters)(
        parameters,
        1.0 / temperature,
        start,
        metric.draw_momenta(rng, n_transitions),
        None if metric.is_identity else metric.inverse,
        step_sizes,
        numbers,
        rng.uniform(size=n_transitions),
    )
    moved = acceptance > 0 and not np.array_equal(start, end)
    end = hamiltonian.coordinates.backward(end) if moved else position
    return SequenceEnd(end, -change / temperature, int(numbers.sum()), moved)


def runnable(function, parameters):
    """Return a compiled function of this module, or its source for a surrogate in Python."""
    return function if is_compiled(parameters) else _interpreted(function)


@cache
def _interpreted(function):
    """Return a compiled function, and those that it calls, as a Python function."""
    names = globals()
    sources = {name: value.py_func for name, value in names.items() if hasattr(value, "py_func")}
    return FunctionType(function.py_func.__code__, names | sources)


@njit
def log_density(parameters, position):
    return log_density_in(parameters, position, workspace(parameters))


@njit(inline="always")
def leapfrog_step(parameters, position, momentum, gradient, inverse_metric, step, kick, space):
    """Move the position, evaluate the gradient there and kick the momentum, (d,); all in place.

    `inverse_metric` (d, d) is None for the identity. `kick` is the factor on the gradient: half of
    `step` if the momentum at this place is needed, `step` if this kick and the next step's first
    one are made together. `space` is the surrogate's workspace.
    """
    for i in range(len(position)):
        position[i] += step * velocity(momentum, inverse_metric, i)
    gradient_in(parameters, position, gradient, space)
    for i in range(len(position)):
        momentum[i] += kick * gradient[i]


@njit
def leapfrog(parameters, position, momentum, inverse_metric, step_size, n_steps):
    """Return the end point (d,) and momentum (d,) of `n_steps` leapfrog steps.

    Arguments aren't written to. A trajectory that leaves the finite numbers can't come back: it is
    cut short, and its end is NaN. Nothing else ends a trajectory early.
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
    """Return the positions (n_steps, d) and energies (n_steps + 1,) of :func:`leapfrog`.

    The energies -f(x) + p' M^-1 p / 2 include the start's. Both are NaN from a divergence on.
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
    """Make k HMC transitions that leave a surrogate's density, to a power, invariant.

    A transition is accepted on the surrogate if its number in `uniforms` (k,) is below the
    acceptance probability. `inverse_temperature` is the power. The start `position` (d,) isn't
    written to. `momenta` (k, d) are draws from N(0, M); `inverse_metric` (d, d) is None for the
    identity. `step_sizes` and `n_steps` have shape (k,).

    The result is the end point (d,), the change of f, and the mean acceptance probability.
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
