"""Moves of a tuning chain whose posterior was learned before it."""

import numpy as np

from pymc_kmc.moves.base import Move, MoveKind, Proposal


class LearnedDraw(Move):
    """A move to a dispersed draw of the learned posterior, whatever the target is there.

    `positions` (n, d) are draws at a temperature above 1, so that the chains' agreement is learned,
    not built in. `ready` is the Proposal to be made next where it was evaluated with others.
    """

    kind = MoveKind.LEARNED_DRAW

    def __init__(self, positions):
        self.positions, self.ready = positions, None

    def propose(self, current, fitted, rng):
        if self.ready is not None:
            return self.ready
        position = self.positions[rng.integers(len(self.positions))]
        return Proposal(position, self, log_ratio=np.inf)


class Stay(Move):
    """A move that leaves the chain in place, at no cost, when there is nothing more to learn."""

    kind = MoveKind.STAY
    is_draw = False

    def propose(self, current, fitted, rng):
        return Proposal(current.position, self, log_ratio=-np.inf)
