"""The Metropolis-Hastings iteration of all steps of this package.

An iteration proposes, evaluates the target once, accepts or rejects, learns and reports. An
algorithm is a subclass with the hooks `_start_chain`, `_propose`, `_learn` and `_end_tuning`, which
receive vectors, not PyMC's points. `self.adapted` holds all that an algorithm learns from a chain:
a new chain has a new object, and a chain's state can be saved and restored. With an estimated
likelihood some iterations measure the noise (:mod:`pymc_kmc.moves.noise_probe`).
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from os import getpid
from threading import get_ident
from time import perf_counter
from typing import Any

import numpy as np
from pymc.initial_point import PointType
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods.compound import (
    BlockedStep,
    Competence,
    CompoundStep,
    StepMethodState,
)
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator

from pymc_kmc.adaptation.first_shape import shape_around
from pymc_kmc.likelihoods.checks import (
    check_compile_kwargs,
    check_initial_point,
    check_model,
    check_variables,
)
from pymc_kmc.model.log_density import EXTRA
from pymc_kmc.model.target import TargetDensity
from pymc_kmc.moves.base import Outcome
from pymc_kmc.moves.noise_probe import NoiseProbe
from pymc_kmc.numerics.checks import check_choice, check_flag, check_rng
from pymc_kmc.numerics.jit import interruptible
from pymc_kmc.steps import messages as tell

# Iterations over which the progress bar's acceptance rate is averaged, exponentially weighted.
N_SHOWN = 100


@dataclass
class ChainProgress:
    """A chain's counters, noise, warnings and checks; updated in place."""

    noise: NoiseProbe
    n_iterations: int = 0
    n_tuned: int = 0
    n_tuning_evaluations: int = 0
    steps_since_accept: int = 0
    n_invalid: int = 0
    recent_acceptance: float = 0.0
    warned: set = field(default_factory=set)
    checks: tell.OwnChecks = field(default_factory=tell.OwnChecks)
    # Whether tuning ended before the first iteration.
    is_untuned: bool = False

    def count(self, outcome, n_evaluations, is_tuning):
        self.n_iterations += 1
        if is_tuning:
            self.n_tuned += 1
            self.n_tuning_evaluations += n_evaluations
        self.checks.observe(outcome.end.position, is_tuning)
        if outcome.proposal.is_draw:
            self.steps_since_accept = 0 if outcome.accepted else self.steps_since_accept + 1
            weight = max(1.0 / self.n_iterations, 1.0 / N_SHOWN)
            self.recent_acceptance += weight * (outcome.acceptance_rate - self.recent_acceptance)

    def statistics(self):
        noise = self.noise.variance
        return {
            "kmc_ideal_acceptance": noise.ideal_acceptance,
            "kmc_n_invalid": self.n_invalid,
            "kmc_n_tuned": self.n_tuned,
            "kmc_n_tuning_evaluations": self.n_tuning_evaluations,
            "kmc_noise_variance": noise.value,
            "kmc_recent_acceptance": self.recent_acceptance,
            "kmc_steps_since_accept": self.steps_since_accept,
            "kmc_zero_share": noise.zero_share,
        }


class ChainThread:
    """The process and the thread of a step's chain: those of its first iteration."""

    def __init__(self):
        self._first = None

    def check(self, step):
        """Raise a RuntimeError if another thread of this process has made an iteration."""
        here = getpid(), get_ident()
        process, thread = self._first or here
        self._first = here
        if thread != here[1] and process == here[0]:
            raise RuntimeError(
                f"this {type(step).__name__} samples in another thread too: a step has one chain "
                "at a time. Make a step for each pm.sample, or run one after the other."
            )


@dataclass_state
class AdaptiveStepState(StepMethodState):
    """A chain's state; a step that restores it continues with the same draws."""

    tune: bool
    adapted: Any
    progress: Any
    recycled: Any


class AdaptiveStep(BlockedStep):
    """Base of the package's steps.

    A chain uses nothing that an earlier chain of the step has learned: chains are independent, and
    the same seed gives the same draws. A new step can be given a learned surrogate or covariance,
    ``KMC(surrogate=step.surrogate_)`` or ``AdaptiveMetropolis(covariance=...)``; `sampling_state`
    saves and restores a chain.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model. Two steps may have
        variables in common: each of them leaves the posterior invariant.
    model : pymc.Model, optional
        By default the model of the context.
    initial_point : dict of str to ndarray, optional
        Has the variables' shapes; by default the model's initial point.
    compile_kwargs : dict, optional
        Passed to `pytensor.function`.
    blocked : bool
        Whether one step samples all variables as one vector; if false each variable has its own.
    rng : numpy.random.Generator, int or None
        Used until PyMC gives the step its chain's generator.
    tune : bool
        Whether the step adapts at all.
    adaptation : {"tuning", "vanishing"}
        Whether adaptation ends with tuning, or continues with weights that fall to zero.
    """

    name = "adaptive_step"
    default_blocked = True
    # Whether no move is longer than the posterior's middle is wide: heavy tails get a warning.
    _is_local = True
    stats_dtypes_shapes = {  # noqa: RUF012
        "acceptance_rate": (np.float64, []),
        "model_logp": (np.float64, []),
        "kmc_accepted": (bool, []),
        "kmc_default_tune": (np.int64, []),
        "kmc_loglik": (np.float64, []),
        "kmc_move": (np.int64, []),
        "kmc_evaluation_time": (np.float64, []),
        "kmc_failed_share": (np.float64, []),
        "kmc_ideal_acceptance": (np.float64, []),
        "kmc_n_evaluations": (np.int64, []),
        "kmc_n_invalid": (np.int64, []),
        "kmc_n_learning_evaluations": (np.int64, []),
        "kmc_n_replicates": (np.int64, []),
        "kmc_n_tuned": (np.int64, []),
        "kmc_n_tuning_evaluations": (np.int64, []),
        "kmc_noise_variance": (np.float64, []),
        "kmc_recent_acceptance": (np.float64, []),
        "kmc_steps_since_accept": (np.int64, []),
        "kmc_zero_share": (np.float64, []),
        "tune": (bool, []),  # ArviZ's groups say it, and leave it out
        "warning": (SamplerWarning, None),
    }
    _state_class = AdaptiveStepState
    # Iterations of tuning that the step asks for (PyMC 6 reads it); None if it doesn't.
    default_tune_steps: int | None = None
    # Evaluations that were made before the chains, once for all of them.
    n_learning_evaluations = 0

    def __new__(cls, *args, **kwargs):
        # Here, because PyMC would use these arguments for a step of each variable.
        is_blocked = check_flag(kwargs.get("blocked", True), "blocked")
        check_rng(kwargs.get("rng"))
        model = check_model(kwargs.get("model"))
        variables = check_variables(args[0] if args else kwargs.get("vars"), model)
        if not is_blocked and len(variables) > 1:
            point = check_initial_point(kwargs.get("initial_point"), model)
            own = [variable for variable in variables if np.size(point[variable.name])]
            if own:
                empty = [variable for variable in variables if variable not in own]
                groups = [[own[0], *empty], *([variable] for variable in own[1:])]
                return steps_of(cls, groups, args, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        vars=None,
        *,
        model=None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
        rng=None,
        tune: bool = True,
        adaptation: str = "tuning",
    ):
        model = check_model(model)
        self.vars = check_variables(vars, model)
        if not self.vars:
            raise ValueError(
                f"{type(self).__name__} got no variables: the model has no free continuous ones."
            )
        self.blocked = check_flag(blocked, "blocked")
        self.tune = self._adapts = check_flag(tune, "tune")
        self.adaptation = check_choice(adaptation, "adaptation", ("tuning", "vanishing"))
        check_rng(rng)
        self.rng = get_random_generator(rng)
        compile_kwargs = check_compile_kwargs(compile_kwargs)
        initial_point = check_initial_point(initial_point, model)
        if not any(np.size(initial_point[variable.name]) for variable in self.vars):
            names = [variable.name for variable in self.vars]
            raise ValueError(
                f"vars {names} have no values, their shapes have a 0: there is nothing to sample. "
                "Leave them out of the model."
            )
        self.target = self._make_target(model, initial_point, compile_kwargs)
        self._declare_extras()
        self._learn_first(model)
        self._reset_chain()

    @property
    def n_dimensions(self):
        return self.target.n_dimensions

    @property
    def is_tuning(self):
        """Whether iterations may be spent on learning alone, without a draw."""
        return self.is_learning and self.tune

    @property
    def is_learning(self):
        """Whether this iteration may change what the step has learned."""
        return self._adapts and (self.tune or self.adaptation == "vanishing")

    def _make_target(self, model, initial_point, compile_kwargs):
        return TargetDensity(self.vars, model, initial_point, compile_kwargs)

    def _declare_extras(self):
        shapes = {}
        for op in self.target.keeping:
            shapes |= {EXTRA + key: shape for key, shape in op.extras.shapes.items()}
        if shapes:
            # PyMC's traces take arrays by their dtype; other backends read the shapes.
            dtypes = {key: np.dtype((np.float64, shape)) for key, shape in shapes.items()}
            self.stats_dtypes = [self.stats_dtypes[0] | dtypes]
            shapes = {key: (np.float64, list(shape)) for key, shape in shapes.items()}
            self.stats_dtypes_shapes = self.stats_dtypes_shapes | shapes

    def _learn_first(self, model):
        """Learn what all chains share, once, before the first chain."""

    # What an algorithm says

    @abstractmethod
    def _start_chain(self):
        """Return a new object for `self.adapted`, with nothing learned."""

    @abstractmethod
    def _propose(self, current):
        """Return a :class:`~pymc_kmc.moves.base.Proposal` from the chain's state, an Evaluation."""

    @abstractmethod
    def _learn(self, outcome):
        """Learn from an iteration's :class:`Outcome`; only `self.adapted` is changed."""

    def _conclude(self, outcome):
        """Update a move after an iteration that nothing is learned from."""

    def _observe(self, evaluation):
        """Record an evaluation that isn't a proposal's."""

    def _statistics(self, proposal, current):
        """Return the algorithm's own statistics of a proposal from `current`, an Evaluation."""
        return {}

    def _assessment(self, evaluation):
        """Return statistics of an Evaluation, or None, computed before it is learned from."""
        return {}

    def _complaint(self):
        """Return the text of a warning about the fits, or None."""
        return None

    @property
    def _instead_of_tuning(self):
        """Source code of an argument that replaces tuning; None if one was passed."""
        return ""

    def _end_tuning(self):
        """Fix the kernel that draws will use; called when adaptation stops."""

    # PyMC's side

    def setup_chain(self, rng, tune, draws):
        """Begin a new chain (PyMC 6)."""
        self.set_rng(rng)
        self.progress.checks.n_expected = draws

    def set_rng(self, rng):
        """Begin a new chain with generator `rng` (PyMC 5.28)."""
        self.rng = get_random_generator(rng, copy=False)
        # PyMC resets this for a step of its own, not for one inside a CompoundStep.
        self.tune = self._adapts
        self._reset_chain()

    def _reset_chain(self):
        self._thread = ChainThread()
        self.progress = ChainProgress(NoiseProbe(self.target.is_noisy))
        self.target.start_chain(self.rng)
        self.adapted = self._start_chain()
        wants_tuning = self._adapts and self._instead_of_tuning is not None
        self._before_chain = {
            "kmc_default_tune": (self.default_tune_steps or 0) if wants_tuning else 0,
            "kmc_n_learning_evaluations": self.n_learning_evaluations,
        }

    def stop_tuning(self):
        """End tuning: the kernel is fixed from here on, or its adaptation dies out."""
        is_untuned = self.progress.n_iterations == 0
        if self.tune and self.is_learning and not is_untuned:
            with interruptible():
                self._end_tuning()
        # Asked of `_adapts`: with tune=0 PyMC sets `tune` of a step that isn't in a compound.
        self.progress.is_untuned = self._adapts and is_untuned
        self.tune = False

    def step(self, point):
        self._thread.check(self)
        with interruptible():
            return self._iterate(point)

    def _iterate(self, point):
        target, probe = self.target, self.progress.noise
        n_before = target.n_evaluations
        messages = self._prepare(point)
        start = end = target.current(point)

        begin = perf_counter()
        is_probe = self.is_tuning and probe.is_due(self.progress.n_iterations)
        proposal = probe.propose(start, None, self.rng) if is_probe else self._propose(start)
        statistics = self._statistics(proposal, start)
        evaluation, seconds = self._evaluated(proposal, begin)
        if evaluation is not None and not evaluation.log_density < np.inf:  # +inf or NaN
            self.progress.n_invalid += 1
            messages.append(("invalid", tell.of_invalid(target, point, evaluation)))

        acceptance_rate = proposal.acceptance_rate(start, evaluation)
        if self.rng.random() < acceptance_rate:
            target.accept(evaluation)
            end = evaluation

        outcome = Outcome(proposal, evaluation, acceptance_rate, start, end)
        statistics |= self._assessment(evaluation)
        if is_probe:
            probe.learn(outcome, self.rng)
            self._observe(evaluation)
        elif self.is_learning:
            self._learn(outcome)
        else:
            self._conclude(outcome)
        n_evaluations = target.n_evaluations - n_before
        self.progress.count(outcome, n_evaluations, self.tune)
        statistics |= self._report(outcome, seconds, n_evaluations, messages)
        if target.keeping:
            kept = target.extras_of(end)
            statistics |= {EXTRA + key: value for key, value in kept.items()}
        return target.point(point, end.position), [statistics]

    def _evaluated(self, proposal, begin):
        """Return the Evaluation at a proposal, None for a certain rejection, and its seconds."""
        if not proposal.log_ratio > -np.inf:
            return None, 0.0
        evaluation = proposal.evaluation
        if evaluation is None:
            begin = perf_counter()
            evaluation = self.target.propose(proposal.position, self.rng, proposal.renewed)
            return evaluation, perf_counter() - begin
        # The move has evaluated the target itself; `seconds` were its other work since `begin`.
        return evaluation, perf_counter() - begin - proposal.seconds

    def _report(self, outcome, seconds, n_evaluations, messages):
        target = self.target
        of_iteration = {
            "acceptance_rate": outcome.acceptance_rate,
            "model_logp": outcome.end.log_density,
            "kmc_accepted": outcome.accepted,
            "kmc_loglik": outcome.end.log_likelihood_estimate,
            "kmc_move": int(outcome.proposal.move.kind),
            "kmc_evaluation_time": seconds,
            "kmc_failed_share": target.failed_share,
            "kmc_n_evaluations": n_evaluations,
            "kmc_n_replicates": target.n_replicates,
            "tune": self.tune,
            "warning": self._warning(messages),
        }
        return self._before_chain | self.progress.statistics() | of_iteration

    def _prepare(self, point):
        """Check the chain's start and choose numbers of replicates; return messages about both."""
        target, progress = self.target, self.progress
        messages = []
        if progress.n_iterations == 0:
            target.check_start(point)
            messages.append(("start", tell.of_start(target, target.current(point))))
            if self._wants_shape and self.is_learning:
                start = target.current(point)
                factor = shape_around(target, start, self.rng, self._observe)
                self.adapted.random_walk.set_shape(factor)
        if progress.is_untuned and not self.is_learning:
            messages.append(("untuned", tell.of_no_tuning(self._instead_of_tuning)))
        if self._adapts and target.chooses_n_replicates:
            if progress.noise.is_time_to_choose(progress.n_iterations, self.tune):
                choice = progress.noise.choose(target, point, self.rng)
                messages.insert(0, ("replicates", choice))
        return messages

    # Whether a chain's random walk begins with scales and correlations found around its start.
    _wants_shape = False

    def _warning(self, messages):
        """Return a SamplerWarning of the first message not given yet in this chain, or None."""
        progress = self.progress
        messages.append(("fit", self._complaint()))
        if not self.tune:
            messages += tell.of_evaluations(self.target, progress.noise)
            if progress.checks.is_due():
                checks = self.target, progress.checks, self._is_local
                messages.append(tell.of_own_checks(*checks))
        if tell.is_stuck(progress):
            stillness = tell.of_stillness(self.target, progress.steps_since_accept)
            messages.append(("stuck", stillness))
        return tell.first_new(messages, progress.warned, progress.n_iterations)

    @property
    def recycled(self):
        """The target's part of a chain's state: the accepted evaluation and its noise."""
        return self.target.state

    @recycled.setter
    def recycled(self, state):
        self.target.state = state

    @staticmethod
    def competence(var, has_grad):
        """Return INCOMPATIBLE: PyMC never assigns this step by itself."""
        return Competence.INCOMPATIBLE

    _progressbar_config = staticmethod(tell.columns)

    @staticmethod
    def _make_progressbar_update_functions():
        return (tell.update,)


def steps_of(cls, groups, args, kwargs):
    """Return a step of each group of variables, with generators as PyMC makes them."""
    kwargs = {key: value for key, value in kwargs.items() if key != "vars"} | {"blocked": True}
    rngs = get_random_generator(kwargs.pop("rng", None)).spawn(len(groups))
    pairs = zip(groups, rngs, strict=True)
    return CompoundStep([cls(own, *args[1:], rng=rng, **kwargs) for own, rng in pairs])
