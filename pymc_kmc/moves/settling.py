"""What a chain does with a posterior that was learned before it, while it tunes."""

import numpy as np

from pymc_kmc.moves.base import Move, MoveKind, Proposal


class LearnedDraw(Move):
    """Takes the chain to a dispersed draw of what was learned, whatever the target says there.

    Parameters
    ----------
    positions : ndarray, shape (n, d)
        Draws at a temperature above 1, so that chains that agree have learned to.
    """

    kind = MoveKind.LEARNED_DRAW

    def __init__(self, positions):
        self.positions = positions

    def propose(self, current, fitted, rng):
        position = self.positions[rng.integers(len(self.positions))]
        return Proposal(position, self, log_ratio=np.inf)


class Stay(Move):
    """Leaves the chain where it is, at no cost: there is nothing more to be learned."""

    kind = MoveKind.STAY
    is_draw = False

    def propose(self, current, fitted, rng):
        return Proposal(current.position, self, log_ratio=-np.inf)
