"""KMC's adaptation while tuning, and a chain's start from a posterior learned before it."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.adaptation.fit_to_values import first_fit
from pymc_kmc.adaptation.history import RECENT_SHARE
from pymc_kmc.adaptation.schedules import GeometricSchedule
from pymc_kmc.learning.emulated_density import EmulatedDensity
from pymc_kmc.moves.auxiliary import AuxiliaryChain
from pymc_kmc.moves.base import MoveKind, MoveMixture, Row
from pymc_kmc.moves.frontier import ActiveLearning
from pymc_kmc.moves.learned import LearnedDraw, ModeJump, ModeTransition, Stay
from pymc_kmc.moves.noise_probe import ideal_acceptance
from pymc_kmc.moves.partners import Partner, Sweeps
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.moves.transitions import KINDS, TEMPERED, SurrogateTransition
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.numerics.samples import robust_spread
from pymc_kmc.steps.surrogate import SurrogateAdaptation

# Evaluations in which a chain settles on a learned posterior: enough to recognise a surrogate that
# fails, and to learn the probabilities of moves.
SETTLING = 8
# The same under noise, which hides a surrogate's errors.
SETTLING_IN_NOISE = 15
# Learned draws a dimension from which the random walk's covariance is estimated before the chain.
DRAWS_PER_DIMENSION = 20
# Groups of partners: workers evaluate one while the chain exchanges with the other.
N_GROUPS = 2
# Temperature of the tempered moves and of the auxiliary chain: at 2 chains stick now and then.
TEMPERATURE = 1.5
# Factors on the random walk's scale, once there is a surrogate for the long moves.
WALK_FACTORS = (1.0, 0.3, 0.1)
# Factor on the number of iterations from one fit to the next; updates learn in between.
FIT_GROWTH = 1.2
# Number of the last surrogate moves whose acceptance shows a surrogate in trouble.
TROUBLE_AFTER = 40
# Error of a learned surrogate, in nats beyond the noise's standard deviation, from which on it is
# of little use: one draw in three is accepted then.
FAILED = 2.0
# Acceptance rate below which a surrogate is in trouble, as a share of what noise allows.
TROUBLE_ACCEPTANCE = 0.15
# Number of fits after which trouble is no reason for another.
MOST_REFITS = 45
# Ratio of the log weights' spreads above which the last fit is clearly worse than the one before.
CLEARLY_WORSE = 1.2
# Rise of the log density, in standard deviations of a Gaussian's, that shows a chain in burn-in.
CLEAR_RISE = 2.0
# Iterations in a window: the medians of the first and of the last of three windows are compared.
WINDOW = 50


class KMCAdaptation(SurrogateAdaptation):
    """State of KMC's adaptation.

    `modes` are moves between learned modes, empty with one mode. `settling` is the chain's start
    from a learned posterior, None without one and once it has failed; `disagreement` then has the
    Disagreement. `sweeps` are the Sweeps of a chain with partners, None before the first.
    """

    def __init__(self, n_dimensions, fits, is_noisy):
        def random_walk():
            return RandomWalk(n_dimensions, is_noisy=is_noisy, factors=WALK_FACTORS)

        schedule = GeometricSchedule(first_fit(n_dimensions), FIT_GROWTH)
        moves = [SurrogateTransition(size, is_noisy) for size in KINDS]
        super().__init__(n_dimensions, fits, schedule, random_walk(), moves)
        self.tempered = SurrogateTransition(TEMPERED, is_noisy, TEMPERATURE)
        self.auxiliary = AuxiliaryChain(random_walk(), is_noisy, TEMPERATURE)
        self.active_learning = ActiveLearning(is_noisy)
        self.settling = self.disagreement = None
        self.modes = ()
        self.sweeps = None
        self.n_dimensions, self.is_noisy = n_dimensions, is_noisy

    def initialize(self, evaluations, posterior=None, fitted=None):
        """Begin with `evaluations` (or None), or a LearnedPosterior and its FittedSurrogate."""
        if posterior is not None:
            evaluations = posterior.evaluations
        if evaluations is not None:
            values = evaluations.log_densities
            for row in np.column_stack([evaluations.X, values])[np.isfinite(values)]:
                self.history.evaluations.append(row)
        if posterior is None:
            return
        n = DRAWS_PER_DIMENSION * posterior.n_dimensions
        pairs = zip(posterior.positions[:n], posterior.log_densities[:n], strict=True)
        for position, value in pairs:
            self.history.states.append(position)
            self.history.log_densities.append(value)
        self.use(fitted)
        if (maps := posterior.mode_maps) is not None:
            self.modes = ModeJump(maps), ModeTransition(maps, self.is_noisy)
        self.settling = Settling(posterior, SETTLING_IN_NOISE if self.is_noisy else SETTLING)

    def follow(self, point):
        """Give other variables' values in PyMC's `point` to a surrogate learned before the chain.

        It is the one in use: a restored chain's is another object than its step's.
        """
        if self.fitted is not None and isinstance(self.fitted.surrogate, EmulatedDensity):
            self.fitted.surrogate.follow(point)

    def update(self, outcome, noise, is_tuning, rng):
        """Learn from an iteration's :class:`Outcome`, under the noise of a NoiseProbe."""
        settling = self.settling
        if settling is not None and settling.is_over:
            return
        self.history.append(outcome)
        self._learn_covariance()
        outcome.proposal.move.learn(outcome, rng)
        self.transitions.learn(outcome)
        if outcome.evaluation is not None and np.isfinite(outcome.evaluation.log_density):
            self._learn_value(outcome, is_tuning)
        if settling is not None:
            settling.n_evaluations += 1
            if outcome.proposal.move.kind == MoveKind.EXCHANGE:
                self.transitions.recent.append(outcome.acceptance_rate)
            if not settling.is_over:
                return
            self.disagreement = settling.disagreement(self.transitions.recent, noise)
            if settling.is_close and self.disagreement is None:
                return
            self.settling = self.sweeps = None
            if isinstance(self.fitted.surrogate, EmulatedDensity):
                self.fitted = None  # there is nothing of it that a fit could start from
        elif not self.schedule.is_due(len(self.history)) and not self._is_in_trouble(noise):
            return
        self._fit(outcome.end, noise, is_tuning, rng)

    def finalize(self, state, noise, rng):
        """Fit a last time, to all values, unless the surrogate in use is clearly better.

        `state` is the Evaluation of the chain's state. After short tuning, half of the usual
        evaluations suffice to test a posterior learned before the chain.
        """
        settling = self.settling
        if settling is not None and settling.most <= 2 * settling.n_evaluations < 2 * settling.most:
            self.disagreement = settling.disagreement(self.transitions.recent, noise)
        if not self.can_explore or self.fitted is None:
            return
        last, transitions = self.fitted, self.transitions
        if self._fit(state, noise, True, rng):
            with single_threaded_blas():
                last = last.weighed(*self.fits.recent(self.history))
                if not self.fitted.log_weights.spread <= CLEARLY_WORSE * last.log_weights.spread:
                    self.fitted, self.transitions = last, transitions
                    self._set_covariances()
        self.active_learning.end()

    def begin_sweeps(self, n, state, mode_share, rng):
        """Begin sweeps of n partners at the chain's states, or at `state`, its one Evaluation."""
        states = self.history.states.recent(RECENT_SHARE)
        if not len(states):
            states = state.position[None]
        kinds = (MoveKind.EXCHANGE, 1.0), (MoveKind.TEMPERED_TRANSITION, TEMPERATURE)
        groups = [
            [
                [
                    Partner(kind, states[i].copy(), temperature)
                    for i in rng.integers(len(states), size=n)
                ]
                for kind, temperature in kinds
            ]
            for _ in range(N_GROUPS)
        ]
        jump, transitions = self.modes or (None, None)
        rows = [Row(transitions, mode_share)] if self.modes else []
        moves = MoveMixture(*rows, Row(self.transitions.moves[-1], 1.0)), self.tempered
        self.sweeps = Sweeps(groups, moves, self.random_walk, jump)

    @property
    def can_explore(self):
        """Whether there is a surrogate to learn, by evaluations besides drawing."""
        return self.fits.makes_surrogates and self.settling is None

    @property
    def is_on_its_way(self):
        """Whether the chain's log density still rises by more than it varies in the posterior."""
        log_densities = self.history.log_densities
        if len(log_densities) < 3 * WINDOW:
            return False
        last = log_densities.last(3 * WINDOW)[:, 0]
        rise = np.median(last[-WINDOW:]) - np.median(last[:WINDOW])
        return rise > CLEAR_RISE * np.sqrt(0.5 * self.n_dimensions)

    def _learn_covariance(self):
        warp = IDENTITY if self.fitted is None else self.fitted.warp
        self.random_walk.learn_covariance(self.history.states, warp)

    def _set_covariances(self):
        self._learn_covariance()
        walk = self.random_walk
        self.auxiliary.random_walk.set_covariance(walk.covariance, walk.cholesky)

    def _learn_value(self, outcome, is_tuning):
        active_learning, before = self.active_learning, self.fitted
        frontier = active_learning.frontier if is_tuning else None
        if self.settling is None and frontier is None:
            return
        comparison = before.compare(outcome.evaluation.position, outcome.evaluation.log_density)
        self.fitted = before.learn(comparison)
        if self.settling is not None:
            self.settling.errors.append(comparison.value - comparison.predicted)
            return
        if self.fitted is not before:
            frontier.add(self.fitted.surrogate, comparison.place)
        if outcome.proposal.move is active_learning:
            active_learning.compare(comparison, before.surrogate)

    def _is_in_trouble(self, noise):
        lately = self.transitions.recent[-TROUBLE_AFTER:]
        if len(lately) < TROUBLE_AFTER or self.fits.n_fits >= MOST_REFITS:
            return False
        return np.mean(lately) < TROUBLE_ACCEPTANCE * noise.ideal_acceptance

    def _fit(self, state, noise, is_tuning, rng):
        self.transitions.recent.clear()
        self.fits.noise_variance = noise.variance.value
        fitted = self.fits.fit(self.history, self.fitted, rng)
        if fitted is not None:
            self.use(fitted)
            self._explore(state, is_tuning)
        return fitted is not None

    def _explore(self, state, is_tuning):
        self.auxiliary.begin(state)
        with single_threaded_blas():
            self._set_covariances()
        self.active_learning.end()
        if is_tuning and self.can_explore:
            states, _ = self.fits.recent(self.history)
            evaluated = self.fits.evaluations(self.history)[:, :-1]
            self.active_learning.begin(self.fitted, states, evaluated)


class Settling:
    """A chain's start from a learned posterior, in `most` evaluations; `errors` are in nats."""

    def __init__(self, posterior, most):
        self.most = most
        self.is_close, self.noise_variance = posterior.is_close, posterior.noise**2
        self.start, self.stay = LearnedDraw(posterior.wide_positions), Stay()
        self.n_evaluations = 0
        self.errors = []

    @property
    def move(self):
        """The move of this iteration of tuning; None for any move on the surrogate."""
        if self.n_evaluations == 0:
            return self.start
        return self.stay if self.is_over else None

    @property
    def error(self):
        """Half the width of the errors' central 68 %, in nats: a constant is no error."""
        if not self.errors:
            return np.inf
        return float(robust_spread(self.errors))

    @property
    def is_over(self):
        return self.n_evaluations >= self.most

    def disagreement(self, recent, noise):
        """Return a Disagreement, or None, given acceptance rates `recent` and a NoiseProbe."""
        # A few estimates say little about their noise.
        ideal = min(noise.ideal_acceptance, ideal_acceptance(self.noise_variance))
        noise_sd = float(np.sqrt(np.nan_to_num(noise.variance.value)))
        acceptance = float(np.mean(recent or [0.0]))
        is_refused = acceptance < TROUBLE_ACCEPTANCE * ideal
        if not is_refused and self.error <= FAILED + noise_sd:
            return None
        return Disagreement(self.n_evaluations, self.error, noise_sd, acceptance, ideal)


class Disagreement(NamedTuple):
    """The figures of a chain for which a posterior learned before it is of little use.

    `error` is that of predictions, in nats, infinite if no evaluation was finite; `noise_sd` is the
    values' noise in it. `acceptance` is the rate of moves on the learned surrogate,
    `ideal_acceptance` that of perfect ones.
    """

    n_evaluations: int
    error: float
    noise_sd: float
    acceptance: float
    ideal_acceptance: float
