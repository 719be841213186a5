r"""KMC, the default: many moves on a surrogate, which learns from every evaluation.

:class:`KMC` fits a surrogate f (:class:`~pymc_kmc.surrogates.LogDensityGP`) to the log densities of
all proposals, accepted or not. Moves on f need no evaluation of the target; one evaluation accepts
or rejects their end point. An iteration at x makes one of these moves:

1. *Surrogate transitions* (:mod:`pymc_kmc.moves.transitions`): a sequence of HMC transitions on f,
   accepted with probability
   :math:`\min(1, e^{\log\hat\pi(x') - \log\hat\pi(x) - f(x') + f(x)})`.
2. *Tempered transitions*: the same on f / T, whose wider tails reach places where f is too low.
3. *Random walk* (:mod:`pymc_kmc.moves.random_walk`): moves the chain before the first fit, and out
   of places where f is wrong. Its probability after tuning is .01 if f is exact, .03 otherwise, and
   up to .7 where the target is far above f (:mod:`pymc_kmc.steps.surrogate`).
4. *Jumps between modes* (:mod:`pymc_kmc.moves.learned`), alone or in the middle of a sequence on f,
   if :func:`~pymc_kmc.learn` has found several modes.

While tuning, some evaluations serve learning alone, once the chain has left a bad start:

5. *Auxiliary chain* (:mod:`pymc_kmc.moves.auxiliary`) on :math:`\pi^{1/T}`: a quarter of the
   evaluations, so that f is right beyond the chain's states.
6. *Active learning* (:mod:`pymc_kmc.moves.frontier`): a fifth of the evaluations, two fifths of
   noisy ones, where reducing f's predictive variance is worth most; fewer if predictions are right.

The surrogate learns a mispredicted value at once. It is fitted anew when the number of iterations
has grown by a factor 1.2, when few of its last 40 proposals were accepted, and at the end of
tuning; then it is fixed. With several workers a chain on a fixed surrogate makes sweeps
(:mod:`pymc_kmc.moves.partners`): many places on the surrogate are evaluated at once, and the chain
exchanges places with one of them an iteration. Moves are made in coordinates in which one
variable's scale doesn't depend on another's value (:mod:`pymc_kmc.adaptation.warping`). The
target's acceptance drives no step size: a poor surrogate can't make the step size collapse.

Examples
--------
>>> import pymc as pm, pymc_kmc as kmc
>>> with pm.Model():
...     x = pm.Normal("x", shape=2)
...     idata = pm.sample(
...         step=kmc.KMC(), tune=200, draws=200, chains=1, random_seed=1, progressbar=False,
...         compute_convergence_checks=False,
...     )
>>> idata.posterior.sizes["draw"]
200
"""

from time import perf_counter

import numpy as np

from pymc_kmc.adaptation.fit_to_values import FitToValues
from pymc_kmc.adaptation.fitted import LARGEST_RANDOM_WALKS, GivenSurrogate
from pymc_kmc.adaptation.transitions import learn_transitions
from pymc_kmc.learning import LearnedPosterior
from pymc_kmc.learning.emulated_density import on_emulators
from pymc_kmc.learning.unasked import learn_unasked
from pymc_kmc.likelihoods.checks import check_model
from pymc_kmc.likelihoods.executors import LazyExecutor
from pymc_kmc.moves.base import MoveMixture, Row
from pymc_kmc.moves.partners import NearPartner, Partner
from pymc_kmc.numerics.checks import check_count, check_flag
from pymc_kmc.steps.kmc_adaptation import KMCAdaptation
from pymc_kmc.steps.messages import of_disagreement
from pymc_kmc.steps.surrogate import SurrogateStep

# Share of random walks while tuning.
TUNING_RANDOM_WALKS = 0.1
# Largest additional share of random walks, if surrogate moves are never accepted.
MORE_RANDOM_WALKS = 0.5
# Number of the last surrogate moves over which their acceptance is averaged for this.
LATELY = 20
# Their acceptance rate, as a share of what noise allows, below which there are more random walks.
HARDLY = 0.2
# Share of tempered moves while tuning, among those on the surrogate.
TUNING_TEMPERED = 0.05
# Share of the auxiliary chain while tuning.
TUNING_AUXILIARY = 0.25
# Shares of random walks after tuning, with a surrogate that is exact and one that is not.
RANDOM_WALKS = (0.01, 0.03)
# Shares of tempered moves after tuning, with a surrogate that is exact and one that is not.
TEMPERED_MOVES = (0.01, 0.02)
# Shares of jumps between modes, and of transitions with such a jump, with several learned modes.
MODE_MOVES = (0.05, 0.5)
# Standard deviation of the log weights, in nats, from which on a surrogate isn't called exact.
LARGE_SPREAD = 0.05
# Iterations of tuning on a posterior learned before the chain, if the user gives no number.
SETTLING_TUNE = 50


class KMC(SurrogateStep):
    r"""Kernel Monte Carlo on a surrogate of the log density: the default, without settings.

    The choice for any target of up to some 50 continuous dimensions without usable gradients, and
    for noisy likelihoods. A surrogate is fitted to the log densities of all evaluations, rejected
    proposals included. Each iteration makes many moves on the surrogate and evaluates the target
    once, to accept or reject their end point. Draws are exact however wrong the surrogate is.

    Parameters
    ----------
    vars : list of TensorVariable or LearnedPosterior, optional
        The variables to sample, by default all continuous ones of the model. Or the result of
        :func:`~pymc_kmc.learn` for all of them: ``KMC(learned)``. Chains then begin at its draws
        and evaluate the target 8 times while tuning, a noisy one 15 times, whatever the number of
        iterations. If its surrogate turns out to be wrong, they learn as without it.
    learn : bool
        Whether the step calls :func:`~pymc_kmc.learn` when it is made, if that is safe: black boxes
        depend on the step's variables alone. They return outputs, with at most 50 values of the
        variables, 250 if each box depends on few; or a log likelihood or an estimate of it, with at
        most 20, on whose maximum searches agree (above six a warning says if they may disagree).
        `step.posterior` is the learned posterior, `step.evaluations` has the evaluations made for
        it. If false, or if the learned posterior can't be trusted, each chain learns by itself,
        from these evaluations too. Another seed learns anew: ``KMC(rng=2)``, since PyMC gives a
        step no seed before it samples.
    n_landmarks : int
        Number of kernel functions of the surrogate, on which its flexibility and the cost of a move
        depend. If they are too few for the log density, it has up to twice as many.
    executor : concurrent.futures.Executor or callable, optional
        Runs evaluations of black boxes and noisy likelihoods that have no executor of their own: a
        pool, Dask's client, or a function that returns one, which each process calls for itself.
    n_parallel : int, optional
        Number of places that are evaluated at once, by a chain with a fixed surrogate and by
        :func:`~pymc_kmc.learn`. Draws depend on it, but not on the executor or its workers. By
        default the number of workers of this executor or of the model's own ones; for a chain 1
        without an executor, with correlated noise, and if the learned posterior depends on other
        steps' variables. Beside other steps see ``docs/on_a_cluster.md``.
    surrogate : Surrogate, optional
        A fitted surrogate to use as it is, in the unconstrained raveled coordinates of `vars`;
        nothing is fitted then. Any of :mod:`pymc_kmc.surrogates`, or an object of your own with
        `n_features_in_`, `log_density(X)` and `gradient(X)`.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the given surrogate isn't fitted or has the wrong
        dimension; if nothing in the model runs on the executor, or it has no workers.

    Notes
    -----
    Statistics: `kmc_move` is 0 for random walks, 1 for tempered transitions, 4 to 7 for the kinds
    of surrogate transition, 15 and 16 for jumps between modes, 17 for an exchange with a place
    evaluated at once (a sweep's first iteration has all its evaluations and their time). While
    tuning it is also 2 for the auxiliary chain, 3 for active learning, 12 for a probe of the noise,
    13 for a learned draw and 14 for no move. `n_steps` is the proposal's number of leapfrog steps,
    `kmc_n_transitions` that of transitions, `kmc_surrogate_variance` the variance of values around
    the surrogate, noise included. `kmc_proposal_time` and `kmc_evaluation_time` are in seconds.
    """

    name = "kmc"
    _is_local = False  # tempered moves, and sequences of transitions
    stats_dtypes_shapes = SurrogateStep.stats_dtypes_shapes | {
        "kmc_n_transitions": (np.int64, []),
        "kmc_surrogate_variance": (np.float64, []),
        "kmc_proposal_time": (np.float64, []),
    }

    def __new__(cls, *args, **kwargs):
        # PyMC keeps the arguments for copies in other processes.
        if (executor := kwargs.get("executor")) is not None:
            kwargs["executor"] = LazyExecutor.of(executor)
        if "posterior" in kwargs:
            raise TypeError("posterior= is no argument: write KMC(learned), learned=kmc.learn().")
        if not isinstance(args[0] if args else kwargs.get("vars"), LearnedPosterior):
            return super().__new__(cls, *args, **kwargs)
        if kwargs.get("surrogate") is not None or kwargs.get("blocked") is False:
            raise ValueError(
                "a learned posterior is one surrogate of all variables: leave surrogate= and "
                "blocked=False out."
            )
        kwargs.pop("vars", None)
        return super().__new__(cls, *args[1:], **kwargs)

    def __init__(
        self,
        vars=None,
        *,
        n_landmarks=300,
        learn=True,
        executor=None,
        n_parallel=None,
        **kwargs,
    ):
        self.n_landmarks = check_count(n_landmarks, "n_landmarks")
        self.learns_first = check_flag(learn, "learn")
        self.executor = LazyExecutor.of(executor)
        # What the user asks for also learns.
        self.n_parallel = n_parallel
        if n_parallel is not None:
            check_count(n_parallel, "n_parallel")
        self.posterior = self.evaluations = None
        if isinstance(vars, LearnedPosterior):
            self.posterior, self.evaluations = vars, vars.evaluations
            vars = variables_of(vars, check_model(kwargs.get("model")))
        # PyMC seeds a step when it samples, after it was made.
        self._is_seeded = kwargs.get("rng") is not None
        super().__init__(vars, **kwargs)
        self.n_parallel = self._checked_number(n_parallel)

    def _make_target(self, model, initial_point, compile_kwargs):
        target = super()._make_target(model, initial_point, compile_kwargs)
        if self.executor is not None and not target.runs_on_executors:
            raise ValueError(
                f"executor={self.executor!r}: nothing in the model runs on one. Make a kmc.BlackBox"
                ", or a potential of this package, of what takes long, or leave executor= out."
            )
        return target

    def _checked_number(self, n_parallel):
        """Return the number of places at once, and let the target evaluate so many."""
        if n_parallel is None:
            n_parallel = self._default_number()
        elif n_parallel > 1 and self._follows_others:
            raise ValueError(
                f"n_parallel={n_parallel} needs a surrogate that no other step changes; what was "
                f"learned depends on {sorted(self.posterior.given)}. Leave n_parallel= out, or "
                "sample all variables by one KMC()."
            )
        if n_parallel > 1 or self.executor is not None:
            self.target.run_at_once(self.executor)
        return n_parallel

    def _default_number(self):
        target = self.target
        if self._follows_others or target.is_noisy and not target.has_independent_noise:
            return 1
        if self.executor is None:
            return target.n_workers
        if (n_workers := self.executor.n_workers) is None:
            raise ValueError("executor doesn't say how many workers it has: pass n_parallel=.")
        return n_workers

    def _learn_first(self, model):
        if self.posterior is not None:
            check_same_variables(self.posterior, self.target, model)
        elif self.learns_first and self.given_surrogate is None and self.adaptation == "tuning":
            rng = self.rng.spawn(1)[0] if self._is_seeded else np.random.default_rng(0)
            self.posterior, self.evaluations = learn_unasked(
                model, self.vars, rng, self.executor, self.n_parallel
            )
        self._learned_before = None
        if self.posterior is not None:
            self._learned_before = on_emulators(self.posterior, model)

    @property
    def default_tune_steps(self):
        """Iterations of tuning that PyMC 6 makes if the user gives no number."""
        if self.posterior is not None and self.posterior.is_close:
            return SETTLING_TUNE
        return self._tune_steps_alone

    @property
    def _tune_steps_alone(self):
        d = self.n_dimensions
        # A smooth target of eight dimensions needs as many, and so does a chain in 13 to 26
        # dimensions that comes from a bad start along a curved path: 1500 to 2500 iterations.
        return int(np.ceil((2000 + 80 * d) / 100) * 100)

    @property
    def n_learning_evaluations(self):
        if self.posterior is not None:
            return self.posterior.n_evaluations
        return 0 if self.evaluations is None else len(self.evaluations)

    def _start_chain(self):
        self.target.abandon()  # what the last chain's partners would have needed
        is_noisy, surrogate = self.target.is_noisy, self.given_surrogate
        if surrogate is None:
            fits = FitToValues(self.n_landmarks, is_noisy)
        else:
            fits = GivenSurrogate(surrogate, learn_transitions)
        adaptation = KMCAdaptation(self.n_dimensions, fits, is_noisy)
        adaptation.initialize(self.evaluations, self.posterior, self._learned_before)
        if self.posterior is not None and self.posterior.is_close:
            if self.target.has_independent_noise:
                self.progress.noise.variance.expect(self.posterior.noise**2)
        return adaptation

    @property
    def _wants_shape(self):
        return self.posterior is None

    def _prepare(self, point):
        if self._follows_others:
            self.adapted.follow(point)
        if self.progress.n_iterations == 0 and self._is_settling and self.n_parallel > 1:
            self._begin_at_once(point)
        messages = super()._prepare(point)
        if (disagreement := self.adapted.disagreement) is not None:
            # It now needs what a chain needs that learns by itself.
            n_tune = self._before_chain["kmc_default_tune"] = self._tune_steps_alone
            messages.append(("learned", of_disagreement(disagreement, n_tune)))
        return messages

    def _begin_at_once(self, point):
        """Evaluate the start, the learned draw after it, and the first partners together."""
        adapted, rng = self.adapted, self.rng
        draw = adapted.settling.start.propose(None, adapted.fitted, rng)
        adapted.begin_sweeps(self.n_parallel, draw, MODE_MOVES[1], rng)
        n, begin = self.n_parallel - 2, self.target.begin
        positions = adapted.sweeps.begin_first(n, adapted.fitted, rng, begin)
        first, *found = self.target.begin_with([draw.position, *positions], point, rng)
        adapted.sweeps.give(found, self.target.conditions)
        adapted.settling.start.ready = draw._replace(evaluation=first)

    @property
    def _follows_others(self):
        """Whether the learned surrogate depends on other steps' variables."""
        return self.posterior is not None and bool(self.posterior.given)

    # Moves

    def _propose(self, current):
        begin, adapted = perf_counter(), self.adapted
        if self._is_settling and adapted.settling.move is not None:
            return adapted.settling.move.propose(current, adapted.fitted, self.rng)
        is_frozen = self._is_settling or not self.is_learning
        if self.n_parallel > 1 and is_frozen and adapted.fitted is not None:
            return self._propose_in_sweep(current, begin)
        return super()._propose(current)._replace(seconds=perf_counter() - begin)

    @property
    def _is_settling(self):
        return self.is_tuning and self.adapted.settling is not None

    def _propose_in_sweep(self, current, begin):
        """Propose an exchange with the next partner of a sweep; all were evaluated at once."""
        adapted, target, rng = self.adapted, self.target, self.rng
        if adapted.sweeps is None:
            adapted.begin_sweeps(self.n_parallel, current, MODE_MOVES[1], rng)
        sweeps, seconds = adapted.sweeps, 0.0
        sweeps.notice(current.position)
        if not sweeps.waiting:
            near, tempered = self._share(RANDOM_WALKS), self._share(TEMPERED_MOVES)
            jumps = MODE_MOVES[0]
            if self._is_settling:
                near = tempered = jumps = 0.0  # it finds out about the surrogate
            if not sweeps.is_alone:
                near = 0.0
            shares = near, (1.0 - near) * tempered, (1.0 - near) * (1.0 - tempered)
            positions = sweeps.begin(current, adapted.fitted, shares, rng, target.begin, jumps)
            begin_evaluation = perf_counter()
            sweeps.give(target.propose_all(positions, rng), target.conditions)
            # More than the next sweep's is of what another step has moved since.
            target.abandon(sum(map(len, sweeps.ahead)))
            seconds = perf_counter() - begin_evaluation
        rows = [Row(sweeps.next(target), 1.0)]
        if not isinstance(rows[0].move, NearPartner):
            # What leads out of wrong places starts from the chain's: it is evaluated alone.
            rows = [Row(adapted.random_walk, self._share_of_wrong_places), *rows]
        proposal = MoveMixture(*rows).propose(current, adapted.fitted, rng)
        return proposal._replace(seconds=perf_counter() - begin - seconds)

    def _share_of_wrong_places(self, state):
        """Return the share of random walks where the target is far above the surrogate, else 0."""
        return LARGEST_RANDOM_WALKS * self.adapted.fitted.excess(state.position, state.log_density)

    def _conclude(self, outcome):
        if isinstance(outcome.proposal.move, Partner):
            outcome.proposal.move.learn(outcome, self.rng)
        if self.adapted.sweeps is not None:
            self.adapted.sweeps.left_at = outcome.end.position

    def _moves(self):
        adapted = self.adapted
        rows, tempered_share = [], self._share(TEMPERED_MOVES)
        # What lies around a place that a chain only passes is not worth knowing.
        if self._explores and not adapted.is_on_its_way:
            tempered_share = TUNING_TEMPERED
            if adapted.active_learning.share > 0.0:
                rows.append(Row(adapted.active_learning, adapted.active_learning.share))
            rows.append(Row(adapted.auxiliary, TUNING_AUXILIARY))
        # A chain that settles finds out about the surrogate: from the other moves on it.
        mode_moves = () if self._is_settling else map(Row, adapted.modes, MODE_MOVES)
        return [
            *rows,
            Row(adapted.random_walk, self._random_walk_probability),
            Row(adapted.tempered, tempered_share),
            *mode_moves,
            Row(adapted.transitions, 1.0),
        ]

    @property
    def random_walk_probability(self):
        """The share of random walks where the target isn't unusually far above its surrogate."""
        if not self._explores:
            return self._share(RANDOM_WALKS)
        lately = self.adapted.transitions.recent[-LATELY:]
        if len(lately) < LATELY:
            return TUNING_RANDOM_WALKS
        hardly = HARDLY * self.progress.noise.ideal_acceptance
        return TUNING_RANDOM_WALKS + MORE_RANDOM_WALKS * max(0.0, 1.0 - np.mean(lately) / hardly)

    def _share(self, shares):
        """Return a share after tuning; a given surrogate counts as inexact."""
        exact, usual = shares
        if self.given_surrogate is not None:
            return usual
        spread = self.adapted.fitted.log_weights.spread
        return exact + (usual - exact) * min(1.0, spread / LARGE_SPREAD)

    @property
    def _explores(self):
        return self.is_tuning and self.adapted.can_explore

    def _statistics(self, proposal, current):
        adapted = self.adapted
        variance = np.nan
        if adapted.fitted is not None and self.given_surrogate is None:
            variance = adapted.fitted.surrogate.variance_
        return super()._statistics(proposal, current) | {
            "kmc_n_transitions": proposal.n_transitions,
            "kmc_surrogate_variance": variance,
            "kmc_proposal_time": proposal.seconds,
        }

    def _learn(self, outcome):
        self.adapted.update(outcome, self.progress.noise, self.is_tuning, self.rng)

    def _end_tuning(self):
        self.adapted.finalize(self.target.recycled, self.progress.noise, self.rng)


def variables_of(posterior, model):
    """Return the value variables of a learned posterior; None if the model lacks some."""
    variables = {variable.name: variable for variable in model.value_vars}
    if not variables.keys() >= set(posterior.names):
        return None
    return [variables[name] for name in posterior.names]


def check_same_variables(posterior, target, model):
    """Raise a ValueError unless a posterior was learned of the target's variables."""
    others = {variable.name for variable in model.value_vars} - set(target.names)
    if set(posterior.given) != others:
        raise ValueError(
            f"the learned posterior is given {sorted(posterior.given)}, this step is beside "
            f"{sorted(others)}: pass what kmc.learn() has learned of this model."
        )
    if posterior.names != target.names or posterior.n_dimensions != target.n_dimensions:
        raise ValueError(
            f"the learned posterior is of {list(posterior.names)} ({posterior.n_dimensions} values)"
            f", this step's variables are {list(target.names)} ({target.n_dimensions}): pass what "
            "kmc.learn() has learned of this model."
        )
