"""What every step of this package does, whatever its algorithm.

An iteration is: propose, evaluate the target once, accept or reject, learn, report. An algorithm
is a subclass with four hooks, `_start_chain`, `_propose`, `_learn` and `_end_tuning`, which see
vectors, not PyMC's points. Everything that an algorithm learns from a chain is in `self.learned`,
a plain object: a new chain starts from a new one, and a chain's state can be saved and restored.

With an estimated likelihood, while tuning, there is also

- the noise's variance to be known, for statistics and warnings: now and then the chain's state is
  evaluated twice, in place of two iterations, under noise that is renewed each time;
- the number of replicates to be chosen, where the likelihood asks for it
  (:mod:`pymc_kmc.likelihoods.n_replicates`), after 25, 100 and 400 iterations.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from math import exp
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from pymc.initial_point import PointType
from pymc.model import modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from pymc_kmc.adaptation.noise_variance import NoiseVariance
from pymc_kmc.likelihoods.n_replicates import MOST_REPLICATES, TARGET_VARIANCE
from pymc_kmc.model.target import Evaluation, TargetDensity

__all__ = ["AdaptiveStep", "Proposal"]

# A chain that moves at all under noise of variance 3 in its log likelihood (the most that can be
# advised) hardly ever stays longer than this.
STUCK_AFTER = 500
# The chain's state is probed after so many iterations of tuning.
PROBE_EVERY = 100
# A variance of the noise beyond this is worth a warning, if so many pairs of estimates say so.
TOO_NOISY, ENOUGH_PAIRS = 3.0, 10
# The numbers of replicates are chosen after so many iterations of tuning.
REPLICATES_CHOSEN_AFTER = (25, 100, 400)
# Iterations that the acceptance rate of the progress bar looks back.
RECENT = 100


class Proposal(NamedTuple):
    """Where to go, and the part of the acceptance ratio that isn't the target's.

    Attributes
    ----------
    position : ndarray, shape (d,)
        The proposal.
    log_ratio : float
        Log of everything in the acceptance ratio besides pi(x') / pi(x): a Hastings ratio, or the
        change of kinetic energy. ``-inf`` rejects without an evaluation.
    statistics : dict
        The algorithm's sample statistics about this proposal.
    is_draw : bool
        Whether the chain may accept it. What isn't is evaluated for what can be learned there.
    evaluation : Evaluation, optional
        The target there, where making the proposal has evaluated it.
    details : object, optional
        What the algorithm will learn from.
    """

    position: np.ndarray
    log_ratio: float = 0.0
    statistics: dict = {}  # noqa: RUF012  (never written to)
    is_draw: bool = True
    evaluation: Evaluation | None = None
    details: Any = None


@dataclass
class ChainProgress:
    """What the base class counts along a chain."""

    n_iterations: int = 0
    steps_since_accept: int = 0
    n_invalid: int = 0
    recent_acceptance: float = 0.0
    noise: NoiseVariance = field(default_factory=NoiseVariance)
    has_chosen: bool = False  # the numbers of replicates
    probe: Evaluation | None = None  # the first of a pair
    last_probe: int = 0
    last_statistics: dict | None = None  # of a proposal for an estimated density
    warned: set = field(default_factory=set)


@dataclass_state
class AdaptiveStepState(StepMethodState):
    """A chain's state: enough to go on with the same draws."""

    tune: bool
    learned: Any
    progress: Any
    recycled: Any


class AdaptiveStep(BlockedStep):
    """Base of the package's steps; see the module's docstring.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    model : pymc.Model, optional
        By default the one of the context.
    initial_point : dict of str to ndarray, optional
        Gives the variables' shapes; by default the model's initial point.
    compile_kwargs : dict, optional
        Passed to `pytensor.function`.
    blocked : bool
        Sample the variables as one vector; if false, each by a step of its own.
    rng : numpy.random.Generator, int or None
        Used until PyMC hands the step its chain's generator.
    tune : bool
        Whether the step adapts at all.
    adaptation : {"tuning", "vanishing"}
        Whether adaptation ends with tuning or goes on, dying out.
    """

    name = "adaptive_step"
    default_blocked = True
    stats_dtypes_shapes = {  # noqa: RUF012
        "acceptance_rate": (np.float64, []),
        "model_logp": (np.float64, []),
        "kmc_accepted": (bool, []),
        "kmc_loglik": (np.float64, []),
        "kmc_evaluation_time": (np.float64, []),
        "kmc_ideal_acceptance": (np.float64, []),
        "kmc_n_evaluations": (np.int64, []),
        "kmc_n_invalid": (np.int64, []),
        "kmc_n_replicates": (np.int64, []),
        "kmc_noise_variance": (np.float64, []),
        "kmc_recent_acceptance": (np.float64, []),
        "kmc_steps_since_accept": (np.int64, []),
        "warning": (SamplerWarning, None),
    }
    _state_class = AdaptiveStepState

    def __new__(cls, *args, **kwargs):
        # Before PyMC makes a step of each variable, where `blocked` is false.
        check_distinct_variables(args[0] if args else kwargs.get("vars"))
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
        if adaptation not in ("tuning", "vanishing"):
            raise ValueError(f"adaptation must be 'tuning' or 'vanishing', got {adaptation!r}.")
        model = modelcontext(model)
        if vars is None:
            vars = model.continuous_value_vars
        else:
            vars = get_value_vars_from_user_vars(vars, model)
        if not vars:
            raise ValueError(
                f"{type(self).__name__} got no variables: the model has no free continuous ones."
            )
        check_distinct_variables(vars)
        if initial_point is None:
            initial_point = model.initial_point()
        self.vars = list(vars)
        self.blocked = blocked
        self.tune = tune
        self.adaptation = adaptation
        self._adapts = tune
        self.rng = get_random_generator(rng)
        self.target = self._make_target(model, initial_point, compile_kwargs)
        self._reset_chain()

    @property
    def n_dimensions(self):
        """Length d of the vector that the step samples."""
        return self.target.n_dimensions

    @property
    def is_tuning(self):
        """Whether iterations may be spent on learning besides drawing."""
        return self.is_learning and self.tune

    @property
    def is_learning(self):
        """Whether this iteration may change what the step has learned."""
        return self._adapts and (self.tune or self.adaptation == "vanishing")

    def _make_target(self, model, initial_point, compile_kwargs):
        return TargetDensity(self.vars, model, initial_point, compile_kwargs)

    # What an algorithm says

    @abstractmethod
    def _start_chain(self):
        """Return a new object for `self.learned`: nothing is known of the chain yet."""

    @abstractmethod
    def _propose(self, position):
        """Return a :class:`Proposal` from `position`."""

    @abstractmethod
    def _learn(self, proposal, evaluation, acceptance_rate, start, position):
        """Learn from an iteration.

        Parameters
        ----------
        proposal : Proposal
        evaluation : Evaluation or None
            The target at the proposal; None if it was rejected without one.
        acceptance_rate : float
            The proposal's acceptance probability.
        start : ndarray, shape (d,)
            The chain's state before the iteration.
        position : ndarray, shape (d,)
            The chain's state after the iteration.
        """

    def _log_correction(self, proposal, current, evaluation):
        """Return what of the log acceptance ratio depends on the target's value at the proposal."""
        return 0.0

    def _observe(self, evaluation):
        """Take note of an evaluation that isn't a proposal's; a hook for algorithms."""

    def _statistics(self, proposal, current):
        """Return the algorithm's statistics of an iteration that started at `current`."""
        return proposal.statistics

    def _end_tuning(self):
        """Settle what sampling will use; called when adaptation stops."""

    # PyMC's side

    def setup_chain(self, rng, tune, draws):
        """Begin a new chain (PyMC 6)."""
        self.set_rng(rng)

    def set_rng(self, rng):
        """Begin a new chain with generator `rng` (PyMC 5.28)."""
        self.rng = get_random_generator(rng, copy=False)
        # PyMC resets this for a step of its own, not for one inside a CompoundStep.
        self.tune = self._adapts
        self._reset_chain()

    def _reset_chain(self):
        self.progress = ChainProgress()
        self.target.start_chain(self.rng)
        self.learned = self._start_chain()

    def stop_tuning(self):
        """End tuning: from here on the kernel is fixed, or its adaptation dies out."""
        if self.tune and self.is_learning:
            self._end_tuning()
        self.tune = False

    def step(self, point):
        """Do one iteration from PyMC's `point`."""
        target, progress = self.target, self.progress
        n_before = target.n_evaluations
        warning = None
        if progress.n_iterations == 0:
            target.check_start(point)
            warning = self._warn_of_start(target.current(point))
        if self._is_time_to_choose:
            warning = self._choose_n_replicates(point) or warning
        start = current = target.current(point)

        begin = perf_counter()
        proposal = self._probe(current.position)
        is_probe = proposal is not None
        if not is_probe:
            proposal = self._propose(current.position)
        evaluation, seconds = None, 0.0
        log_ratio = -np.inf
        if proposal.log_ratio > -np.inf:
            evaluation = proposal.evaluation  # of which making the proposal is the cost
            if evaluation is None:
                begin = perf_counter()
                evaluation = target.propose(
                    proposal.position, self.rng, progress.probe if is_probe else None
                )
            seconds = perf_counter() - begin
            if evaluation.log_density < np.inf:  # neither +inf nor NaN
                log_ratio = evaluation.log_density - current.log_density + proposal.log_ratio
                log_ratio += self._log_correction(proposal, current, evaluation)
            else:
                progress.n_invalid += 1
                warning = warning or self._warn_of_invalid(point, evaluation)
        acceptance_rate = exp(min(0.0, log_ratio)) if log_ratio == log_ratio else 0.0
        if not proposal.is_draw:
            acceptance_rate = 0.0
        accepted = self.rng.random() < acceptance_rate
        if accepted:
            target.accept(evaluation)
            current = evaluation

        if is_probe:
            self._learn_noise(evaluation)
            self._observe(evaluation)
        elif self.is_learning:
            self._learn(proposal, evaluation, acceptance_rate, start.position, current.position)
        if target.is_noisy:
            progress.last_statistics = proposal.statistics
        progress.n_iterations += 1
        if proposal.is_draw:
            progress.steps_since_accept = 0 if accepted else progress.steps_since_accept + 1
            weight = max(1.0 / progress.n_iterations, 1.0 / RECENT)
            progress.recent_acceptance += weight * (acceptance_rate - progress.recent_acceptance)
        warning = (
            warning or self._warn_of_learning() or self._warn_of_noise() or self._warn_if_stuck()
        )
        statistics = {
            "acceptance_rate": acceptance_rate,
            "model_logp": current.log_density,
            "kmc_accepted": accepted,
            "kmc_loglik": current.log_likelihood_estimate,
            "kmc_evaluation_time": seconds,
            "kmc_ideal_acceptance": progress.noise.ideal_acceptance,
            "kmc_n_evaluations": target.n_evaluations - n_before,
            "kmc_n_invalid": progress.n_invalid,
            "kmc_n_replicates": target.n_replicates,
            "kmc_noise_variance": progress.noise.value if target.is_noisy else 0.0,
            "kmc_recent_acceptance": progress.recent_acceptance,
            "kmc_steps_since_accept": progress.steps_since_accept,
            "warning": warning,
        }
        statistics.update(self._statistics(proposal, start))
        return target.point(point, current.position), [statistics]

    # What is learned of the noise

    def _probe(self, position):
        """Return a proposal that the noise is learned from, or None where it isn't time for one."""
        progress = self.progress
        if not self.is_tuning or progress.last_statistics is None:
            return None
        if progress.probe is None and progress.n_iterations - progress.last_probe < PROBE_EVERY:
            return None
        return Proposal(position, statistics=progress.last_statistics, is_draw=False)

    def _learn_noise(self, evaluation):
        """Learn from a probe, if it is the second of a pair."""
        progress = self.progress
        if progress.probe is None:
            progress.probe, progress.last_probe = evaluation, progress.n_iterations
        else:
            progress.noise.learn(progress.probe, evaluation)
            progress.probe = None

    @property
    def _is_time_to_choose(self):
        """Whether this iteration begins with the choice of numbers of replicates."""
        progress = self.progress
        if not (self._adapts and self.target.chooses_n_replicates):
            return False
        if self.tune:
            return progress.n_iterations in REPLICATES_CHOSEN_AFTER
        return not progress.has_chosen  # tuning was shorter

    def _choose_n_replicates(self, point):
        """Let likelihoods choose their numbers of replicates; return a warning or None."""
        self.progress.has_chosen = True
        self.progress.noise.forget()
        self.progress.probe = None
        for name, n, variance in self.target.choose_n_replicates(point, self.rng):
            if n >= MOST_REPLICATES and variance > TOO_NOISY:
                return self._warn_once(
                    "replicates",
                    f"{n} replicates of {name!r} still have a log estimate of variance "
                    f"{variance:.2g}. Make the estimator itself better: averages of estimates "
                    "that are mostly far too small hardly ever are.",
                )
        return None

    # Warnings, each at most once a chain

    def _warn_once(self, key, message):
        if key in self.progress.warned:
            return None
        self.progress.warned.add(key)
        return SamplerWarning(
            WarningType.BAD_ACCEPTANCE, message, "warn", step=self.progress.n_iterations
        )

    def _warn_of_start(self, evaluation):
        if evaluation.log_density > -np.inf:
            return None
        return self._warn_once(
            "start",
            "The chain starts where the estimate of the log likelihood is -inf. It will move "
            "to the "
            "first proposal with a finite one. If it doesn't, give a better start: "
            "pm.sample(initvals={...}).",
        )

    def _warn_of_invalid(self, point, evaluation):
        values = self.target.point(point, evaluation.position)
        shown = ", ".join(f"{name}={values[name]}" for name in self.target.names)
        return self._warn_once(
            "invalid",
            f"The log density was {evaluation.log_density} at a proposal ({shown}), which was "
            "rejected. "
            "kmc_n_invalid in the sample statistics counts such proposals; this warning is "
            "given once "
            "a chain. Return -inf from the likelihood where a parameter is impossible.",
        )

    def _warn_of_learning(self):
        """Return a warning about what is learned, or None; a hook for algorithms."""
        return None

    def _warn_of_noise(self):
        noise = self.progress.noise
        if self.tune or noise.n_pairs < ENOUGH_PAIRS or not noise.value > TOO_NOISY:
            return None
        return self._warn_once(
            "noise",
            f"The log of the likelihood's estimate had variance {noise.value:.2g} where the chain "
            "was while tuning: even perfect proposals would be accepted in "
            f"{100 * noise.ideal_acceptance:.0f} % of cases, and the chain will stick. Use "
            f"{np.ceil(noise.value / TARGET_VARIANCE):.0f} times as many simulations or particles, "
            "n_replicates='auto', or correlated noise (n_normals=, correlation=).",
        )

    def _warn_if_stuck(self):
        if self.progress.steps_since_accept < STUCK_AFTER:
            return None
        remedy = "Tune for longer, or start where the posterior has its mass: initvals={...}."
        if self.target.is_noisy and self.target.recycled.log_density > -np.inf:
            remedy = (
                "If the log of the likelihood estimate has a variance above 3 there, the chain "
                f"sits on a lucky one: use more simulations or particles. Otherwise: {remedy}"
            )
        reasons = " ".join(filter(None, (self.target.explain_stillness(), remedy)))
        return self._warn_once(
            "stuck", f"No proposal was accepted for {STUCK_AFTER} iterations. {reasons}"
        )

    # Saved state

    @property
    def recycled(self):
        """The target's part of a chain's state: the accepted evaluation and the noise seeds."""
        return self.target.state

    @recycled.setter
    def recycled(self, state):
        self.target.state = state

    # Progress bar

    @staticmethod
    def competence(var, has_grad):
        """Never chosen unasked."""
        return Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(n_chains=1):
        columns = [
            TextColumn(
                "{task.fields[kmc_acceptance]:0.2f}", table_column=Column("Acceptance", ratio=1)
            ),
            TextColumn("{task.fields[kmc_still]}", table_column=Column("Since accept", ratio=1)),
        ]
        return columns, {"kmc_acceptance": [0.0] * n_chains, "kmc_still": [0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions():
        def update(statistics):
            return {
                "kmc_acceptance": statistics["kmc_recent_acceptance"],
                "kmc_still": statistics["kmc_steps_since_accept"],
                "failing": statistics["kmc_steps_since_accept"] >= STUCK_AFTER,
            }

        return (update,)


def check_distinct_variables(variables):
    """Raise a ValueError where a variable is given twice: the step would move only one of them."""
    if not isinstance(variables, list | tuple):
        return
    names = [getattr(variable, "name", None) for variable in variables]
    repeated = sorted({name for name in names if name is not None and names.count(name) > 1})
    if repeated:
        raise ValueError(f"vars has {repeated} more than once; give each variable once.")
