r"""Moves by a posterior that was learned before the chain: to its draws, and between its modes.

Without jumps between modes a chain would stay in its first one, and the modes' shares would be
those of the starts. A jump maps a point of mode i to mode j, in units of the modes' covariances,

.. math:: T_{ij}(x) = m_j + L_j L_i^{-1} (x - m_i) .

Mode i is drawn with the probability :math:`r_i(x) \propto N(x; m_i, L_i L_i^\top)`, and mode j is
any other one. Accepted with probability

.. math::

    \min\left(1, \frac{\pi(x')}{\pi(x)} \frac{r_j(x')}{r_i(x)} \frac{|L_j|}{|L_i|}\right),

x' = T_ij(x), the jump is in detailed balance, because T_ji is its inverse (Tjelmeland and Hegstad,
2001; the ratio is that of Green, 1995). On the surrogate a jump is one more transition of a
sequence, and costs no evaluation.

References
----------
Green, P. J. (1995). Reversible jump Markov chain Monte Carlo computation and Bayesian model
determination. *Biometrika* 82, 711-732.

Tjelmeland, H. and Hegstad, B. K. (2001). Mode jumping proposals in MCMC. *Scandinavian Journal of
Statistics* 28, 205-223.
"""

import numpy as np

from pymc_kmc.dynamics import SequenceEnd
from pymc_kmc.moves.base import Move, MoveKind, Proposal
from pymc_kmc.moves.transitions import SequenceSize, SurrogateTransition

# A sequence before and after a jump: the two have the longest one's length together.
HALF = SequenceSize(MoveKind.MODE_TRANSITION, 0.5, 1.0)


class ModeJump(Move):
    """A jump to another mode of the learned posterior, by ModeMaps."""

    kind = MoveKind.MODE_JUMP

    def __init__(self, maps):
        self.maps = maps

    def propose(self, current, fitted, rng):
        position, log_ratio = self.maps.jump(current.position[None], rng)
        return Proposal(position[0], self, float(log_ratio[0]))


class ModeTransition(SurrogateTransition):
    """Two sequences on the surrogate with a jump between them, accepted by the surrogate.

    Each leaves the surrogate's density invariant and is reversible. The sequences are alike, so
    that the whole is reversible too.
    """

    def __init__(self, maps, is_noisy):
        super().__init__(HALF, is_noisy)
        self.maps = maps

    def _propose_from(self, place, fitted, rng):
        before = self._sequence(place, fitted, rng)
        middle, log_ratio = self._jump(before.position, fitted, rng)
        after = self._sequence(middle, fitted, rng)
        return self._proposal(
            SequenceEnd(
                after.position,
                before.log_ratio + log_ratio + after.log_ratio,
                before.n_steps + after.n_steps,
                before.moved or after.moved or middle is not before.position,
            ),
            fitted,
        )

    def _jump(self, place, fitted, rng):
        """Return the place (d,) after a jump, and minus the change of the surrogate."""
        warp = fitted.warp
        position, log_ratio = self.maps.jump(warp.backward(place)[None], rng)
        end = warp.forward(position[0])
        change = fitted.hamiltonian.log_density(end) - fitted.hamiltonian.log_density(place)
        volumes = warp.log_volume(end) - warp.log_volume(place)
        is_accepted = np.log(rng.uniform()) < change - volumes + log_ratio[0]
        return (end, -change) if is_accepted else (place, 0.0)


class LearnedDraw(Move):
    """A move to a draw of the learned posterior at a temperature above 1, accepted if finite.

    `positions` (n, d) are dispersed, so that chains don't agree by construction. `ready` is the
    next Proposal if it was evaluated with others.
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
    """A move that leaves a tuning chain in place, at no cost, when nothing is left to learn."""

    kind = MoveKind.STAY
    is_draw = False

    def propose(self, current, fitted, rng):
        return Proposal(current.position, self, log_ratio=-np.inf)
