"""Learn a posterior once, for all chains, from few evaluations.

1. *Find the opaque nodes* (:mod:`pymc_kmc.model.opaque`): the nodes without a gradient are
   emulated; prior and likelihood around them stay exact.
2. *Search* for maxima from dispersed starts (:mod:`pymc_kmc.learning.multistart`); all maxima with
   mass are learned (:mod:`pymc_kmc.learning.modes`).
3. *Learn* (:mod:`pymc_kmc.learning.rounds`): draw, predict, evaluate, until predictions are right.
"""

import warnings
from functools import partial

import numpy as np

from pymc_kmc.learning.averages import emulated, jackknifed, jumps, of_emulated
from pymc_kmc.learning.coarse import Coarse, Unusable
from pymc_kmc.learning.composite import DISPERSED, N_BURNED, N_DRAWS, draw, drawn, joined
from pymc_kmc.learning.convergence import N_CONVERGED_ROUNDS, unchecked
from pymc_kmc.learning.display import DONE, Display, log
from pymc_kmc.learning.modes import is_new, learned_mode, of_searches, regressed
from pymc_kmc.learning.multistart import N_PRIOR, MultiStart
from pymc_kmc.learning.noise_variance import NoiseVariance
from pymc_kmc.learning.posterior import LearnedPosterior
from pymc_kmc.learning.resuming import keep, known_error, known_modes, remember
from pymc_kmc.learning.rounds import BATCH_SIZE, Rounds
from pymc_kmc.learning.search import are_constant
from pymc_kmc.likelihoods.checks import check_model, check_variables
from pymc_kmc.likelihoods.executors import check_executor
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.model.opaque import OpaqueModel, StructureError
from pymc_kmc.numerics.checks import check_count, check_flag, check_positive, check_rng
from pymc_kmc.numerics.jit import is_interrupt
from pymc_kmc.numerics.linear_algebra import single_threaded_blas

# Default limit of evaluations, and its growth with each dimension: of ten runs of a scalar in eight
# dimensions four converge by then, and all are in the right mode.
MOST_EVALUATIONS, MOST_A_DIMENSION = 200, 100
# Factor on the limit where noise is averaged. A log likelihood in eight dimensions had errors of .7
# nats after 1000 evaluations, .4 after 1250 to 1500. Four chains, learning on, took .8 more.
MORE_IN_NOISE = 1.8
# Factor on the limit where more evaluations run at once than a round has: fewer batches take more.
MORE_AT_ONCE = 2.0
# Error of the log density at new draws at which learning ends, in nats.
TOLERANCE = 0.3
# Number of dispersed starts.
N_STARTS = 4
# Largest share of the last fit's draws far from all evaluations with mass: tails.
MOST_UNCHECKED = 0.02
# Standard deviation of the noise, in nats, above which what was learned is doubted: errors of a
# third of it, at which learning ends, are more than a nat. With 12.6 a mixture was 27 sds off.
MOST_NOISE = 3.0
# Share of zeros among the last rounds' estimates above which they are why learning found no end: a
# synthetic likelihood of 8 simulations of two summaries had 47 of 61.
MOST_ZEROS = 0.5
# R-hat of the final draws above which the weights of maxima are unknown.
UNMIXED = 1.1
# Message for a model that has a gradient.
HAS_GRADIENT = (
    "This model's log density has a gradient: pm.NUTS() or kmc.GadMALA() may need fewer "
    "evaluations. The whole density is learned."
)


def learn(
    model=None,
    vars=None,
    *,
    max_evaluations=None,
    executor=None,
    batch_size=None,
    n_parallel=None,
    starts=N_STARTS,
    tolerance=TOLERANCE,
    evaluations=None,
    random_seed=0,
    progressbar=True,
) -> LearnedPosterior:
    """Learn a model's posterior from few evaluations of its opaque nodes.

    The variables are learned together. A black box with many outputs, such as an ODE's solution or
    a simulator's mean, needs some hundred evaluations; one that returns a log likelihood needs some
    hundreds.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the one of the context.
    vars : list of TensorVariable, optional
        Continuous variables to learn, by default all. Others, discrete ones or those of other
        steps, are held at their initial values; nothing opaque may depend on them. A chain of
        ``KMC(learned)`` beside steps that move them follows their values, for which the emulators
        hold too.
    max_evaluations : int, optional
        Most evaluations of the model, 16 and `starts` at least; by default 200 and 100 a dimension,
        1.8 as many if noise is larger than the tolerance, twice with more than 8 workers. A round,
        or a search for outputs, that has begun is completed.
    executor : concurrent.futures.Executor or callable, optional
        Runs the evaluations of a batch at once, on processes, threads or a cluster; or a function
        that returns such an executor. The result depends on `n_parallel` alone. Black boxes and
        noisy likelihoods that have an executor use their own; other Ops run in this process.
    batch_size : int, optional
        Evaluations a round, those that can run at once. By default 8, and up to 32 with more than
        16 parameters of an opaque node, 16 opaque nodes, or 256 evaluations.
    n_parallel : int, optional
        Number of evaluations that run at once, by default that of the executor's workers, if known.
        Up to 8 it changes nothing. With more, searches run at the same time, each asks for several
        places a step, and rounds are as large: fewer batches in sequence, more evaluations. The
        same `random_seed` and `n_parallel` give the same result on any executor; a batch is waited
        for before the next is chosen.
    starts : int
        Number of dispersed starting points: in turn one of PyMC's jittered ones and a draw of the
        prior.
    tolerance : float
        Error of the log density at new draws at which learning ends, in nats.
    evaluations : LearnedPosterior, Evaluations or EvaluationStore, optional
        Earlier evaluations of the same black boxes, also under another prior of the same bounds,
        other data or another likelihood around them: a result of this function, or the attribute
        `evaluations` of a result, of an exception that this function has raised, or of a step. They
        are not repeated, except for the best place of a learned posterior, or where black boxes get
        data or constants: another value there belongs to another model. Of noisy estimates eight
        are repeated, of a `pm.Simulator` forty; a warning says if they differ by more than their
        noise. If leave-one-out predictions show that they suffice, nothing is evaluated. With the
        same arguments learning continues where they ended. From a store those of the model's one
        black box or noisy likelihood are taken, whose parameters must be variables of the model:
        the best and others, half of `max_evaluations` at most.
    random_seed : None, int or numpy.random.Generator
    progressbar : bool

    Returns
    -------
    LearnedPosterior

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, something opaque depends on a variable that isn't
        learned, or `evaluations` are another model's.
    RuntimeError
        If the log density is not finite at any start.

    Notes
    -----
    An interruption (Ctrl-C) ends learning; the posterior learned so far is returned. An exception,
    such as a black box's, carries all evaluations and says so.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> with pm.Model():
    ...     rate = pm.LogNormal("rate", 0, 1)
    ...     curve = kmc.BlackBox("decay", lambda r: np.exp(-r * np.arange(5)), rate, shape=(5,))
    ...     y = pm.Normal("y", curve, 0.1, observed=[1.0, 0.6, 0.4, 0.2, 0.1])
    ...     learned = kmc.learn(progressbar=False)
    >>> learned.n_evaluations < 100
    True
    """
    model = check_model(model)
    variables = check_variables(vars, model)
    check_count(starts, "starts")
    check_positive(tolerance, "tolerance")
    check_flag(progressbar, "progressbar")
    rng = check_rng(random_seed, "random_seed")
    check_executor(executor, None)
    if batch_size is not None:
        check_count(batch_size, "batch_size")
        if batch_size < 2:
            raise ValueError(f"batch_size={batch_size} must be 2 at least: half is predicted first")
    most = max_evaluations
    if max_evaluations is None:
        max_evaluations = most_evaluations(dimensions(model, variables))
    check_count(max_evaluations, "max_evaluations")
    if evaluations is None and max_evaluations < (fewest := starts + N_PRIOR):
        raise ValueError(
            f"max_evaluations={max_evaluations} must be {fewest} at least, those that learning "
            f"begins with: starts={starts}, and {N_PRIOR} for a first look around."
        )
    if n_parallel is not None:
        check_count(n_parallel, "n_parallel")
    opaque = OpaqueModel(variables, model, rng.spawn(1)[0], executor, n_parallel=n_parallel)
    if opaque.has_gradient:
        log.info(HAS_GRADIENT)
    elif opaque.why_whole:
        log.info(f"The whole log density is learned as one number: {opaque.why_whole}.")
    limits = limits_by_default(max_evaluations, opaque) if most is None else (most, most)
    run = LearningRun(opaque, *limits, batch_size, starts, tolerance, rng)
    if evaluations is not None:
        run.begin_with(evaluations)
    learned = learned_by(run, progressbar)
    for text in warnings_about(learned, run, tolerance):
        warnings.warn(text, stacklevel=2)
    return learned


def warnings_about(learned, run, tolerance):
    """Return the warnings about a learned posterior, a list of strings."""
    warned = [of_limit(learned, tolerance), of_noise(learned), of_zeros(learned)]
    if (why := why_doubtful(learned, run.opaque)) is not None:
        warned.append(f"What was learned may be wrong: {why}.")
    if not run.opaque.returns_outputs:
        warned.append(of_searches(learned.modes, run.multistart))
    return [text for text in warned if text]


def dimensions(model, variables):
    point = model.initial_point(0)
    return int(sum(point[v.name].size for v in variables))


def most_evaluations(n_dimensions):
    return MOST_EVALUATIONS + MOST_A_DIMENSION * n_dimensions


def limits_by_default(most, opaque):
    """Return the limits of evaluations without noise and with it, given `most` for one worker."""
    if opaque.n_parallel > BATCH_SIZE:
        most = int(MORE_AT_ONCE * most)
    return most, int(MORE_IN_NOISE * most)


def learned_by(run, progressbar):
    try:
        with single_threaded_blas(), Display(progressbar, run) as display:
            state = run.learn(display)
            display.say("Drawing", state.evaluations, state.error)
            learned = _posterior(run, state)
            display.say(DONE, state.evaluations, state.error)
            return learned
    except (Exception, KeyboardInterrupt) as error:
        if is_interrupt(error):
            error = KeyboardInterrupt()
        keep(error, run.opaque)
        raise error
    finally:
        run.opaque.end()


def of_limit(learned, tolerance):
    """Return the warning about learning that has not converged, or None."""
    if learned.has_converged:
        return None
    then = "draw from it" if learned.is_close else "go on learning"
    return (
        f"Learning ended after {len(learned.evaluations)} evaluations before its error was "
        f"below {tolerance:g} nats in three rounds running and its emulators were sure of all "
        f"draws; the last error at new draws was {learned.error:.2g}. Raise max_evaluations, or "
        f"pass it to kmc.KMC(learned) as it is: chains {then}."
    )


def of_noise(learned):
    """Return the warning about noise that hides what was to be learned, or None."""
    if learned.noise <= MOST_NOISE:
        return None
    return (
        f"Estimates have noise of {learned.noise:.1f} nats: what was learned is known to a third "
        "of that at best and may be far off, and chains hardly move. Use more particles or "
        "replicates."
    )


def of_zeros(learned):
    """Return the warning about estimates of zero, which have no error to learn from, or None."""
    if learned.has_converged or learned.noise == 0.0 or not learned.rounds:
        return None
    last = [len(found.predicted) for found in learned.rounds[-N_CONVERGED_ROUNDS:]]
    values = learned.evaluations.log_densities[: learned.rounds[-1].n_evaluations][-sum(last) :]
    n_zero = int(np.sum(np.isneginf(values)))
    if n_zero <= MOST_ZEROS * len(values):
        return None
    return (
        f"{n_zero} of the last {len(values)} estimates of the likelihood were zero: what is learned"
        " has no error there, and standard errors may be infinite. Use more simulations, replicates"
        " or particles, of which fewer estimates are zero."
    )


def why_doubtful(learned, opaque):
    """Return why a converged posterior may still be wrong, or None."""
    returned = learned.evaluations.outputs
    for node in opaque.nodes:
        if not node.is_term and are_constant(returned[:, node.returned]):
            return f"{node.name} returned the same at all {len(returned)} places"
    if learned.has_converged and learned.r_hat > UNMIXED:
        return (
            f"chains on the emulators haven't mixed between its maxima (R-hat {learned.r_hat:.2f}),"
            " so that averages and log evidence depend on where they began"
        )
    return None


class LearningRun:
    """One call of :func:`learn`."""

    def __init__(self, opaque, most, most_in_noise, batch_size, n_starts, tolerance, rng):
        self.opaque, self.rng = opaque, rng
        self.most, self.most_in_noise = most, most_in_noise
        self.multistart = MultiStart(opaque, n_starts, most, rng)
        self._settings = batch_size, tolerance, rng
        self._begin_rounds()
        self.evaluations: Evaluations | None = None
        self.earlier_modes: tuple = ()
        # Whether an interruption has what was learned until then for an answer.
        self.is_asked = True
        self.n_before = opaque.n_evaluations
        # Whether it is to go the way of earlier evaluations, which the model remembers.
        self._repeats = False
        self._drawn: tuple | None = None
        self._coarse: OpaqueModel | None = None
        self._tries_coarse = True

    def _begin_rounds(self):
        self.rounds = Rounds(self.opaque, *self._settings, self.multistart.prior)

    def _begin_again(self):
        """Begin with the model's nodes as they are now; nothing is evaluated again."""
        self.multistart.begin_again()
        self._begin_rounds()

    def begin_with(self, evaluations):
        """Use earlier evaluations, as of :func:`learn`, in place."""
        was_whole = self.opaque.is_whole
        try:
            self.evaluations = remember(
                evaluations, self.opaque, self.multistart.starts, self.limit
            )
        except BaseException:
            self.opaque.end()
            raise
        if self.opaque.is_whole != was_whole:
            self._begin_again()
        # What tries them out isn't counted, as a black box's own trials aren't.
        self.n_before = self.opaque.n_evaluations
        self._repeats = self.evaluations is None
        if isinstance(evaluations, LearnedPosterior):
            self.earlier_modes = known_modes(evaluations, self.evaluations)

    @property
    def limit(self):
        """Largest number of evaluations, given the noise seen so far."""
        noise = max(self.rounds.noise, self.multistart.noise)
        return self.most_in_noise if noise > self.rounds.tolerance else self.most

    @property
    def n_coarse_evaluations(self):
        return 0 if self._coarse is None else self._coarse.n_evaluations

    def learn(self, display):
        while True:
            try:
                return self._learn(display)
            except StructureError as error:
                log.info(f"KMC: {error}")
                self._begin_again()
                if self.evaluations is not None:
                    self.evaluations = self.multistart.evaluations

    def _learn(self, display):
        state = None
        try:
            display.say("Searching")
            say = partial(display.say, "Searching")
            state = self._by_coarse(display)
            if state is None:
                state = self.multistart.state(self.evaluations, say)
            if self.earlier_modes:
                have_mass = [mode for mode in self.earlier_modes if not mode.was_left_out]
                state = state._replace(modes=tuple(have_mass))
            if self.evaluations is not None:
                state = self._if_known(state)
            while True:
                state, rounds = self._with_unused(state), self.rounds
                if rounds.coarse is not None and rounds.coarse.misleads(rounds):
                    self._leave_coarse("its predictions stay wrong")
                    state, rounds = self.multistart.state(None, say), self.rounds
                if state.has_converged and (state := self._checked(state)).has_converged:
                    break
                if rounds.is_hopeless or len(state.evaluations) >= self.limit:
                    break
                state = rounds.next(state)
                display.say("Learning", state.evaluations, state.error)
        except (KeyboardInterrupt, SystemError) as error:
            may_return = self.is_asked and is_interrupt(error)
            if not may_return or state is None or state.composite is None:
                raise
            warnings.warn("Learning was interrupted.", UserWarning, stacklevel=4)
            state = self._with_unfinished(state)
        return state

    def _with_unused(self, state):
        """Return the state with the earlier evaluations that were not on its way.

        Under another limit the same seed leads elsewhere, which new evaluations show.
        """
        if not self._repeats or self.opaque.n_evaluations == self.n_before:
            return state
        found = self._with_unfinished(state)
        has_more = len(found.evaluations) > len(state.evaluations)
        return self._if_known(found) if has_more else state

    def _with_unfinished(self, state):
        """Return the state with the evaluations of an unfinished round after its own."""
        own, made = state.evaluations, self.opaque.evaluations
        return state._replace(evaluations=own.joined(made[own.rows(made.X) < 0]))

    def _by_coarse(self, display):
        """Return the state after learning a useful coarse version of the black boxes, else None."""
        opaque, tries, self._tries_coarse = self.opaque, self._tries_coarse, False
        if not tries or (why := opaque.why_not_coarse) == "":
            return None
        try:
            if why is not None:
                raise Unusable(why)
            display.say("Learning the coarse version")
            coarse = self._learned_coarse()
            return coarse.begin(opaque, self.rounds, self.rng, self.evaluations)
        except Unusable as error:
            self._leave_coarse(error)
        return None

    def _leave_coarse(self, why):
        names = ", ".join(node.name for node in self.opaque.nodes)
        log.info(f"KMC: the coarse version of {names} isn't used: {why}")
        self._begin_again()

    def _learned_coarse(self):
        """Return the learned :class:`Coarse` version; raise Unusable after any error."""
        opaque, (of_model, rng) = self.opaque, self.rng.spawn(2)
        try:
            self._coarse = OpaqueModel(opaque.variables, opaque.model, of_model, is_coarse=True)
            batch_size, tolerance, _ = self._settings
            n_starts = len(self.multistart.starts)
            run = LearningRun(
                self._coarse, self.most, self.most, batch_size, n_starts, tolerance, rng
            )
            run.is_asked = run._tries_coarse = False
            with Display(False, run) as silent:
                coarse = Coarse(run)
                coarse.learn(silent)
        except Unusable:
            raise
        except Exception as error:
            raise Unusable(f"{type(error).__name__}: {error}") from error
        if not _are_alike(self._coarse.structure, opaque.structure):
            raise Unusable("it enters the log density in another way")
        return coarse

    def _if_known(self, state):
        """Return the state, converged if earlier evaluations already determine the posterior."""
        (rng,), (batch_size, tolerance, _) = self.rng.spawn(1), self._settings
        rounds = Rounds(self.opaque, batch_size, tolerance, rng, self.multistart.prior)
        rounds.coarse = self.rounds.coarse
        known = state._replace(n_converged_rounds=N_CONVERGED_ROUNDS, temperature=1.0)
        composite = rounds.fit(known.evaluations, known.draws)
        found = drawn(composite, known, rng, rounds.prior)
        draws = joined(found.parts)
        known = known._replace(step_size=draws.step_size, factor=found.factor, draws=draws.X)
        error = known_error(rounds, known, composite, draws)
        if np.isinf(error):
            return state
        self.rounds = rounds
        return known._replace(error=error)

    def _checked(self, state):
        """Return the state, not converged if the last fit has unchecked mass or has lost some."""
        _, found = self.drawn(state)
        draws = joined(found.parts)
        is_far = unchecked(draws, state.evaluations, self.opaque)
        if is_far.mean() <= MOST_UNCHECKED and not self.rounds.loses_mass:
            return state
        # Half of the chains begin where nothing was checked.
        order = self.rng.permutation(len(is_far))
        order, n = order[np.argsort(~is_far[order], kind="stable")], self.rounds.n_chains
        some = np.concatenate([order[: n // 2], order[n // 2 - n :]])
        return state._replace(draws=draws.X[some], n_converged_rounds=N_CONVERGED_ROUNDS - 1)

    def drawn(self, state):
        """Return the composite of all evaluations, and its FinalDraws."""
        if self._drawn is None or self._drawn[0] is not state:
            composite = self.rounds.fit(state.evaluations, state.draws)
            found = drawn(composite, state, self.rng, self.rounds.prior)
            self._drawn = state, composite, found
        return self._drawn[1:]


def _posterior(run, state):
    rng, rounds, opaque = run.rng, run.rounds, run.opaque
    composite, found = run.drawn(state)
    last, factor = found.parts[-1], found.factor
    wide = draw(composite, last.X, factor, last.step_size, N_BURNED, rng, DISPERSED, found.maps)
    draws = joined(found.parts)
    X, values, _ = draws.rows(rng.permutation(len(draws.X)))
    modes = run.multistart.learned_modes or run.earlier_modes
    if opaque.is_noisy:
        modes = regressed(modes, composite)
    drawn_modes = [m for m in found.modes if is_new(m, modes, opaque.nearest_copy)]
    predictions = emulated_at(X[:N_DRAWS], values.mean[:N_DRAWS], run, state, composite)
    lowered, noise_variance = np.zeros(len(X)), None
    if rounds.noise > 0.0:
        known = state.evaluations, predictions, X, values.mean
        noise_variance = NoiseVariance.of(rounds.noise, *known)
        lowered, _ = noise_variance.half(X)
        predictions = predictions.with_errors(noise_variance.errors(X[:N_DRAWS]))
    evidence = of_emulated(composite, X, values, lowered, rng)
    return LearnedPosterior(
        opaque=tuple(f"{node.name} ({node.n_outputs} outputs)" for node in opaque.nodes),
        evaluations=state.evaluations,
        n_evaluations=opaque.n_evaluations - run.n_before,
        error=state.error,
        has_converged=state.has_converged,
        is_close=state.has_converged or rounds.is_close(state, composite, last, factor),
        rounds=tuple(rounds.history),
        modes=(*modes, *[learned_mode(mode, opaque) for mode in drawn_modes]),
        positions=X,
        wide_positions=wide.X,
        log_densities=values.mean,
        variances=values.variance,
        gradients=composite(X, penalty=0.0).gradient,
        jumps=jumps(composite.on_all_turns, X, rng),
        periods=opaque.periods,
        variables=opaque.natural(X),
        emulated=predictions,
        emulated_log_evidence=evidence,
        emulators=tuple(emulator.state for emulator in composite.emulators),
        region=composite.region and composite.region.state,
        structure=opaque.structure,
        step_size=last.step_size,
        r_hat=found.r_hat,
        noise=rounds.noise,
        noise_variance=noise_variance,
        given=opaque.others,
        n_coarse_evaluations=run.n_coarse_evaluations,
    )


def emulated_at(draws, means, run, state, composite):
    """Return the Emulated of draws (k, d), whose log densities are `means` (k,)."""
    evaluations, rounds = state.evaluations, run.rounds
    found = emulated(composite, evaluations, draws)
    largest = max(rounds.noise, rounds.tolerance)

    def fit_without(rows):
        return rounds.fitted_to(evaluations[~rows], state.draws)

    (rng,) = run.rng.spawn(1)
    return jackknifed(found, fit_without, len(evaluations), draws, means, largest, rng)


def _are_alike(structure, other):
    moves = zip(structure.moves_with, other.moves_with, strict=True)
    return structure[:2] == other[:2] and all(np.array_equal(*pair) for pair in moves)
