r"""Surrogates that are fitted again and again along a chain, each with the moves learned on it.

A surrogate f proposes in proportion to its density, and a proposal is accepted by the log weight
:math:`w(x) = \log\pi(x) - f(x)`. Where f is far too low, :math:`w(x)` is large and hardly any
proposal is accepted: an independence sampler stays for :math:`e^{w}` iterations on average. Random
walks, whose acceptance does not depend on f, lead out.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pymc_kmc.adaptation.transitions import whitened_hamiltonian
from pymc_kmc.dynamics import SurrogateHamiltonian
from pymc_kmc.numerics.coordinates import IDENTITY, Identity, ScaleWarp
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.numerics.samples import thinned

# A value is learned at once if its prediction's standard deviation exceeds both of these: nats, and
# standard deviations of the noise.
UNCERTAIN = 0.3
UNCERTAIN_IN_NOISE = 0.5
# It is also learned at once if its error exceeds both of these: nats, and standard deviations.
SURPRISING = 0.5
SURPRISING_IN_SDS = 3.0
# Weight in a fit below which a value waits for the next fit.
SMALLEST_WEIGHT = 0.2
# Probability of a random walk where the target is very far above its surrogate.
LARGEST_RANDOM_WALKS = 0.7
# Most states whose log weights are computed: a quantile need not be exact.
MOST_VALUED = 200
# Level of the quantile one standard deviation below a Gaussian's median.
BELOW_ONE_SD = 0.1587


class LogWeights(NamedTuple):
    """Median and spread of the log weights of a chain's states.

    The `spread` is the standard deviation below the median: noise, or the surrogate's errors. A
    chain that sits where the surrogate is too low has most of its log weights above the median.
    """

    hamiltonian: SurrogateHamiltonian
    median: float = 0.0
    spread: float = 0.0

    # A log weight is large from this far above the median: nats, plus spreads.
    ONSET = 1.0
    SPREADS = 2.0
    # Nats from a large log weight, of excess 0, to a very large one, of excess 1.
    RAMP = 3.0

    @classmethod
    def of(cls, hamiltonian, states, log_densities):
        """Return the log weights of states (n, d) with the target's `log_densities` (n,)."""
        pairs = zip(thinned(states, MOST_VALUED), thinned(log_densities, MOST_VALUED), strict=True)
        weights = np.array([value - hamiltonian.log_density(x) for x, value in pairs])
        weights = weights[np.isfinite(weights)]
        if not len(weights):
            return cls(hamiltonian)
        low, median = np.quantile(weights, [BELOW_ONE_SD, 0.5])
        return cls(hamiltonian, median, median - low)

    def __call__(self, position, log_density):
        """Return a state's log weight above the median, given the target's log density there."""
        return log_density - self.hamiltonian.log_density(position) - self.median

    def excess(self, position, log_density):
        """Return 0 for a usual log weight of a state, 1 for a very large one, or between."""
        onset = self.ONSET + self.SPREADS * self.spread
        excess = (self(position, log_density) - onset) / self.RAMP
        # In the first steps from a bad start a log weight may be -inf or NaN.
        return min(1.0, max(0.0, excess)) if excess == excess else 0.0

    def following(self, hamiltonian, change):
        """Return the log weights on an updated surrogate whose constant is lower by `change`."""
        return self._replace(hamiltonian=hamiltonian, median=self.median - change)


class Comparison(NamedTuple):
    """A log density at a `place` (d,) beside its prediction, in the surrogate's coordinates."""

    place: np.ndarray
    value: float  # of the target
    predicted: float  # by the surrogate
    std: float  # of the prediction

    @property
    def error(self):
        return abs(self.value - self.predicted)


@dataclass(frozen=True)
class FittedSurrogate:
    """A surrogate with the moves learned on it. Fitting and learning return a new one."""

    surrogate: Any  # fitted, and never written to
    warp: ScaleWarp | Identity  # to the surrogate's coordinates
    transitions: Any  # SurrogateTransitions or Trajectories, with their `hamiltonian`
    log_weights: LogWeights  # of the chain's states

    @property
    def hamiltonian(self):
        return self.transitions.hamiltonian

    def in_coordinates(self, positions, log_densities):
        """Return positions, (d,) or (n, d), and log densities in the surrogate's coordinates."""
        return self.warp.forward(positions), log_densities + self.warp.log_volume(positions)

    def log_density(self, position, temperature=1.0):
        """Return the log density that moves on f / T leave invariant, at a position (d,)."""
        value = self.hamiltonian.log_density(self.warp.forward(position))
        return value / temperature - self.warp.log_volume(position)

    def random_walk_share(self, smallest, state):
        """Return a random walk's probability at a state: `smallest`, raised by the excess."""
        if not 0 < smallest < LARGEST_RANDOM_WALKS:
            return smallest
        excess = self.excess(state.position, state.log_density)
        return smallest + (LARGEST_RANDOM_WALKS - smallest) * excess

    def excess(self, position, log_density):
        """Return the excess of a state's log weight, between 0 (usual) and 1."""
        return self.log_weights.excess(*self.in_coordinates(position, log_density))

    def weighed(self, positions, log_densities):
        """Return the same surrogate with the log weights of other states, (n, d) and (n,)."""
        weights = LogWeights.of(self.hamiltonian, *self.in_coordinates(positions, log_densities))
        return replace(self, log_weights=weights)

    def compare(self, position, log_density):
        place, value = self.in_coordinates(position, log_density)
        return Comparison(place, value, *self.surrogate.predict(place, return_std=True))

    def learn(self, comparison):
        """Return the fit updated with one evaluation, if its prediction was uncertain or wrong."""
        surrogate, (place, value, predicted, std) = self.surrogate, comparison
        if surrogate.weight(max(value, predicted)) < SMALLEST_WEIGHT:
            return self
        noise = surrogate.variance_
        is_uncertain = std > max(UNCERTAIN, UNCERTAIN_IN_NOISE * np.sqrt(noise))
        surprising = max(SURPRISING, SURPRISING_IN_SDS * np.sqrt(std**2 + noise))
        if not is_uncertain and comparison.error < surprising:
            return self
        with single_threaded_blas():
            updated = surrogate.updated(place, value)
        transitions = self.transitions.following(updated)
        # Values are predicted with the constant, log weights are measured without it.
        change = surrogate.constant_ - updated.constant_
        log_weights = self.log_weights.following(transitions.hamiltonian, change)
        return replace(self, surrogate=updated, transitions=transitions, log_weights=log_weights)


class Fit(NamedTuple):
    """A surrogate with its Hamiltonian and its warp, before moves on it are learned."""

    surrogate: Any
    hamiltonian: SurrogateHamiltonian
    warp: ScaleWarp | Identity = IDENTITY


class RepeatedFit(ABC):
    """Makes surrogates of a chain's history, and learns moves on them.

    ``learn_moves(hamiltonian, states, rng)`` returns moves, given states (n, d) in the surrogate's
    coordinates. `n_fits` counts the fits that made a surrogate. `failure` is the last fit's error,
    or None.
    """

    # Share of the chain that fits use; the rest is burn-in. From .5 to .8 all did equally well.
    RECENT_SHARE = 2 / 3
    # Whether learning makes a new surrogate.
    makes_surrogates = True

    def __init__(self, learn_moves):
        self.learn_moves = learn_moves
        self.n_fits = 0
        self.failure = None

    @property
    def complaint(self):
        return (
            f"A surrogate could not be fitted and the one before it stays in use: {self.failure} "
            "Tune for longer, or start nearer the posterior's mass: initvals={...}."
        )

    @abstractmethod
    def _fit(self, history, last, rng):
        """Return a :class:`Fit`, or None where the history is too short for one."""

    def n_recent(self, history):
        return int(np.ceil(self.RECENT_SHARE * len(history)))

    def recent(self, history):
        """Return the states that a fit uses, (n, d), and their log densities, (n,)."""
        n = self.n_recent(history)
        return history.states.last(n), history.log_densities.last(n)[:, 0]

    def fit(self, history, last, rng):
        """Return the :class:`FittedSurrogate` of a history, or None if it failed or is too early.

        `last` is the surrogate in use or None; neither it nor the history is changed. `n_fits` and
        `failure` are updated in place.
        """
        self.failure = None
        with single_threaded_blas():
            try:
                fit = self._fit(history, last, rng)
            except (ValueError, np.linalg.LinAlgError) as error:
                self.failure = f"{type(error).__name__}: {error}"
                return None
            if fit is None:
                return None
            self.n_fits += self.makes_surrogates
            return self._with_moves(fit, *self.recent(history), rng)

    def _with_moves(self, fit, positions, log_densities, rng):
        """Return the fit with moves and log weights learned from states, (n, d) and (n,)."""
        states = fit.warp.forward(positions)
        log_densities = log_densities + fit.warp.log_volume(positions)
        moves = self.learn_moves(fit.hamiltonian, states, rng)
        weights = LogWeights.of(moves.hamiltonian, states, log_densities)
        return FittedSurrogate(fit.surrogate, fit.warp, moves, weights)


class GivenSurrogate(RepeatedFit):
    """A given fitted surrogate: only moves on it are learned."""

    makes_surrogates = False

    def __init__(self, surrogate, learn_moves):
        super().__init__(learn_moves)
        self.given = Fit(surrogate, whitened_hamiltonian(surrogate))

    def __deepcopy__(self, memo):
        # PyMC copies a step's state before a chain; not all surrogates can be copied. What is given
        # is never written to: the copy shares it.
        return copy(self)

    def _fit(self, history, last, rng):
        return self.given

    def begin(self, position, log_density, rng):
        """Return the surrogate with moves learned from the chain's first state and log density."""
        with single_threaded_blas():
            states = position[None, :], np.array([log_density])
            return self._with_moves(self.given, *states, rng)


def fisher_information(gradients, covariance, weights=None):
    """Return E[grad f grad f'] of gradients (n, d), shrunk towards the inverse covariance (d, d).

    The inverse covariance counts as d states beside the n. `weights` (n,) are ones by default.
    """
    n, d = gradients.shape
    share = d / (d + n)
    weighted = (1 - share) * gradients.T
    total = n
    if weights is not None:
        weighted, total = weighted * weights, weights.sum()
    return weighted @ gradients / total + share * np.linalg.inv(covariance)
