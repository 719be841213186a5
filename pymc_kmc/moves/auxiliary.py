r"""An auxiliary chain on a power of the target, :math:`\pi^{1/T}`, T > 1.

Its states are never draws. Its evaluations teach a surrogate the tails, where the surrogate of a
strongly curved target is tens of nats too low.
"""

import numpy as np

from pymc_kmc.moves.base import MoveKind, WarpedMove
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.moves.transitions import FEW, SHORT, SurrogateTransition


class AuxiliaryChain(WarpedMove):
    """One iteration of the auxiliary chain, by a random walk or a sequence on the surrogate.

    `temperature` is T. `state` is the auxiliary chain's :class:`Evaluation`, None before
    :meth:`begin`.
    """

    kind = MoveKind.AUXILIARY
    is_draw = False
    # Share of random walks, which don't depend on the surrogate.
    RANDOM_WALKS = 0.3

    def __init__(self, random_walk: RandomWalk, is_noisy, temperature):
        self.random_walk = random_walk
        sizes = SHORT, FEW
        self.transitions = [SurrogateTransition(size, is_noisy, temperature) for size in sizes]
        self._temperature = temperature
        self.state = None

    def begin(self, state):
        """Start the auxiliary chain at an :class:`Evaluation`, unless it has started."""
        if self.state is None:
            self.state = state

    def _origin(self, current):
        return self.state.position

    def _propose_from(self, place, fitted, rng):
        if rng.uniform() < self.RANDOM_WALKS:
            move = self.random_walk
        else:
            move = self.transitions[rng.integers(len(self.transitions))]
        proposal = move._propose_from(place, fitted, rng)
        return proposal._replace(move=self, details=(move, proposal.details))

    def learn(self, outcome, rng):
        """Accept or reject for the auxiliary chain, and adapt the random walk's scale in place."""
        evaluation, proposal = outcome.evaluation, outcome.proposal
        acceptance_rate = 0.0
        if evaluation is not None and evaluation.log_density < np.inf:
            change = evaluation.log_density - self.state.log_density
            log_ratio = change / self._temperature + proposal.log_ratio
            acceptance_rate = float(np.exp(min(0.0, log_ratio)))
        if rng.uniform() < acceptance_rate:
            self.state = evaluation
        move, details = proposal.details
        move.learn(
            outcome._replace(
                proposal=proposal._replace(details=details), acceptance_rate=acceptance_rate
            ),
            rng,
        )
