r"""Langevin proposals and random walks in the coordinates of a learned factor L.

A Langevin proposal from x is a number of leapfrog steps with the target's gradient, from a momentum
:math:`\epsilon \sim N(0, I)`, in the coordinates of L. One step of unit size is

.. math:: y = x + L h, \quad h = \tfrac12 L^\top \nabla \log \pi(x) + \epsilon

(Titsias and Dellaportas, 2019). The leapfrog map preserves volume and, with the momentum reversed,
is its own inverse: the acceptance ratio has the change of :math:`\frac12 |\epsilon|^2`. A
:class:`~pymc_kmc.model.differentiable.DifferentiableTarget` takes the place of the fitted
surrogate. The compiled leapfrog steps call its compiled density by address.

References
----------
Titsias, M. K. and Dellaportas, P. (2019). Gradient-based adaptive Markov chain Monte Carlo.
*NeurIPS* 32.
"""

import numba
import numpy as np

from pymc_kmc.model.differentiable import density_at
from pymc_kmc.model.log_density import Evaluation
from pymc_kmc.moves.base import Move, MoveKind, Proposal
from pymc_kmc.numerics.jit import njit


class FactorRandomWalk(Move):
    r"""A random walk, :math:`y = x + L \epsilon`, with the factor L of a SpeedMeasure."""

    kind = MoveKind.RANDOM_WALK

    def __init__(self, preconditioner):
        self.preconditioner = preconditioner

    def propose(self, current, target, rng):
        noise = rng.standard_normal(len(current.position))
        return Proposal(
            current.position + self.preconditioner.factor @ noise,
            self,
            details=noise,
            step_size=self.preconditioner.scale,
        )


class Langevin(Move):
    """Leapfrog steps on the target, by the factor L, step size and number of a preconditioner.

    The preconditioner is a SpeedMeasure or DrawsAndGradients.
    """

    kind = MoveKind.LANGEVIN
    # Bounds of the uniform jitter of the step size of several steps: a constant one can resonate
    # with the target (Neal, 2011, section 3.2).
    STEP_SIZE_JITTER = (0.85, 1.15)

    def __init__(self, preconditioner):
        self.preconditioner = preconditioner

    def propose(self, current, target, rng):
        preconditioner = self.preconditioner
        step_size, n_steps = preconditioner.step_size, preconditioner.n_steps
        if preconditioner.has_window:
            step_size *= rng.uniform(*self.STEP_SIZE_JITTER)
        noise = rng.standard_normal(len(current.position))
        end, log_density, gradient, log_ratio = trajectory(
            target, current, preconditioner.factor, step_size, n_steps, noise
        )
        # As PyMC records it, and as the density's graph has rounded it.
        end = target.rounded(end).astype(np.float64, copy=False)
        # Where the trajectory has left the finite numbers so has the log ratio: a rejection.
        return Proposal(
            end,
            self,
            log_ratio,
            Evaluation(log_density, 0.0, end, (), gradient=gradient),
            details=noise,
            step_size=preconditioner.scale,
            n_steps=n_steps,
        )


def trajectory(target, current, factor, step_size, n_steps, noise):
    """Return :func:`leapfrog`'s results for a DifferentiableTarget; count its evaluations."""
    target.n_evaluations += n_steps
    arguments = current.position, current.gradient, factor, step_size, n_steps, noise
    compiled, shared = target.compiled()
    if compiled is None:
        return leapfrog.py_func(target.density, (), *arguments)
    return compiled_leapfrog(compiled.address, shared, *arguments)


@numba.njit
def leapfrog(density, shared, position, gradient, factor, step_size, n_steps, noise):
    """Follow the dynamics in the coordinates of a factor L (d, d), from a momentum `noise` (d,).

    ``density((position, *shared))`` returns the log density and its gradient. The start is
    `position` and its `gradient`, both (d,), `n_steps` is at least one, and the mass matrix is (L
    L')^-1. Returns the last position, its log density and gradient, and log N(momentum; 0, I) at
    the end less that at the start.
    """
    momentum = noise + 0.5 * step_size * np.dot(factor.T, gradient)
    for i in range(n_steps):
        position = position + step_size * np.dot(factor, momentum)
        value, slope = density((position,) + shared)
        log_density, gradient = value[()], np.ascontiguousarray(slope)
        kick = 0.5 * step_size if i == n_steps - 1 else step_size
        momentum = momentum + kick * np.dot(factor.T, gradient)
    log_ratio = 0.5 * np.dot(noise, noise) - 0.5 * np.dot(momentum, momentum)
    return position, log_density, gradient, log_ratio


@njit
def compiled_leapfrog(address, shared, position, gradient, factor, step_size, n_steps, noise):
    """Return :func:`leapfrog`'s results for the density at an address."""
    density = density_at(address, position, shared)
    return leapfrog(density, shared, position, gradient, factor, step_size, n_steps, noise)
