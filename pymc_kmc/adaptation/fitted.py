r"""Surrogates that are fitted again and again along a chain, each with the moves learned on it.

A surrogate f makes proposals in proportion to its density, which are accepted by the log weight
:math:`w(x) = \log\pi(x) - f(x)`. Where f is far too low, :math:`w(x)` is much larger than usual and
hardly any proposal is accepted (an independence sampler's expected stay is :math:`e^{w}`): the
chain comes there rarely, and stays for long. Random walks, whose acceptance does not depend on f,
lead out.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pymc_kmc.dynamics import SurrogateHamiltonian
from pymc_kmc.numerics.coordinates import IDENTITY, Identity, ScaleWarp
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.numerics.samples import thinned

# A value is learned at once where its prediction had a standard deviation above this, in nats,
UNCERTAIN = 0.3
# and above this many standard deviations of the noise,
UNCERTAIN_IN_NOISE = 0.5
# or where it is farther from its prediction than this, in nats,
SURPRISING = 0.5
# and than this many standard deviations.
SURPRISING_IN_SDS = 3.0
# Values of less weight in a fit are left to the next one.
SMALLEST_WEIGHT = 0.2
# Probability of a random walk where the target is very far above its surrogate.
LARGEST_SHARE = 0.7
# Largest number of states that are looked at.
MOST_STATES = 200
# Level of the quantile one standard deviation below a Gaussian's median.
BELOW_ONE_SD = 0.1587


class LogWeights(NamedTuple):
    """The median of the log weights of a chain's states, and their spread: a scale for others.

    `spread` is the standard deviation of the log weights below the median: noise, or the
    surrogate's errors. A chain that sits where the surrogate is too low has most of its states
    above the median.
    """

    hamiltonian: SurrogateHamiltonian
    median: float = 0.0
    spread: float = 0.0

    # A log weight is large this many nats above the median,
    ONSET = 1.0
    # and this many spreads.
    SPREADS = 2.0
    # Width of the ramp, in nats, from a large log weight to a very large one.
    RAMP = 3.0

    @classmethod
    def of(cls, hamiltonian, states, log_densities):
        """Return the log weights of states (n, d) with the target's `log_densities` (n,)."""
        pairs = zip(thinned(states, MOST_STATES), thinned(log_densities, MOST_STATES), strict=True)
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
        """Return 0 where a state's log weight is usual, 1 where it is very large, or between."""
        onset = self.ONSET + self.SPREADS * self.spread
        excess = (self(position, log_density) - onset) / self.RAMP
        # In the first steps from a bad start a log weight may be -inf or NaN.
        return min(1.0, max(0.0, excess)) if excess == excess else 0.0

    def following(self, hamiltonian, change):
        """Return the log weights on an updated surrogate, its constant lower by `change`."""
        return self._replace(hamiltonian=hamiltonian, median=self.median - change)


class Comparison(NamedTuple):
    """The target's log density `value` at a `place` (d,), beside the surrogate's prediction.

    Both are in the surrogate's coordinates; `std` is the prediction's standard deviation.
    """

    place: np.ndarray
    value: float
    predicted: float
    std: float

    @property
    def error(self):
        """Distance of the value from its prediction, in nats."""
        return abs(self.value - self.predicted)


@dataclass(frozen=True)
class FittedSurrogate:
    """A surrogate with the moves learned on it.

    A value that is never changed, nor is its surrogate: fitting and learning return a new one, and
    a rejected fit leaves the old one in use.

    Attributes
    ----------
    surrogate : Surrogate
        Fitted.
    warp : ScaleWarp or Identity
        The coordinates that it is in.
    transitions : SurrogateTransitions or Trajectories
        Step size and lengths of moves on it, with its `hamiltonian`.
    log_weights : LogWeights
        Of the chain's states.
    """

    surrogate: Any
    warp: ScaleWarp | Identity
    transitions: Any
    log_weights: LogWeights

    @property
    def hamiltonian(self):
        """The Hamiltonian of trajectories on the surrogate."""
        return self.transitions.hamiltonian

    def in_coordinates(self, positions, log_densities):
        """Return positions, (d,) or (n, d), and log densities in the surrogate's coordinates."""
        return self.warp.forward(positions), log_densities + self.warp.log_volume(positions)

    def log_density(self, position, temperature=1.0):
        """Return the log density that moves on f / T leave invariant, at a position (d,)."""
        value = self.hamiltonian.log_density(self.warp.forward(position))
        return value / temperature - self.warp.log_volume(position)

    def random_walk_share(self, smallest, state):
        """Return the probability of a random walk at a state, an `Evaluation`.

        It is `smallest` where the target is above the surrogate as usual; at 0 there are no random
        walks.
        """
        if not 0 < smallest < LARGEST_SHARE:
            return smallest
        excess = self.excess(state.position, state.log_density)
        return smallest + (LARGEST_SHARE - smallest) * excess

    def excess(self, position, log_density):
        """Return how far the target is above the surrogate at a state, from 0, as usual, to 1."""
        return self.log_weights.excess(*self.in_coordinates(position, log_density))

    def weighed(self, positions, log_densities):
        """Return the same surrogate with the log weights of other states, (n, d) and (n,)."""
        weights = LogWeights.of(self.hamiltonian, *self.in_coordinates(positions, log_densities))
        return replace(self, log_weights=weights)

    def compare(self, position, log_density):
        """Return a :class:`Comparison` of the target's log density at `position` (d,)."""
        place, value = self.in_coordinates(position, log_density)
        return Comparison(place, value, *self.surrogate.predict(place, return_std=True))

    def learn(self, comparison):
        """Return the surrogate after learning from a finite value, where it was uncertain or wrong.

        The surrogate itself is returned where the value can wait for the next fit.
        """
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
    """A surrogate before moves on it are learned.

    `hamiltonian` is its log density with a momentum, `warp` the coordinates that it is in.
    """

    surrogate: Any
    hamiltonian: SurrogateHamiltonian
    warp: ScaleWarp | Identity = IDENTITY


class RepeatedFit(ABC):
    """Makes surrogates of a chain's history, and learns moves on them.

    ``learn_moves(hamiltonian, states, rng)`` returns the moves, learned from states (n, d) in the
    surrogate's coordinates. `n_fits` counts the fits that made a surrogate; `failure` is the reason
    why the last fit was given up, or None.
    """

    # Share of the chain's states that is learned from: the rest is burn-in. Any share from .5 to .8
    # did equally well.
    RECENT_SHARE = 2 / 3
    # Whether learning makes a new surrogate.
    makes_surrogates = True

    def __init__(self, learn_moves):
        self.learn_moves = learn_moves
        self.n_fits = 0
        self.failure = None

    @property
    def complaint(self):
        """The warning's text where the last fit was given up."""
        return (
            f"A surrogate could not be fitted and the one before it stays in use: {self.failure} "
            "Tune for longer, or start nearer the posterior's mass: initvals={...}."
        )

    @abstractmethod
    def _fit(self, history, last, rng):
        """Return a :class:`Fit`, or None where the history is too short for one."""

    def n_recent(self, history):
        """Return the number of last states that are learned from."""
        return int(np.ceil(self.RECENT_SHARE * len(history)))

    def recent(self, history):
        """Return the states that are learned from, (n, d), and their log densities, (n,)."""
        n = self.n_recent(history)
        return history.states.last(n), history.log_densities.last(n)[:, 0]

    def fit(self, history, last, rng):
        """Return a :class:`FittedSurrogate` of a history.

        `last`, the surrogate in use or None, and the history are not changed. Counters and
        `failure` are updated in place. None is returned where no surrogate could be fitted;
        `failure` says why if that was an error.
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

    def __init__(self, surrogate, hamiltonian, learn_moves):
        super().__init__(learn_moves)
        self.given = Fit(surrogate, hamiltonian)

    def _fit(self, history, last, rng):
        return self.given

    def begin(self, position, log_density, rng):
        """Return the surrogate with moves learned from the chain's first state and log density."""
        with single_threaded_blas():
            states = position[None, :], np.array([log_density])
            return self._with_moves(self.given, *states, rng)


def fisher_information(gradients, covariance, weights=None):
    """Return E[grad f grad f'] (d, d) over a chain's states, plus the inverse of their covariance.

    The inverse covariance counts as d states beside the n of the gradients (n, d); `weights` (n,)
    are ones by default. The metric in which draws and gradients have equal spread is the geometric
    mean of the covariance and of this matrix's inverse.
    """
    n, d = gradients.shape
    share = d / (d + n)
    weighted = (1 - share) * gradients.T
    total = n
    if weights is not None:
        weighted, total = weighted * weights, weights.sum()
    return weighted @ gradients / total + share * np.linalg.inv(covariance)
