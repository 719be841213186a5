r"""Gradient-based adaptive MCMC: gadRWM and gadMALA (Titsias and Dellaportas, 2019).

An iteration of gadRWM at x, with a lower triangular factor L:

1. Propose :math:`y = x + L \epsilon`, :math:`\epsilon \sim N(0, I)`.
2. Accept with probability :math:`\min(1, \pi(y) / \pi(x))`.
3. While tuning, follow the gradient of the generalised speed measure in L
   (:mod:`pymc_kmc.adaptation.preconditioner`), :math:`\nabla \log \pi(y) \epsilon^\top` where the
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

A proposal of gadMALA is one leapfrog step of unit size in the coordinates that L defines, from the
momentum epsilon to h + b. By default L gives coordinates of unit spread
(:class:`~pymc_kmc.adaptation.preconditioner.DrawsAndGradients`), and a proposal has as many
leapfrog steps as make a quarter of a turn, whose end is nearly independent of its start.

The chain is exact: L, step size and number of steps are fixed within an iteration and don't depend
on x. The leapfrog map preserves volume, and with a flip of the momentum it is its own inverse.
Adaptation ends with tuning, or dies out.

References
----------
Titsias, M. K. and Dellaportas, P. (2019). Gradient-based adaptive Markov chain Monte Carlo.
*NeurIPS* 32.

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

import numpy as np

from pymc_kmc.adaptation.preconditioner import DrawsAndGradients, SpeedMeasure
from pymc_kmc.adaptation.schedules import vanishing_weight
from pymc_kmc.model.differentiable import DifferentiableTarget
from pymc_kmc.moves.langevin import FactorRandomWalk, Langevin
from pymc_kmc.numerics.checks import check_choice
from pymc_kmc.steps.base import AdaptiveStep


class GadAdaptation:
    """The adaptation of this module's steps.

    `preconditioner`, a SpeedMeasure or DrawsAndGradients, has the factor, the step size and the
    number of steps, updated in place; `move`, a FactorRandomWalk or Langevin, proposes with these.
    """

    def __init__(self, make_move, preconditioner):
        self.preconditioner = preconditioner
        self.move = make_move(preconditioner)
        self.n_after_tuning = 0

    def weight(self, is_tuning):
        """Return the factor on an iteration's update: 1 while tuning, falling afterwards."""
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
        Whether L follows the natural gradient, or the gradient as in the paper, whose constants
        suit standard deviations of about .1 to 1 and a start in the posterior's mass.
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
    # Acceptance rate that beta is driven to (the authors' code).
    TARGET_ACCEPTANCE = 0.25
    # Step size of the additive rule (the authors' code).
    RATE = 5e-5

    def __init__(self, vars=None, *, update="multiplicative", **kwargs):
        self.update = check_choice(update, "update", ("multiplicative", "additive"))
        super().__init__(vars, **kwargs)

    def _make_target(self, model, initial_point, compile_kwargs):
        return DifferentiableTarget(self.vars, model, initial_point, compile_kwargs, always=False)

    def _start_chain(self):
        speed_measure = SpeedMeasure(
            self.n_dimensions, self.TARGET_ACCEPTANCE, self.RATE, self.update
        )
        return GadAdaptation(FactorRandomWalk, speed_measure)

    def _propose(self, current):
        return self.adapted.move.propose(current, self.target, self.rng)

    def _learn(self, outcome):
        U = np.zeros((1, self.n_dimensions))
        if outcome.acceptance_rate < 1.0:
            U[0] = self.target.gradient(outcome.proposal.position)
        self.adapted.preconditioner.learn(
            U if np.isfinite(U).all() else None,
            outcome.proposal.details[None, :],
            outcome,
            self.adapted.weight(self.tune),
        )

    def _statistics(self, proposal, current):
        return {"step_size": proposal.step_size}


class GadMALA(AdaptiveStep):
    r"""Langevin proposals whose preconditioner is learned (Titsias and Dellaportas, 2019).

    For models with gradients, from a few to a few hundred parameters: more effective draws a
    second than NUTS where the posterior's shape does not change much from place to place.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    update : {"windowed", "multiplicative", "additive"}
        How the factor L is learned. "windowed", the fastest on every target measured, starts with
        the generalised speed measure, then takes L from the draws and their gradients
        (:class:`~pymc_kmc.adaptation.preconditioner.DrawsAndGradients`); a proposal has several
        leapfrog steps. "multiplicative" and "additive" make one step, and follow the natural
        gradient of the generalised speed measure, or its gradient as in the paper.
    variant : {"fast", "exact"}
        Gradient of the speed measure: with the target's gradients held fixed, or with products of
        its Hessian and a vector.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`.

    Raises
    ------
    TypeError
        If the model's log density has no gradient (no second one, with ``variant="exact"``), or is
        estimated.
    ValueError
        If `update` or `variant` is unknown.
    """

    name = "gad_mala"
    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {
        "step_size": (np.float64, []),
        "n_steps": (np.int64, []),
    }
    # Acceptance rate that beta is driven to (the authors' code).
    TARGET_ACCEPTANCE = 0.55
    # Step size of the additive rule (the authors' code).
    RATE = 1.5e-4
    # Acceptance rate of several leapfrog steps (.7 to .9 do equally well on logistic regressions).
    TRAJECTORY_TARGET_ACCEPTANCE = 0.8

    def __init__(self, vars=None, *, update="windowed", variant="fast", **kwargs):
        self.update = check_choice(update, "update", ("windowed", "multiplicative", "additive"))
        self.variant = check_choice(variant, "variant", ("fast", "exact"))
        super().__init__(vars, **kwargs)

    def _make_target(self, model, initial_point, compile_kwargs):
        return DifferentiableTarget(
            self.vars, model, initial_point, compile_kwargs, curvature=self.variant == "exact"
        )

    def _start_chain(self):
        d = self.n_dimensions
        if self.update != "windowed":
            speed_measure = SpeedMeasure(d, self.TARGET_ACCEPTANCE, self.RATE, self.update)
            return GadAdaptation(Langevin, speed_measure)
        first = SpeedMeasure(d, self.TARGET_ACCEPTANCE, self.RATE, "multiplicative")
        windowed = DrawsAndGradients(d, self.TRAJECTORY_TARGET_ACCEPTANCE, first)
        return GadAdaptation(Langevin, windowed)

    def _propose(self, current):
        return self.adapted.move.propose(current, self.target, self.rng)

    def _learn(self, outcome):
        preconditioner, evaluation = self.adapted.preconditioner, outcome.evaluation
        gradient, noise = outcome.start.gradient, outcome.proposal.details
        is_finite = evaluation is not None and np.isfinite(evaluation.gradient).all()
        U = V = None
        if is_finite and not preconditioner.has_window:
            U, V = self._outer_products(preconditioner.factor, noise, gradient, evaluation)
        preconditioner.learn(U, V, outcome, self.adapted.weight(self.tune))

    def _end_tuning(self):
        if self.update == "windowed":
            self.adapted.preconditioner.settle()

    def _outer_products(self, factor, noise, gradient, evaluation):
        """Return u and v, in rows, of the gradient of a proposal's log ratio in L."""
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

    def _statistics(self, proposal, current):
        return {"step_size": proposal.step_size, "n_steps": proposal.n_steps}
