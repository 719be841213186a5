"""Learn in rounds: draw from the emulators, evaluate some places, fit again.

A round fits the emulators to all evaluations, draws from the composite at temperature T, and
evaluates a batch: random draws, and draws whose log density is most uncertain. The random draws are
predicted before, which measures the error. A quarter of the batch is from draws without the
penalty: a posterior's arms may be rightly predicted and still uncertain. T follows the error: at
errors of ten nats a ten times flatter density is drawn from. The posterior is learned at T = 1,
with an error below the tolerance in three rounds running, and emulators that are certain at draws.

In every round some chains start at draws of the prior; one that comes as high as the draws is kept.
They find predicted modes without an evaluation. Draws of the prior that may be as high are
evaluated, two a round, without noise. In the first rounds that seem right four others, far from all
evaluations, are evaluated: certain emulators don't foresee a jump.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pymc_kmc.learning import convergence
from pymc_kmc.learning.composite import FEWEST_CHAINS, Composite, Draws, draw
from pymc_kmc.learning.convergence import (
    LearningState,
    Limits,
    Round,
    RoundPlan,
    in_place,
    without_refuted,
)
from pymc_kmc.learning.display import log
from pymc_kmc.learning.emulator import COVARIANCE_MEMORY, MOST_FITS, NodeEmulator, noise_of, shrunk
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH, FEW_DIMENSIONS, Compression
from pymc_kmc.learning.placing import (
    STRETCH,
    bounds_of,
    informative,
    new_places,
    next_to,
    optimistic_draws,
    starts_of,
    uncertain,
    unseen,
)
from pymc_kmc.learning.region import LEAST, FeasibleRegion
from pymc_kmc.model.structure import StructureError
from pymc_kmc.numerics.linear_algebra import cholesky_factor

# Number of chains that draw, a dimension.
CHAINS_A_DIMENSION = 2
# Number of their transitions in a round; one a dimension at least. With 25 in 44 dimensions chains
# that began in a funnel's neck, where a search had ended, were still there at the end of learning.
N_TRANSITIONS = 25
# Dimensions counted for both if nodes are small: with a hundred groups four hundred chains would
# take an hour.
MOST_OF_SMALL = 32
# Number of chains that start at draws of the prior, as a share of the others.
SCOUTS = 0.25
# Number of log densities sampled at a place: one that none of them makes as high as draws has a
# probability below some 5 %.
N_SAMPLED = 16
# Number of the prior's draws with possible mass that are evaluated in a round. With one, two modes
# of a number were taken for one on a seed of eight.
N_NOT_EXCLUDED = 2
# Number of them, in all, before which a round with some isn't confirmed: emulators may be falsely
# certain. One value with a second mode lost it on 4 seeds of 20 without, and on 2 with 8.
FEWEST_TRIED = 8
# Number of the prior's draws, far from all evaluations, that are evaluated: certain emulators don't
# foresee a jump. Without them a fifth of the prior wasn't seen, and 14 % of the mass missed.
N_LOOKED = 4
# Evaluations a round: at least, a dimension of the largest opaque node or a node, as a share of
# those that aren't compressed, and at most. After hundreds, eight more change a quadratic little.
BATCH_SIZE, BATCH_GROWTH = 8, 0.5
BATCH_SHARE, LARGEST_BATCH = 1 / 32, 32
# Evaluations a round for small nodes: each node is evaluated at all of them.
SMALL_BATCH = 4
# Most evaluations a round as a share of all before, if as many run at once. With an eighth eight
# schools took nine batches, with half seven.
SHARE_AT_ONCE = 1 / 2
# Most rounds that a large one counts for: a fit has to be right twice.
MOST_CONFIRMED = 2
# Largest temperature, the first where nothing is known.
LARGEST_TEMPERATURE = 50.0
# Largest temperature after searches have found modes: errors and temperature raise each other, and
# without a limit draws left such modes for good.
LARGEST_AT_MODES = 3.0
# Exploring temperature under noise: distant places determine slopes. With 150 draws in four
# dimensions, noise of 1 nat, means were off by .22 sds at temperature 1, .12 at 2, .16 at 3.
EXPLORING_NOISE = 2.5
# Bounds of the temperature's change, a factor, in a round.
COOLING = (0.4, 1.6)
# Consecutive rounds with gaps, of usual size, after which the most uncertain places are evaluated:
# a polynomial may bend up there in every round. A time series took 293 evaluations in place of 536;
# from the second gap on bananas took 197 in place of 167.
MANY_GAPS = 6
# Errors at which chains may start, in units of those at convergence. "scalar" had an ESS of 604
# then; three bananas of 12 with arms cut short had such errors at draws, but larger ones elsewhere.
CLOSE = 2.0
# Number of rounds after which outputs are given up if errors were too large in the last half of
# them, as where outputs jump: smooth ones have small errors from the third to sixth round on.
PATIENCE = 8


class RoundDraws(NamedTuple):
    """The chains' draws in a round.

    `draws` are those at its temperature. `in_place` (n, d) are their ends, and those of chains from
    the prior that came as high. `fresh` (k, d) of the `n_new` places are evaluated. `wide` and
    `optimistic` are draws at the exploring temperature, with and without the penalty.
    """

    draws: Draws
    in_place: np.ndarray
    n_new: int
    fresh: np.ndarray
    wide: Draws
    optimistic: Draws


class Rounds:
    """Rounds of learning of an OpaqueModel.

    `batch_size` is the number of evaluations a round, None for one that grows with dimensions and
    evaluations. `tolerance` is in nats; `prior` (n, d) has draws of the prior.
    """

    def __init__(self, model, batch_size, tolerance, rng, prior=None):
        self.model, self.batch_size, self.tolerance, self.rng = model, batch_size, tolerance, rng
        self.prior = np.zeros((0, model.n_dimensions)) if prior is None else prior
        self.emulators = [
            NodeEmulator(node, True, [n for n in model.nodes if n.function == node.function])
            for node in model.nodes
        ]
        self.n_counted = model.n_dimensions
        if model.has_small_nodes:
            self.n_counted = min(self.n_counted, MOST_OF_SMALL)
        self.n_chains = max(FEWEST_CHAINS, CHAINS_A_DIMENSION * self.n_counted)
        self.region: FeasibleRegion | None = None
        # The Coarse version, from which differences are learned.
        self.coarse: Any = None
        self.history: list[Round] = []
        self.n_distant = self.n_looked = 0
        # The deep evaluations whose errors aren't tolerated, once the emulators saw mass there; and
        # whether the last fit hasn't the mass of some evaluation.
        self._firm, self.loses_mass = np.zeros(0, dtype=bool), False
        # Variances of the two estimates at places of rounds that might have ended learning.
        self._of_twins = np.zeros(0)

    def n_next(self, evaluations):
        if self.batch_size is not None:
            return self.batch_size
        if self.model.has_small_nodes:
            return SMALL_BATCH
        nodes, values = self.model.nodes, evaluations.log_densities
        compression = Compression.of(values, self.model.n_dimensions)
        wanted = max(
            BATCH_SIZE,
            BATCH_GROWTH * max(len(nodes), *[len(node.moves_with) for node in nodes]),
            BATCH_SHARE * np.sum(values > compression.best - compression.depth),
        )
        at_once = min(self.model.n_parallel, SHARE_AT_ONCE * len(values))
        return int(max(min(wanted, LARGEST_BATCH), at_once))

    def fit(self, evaluations, draws):
        inputs, averages, all_evaluations = self.model.inputs(draws), self.is_noisy, evaluations
        if self.model.has_small_nodes:
            # Where the whole density is deep a node's inputs may be those of draws.
            same = np.zeros(len(evaluations))
            evaluations = replace(evaluations, log_densities=same)
        if self.coarse is not None:
            if self.emulators[0].is_corrected:
                self.coarse.follow(draws, Composite(self.model, self.emulators, self.region))
            for emulator, base in zip(self.emulators, self.coarse.composite.emulators, strict=True):
                emulator.base = base
        self.region = FeasibleRegion.of(all_evaluations, draws, self.region, self.model.is_noisy)
        bounds = None
        if len(self.prior):
            bounds = bounds_of(self.prior, all_evaluations, self.model.periods)
        self._firm = np.pad(self._firm, (0, len(all_evaluations) - len(self._firm)))
        for _ in range(MOST_FITS):
            settings = {"averages": averages, "firm": self._firm}
            fit_all(self.emulators, evaluations, draws, inputs, **settings)
            composite = Composite(self.model, self.emulators, self.region, bounds)
            overrated, self.loses_mass = self._misjudged(all_evaluations, composite, draws)
            if not (overrated & ~self._firm).any():
                break
            self._firm = self._firm | overrated
        return composite

    def fitted_to(self, evaluations, draws):
        """Return the composite of some of the last fit's evaluations."""
        emulators = [emulator.for_some() for emulator in self.emulators]
        fit_all(emulators, evaluations, draws, self.model.inputs(draws), averages=self.is_noisy)
        return Composite(self.model, emulators, self.region)

    def _misjudged(self, evaluations, composite, draws):
        """Return a mask (n,) of overrated deep evaluations, and whether others lost their mass."""
        values = evaluations.log_densities
        if self.is_noisy or self.model.has_small_nodes:
            return np.zeros(len(values), dtype=bool), False
        compression = Compression.of(values, self.model.n_dimensions)
        predicted, floor = composite(evaluations.X), compression.best - compression.depth
        usual, most = np.sort(composite(draws).mean), self.limits.uncertain_error
        lowest = np.fmax(floor, usual[int(convergence.DEEP_SHARE * len(usual))])
        overrated = (values < floor) & (predicted.mean > np.fmax(floor, values + most))
        # Next to an edge a region is in doubt, which isn't lost.
        hidden = predicted.log_feasible < np.log(LEAST)
        lost = (values >= lowest) & (hidden | (predicted.emulated < values - most))
        return np.isfinite(values) & overrated, bool(lost.any())

    def next(self, state):
        """Return the :class:`LearningState` after one more round."""
        composite = self.fit(state.evaluations, state.draws)
        state = without_refuted(state, composite, self.n_chains // 2)
        T = state.temperature
        drawn = self._draw(state, composite)
        plan = self._plan(state, composite, drawn)
        self.n_distant += plan.n_distant
        plan, new = self._evaluated(plan)
        n = len(plan.X) - plan.n_twins
        self._of_twins = np.append(self._of_twins, plan.variances(new.log_densities))
        predictions = composite(plan.X)
        evaluations, draws = state.evaluations.joined(new), drawn.draws
        compression = Compression.of(evaluations.log_densities, self.model.n_dimensions)
        known = draws.values.mean, compression, state.errors[-1:]
        values = new.log_densities[:n], predictions.mean[:n]
        # Exact values don't fail by chance.
        by_chance = -np.expm1(predictions.log_feasible) if self.model.is_noisy else None
        judged = convergence.judge(self.limits, plan, *values, *known, by_chance)
        pace = pace_of(drawn.n_new, self.model)
        counted = counted_of(pace) if judged.is_confirmed else 0
        n_converged = state.n_converged_rounds + counted if judged.is_right else 0
        if plan.n_distant and self.n_distant < FEWEST_TRIED:
            n_converged = min(n_converged, convergence.N_CONVERGED_ROUNDS - 1)
        errors = judged.error, judged.uncertain_error
        predicted = predictions.mean, predictions.variance
        self.history.append(Round(len(evaluations), T, *errors, plan.n_fresh, *predicted))
        covariance = COVARIANCE_MEMORY * (state.factor @ state.factor.T)
        factor = cholesky_factor(covariance + (1 - COVARIANCE_MEMORY) * shrunk(draws.X))
        change = np.clip(judged.excess / T, COOLING[0] ** pace, COOLING[1])
        T = np.clip(T * change, 1.0, hottest(self.model, state.modes))
        start = evaluations, composite, drawn.in_place, factor, float(T)
        found = judged.error, n_converged, draws.step_size, (*state.errors, judged.errors)
        return LearningState(*start, *found, state.modes, plan.n_gaps)

    def _evaluated(self, plan):
        """Return the plan and its evaluations, without unseen places if the model raises there."""
        try:
            return plan, self.model.evaluate(plan.X)
        except Exception as error:
            is_unseen = (plan.X[:, None] == plan.unseen).all(axis=2).any(axis=1)
            if isinstance(error, StructureError) or not is_unseen.any():
                raise
            plan = plan._replace(X=plan.X[~is_unseen])
            evaluations = self.model.evaluate(plan.X)
            log.info(f"KMC: a draw of the prior can't be evaluated, and is left out: {error}")
            return plan, evaluations

    def _draw(self, state, composite):
        """Return the :class:`RoundDraws`, at the state's temperature and at the exploring one."""
        rng, T, maps = self.rng, state.temperature, state.maps
        starts = starts_of(state, composite, self.n_chains, rng)
        n, n_scouts = len(starts), min(int(SCOUTS * self.n_chains), len(self.prior))
        scouts = self.prior[rng.choice(len(self.prior), n_scouts, replace=False)]
        n_transitions = max(N_TRANSITIONS, self.n_counted)
        settings = state.factor, state.step_size, n_transitions, rng, T, maps
        found = draw(composite, np.vstack([starts, scouts]), *settings, n_steering=n)
        draws = found.rows(slice(n))
        n_new = min(self.n_next(state.evaluations), 2 * n)  # half of them at draws
        fresh = draws.X[:0]
        # The places of noisy terms are chosen by their information.
        if not self._is_average:
            # A chain that has not moved from an evaluated place tells of no error.
            new = np.arange(len(draws.X))
            if not self.model.is_noisy:
                new = new[state.evaluations.rows(draws.X) < 0]
            fresh = draws.X[rng.choice(new, min(n_new // 2, len(new)), replace=False)]
            if self.model.runs_ahead:
                self.model.begin(fresh)
        exploring = EXPLORING_NOISE if self.is_noisy else convergence.EXPLORING
        wide = optimistic = draws
        if T < exploring:
            explore = state.factor, draws.step_size, STRETCH, rng, exploring, maps
            wide = draw(composite, draws.X, *explore)
            optimistic = draw(partial(composite, penalty=0.0), draws.X, *explore)
        return RoundDraws(draws, in_place(found, n), n_new, fresh, wide, optimistic)

    def _plan(self, state, composite, drawn):
        draws, n_gaps, pace = drawn.draws, state.n_gaps, pace_of(drawn.n_new, self.model)
        front, distant, unseen = None, draws.X[:0], draws.X[:0]
        own = np.sqrt(np.mean(draws.values.doubt))
        is_sure = state.temperature == 1.0 and own < self.limits.own and not self.loses_mass
        if is_sure:
            found = optimistic_draws(composite, draws, state.factor, self.rng, state.maps)
            n_gaps, front = n_gaps + 1 if found.gap > self.limits.gap(own) else 0, found.draws
        if is_sure and not self.is_noisy:
            if n_gaps * pace >= MANY_GAPS:
                n = int(pace)
                distant = found.beyond[:: max(len(found.beyond) // n, 1)][:n]
            else:
                # As many at least are where draws are unsure: these errors tell whether it ends.
                n_left = drawn.n_new - len(drawn.fresh)
                n_distant = min(int(N_NOT_EXCLUDED * pace), n_left // 2)
                distant = self.not_excluded(composite, draws, n_distant)
                unseen = self.unseen(state.evaluations, n_distant - len(distant))
        places, n_fresh = self._places(drawn, front, distant, unseen, n_gaps)
        n_twins, n_right = 0, state.n_converged_rounds + counted_of(pace)
        if not self.model.is_noisy:
            places, n_fresh = new_places(places, n_fresh, state, self.rng)
        elif is_sure and n_right >= convergence.N_CONVERGED_ROUNDS:
            n_twins = min(len(places), LARGEST_BATCH)
            places = np.vstack([places, next_to(places[:n_twins], state.factor, self.rng)])
        return RoundPlan(places, n_fresh, len(distant), is_sure, n_gaps, unseen, n_twins)

    def is_close(self, state, composite, draws, factor):
        """Say whether the result is good enough for chains, given its draws and their metric."""
        n, limits = convergence.N_CONVERGED_ROUNDS, self.limits
        if len(state.errors) < n:
            return False
        own, last = np.sqrt(np.mean(draws.values.doubt)), self.history[-n:]
        errors = np.concatenate(state.errors[-n:])
        if self.is_noisy:
            # At places far apart, hardly any of them draws.
            predicted = np.concatenate([found.predicted for found in last])
            # Those of a round that was interrupted are behind.
            values = state.evaluations.log_densities[: last[-1].n_evaluations][-len(predicted) :]
            errors, _ = convergence.errors_in_reach(values, predicted, draws.values.mean)
        error = limits.excess(convergence.error_about_median(errors), len(errors))
        if self.loses_mass or own > CLOSE * limits.own or error > CLOSE * limits.error:
            return False
        if self.is_noisy:
            return True
        if any(found.uncertain_error > CLOSE * limits.uncertain_error for found in last):
            return False
        # As many as in a round: the more there are, the sooner one leaves for nowhere.
        few = draws.rows(slice(self.n_chains))
        gap = optimistic_draws(composite, few, factor, self.rng, state.maps).gap
        return gap <= limits.gap(own)

    @property
    def is_hopeless(self):
        """Whether predictions (of small nodes those at draws) stay wrong, as where outputs jump."""
        if not self.model.returns_outputs or len(self.history) < PATIENCE:
            return False
        late, share = self.history[-PATIENCE // 2 :], 1.0 / convergence.UNCERTAIN_TOLERANCE
        if self.model.has_small_nodes:
            share = 0.0
        errors = [max(found.error, share * found.uncertain_error) for found in late]
        return bool(min(errors) > self.limits.error)

    def not_excluded(self, composite, draws, n):
        """Return at most n of the prior's draws that may be as high as draws, uncertain first."""
        if not len(self.prior):
            return self.prior
        values = composite.sampled(self.prior, N_SAMPLED, self.rng)
        variance = np.fmax(values, convergence.lowest_of_mass(draws.values.mean)).var(axis=0)
        unsure = variance > self.limits.uncertain_error**2
        candidates, none = self.prior[unsure], self.prior[:0]
        if not len(candidates):
            return none
        n = min(n, len(candidates))
        return uncertain(self.emulators, self.model.inputs, candidates, variance[unsure], none, n)

    def unseen(self, evaluations, n):
        """Return at most n of the prior's draws far from all evaluations."""
        n = min(n, N_LOOKED - self.n_looked)
        if n <= 0 or not len(self.prior):
            return self.prior[:0]
        places = unseen(self.prior, evaluations.X, n)
        self.n_looked += len(places)
        return places

    def _places(self, drawn, front, distant, unseen, n_gaps):
        """Return the places (n, d) to evaluate, fresh draws first, and the number of these.

        `front` are Draws where mass can't be excluded, None while draws are uncertain. With
        `n_gaps` all but fresh places are from it; of places for noisy terms half are. `distant` and
        `unseen` are included.
        """
        n, fresh, wide, at = drawn.n_new, drawn.fresh, drawn.wide, self.model.inputs
        optimistic = front or drawn.optimistic
        if self._is_average:
            candidates = np.vstack([wide.X, drawn.optimistic.X])
            n_fresh = n - n // 2 if front else n
            among = drawn.draws.X, candidates, n_fresh, self.region
            places = informative(self.emulators, at, *among)
            if front:
                places = np.vstack([places, self._uncertain(front, places, n - n_fresh)])
            return places, n_fresh
        n_fresh = len(fresh)
        n_optimistic = n - n_fresh if n_gaps else (n - n_fresh) // 2
        n_wide = n - n_fresh - n_optimistic
        places = np.vstack([fresh, distant, unseen])
        n_given = len(places) - n_fresh
        n_taken = min(n_wide, n_given // 2)
        n_wide, n_optimistic = n_wide - n_taken, n_optimistic - (n_given - n_taken)
        for among, k in ((wide, n_wide), (optimistic, n_optimistic)):
            places = np.vstack([places, self._uncertain(among, places, k)])
        return places, n_fresh

    def _uncertain(self, among, picked, n):
        """Return n places (n, d) of Draws, the most uncertain ones, given those `picked` (k, d)."""
        X, values = among.X, among.values
        region = self.region, values.of_region
        return uncertain(self.emulators, self.model.inputs, X, values.variance, picked, n, *region)

    @property
    def noise(self):
        """Standard deviation of the values' noise, in nats, by the emulators."""
        # Some of theirs may be their own error.
        fitted = noise_of([e for e in self.emulators if e.process is not None])
        return min(fitted, float(np.sqrt(convergence.largest_variance(self._of_twins))))

    @property
    def is_noisy(self):
        """Whether the noise is larger than the tolerance."""
        return self.noise > self.tolerance

    @property
    def _is_average(self):
        return self.is_noisy and self.model.is_sum

    @property
    def limits(self):
        return Limits(self.tolerance, self.noise)


def hottest(model, modes):
    """Return the largest temperature of rounds, given the modes that searches have found."""
    if model.has_small_nodes:
        return 1.0  # the first design has filled each node's space
    if modes:
        return LARGEST_AT_MODES
    if model.n_dimensions <= FEW_DIMENSIONS:
        return LARGEST_TEMPERATURE
    return 2.0 * COMPRESSION_DEPTH  # draws are some T d / 2 nats deep


def fit_all(emulators, *data, **settings):
    """Fit the emulators of a model's nodes, in place, one a function."""
    for i, emulator in enumerate(emulators):
        if emulator.node.function == i:
            emulator.fit(*data, **settings)
        else:
            emulators[i] = emulators[emulator.node.function].shared(emulator.node)


def pace_of(n, model):
    """Return the number of usual rounds that one of n evaluations at once stands for."""
    return max(n / BATCH_SIZE, 1.0) if model.n_parallel > BATCH_SIZE else 1.0


def counted_of(pace):
    """Return the number of rounds that one at a pace counts for, if it is right."""
    return min(int(pace), MOST_CONFIRMED)
