r"""Moves, their proposals, and mixtures of moves.

A move proposes the chain's next position. A move that makes draws satisfies detailed balance:
accepted with probability :math:`\min(1, \pi(x') / \pi(x) \cdot e^{r})`, where r is the proposal's
`log_ratio`, it leaves the target invariant. So does a mixture of such moves with fixed
probabilities. If a probability p depends on the state, the acceptance ratio has the additional
factor p(x') / p(x), and detailed balance still holds (Green, 1995, section 4.1).

References
----------
Green, P. J. (1995). Reversible jump Markov chain Monte Carlo computation and Bayesian model
determination. *Biometrika* 82, 711-732.

Pasarica, C. and Gelman, A. (2010). Adaptively scaling the Metropolis algorithm using expected
squared jumped distance. *Statistica Sinica* 20, 343-364.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from math import exp, log
from typing import Any, NamedTuple

import numpy as np

from pymc_kmc.model.log_density import Evaluation


class MoveKind(IntEnum):
    """The kinds of moves, with the numbers of the statistic `kmc_move`."""

    RANDOM_WALK = 0
    TEMPERED_TRANSITION = 1
    AUXILIARY = 2  # while tuning; never a draw
    ACTIVE_LEARNING = 3  # while tuning; never a draw
    SHORT_TRANSITION = 4  # one transition on the surrogate, .3 of a full trajectory
    SINGLE_TRANSITION = 5
    FEW_TRANSITIONS = 6  # a quarter of the longest sequence
    MANY_TRANSITIONS = 7
    LONG_TRAJECTORY = 8
    SHORT_TRAJECTORY = 9
    LOCAL_RANDOM_WALK = 10
    LANGEVIN = 11
    NOISE_PROBE = 12  # while tuning; never a draw
    LEARNED_DRAW = 13  # while tuning: to a draw of what was learned before the chain
    STAY = 14  # while tuning: nothing is evaluated
    MODE_JUMP = 15  # to another mode of what was learned before the chain
    MODE_TRANSITION = 16  # many transitions, with such a jump on the surrogate in their middle
    EXCHANGE = 17  # with a partner on the surrogate, evaluated with others at once


class Proposal(NamedTuple):
    """A proposed position, and the part of the acceptance ratio that isn't the target's.

    Attributes
    ----------
    position : ndarray, shape (d,)
    move : Move
        The move that made the proposal.
    log_ratio : float
        Log of the acceptance ratio without pi(x') / pi(x), a Hastings ratio or the change of
        kinetic energy. ``-inf`` rejects without an evaluation.
    evaluation : Evaluation or None
        The target at the proposal, if it is evaluated already.
    details : object
        Data that the move will learn from.
    choice : Choice or None
        The mixture's choice of this move, if its probability depends on the state.
    renewed : Evaluation or None
        The evaluation whose noise is renewed; by default that of the chain's state.
    step_size, n_steps, n_transitions, kinetic_energy, diverging, seconds
        Statistics: leapfrog step size or a random walk's scale, numbers of leapfrog steps and of
        transitions on the surrogate, kinetic energy of the drawn momentum, whether the trajectory
        left the finite numbers, and the proposal's time.
    """

    position: np.ndarray
    move: "Move"
    log_ratio: float = 0.0
    evaluation: Evaluation | None = None
    details: Any = None
    choice: "Choice | None" = None
    renewed: Evaluation | None = None
    step_size: float = 0.0
    n_steps: int = 0
    n_transitions: int = 0
    kinetic_energy: float = np.nan
    diverging: bool = False
    seconds: float = 0.0

    @property
    def is_draw(self):
        """Whether the chain may accept it; other proposals are evaluated to learn from them."""
        return self.move.is_draw

    def acceptance_rate(self, start, end):
        """Return the probability of accepting `end`; 0 for None, no draw, or an undefined ratio."""
        if not self.is_draw or end is None or not -np.inf < end.log_density < np.inf:
            return 0.0
        log_ratio = end.log_density - start.log_density + self.log_ratio
        log_ratio += self.log_choice_ratio(end)
        return exp(min(0.0, log_ratio)) if log_ratio == log_ratio else 0.0

    def log_choice_ratio(self, end):
        """Return the log ratio of the move's choice probabilities at `end` and at the state."""
        if self.choice is None:
            return 0.0
        probability = self.choice.mixture.probability(self.choice.row, end)
        return log(probability / self.choice.probability) if probability > 0.0 else -np.inf


class Outcome(NamedTuple):
    """The outcome of a proposal.

    `evaluation` is the target at the proposal, None if it was rejected without an evaluation.
    `acceptance_rate` is 0 for proposals that can't be draws. `start` and `end` are the target at
    the chain's state before and after.
    """

    proposal: Proposal
    evaluation: Evaluation | None
    acceptance_rate: float
    start: Evaluation
    end: Evaluation

    @property
    def accepted(self):
        return self.end is not self.start


class Move(ABC):
    """One way to move a chain.

    A move is part of a step's learned state, changed only by its own `learn` during an iteration; a
    new chain gets new moves. `is_draw` is whether the chain may accept its proposals.
    """

    kind: MoveKind
    is_draw = True

    @abstractmethod
    def propose(self, current, fitted, rng):
        """Make a proposal from `current`, the :class:`Evaluation` of the chain's state, or none.

        `fitted` is the step's FittedSurrogate, or None; it is not changed. A move with nothing to
        propose returns None, and another move then makes a proposal.
        """

    def learn(self, outcome, rng):  # noqa: B027  (some moves learn nothing)
        """Learn from the :class:`Outcome` of a proposal of its own, while adaptation lasts."""


class WarpedMove(Move):
    """A move in the learned coordinates; x' = T(y') has the ratio |T'(y')| / |T'(y)| of volumes."""

    def propose(self, current, fitted, rng):
        origin = self._origin(current)
        if fitted is None:
            return self._propose_from(origin, None, rng)
        warp = fitted.warp
        place = warp.forward(origin)
        proposal = self._propose_from(place, fitted, rng)
        end = proposal.position
        change = warp.log_volume(end) - warp.log_volume(place)
        return proposal._replace(
            position=origin if end is place else warp.backward(end),
            log_ratio=proposal.log_ratio + change / self._temperature,
        )

    # Inverse of the power of the target that accepts the proposal.
    _temperature = 1.0

    def _origin(self, current):
        """Return the position (d,) that the proposal starts from."""
        return current.position

    @abstractmethod
    def _propose_from(self, place, fitted, rng):
        """Return a proposal from `place` (d,), both in the learned coordinates."""


class Choice(NamedTuple):
    """A mixture's choice of a row's move; `probability` lacks factors that all states share."""

    mixture: "MoveMixture"
    row: int
    probability: float


class Row(NamedTuple):
    """A move of a mixture, or a OneOf, with its share.

    The share is the move's probability if no row before was chosen, or a function of an
    :class:`Evaluation` that returns it. At 1 no random number is drawn.
    """

    move: Any
    share: float | Callable[[Evaluation], float]


class MoveMixture:
    """Moves that are tried one after the other, each with a probability; the last has share 1."""

    def __init__(self, *rows):
        self.rows = rows

    def propose(self, current, fitted, rng):
        """Return the proposal of a chosen move; arguments as of :meth:`Move.propose`."""
        probability, depends_on_state = 1.0, False
        for i, (move, share) in enumerate(self.rows):
            if callable(share):
                depends_on_state, share = True, share(current)
                taken = rng.uniform() < share
                probability *= share if taken else 1.0 - share
            else:
                taken = share == 1.0 or rng.uniform() < share
            if not taken:
                continue
            proposal = move.propose(current, fitted, rng)
            if proposal is None:
                continue
            if depends_on_state:
                proposal = proposal._replace(choice=Choice(self, i, probability))
            return proposal
        raise RuntimeError("no move of the mixture has made a proposal")

    def probability(self, row, state):
        """Return a row's probability at a state, without factors that all states share."""
        probability = 1.0
        for i, (_, share) in enumerate(self.rows[: row + 1]):
            if callable(share):
                probability *= share(state) if i == row else 1.0 - share(state)
        return probability


class OneOf:
    """A choice among moves, by acceptance on the target and squared jumps on the surrogate.

    While tuning, the `probabilities` (n_moves,) follow a power of each move's expected squared jump
    an evaluation: jump times acceptance probability (Pasarica and Gelman, 2010). Squared jumps on
    the target are more informative, but too variable under noise. The mixture leaves the target
    invariant at any fixed probabilities. `recent` lists the acceptance probabilities since the last
    fit began.
    """

    # Power of the expected jump: moves differ little where the surrogate is exact.
    POWER = 12.0
    # Smallest probability of a move, so that one that becomes good is noticed.
    SMALLEST = 0.005
    # Upper bound of squared jumps, 1 for independent draws: more makes draws no more independent.
    INDEPENDENT_JUMP = 0.97
    # Lower bound of squared jumps.
    LEAST = 1e-3
    # Weight, after a refit, of counts before it: the moves have changed.
    REFIT_MEMORY = 0.3

    def __init__(self, moves):
        self.moves, n = tuple(moves), len(moves)
        self.counts, self.acceptances, self.jumps = np.zeros(n), np.zeros(n), np.ones(n)
        self.recent = []
        self._update()

    def _update(self):
        rates = (self.acceptances + 0.5) / (self.counts + 1.0)
        shares = (rates * np.clip(self.jumps, self.LEAST, self.INDEPENDENT_JUMP)) ** self.POWER
        free = 1.0 - self.SMALLEST * len(shares)
        self.probabilities = self.SMALLEST + free * shares / shares.sum()

    def propose(self, current, fitted, rng):
        cumulative = np.cumsum(self.probabilities)
        drawn = np.searchsorted(cumulative[:-1], rng.uniform() * cumulative[-1], side="right")
        return self.moves[drawn].propose(current, fitted, rng)

    def learn(self, outcome):
        """Learn from an outcome, in place, if one of the moves made it."""
        if outcome.proposal.move in self.moves:
            move = self.moves.index(outcome.proposal.move)
            self.counts[move] += 1.0
            self.acceptances[move] += outcome.acceptance_rate
            self.recent.append(outcome.acceptance_rate)
            self._update()

    def renewed(self, jumps):
        """Return the choice on a new surrogate, given squared jumps, 1 for independent draws."""
        renewed = OneOf(self.moves)
        renewed.jumps = np.asarray(jumps)
        renewed.counts = self.REFIT_MEMORY * self.counts
        renewed.acceptances = self.REFIT_MEMORY * self.acceptances
        renewed._update()
        return renewed
