r"""Gradient-based adaptive MCMC: gadRWM and gadMALA (Titsias and Dellaportas, 2019).

An iteration of gadRWM at x, with a lower triangular factor L:

1. Propose :math:`y = x + L \epsilon`, :math:`\epsilon \sim N(0, I)`.
2. Accept with probability :math:`\min(1, \pi(y) / \pi(x))`.
3. While tuning, follow the gradient of the generalised speed measure in L
   (:mod:`pymc_kmc.adaptation.speed_measure`), :math:`\nabla \log \pi(y) \epsilon^\top` where the
   log ratio is negative.

An iteration of gadMALA:

1. Propose :math:`y = x + L h`, :math:`h = \frac12 L^\top \nabla \log \pi(x) + \epsilon`.
2. Accept with probability

   .. math:: \min\left(1, \frac{\pi(y)}{\pi(x)}
             \exp\left(\tfrac12 |\epsilon|^2 - \tfrac12 |h + b|^2\right)\right),
             \quad b = \tfrac12 L^\top \nabla \log \pi(y).

3. While tuning, learn L. With the gradients held fixed the log ratio has the gradient
   :math:`\frac12 (\nabla \log \pi(y) - \nabla \log \pi(x)) (h - b)^\top` in L (gadMALAf, "fast").
   The exact one (gadMALAe) has :math:`w h^\top + \frac12 \nabla \log \pi(x) (L^\top w)^\top`,
   :math:`w = -\frac12 \nabla^2 \log \pi(y) L (h + b)`, besides: a product of the Hessian and a
   vector.

A proposal of gadMALA is one leapfrog step of unit size in the coordinates that L defines, from a
momentum epsilon: h + b is the momentum at its end. Given a factor whose coordinates have unit
spread (:class:`~pymc_kmc.adaptation.preconditioner.DrawsAndGradients`), several steps in a row as
far as a quarter of a turn give nearly independent draws; that is the default, and the rest is
the same.

Why it is exact: L, step size and number of steps are fixed while an iteration lasts and do not
depend on x, and the leapfrog map is volume-preserving and, with the momentum turned round, its own
inverse; adaptation ends with tuning, or dies out.

References
----------
Titsias, M. K. and Dellaportas, P. (2019). Gradient-based adaptive Markov chain Monte Carlo.
*NeurIPS* 32.

Titsias, M. K. (2023). Optimal preconditioning and Fisher adaptive Langevin sampling. *NeurIPS* 36.

Examples
--------
>>> import pymc as pm, pymc_kmc as kmc
>>> with pm.Model():
...     x = pm.Normal("x", shape=3)
...     step = kmc.GadMALA()
...     idata = pm.sample(50, tune=200, step=step, chains=1, random_seed=1, progressbar=False)
>>> int(idata.sample_stats["n_steps"][0, -1])
2
"""

import numba
import numpy as np

from pymc_kmc.adaptation.preconditioner import DrawsAndGradients, FisherPreconditioner
from pymc_kmc.adaptation.schedules import vanishing_weight
from pymc_kmc.adaptation.speed_measure import SpeedMeasure
from pymc_kmc.model.differentiable import DifferentiableTarget, density_at
from pymc_kmc.model.target import Evaluation
from pymc_kmc.numerics.checks import check_choice
from pymc_kmc.numerics.jit import njit
from pymc_kmc.steps.base import AdaptiveStep, Proposal

__all__ = ["GadMALA", "GadRWM"]


class Learned:
    """What the steps of this module learn from a chain.

    Attributes
    ----------
    proposals : SpeedMeasure, FisherPreconditioner or DrawsAndGradients
        Their factor, step size and number of steps.
    n_after_tuning : int
        Iterations of an adaptation that dies out.
    """

    def __init__(self, proposals):
        self.proposals = proposals
        self.n_after_tuning = 0

    def weight(self, is_tuning):
        """Return the factor on what an iteration teaches: one while tuning."""
        if is_tuning:
            return 1.0
        self.n_after_tuning += 1
        return vanishing_weight(self.n_after_tuning)


class GadRWM(AdaptiveStep):
    r"""Random walk that learns its covariance from gradients (Titsias and Dellaportas, 2019).

    Gradients are evaluated only while tuning, and only at proposals that may be rejected.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    update : {"multiplicative", "additive"}
        How L follows the gradient: by the natural gradient, or as in the paper, whose constants
        suit parameters with standard deviations of about .1 to 1 and a start among them.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`.

    Raises
    ------
    TypeError
        If the model's log density has no gradient, or is estimated.
    ValueError
        If `update` is unknown.
    """

    name = "gad_rwm"
    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {"step_size": (np.float64, [])}
    TARGET_ACCEPTANCE = 0.25  # the authors' code
    RATE = 5e-5  # of the additive rule; the same

    def __init__(self, vars=None, *, update="multiplicative", **kwargs):
        self.update = check_choice(update, "update", ("multiplicative", "additive"))
        super().__init__(vars, **kwargs)

    def _make_target(self, model, initial_point, compile_kwargs):
        return DifferentiableTarget(self.vars, model, initial_point, compile_kwargs, always=False)

    def _start_chain(self):
        return Learned(
            SpeedMeasure(self.n_dimensions, self.TARGET_ACCEPTANCE, self.RATE, self.update)
        )

    def _propose(self, position):
        speed_measure = self.learned.proposals
        noise = self.rng.standard_normal(self.n_dimensions)
        return Proposal(
            position + speed_measure.factor @ noise,
            statistics={"step_size": speed_measure.scale},
            details=noise,
        )

    def _learn(self, proposal, evaluation, acceptance_rate, start, position):
        U = np.zeros((1, self.n_dimensions))
        if acceptance_rate < 1.0:
            U[0] = self.target.gradient(proposal.position)
        self.learned.proposals.learn(
            U if np.isfinite(U).all() else None,
            proposal.details[None, :],
            acceptance_rate,
            position is not start,
            self.learned.weight(self.tune),
        )


class GadMALA(AdaptiveStep):
    r"""Langevin proposals whose preconditioner is learned (Titsias and Dellaportas, 2019).

    For models with gradients, from a few to a few hundred parameters: more effective draws a
    second than NUTS where the posterior's shape does not change much from place to place.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    update : {"windowed", "multiplicative", "additive", "fisher"}
        How the factor L is learned. "windowed", the default and the fastest on every target
        measured, starts with the generalised speed measure, then takes L from the draws and their
        gradients (:class:`~pymc_kmc.adaptation.preconditioner.DrawsAndGradients`), with as many
        leapfrog steps a proposal as make its draws nearly independent. The others make one step.
        "multiplicative" and "additive" follow the gradient of the generalised speed measure: the
        natural gradient, or as in the paper. "fisher" is the inverse Fisher information (Titsias,
        2023).
    variant : {"fast", "exact"}
        Gradient of the speed measure: with the target's gradients held fixed, or with products of
        its Hessian and a vector. Not for ``update="fisher"``.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`.

    Raises
    ------
    TypeError
        If the model's log density has no gradient (no second one, with ``variant="exact"``), or is
        estimated.
    ValueError
        If `update` or `variant` is unknown, or they don't go together.
    """

    name = "gad_mala"
    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {
        "step_size": (np.float64, []),
        "n_steps": (np.int64, []),
    }
    TARGET_ACCEPTANCE = 0.55  # the authors' code
    RATE = 1.5e-4  # of the additive rule; the same
    FISHER_TARGET_ACCEPTANCE = 0.574  # Roberts and Rosenthal (1998)
    # Of several leapfrog steps; .7 to .9 did equally well on the logistic regressions.
    TRAJECTORY_TARGET_ACCEPTANCE = 0.8
    # A step size that is always the same can resonate with the target (Neal, 2011, section 3.2).
    STEP_SIZE_JITTER = (0.85, 1.15)

    def __init__(self, vars=None, *, update="windowed", variant="fast", **kwargs):
        updates = ("windowed", "multiplicative", "additive", "fisher")
        self.update = check_choice(update, "update", updates)
        self.variant = check_choice(variant, "variant", ("fast", "exact"))
        if update == "fisher" and variant == "exact":
            raise ValueError(
                "variant='exact' is about the generalised speed measure, which update='fisher' "
                "does not use; leave it out."
            )
        super().__init__(vars, **kwargs)

    def _make_target(self, model, initial_point, compile_kwargs):
        return DifferentiableTarget(
            self.vars, model, initial_point, compile_kwargs, curvature=self.variant == "exact"
        )

    def _start_chain(self):
        d = self.n_dimensions
        if self.update == "fisher":
            return Learned(FisherPreconditioner(d, self.FISHER_TARGET_ACCEPTANCE))
        if self.update != "windowed":
            return Learned(SpeedMeasure(d, self.TARGET_ACCEPTANCE, self.RATE, self.update))
        first = SpeedMeasure(d, self.TARGET_ACCEPTANCE, self.RATE, "multiplicative")
        return Learned(DrawsAndGradients(d, self.TRAJECTORY_TARGET_ACCEPTANCE, first))

    def _propose(self, position):
        proposals = self.learned.proposals
        step_size, n_steps = proposals.step_size, proposals.n_steps
        if self.update == "windowed" and proposals.has_window:
            step_size *= self.rng.uniform(*self.STEP_SIZE_JITTER)
        current = self.target.recycled
        noise = self.rng.standard_normal(self.n_dimensions)
        end, log_density, gradient, log_ratio = self._leapfrog(
            position, current.gradient, proposals.factor, step_size, n_steps, noise
        )
        # Where the trajectory has left the finite numbers so has the log ratio: a rejection.
        return Proposal(
            end,
            log_ratio,
            {"step_size": proposals.scale, "n_steps": n_steps},
            evaluation=Evaluation(log_density, 0.0, end, (), gradient=gradient),
            details=(current, noise),
        )

    def _leapfrog(self, position, gradient, factor, step_size, n_steps, noise):
        self.target.n_evaluations += n_steps
        arguments = position, gradient, factor, step_size, n_steps, noise
        compiled, shared = self.target.compiled()
        if compiled is None:
            return leapfrog.py_func(self.target.density, (), *arguments)
        return compiled_leapfrog(compiled.address, shared, *arguments)

    def _learn(self, proposal, evaluation, acceptance_rate, start, position):
        proposals, weight = self.learned.proposals, self.learned.weight(self.tune)
        current, noise = proposal.details
        is_finite = evaluation is not None and np.isfinite(evaluation.gradient).all()
        if self.update == "fisher":
            difference = evaluation.gradient - current.gradient if is_finite else None
            proposals.learn(difference, acceptance_rate, weight)
            return
        accepted = position is not start
        U = V = None
        if is_finite and not (self.update == "windowed" and proposals.has_window):
            U, V = self._outer_products(proposals.factor, noise, current.gradient, evaluation)
        if self.update != "windowed":
            proposals.learn(U, V, acceptance_rate, accepted, weight)
            return
        gradient = evaluation.gradient if accepted else current.gradient
        proposals.learn(U, V, acceptance_rate, accepted, position, gradient, weight)

    def _end_tuning(self):
        if self.update == "windowed":
            self.learned.proposals.settle()

    def _outer_products(self, factor, noise, gradient, evaluation):
        """Return u and v of the gradient of a proposal's log ratio in L, in rows."""
        start = 0.5 * (factor.T @ gradient)
        end = 0.5 * (factor.T @ evaluation.gradient)
        step = noise + start
        U, V = [0.5 * (evaluation.gradient - gradient)], [step - end]
        if self.variant == "exact":
            momentum = factor @ (step + end)
            bend = -0.5 * self.target.hessian_product(evaluation.position, momentum)
            U += [bend, 0.5 * gradient]
            V += [step, factor.T @ bend]
        return np.array(U), np.array(V)


@numba.njit
def leapfrog(density, shared, position, gradient, factor, step_size, n_steps, noise):
    """Follow the dynamics in the coordinates of a factor, from a momentum.

    Parameters
    ----------
    density : callable
        Log density and gradient of the tuple ``(position, *shared)``.
    shared : tuple of ndarray
    position, gradient : ndarray, shape (d,)
        Where to start, and the gradient there.
    factor : ndarray, shape (d, d)
        L: the mass matrix is (L L')^-1.
    step_size : float
    n_steps : int
        At least one.
    noise : ndarray, shape (d,)
        The momentum epsilon.

    Returns
    -------
    position : ndarray, shape (d,)
    log_density : float
    gradient : ndarray, shape (d,)
    log_ratio : float
        log N(momentum; 0, I) at the end less that at the start.
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
    """Do as :func:`leapfrog` with the density at an address (:func:`density_at`)."""
    density = density_at(address, position, shared)
    return leapfrog(density, shared, position, gradient, factor, step_size, n_steps, noise)
