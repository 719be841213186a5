r"""Hamiltonian dynamics on a surrogate's log density.

With the surrogate f and the kinetic energy :math:`K(p) = \frac12 p^\top M^{-1} p`, the leapfrog
integrator follows :math:`H(x, p) = -f(x) + K(p)`. Whatever f is, a fixed number of leapfrog steps
of a fixed size followed by a flip of the momentum is a volume-preserving involution (Neal, 2011,
section 2.3): with the target's own log density in the acceptance ratio the proposal is exact, and
f decides only how often it is accepted (Strathmann et al., 2015, Algorithm 1).

References
----------
Neal, R. M. (2011). MCMC using Hamiltonian dynamics. In *Handbook of Markov Chain Monte Carlo*,
Chapman and Hall/CRC.

Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.
"""

import numpy as np
import scipy.linalg

from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.numerics.jit import njit
from pymc_kmc.surrogates.evaluation import gradient_in, log_density_at, log_density_in, workspace

__all__ = [
    "Coordinates",
    "Metric",
    "SurrogateHamiltonian",
    "leapfrog",
    "leapfrog_path",
    "transitions",
]


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
        return scipy.linalg.solve_triangular(
            self._factor, noise, lower=True, trans=1, check_finite=False
        )

    def kinetic_energy(self, momentum):
        """Return p' M^-1 p / 2, -log N(p; 0, M) up to a constant; inf if p isn't finite."""
        if not np.isfinite(momentum).all():
            return np.inf
        return 0.5 * float(np.sum((momentum @ self._factor) ** 2))


class SurrogateHamiltonian:
    """A surrogate's log density in its own coordinates, with a momentum: what trajectories follow.

    Parameters
    ----------
    parameters : NamedTuple
        The ``parameters_`` of a fitted surrogate.
    metric : Metric, optional
        In the surrogate's coordinates; by default the identity.
    coordinates : Coordinates, optional
        Those that the surrogate was fitted in; by default the step's.
    """

    def __init__(self, parameters, metric=None, coordinates=None):
        if coordinates is None:
            coordinates = Coordinates.identity(len(parameters.base_mean))
        self.parameters = parameters
        self.metric = metric or Metric(np.eye(len(coordinates.origin)))
        self.coordinates = coordinates

    def log_density(self, position):
        """Return the surrogate's log density at `position` (d,) in the step's coordinates."""
        return log_density_at(self.parameters, self.coordinates.forward(position))

    def trajectory(self, position, momentum, step_size, n_steps):
        """Return where a trajectory from `position` ends, and its momentum there.

        Parameters
        ----------
        position : ndarray, shape (d,)
            In the step's coordinates.
        momentum : ndarray, shape (d,)
            In the surrogate's.
        step_size : float
        n_steps : int

        Returns
        -------
        position, momentum : ndarray, shape (d,)
            Not finite if the trajectory diverged.
        """
        position, momentum = leapfrog(
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
        positions, energies = leapfrog_path(
            self.parameters,
            self.coordinates.forward(position),
            momentum,
            self.metric.inverse,
            step_size,
            n_steps,
        )
        return self.coordinates.backward(positions), energies[1:] - energies[0]


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
    gradient_in(parameters, position, gradient, space)
    momentum += 0.5 * step_size * gradient
    for step in range(n_steps):
        move(position, momentum, inverse_metric, step_size)
        gradient_in(parameters, position, gradient, space)
        if not np.isfinite(position.sum() + gradient.sum()):
            position[:] = np.nan
            momentum[:] = np.nan
            break
        factor = 0.5 if step == n_steps - 1 else 1.0
        momentum += factor * step_size * gradient
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
    gradient, space = np.empty_like(position), workspace(parameters)
    positions = np.full((n_steps, len(position)), np.nan)
    energies = np.full(n_steps + 1, np.nan)
    energies[0] = energy(parameters, position, momentum, inverse_metric, space)
    gradient_in(parameters, position, gradient, space)
    for step in range(n_steps):
        momentum += 0.5 * step_size * gradient
        move(position, momentum, inverse_metric, step_size)
        gradient_in(parameters, position, gradient, space)
        momentum += 0.5 * step_size * gradient
        energies[step + 1] = energy(parameters, position, momentum, inverse_metric, space)
        if not np.isfinite(energies[step + 1]):
            energies[step + 1] = np.nan
            break
        positions[step] = position
    return positions, energies


@njit
def transitions(parameters, inverse_temperature, position, momenta, step_sizes, n_steps, uniforms):
    """Make several HMC transitions that leave a surrogate's density, to a power, invariant.

    Momenta are N(0, I). Each transition is accepted or rejected by its own change of energy, so
    that the sequence is reversible with respect to exp(inverse_temperature * f) as a whole if its
    step sizes and numbers of steps are drawn independently, from one distribution.

    Parameters
    ----------
    parameters : NamedTuple
        The ``parameters_`` of a fitted surrogate.
    inverse_temperature : float
        The power.
    position : ndarray, shape (d,)
        Where to start; not written to.
    momenta : ndarray, shape (k, d)
        One standard normal vector a transition.
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
    gradient, end_gradient = np.empty(d), np.empty(d)
    space = workspace(parameters)
    gradient_in(parameters, position, gradient, space)
    start_value = log_density_in(parameters, position, space)
    value = start_value
    acceptance = 0.0
    for k in range(n_transitions):
        end, momentum = position.copy(), momenta[k].copy()
        end_gradient[:] = gradient
        kinetic = 0.0
        for i in range(d):
            kinetic += 0.5 * momentum[i] * momentum[i]
        step = step_sizes[k]
        half = 0.5 * step * inverse_temperature
        for _ in range(n_steps[k]):
            for i in range(d):
                momentum[i] += half * end_gradient[i]
                end[i] += step * momentum[i]
            gradient_in(parameters, end, end_gradient, space)
            for i in range(d):
                momentum[i] += half * end_gradient[i]
        end_value = log_density_in(parameters, end, space)
        end_kinetic = 0.0
        for i in range(d):
            end_kinetic += 0.5 * momentum[i] * momentum[i]
        log_ratio = inverse_temperature * (end_value - value) + kinetic - end_kinetic
        if np.isfinite(log_ratio):
            probability = np.exp(min(0.0, log_ratio))
            acceptance += probability / n_transitions
            if uniforms[k] < probability:
                position[:] = end
                gradient[:] = end_gradient
                value = end_value
    return position, value - start_value, acceptance


@njit(forceinline=True)
def energy(parameters, position, momentum, inverse_metric, space):
    """Return -f(x) + p' M^-1 p / 2."""
    kinetic = 0.0
    for i in range(len(momentum)):
        for j in range(len(momentum)):
            kinetic += 0.5 * momentum[i] * inverse_metric[i, j] * momentum[j]
    return kinetic - log_density_in(parameters, position, space)


@njit(forceinline=True)
def move(position, momentum, inverse_metric, step_size):
    """Add step_size M^-1 p to the position, in place."""
    for i in range(len(position)):
        velocity = 0.0
        for j in range(len(momentum)):
            velocity += inverse_metric[i, j] * momentum[j]
        position[i] += step_size * velocity
