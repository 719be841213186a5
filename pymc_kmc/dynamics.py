r"""Hamiltonian dynamics on a surrogate's log density.

With the surrogate f and the kinetic energy :math:`K(p) = \frac12 p^\top M^{-1} p`, the leapfrog
integrator follows :math:`H(x, p) = -f(x) + K(p)`. Whatever f is, a fixed number of leapfrog steps of a
fixed size followed by a flip of the momentum is a volume-preserving involution (Neal, 2011, section
2.3): with the target's own log density in the acceptance ratio the proposal is exact, and f decides
only how often it is accepted (Strathmann et al., 2015, Algorithm 1).

References
----------
Neal, R. M. (2011). MCMC using Hamiltonian dynamics. In *Handbook of Markov Chain Monte Carlo*, Chapman
and Hall/CRC.

Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.
"""

import numba
import numpy as np
import scipy.linalg

from pymc_kmc.surrogates.base import gradient_at

__all__ = ["Metric", "leapfrog", "u_turn"]


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
        """Return p' M^-1 p / 2, up to a constant the negative log density of p."""
        return 0.5 * float(np.sum((momentum @ self._factor) ** 2))


@numba.njit(cache=True)
def leapfrog(parameters, position, momentum, inverse_metric, step_size, n_steps):
    """Follow the surrogate's dynamics for a number of leapfrog steps.

    A trajectory that leaves the finite numbers can't come back, and is cut short there; nothing else
    ends it early.

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
    gradient = np.empty_like(position)
    gradient_at(parameters, position, gradient)
    momentum += 0.5 * step_size * gradient
    for step in range(n_steps):
        move(position, momentum, inverse_metric, step_size)
        gradient_at(parameters, position, gradient)
        if not np.isfinite(position.sum() + gradient.sum()):
            position[:] = np.nan
            break
        factor = 0.5 if step == n_steps - 1 else 1.0
        momentum += factor * step_size * gradient
    return position, momentum


@numba.njit(cache=True)
def u_turn(parameters, position, momentum, inverse_metric, step_size, max_steps):
    """Count the leapfrog steps until the distance from the start stops growing.

    Parameters
    ----------
    parameters, position, momentum, inverse_metric, step_size
        As in :func:`leapfrog`.
    max_steps : int
        Where to give up.

    Returns
    -------
    int
        From 1 to `max_steps`.
    """
    start = position.copy()
    position = position.copy()
    momentum = momentum.copy()
    gradient = np.empty_like(position)
    gradient_at(parameters, position, gradient)
    for step in range(max_steps):
        momentum += 0.5 * step_size * gradient
        move(position, momentum, inverse_metric, step_size)
        gradient_at(parameters, position, gradient)
        momentum += 0.5 * step_size * gradient
        if not ((position - start) * momentum).sum() > 0.0:
            return step + 1
    return max_steps


@numba.njit(cache=True)
def move(position, momentum, inverse_metric, step_size):
    """Add step_size M^-1 p to the position, in place."""
    for i in range(len(position)):
        velocity = 0.0
        for j in range(len(momentum)):
            velocity += inverse_metric[i, j] * momentum[j]
        position[i] += step_size * velocity
