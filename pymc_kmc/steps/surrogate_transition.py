r"""KMC, the default: proposals by many moves on a surrogate that learns from every evaluation.

A sampler pays for a log density at every proposal, accepted or not. :class:`KMC` fits a surrogate
f to those values (:class:`~pymc_kmc.surrogates.LogDensityGP`) and moves on f, which costs nothing
of the target, for as long as it takes to get far away; one evaluation of the target then accepts
or rejects the end point. An iteration at x makes one of these moves, with fixed probabilities:

1. *Surrogate transition*: a sequence of HMC transitions on f, accepted with probability
   :math:`\min(1, e^{\log\hat\pi(x') - \log\hat\pi(x) - f(x') + f(x)})`
   (:mod:`pymc_kmc.adaptation.transitions` has the kinds, the proof and the sources).
2. *Tempered surrogate transition*: the same on f / T, whose wider tails reach where f is too low.
3. *Random walk*, :math:`N(x, c^2 s^2 \Sigma)` with c of 1, .3 or .1 drawn at random: symmetric for
   each c. It needs no surrogate: it makes the first steps, and leads out of places where f is
   wrong.

The random walk's probability is .01 where the surrogate is exact and .03 where it isn't, and up to
.7 where the target is far above the surrogate (:mod:`pymc_kmc.steps.surrogate`, with what that asks
of the acceptance ratio); the other probabilities are fixed.

While tuning, besides:

4. *An auxiliary chain* on :math:`\pi^{1/T}`, T = 1.5, takes a quarter of the evaluations. Its
   states are never draws: it is there so that the surrogate knows the density beyond the places
   where the chain has been.
   Not while the chain is on its way from a bad start, its log density rising: nor is there a
   frontier then.
5. *Frontier*: a fifth of the evaluations, two fifths of noisy ones, are made where the surrogate's
   predictive variance says that it can learn most of the bulk
   (:mod:`pymc_kmc.adaptation.exploration`); none where it is sure of itself, and few, without
   noise, where the last ones found what was predicted, and these inside of the bulk. Whatever was
   wrongly predicted, these evaluations or others, is learned at once.
6. The surrogate is fitted when the number of iterations has grown by 1.2, or when its last 40
   proposals were hardly accepted, on all values so far; and once more at the end of tuning.

All of this happens in coordinates in which one variable's scale doesn't depend on another's value,
as far as that could be learned (:mod:`pymc_kmc.adaptation.warping`): with a proposal x' = T(y')
comes the ratio of the volumes, :math:`|T'(y')| / |T'(y)|`, in its acceptance ratio.

Everything is frozen when tuning ends. Acceptance by the target never drives a step size: a poor
surrogate can't make the sampler collapse.

What was tried
--------------
Figures and targets are in `examples/benchmarks/README.md`. In short, from cold starts:

- One surrogate trajectory an evaluation, as in KMC: 5 to 60 short transitions are 2 to 4 times
  better; one evaluation is worth many gradients of the surrogate.
- Without small step sizes in the mixture of a sequence, or without the auxiliary chain, the
  spread of a strongly curved banana is .3-.6 too small in log: the surrogate is exact inside and
  falls by tens of nats beyond the farthest state. With both: .05-.25. With the frontier's
  evaluations and updates between the fits: .02-.2, and the fits can be rarer. Under noise of sd 1
  .4-1.1 became .05-.3.
- The frontier's evaluations without the auxiliary chain: a spread as good (.05), half the
  effective draws, and a funnel where chains stick.
- No fit at the end of tuning: spread .10 (worst .18) in place of .05-.07 (.11), 6 seeds.
- The auxiliary chain at T = 2: more spread, and now and then a chain that sticks.
- Radial terms in the surrogate: Student t with 5 degrees of freedom, 222 (without) to 470
  effective draws per 1000.
- Points far outside in the fit, at moderate depth because tails are heavy: a chain that starts in
  the tails of a t then never recovers. They are left out by distance.

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

from copy import deepcopy
from time import perf_counter

import numpy as np

from pymc_kmc.adaptation.exploration import Frontier
from pymc_kmc.adaptation.log_density import LogDensityAdaptation, first_fit
from pymc_kmc.adaptation.log_weights import LogWeights
from pymc_kmc.adaptation.random_walk import RandomWalk
from pymc_kmc.adaptation.schedules import GeometricSchedule
from pymc_kmc.adaptation.transitions import SurrogateTransitions, TransitionMixture
from pymc_kmc.numerics.checks import check_count
from pymc_kmc.numerics.threads import single_threaded_blas
from pymc_kmc.steps.base import AdaptiveStep, Proposal
from pymc_kmc.steps.surrogate import RANDOM_WALK, LearnedWithSurrogate, SurrogateStep

__all__ = ["KMC"]

# Kinds of move in the statistics: surrogate transitions are those of SurrogateTransitions.KINDS.
TEMPERED, AUXILIARY, FRONTIER, FIRST_TRANSITION = 1, 2, 3, 4
# Shares of the iterations while tuning; the rest are surrogate transitions.
TUNING_RANDOM_WALKS = 0.1
# So many more where the last so many surrogate moves were hardly accepted, from this acceptance
# rate downwards, as a share of what noise allows.
MORE_RANDOM_WALKS, LATELY, HARDLY = 0.5, 20, 0.2
TUNING_TEMPERED = 0.05
TUNING_AUXILIARY = 0.25
# A value teaches less where it is noisy.
TUNING_FRONTIER, NOISY_TUNING_FRONTIER = 0.2, 0.4
# Without noise these are multiplied by how much the last so many searches were off, in nats beyond
# so many residual standard deviations, and at most 1, at least this.
SEARCHES, USUAL_ERROR, SMALLEST_SEARCH = 20, 2.0, 0.2
# Shares after tuning, on a surrogate that is exact and on one whose log weights' standard deviation
# is the third number or more.
RANDOM_WALKS, TEMPERED_MOVES, LARGE_SPREAD = (0.01, 0.03), (0.01, 0.02), 0.05
TEMPERATURE = 1.5
# Factors on the random walk's scale, once there is a surrogate for the long moves.
FACTORS = (1.0, 0.3, 0.1)
# The share of random walks of the auxiliary chain.
AUXILIARY_RANDOM_WALKS = 0.3
# Trouble: the last so many surrogate moves were accepted less often than this share of what noise
# allows. Refits for that reason end after so many fits.
TROUBLE_AFTER = 40
TROUBLE_ACCEPTANCE = 0.15
MOST_FITS = 45
# Fits are due whenever the number of iterations has grown by this factor. What happens between them
# is learned by updates.
REFIT_GROWTH = 1.2
# A last fit is dropped if the log weights' spread is so many times that of the surrogate before.
CLEARLY_WORSE = 1.2
# A chain is on its way while its log density rises by so many standard deviations, from one window
# of so many iterations to the next but one.
CLEAR_RISE, WINDOW = 2.0, 50
# Surrogate transitions of the tempered moves.
TEMPERED_KIND = 2


class Learned(LearnedWithSurrogate):
    """What KMC learns from a chain, besides what every step on a surrogate does.

    Attributes
    ----------
    transitions : SurrogateTransitions or None
        None until there is a surrogate.
    mixture : TransitionMixture
    auxiliary : (ndarray, float) or None
        State of the auxiliary chain and its log density.
    auxiliary_walk : RandomWalk
    recent : list of float
        Acceptance probabilities of surrogate transitions since the last fit.
    frontier : Frontier or None
        Of the surrogate while tuning, if it has a kernel part.
    search_error : float
        How much the frontier's searches were off lately, between 0 and 1.
    """

    def __init__(self, n_dimensions, is_noisy, n_landmarks):
        adaptation = LogDensityAdaptation(n_landmarks, is_noisy)
        schedule = GeometricSchedule(first_fit(n_dimensions), REFIT_GROWTH)
        super().__init__(n_dimensions, adaptation, schedule, is_noisy)
        self.auxiliary_walk = RandomWalk(n_dimensions, is_noisy=is_noisy)
        self.transitions = None
        self.mixture = TransitionMixture(len(SurrogateTransitions.KINDS))
        self.auxiliary = None
        self.recent = []
        self.frontier = None
        self.search_error = 1.0


class KMC(SurrogateStep):
    r"""Kernel Monte Carlo on a surrogate of the log density: the default, without settings.

    The choice for any target of up to some 50 continuous dimensions without usable gradients, and
    for noisy likelihoods. After the module's docstring: learns from the values of all evaluations,
    makes many moves on what it learned for one evaluation, and is exact whatever it learned.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    n_landmarks : int
        Kernel functions of the surrogate: its flexibility, and what a move costs. Where they are
        too few for the log density, it has up to twice as many.
    surrogate : Surrogate, optional
        A fitted one to use as it is, in the unconstrained raveled coordinates of `vars`; nothing is
        fitted then.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the given surrogate isn't fitted or has the wrong
        dimension.

    Notes
    -----
    Statistics: `kmc_move` is 0 for random walks, 1 for tempered transitions, while tuning only 2
    for the auxiliary chain and 3 for the frontier, and from 4 the kinds of surrogate transition;
    `n_steps` the leapfrog steps of the proposal; `kmc_n_transitions` its transitions;
    `kmc_surrogate_variance` the variance of the values around the surrogate, noise included;
    `kmc_proposal_time` and `kmc_evaluation_time` seconds.
    """

    name = "kmc"
    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {
        "step_size": (np.float64, []),
        "n_steps": (np.int64, []),
        "kmc_move": (np.int64, []),
        "kmc_n_transitions": (np.int64, []),
        "kmc_n_fits": (np.int64, []),
        "kmc_surrogate_variance": (np.float64, []),
        "kmc_proposal_time": (np.float64, []),
    }

    def __init__(self, vars=None, *, n_landmarks=300, **kwargs):
        self.n_landmarks = check_count(n_landmarks, "n_landmarks")
        super().__init__(vars, **kwargs)

    @property
    def default_tune_steps(self):
        """Iterations of tuning that PyMC 6 makes where the user doesn't say.

        What a smooth target of eight dimensions needs, and what it takes in 13 to 26 dimensions to
        come from a bad start along a curved way: 1500 to 2500 iterations.
        """
        d = self.n_dimensions
        return int(np.ceil((2000 + 80 * d) / 100) * 100)

    def _start_chain(self):
        return Learned(self.n_dimensions, self.target.is_noisy, self.n_landmarks)

    # Moves

    def _propose(self, position):
        start = perf_counter()
        learned, rng = self.learned, self.rng
        self._use_given_surrogate(position)
        move = self._choose_move(position)
        origin = learned.auxiliary[0] if move == AUXILIARY else position
        temperature = TEMPERATURE if move in (AUXILIARY, TEMPERED) else 1.0
        place = learned.warp.forward(origin)
        statistics = {"kmc_move": move, "n_steps": 0, "kmc_n_transitions": 0}
        log_ratio = 0.0
        if move == FRONTIER:
            end, statistics["step_size"] = learned.frontier.place, 0.0
        elif move == RANDOM_WALK or (move == AUXILIARY and rng.uniform() < AUXILIARY_RANDOM_WALKS):
            walk = learned.random_walk if move == RANDOM_WALK else learned.auxiliary_walk
            factor = 1.0
            if learned.transitions is not None:
                factor = FACTORS[rng.integers(len(FACTORS))]
            end = walk.propose(place, rng, factor)
            statistics["step_size"] = factor * walk.scale
        else:
            kind = move - FIRST_TRANSITION
            if move == TEMPERED:
                kind = TEMPERED_KIND
            elif move == AUXILIARY:
                kind = (0, TEMPERED_KIND)[rng.integers(2)]
            proposal = learned.transitions.propose(place, kind, rng, temperature)
            end, log_ratio = proposal.position, proposal.log_ratio
            # A sequence that ends where it began is a rejection that costs nothing, or, under
            # noise, a new estimate at the same point.
            if not (np.isfinite(log_ratio) and (proposal.moved or self.target.is_noisy)):
                log_ratio = -np.inf
            statistics["step_size"] = learned.transitions.step_size
            statistics["n_steps"] = proposal.n_steps
            statistics["kmc_n_transitions"] = learned.transitions.n_transitions_of(kind)
        change = learned.warp.log_volume(end) - learned.warp.log_volume(place)
        log_ratio += change / TEMPERATURE if move == AUXILIARY else change
        end = origin if end is place else learned.warp.backward(end)
        statistics |= self._state_of_learning()
        statistics["kmc_proposal_time"] = perf_counter() - start
        return Proposal(end, log_ratio, statistics, is_draw=move not in (AUXILIARY, FRONTIER))

    def _choose_move(self, position):
        learned, rng = self.learned, self.rng
        if learned.transitions is None:
            return RANDOM_WALK
        # What lies around a place that a chain only passes is not worth knowing.
        tuning = self._explores and not self._is_on_its_way()
        if tuning and learned.frontier is not None:
            share, edge = NOISY_TUNING_FRONTIER, 1.0
            if not self.target.is_noisy:
                edge = learned.search_error
                share = TUNING_FRONTIER * max(SMALLEST_SEARCH, edge)
            if rng.uniform() < share:
                with single_threaded_blas():
                    found = learned.frontier.search(rng, edge)
                if found:
                    return FRONTIER
        if tuning and learned.auxiliary is not None and rng.uniform() < TUNING_AUXILIARY:
            return AUXILIARY
        if rng.uniform() < self._random_walk_probability(
            position, self.target.recycled.log_density
        ):
            return RANDOM_WALK
        if rng.uniform() < (TUNING_TEMPERED if tuning else self._share(TEMPERED_MOVES)):
            return TEMPERED
        return FIRST_TRANSITION + learned.mixture.choose(rng)

    def _is_on_its_way(self):
        """Whether the chain's log density rises, by more than it varies where a chain belongs."""
        log_densities = self.learned.record.log_densities
        if len(log_densities) < 3 * WINDOW:
            return False
        last = log_densities.last(3 * WINDOW)[:, 0]
        rise = np.median(last[-WINDOW:]) - np.median(last[:WINDOW])
        # The standard deviation of a Gaussian's.
        return rise > CLEAR_RISE * np.sqrt(0.5 * self.n_dimensions)

    @property
    def _explores(self):
        """Whether evaluations are spent on learning besides drawing."""
        return self.is_tuning and self.given_surrogate is None

    @property
    def _smallest_random_walk_probability(self):
        if not self._explores:
            return self._share(RANDOM_WALKS)
        lately = self.learned.recent[-LATELY:]
        if len(lately) < LATELY:
            return TUNING_RANDOM_WALKS
        hardly = HARDLY * self.progress.noise.ideal_acceptance
        return TUNING_RANDOM_WALKS + MORE_RANDOM_WALKS * max(0.0, 1.0 - np.mean(lately) / hardly)

    def _share(self, shares):
        """A share after tuning. Of a given surrogate nobody knows how exact it is."""
        exact, usual = shares
        log_weights = self.learned.log_weights
        if self.given_surrogate is not None or log_weights is None:
            return usual
        return exact + (usual - exact) * min(1.0, log_weights.spread / LARGE_SPREAD)

    def _state_of_learning(self):
        learned = self.learned
        surrogate = learned.adaptation.surrogate
        return {
            "kmc_n_fits": learned.adaptation.n_fits,
            "kmc_surrogate_variance": np.nan if surrogate is None else surrogate.variance_,
        }

    # Adaptation

    def _learn(self, proposal, evaluation, acceptance_rate, start, position):
        learned = self.learned
        move = proposal.statistics["kmc_move"]
        self._remember(evaluation, position)
        if move == AUXILIARY:
            self._learn_auxiliary(proposal, evaluation)
        elif move == RANDOM_WALK:
            if proposal.statistics["step_size"] == learned.random_walk.scale:
                learned.random_walk.learn_scale(acceptance_rate)
        elif move >= FIRST_TRANSITION:
            learned.mixture.learn(move - FIRST_TRANSITION, acceptance_rate)
            learned.recent.append(acceptance_rate)
        self._update(move, evaluation)
        due = learned.schedule.is_due(len(learned.record))
        if due or self._is_in_trouble():
            self._fit()

    def _update(self, move, evaluation):
        """Let the surrogate learn from an evaluation before its next fit."""
        learned = self.learned
        if not self._explores or learned.frontier is None or evaluation is None:
            return
        if not np.isfinite(evaluation.log_density):
            return
        surrogate = learned.adaptation.surrogate
        with single_threaded_blas():
            constant = surrogate.constant_
            place = self._in_learned_coordinates(evaluation.position, evaluation.log_density)
            if learned.frontier.learn(*place):
                learned.transitions.follow(surrogate.parameters_)
                learned.log_weights.shift(constant - surrogate.constant_)
        if move == FRONTIER:
            excess = learned.frontier.error - USUAL_ERROR * np.sqrt(surrogate.variance_)
            error = min(1.0, max(0.0, excess))
            learned.search_error += (error - learned.search_error) / SEARCHES

    def _learn_auxiliary(self, proposal, evaluation):
        learned = self.learned
        acceptance = 0.0
        if evaluation is not None and evaluation.log_density < np.inf:
            change = evaluation.log_density - learned.auxiliary[1]
            log_ratio = change / TEMPERATURE + proposal.log_ratio
            acceptance = float(np.exp(min(0.0, log_ratio)))
        if self.rng.uniform() < acceptance:
            learned.auxiliary = evaluation.position, evaluation.log_density
        if proposal.statistics["step_size"] == learned.auxiliary_walk.scale:
            learned.auxiliary_walk.learn_scale(acceptance)

    def _is_in_trouble(self):
        learned = self.learned
        if len(learned.recent) < TROUBLE_AFTER or learned.adaptation.n_fits >= MOST_FITS:
            return False
        bound = TROUBLE_ACCEPTANCE * self.progress.noise.ideal_acceptance
        return np.mean(learned.recent[-TROUBLE_AFTER:]) < bound

    def _fit(self):
        learned = self.learned
        learned.recent = []
        if self.target.is_noisy:
            learned.adaptation.noise_variance = self.progress.noise.value
        if not super()._fit():
            return False
        if learned.auxiliary is None:
            current = self.target.recycled
            learned.auxiliary = current.position, current.log_density
        with single_threaded_blas():
            self._set_covariances()
            learned.frontier = self._frontier() if self._explores else None
        return True

    def _set_covariances(self):
        """Give the random walks a covariance in the surrogate's coordinates."""
        learned = self.learned
        learned.random_walk.learn_covariance(learned.record.states, learned.warp)
        learned.auxiliary_walk.set_covariance(learned.random_walk.covariance)

    def _frontier(self):
        """What lies beyond the surrogate at hand, or None if it has nothing that could bend."""
        adaptation, record = self.learned.adaptation, self.learned.record
        if adaptation.surrogate.kernel_ is None:
            return None
        states = adaptation.warp.forward(record.states.last(adaptation.n_recent(record)))
        evaluated = adaptation.warp.forward(adaptation.evaluations(record)[:, :-1])
        return Frontier(adaptation.surrogate, states, evaluated)

    def _end_tuning(self):
        """Fit a last time, to all values, unless the surrogate at hand is clearly better."""
        learned, adaptation = self.learned, self.learned.adaptation
        if self.given_surrogate is not None or adaptation.surrogate is None:
            return
        mixture = deepcopy(learned.mixture)  # a fit changes it
        before = adaptation.surrogate, adaptation.warp, learned.transitions, mixture
        if self._fit():
            after = adaptation.surrogate, adaptation.warp, learned.transitions, learned.mixture
            spread = learned.log_weights.spread
            with single_threaded_blas():
                self._use(*before)
                if spread <= CLEARLY_WORSE * learned.log_weights.spread:
                    self._use(*after)
        learned.frontier = None

    def _use(self, surrogate, warp, transitions, mixture):
        """Go on with a surrogate and with what was learned of its moves."""
        learned, adaptation = self.learned, self.learned.adaptation
        adaptation.surrogate, adaptation.warp = surrogate, warp
        learned.transitions, learned.mixture = transitions, mixture
        learned.log_weights = LogWeights(transitions.hamiltonian, *self._recent_states())
        self._set_covariances()

    def _renew_moves(self, states, log_densities):
        learned = self.learned
        surrogate = self.given_surrogate or learned.adaptation.surrogate
        learned.transitions = SurrogateTransitions(surrogate, states, self.rng)
        learned.mixture.renew(learned.transitions.jumps)
        learned.log_weights = LogWeights(learned.transitions.hamiltonian, states, log_densities)
