r"""Partners of a chain: places on the surrogate that are evaluated all at once.

Beside the chain's state x, places :math:`z_1, \dots, z_N` move on the surrogate f. The joint target
is :math:`\pi(x) \prod_j e^{f(z_j)}`. In a sweep every :math:`z_j` makes transitions
(:mod:`pymc_kmc.moves.transitions`), which are reversible with respect to :math:`e^f` and evaluate
nothing. The target is evaluated at all of them at once. Then x exchanges places with :math:`z_1`,
:math:`z_2` and so on in turn, each with probability

.. math:: \min\left(1, \frac{\pi(z_j)}{\pi(x)} e^{f(x) - f(z_j)}\right).

Each exchange is in detailed balance with the joint target, a swap of two coordinates being its own
inverse. So x has the law :math:`\pi`, whatever f is. Under noise an estimate belongs to its place:
the extended target is :math:`\pi(x) \hat L(x, u) q(u) \prod_j e^{f(z_j)} q(u_j)`, the noise
:math:`u_j` is drawn anew when :math:`z_j` has moved, and x and u are exchanged together.

Tempered partners move on f / T. Near partners replace random walks: given a centre :math:`c \sim
N(x, \Sigma / 2)`, the places :math:`y_k \sim N(c, \Sigma / 2)` and x have densities that are
symmetric in x and :math:`y_k`, and the exchange has the ratio :math:`\pi(y_k) / \pi(x)`
(Tjelmeland, 2004). All this holds in the learned coordinates, whose volumes are in the ratios. The
kinds of a sweep's partners don't depend on x.

Two groups of partners take turns: workers evaluate one while x exchanges with the other, and none
waits for a sweep's slowest evaluation. Near partners depend on x: they begin a sweep, and are
evaluated before the other group. A jump to another mode (:mod:`pymc_kmc.moves.learned`) may take
their place. Near partners and x are exchangeable only while x moves by exchanges alone: once
another step has moved x, there are none any more.

References
----------
Tjelmeland, H. (2004). Using all Metropolis-Hastings proposals to estimate mean values. Technical
report, Norwegian University of Science and Technology.
"""

from collections import deque

import numpy as np

from pymc_kmc.moves.base import Move


class Partner(Move):
    """A place on the surrogate f / T, and the exchange with the chain's; updated in place.

    `kind` is that of the exchange, `temperature` is T, `last` the last Proposal on the surrogate,
    and `evaluation` the target at its place.
    """

    def __init__(self, kind, position, temperature=1.0):
        self.kind, self.position, self.temperature = kind, position, temperature
        self.last = self.evaluation = None

    def go(self, move, fitted, rng):
        """Move by a Move, or MoveMixture, that leaves f / T invariant; return the partner."""
        self.last = move.propose(self, fitted, rng)
        self.position = self.last.position
        return self

    def propose(self, current, fitted, rng):
        places = current.position, self.evaluation.position
        start, end = [self._log_density(place, fitted) for place in places]
        return self.last._replace(
            position=places[1],
            move=self,
            log_ratio=start - end,
            evaluation=self.evaluation,
        )

    def _log_density(self, position, fitted):
        return fitted.log_density(position, self.temperature)

    def learn(self, outcome, rng):
        if outcome.accepted:
            self.position = outcome.start.position


class NearPartner(Partner):
    """A place near the chain's, the end of a random walk's Proposal."""

    def __init__(self, proposal):
        super().__init__(proposal.move.kind, proposal.position)
        self.last = proposal

    def _log_density(self, position, fitted):
        return -fitted.warp.log_volume(position)


class JumpPartner(NearPartner):
    """The end of a jump from the chain's place, a ModeJump's Proposal."""

    def propose(self, current, fitted, rng):
        return self.last._replace(move=self, evaluation=self.evaluation)


class Sweeps:
    """The partners of a chain, as many as are evaluated at once; updated in place.

    `groups` are pairs of lists of n :class:`Partner` s each, usual and tempered, which take turns.
    `moves` are the moves of either, `random_walk` proposes near ones, and `jump` is a ModeJump or
    None. `waiting` are those whose exchange is to come. `left_at` (d,) is where the last iteration
    left the chain, None before the first; `is_alone` says whether no other step has moved it since.
    """

    def __init__(self, groups, moves, random_walk, jump=None):
        self.groups, self.moves = deque(groups), moves
        self.random_walk, self.jump = random_walk, jump
        self.waiting, self.ahead = deque(), deque()
        self.conditions = b""
        self.left_at, self.is_alone = None, True

    def notice(self, position):
        """Drop the near partners for good if another step has moved the chain to `position`."""
        if self.left_at is not None and not np.array_equal(position, self.left_at):
            self.is_alone = False
            self.waiting = deque(p for p in self.waiting if not isinstance(p, NearPartner))

    def begin(self, current, fitted, shares, rng, ask=lambda position: None, jumps=0.0):
        """Begin a sweep; return the positions (d,) at which the target is to be evaluated.

        `shares` are those of near, tempered and usual partners. `jumps` is that of jumps, at most
        one a sweep. ``ask(position)`` is called as soon as a position is known, also of the next
        sweep.
        """
        first = []
        while len(self.ahead) < len(self.groups):
            sizes = rng.multinomial(len(self.groups[0][0]), shares)
            if not first:
                first = self._around(current, sizes, jumps, fitted, rng)
                for partner in first:
                    ask(partner.position)
            self.ahead.append(self._moved(sizes[1:], fitted, rng, ask))
        self.waiting.extend(first + self.ahead.popleft())
        return self._positions

    def _around(self, current, sizes, jumps, fitted, rng):
        """Return the partners that depend on x, near ones or a jump; update `sizes` (3,)."""
        if sizes[0]:
            return list(map(NearPartner, self.random_walk.around(current, sizes[0], fitted, rng)))
        if self.jump is None or sizes[2] == 0 or rng.uniform() >= jumps * sizes.sum():
            return []
        sizes[2] -= 1
        return [JumpPartner(self.jump.propose(current, fitted, rng))]

    def begin_first(self, n, fitted, rng, ask):
        """Begin with a sweep of n usual partners, and none ahead; else as :meth:`begin`."""
        self.waiting.extend(self._moved((0, n), fitted, rng, ask))
        return self._positions

    @property
    def _positions(self):
        return [partner.position for partner in self.waiting]

    def _moved(self, sizes, fitted, rng, ask):
        usual, tempered = self.groups[0]
        self.groups.rotate(-1)
        moved = []
        for partners, move, n in zip((tempered, usual), self.moves[::-1], sizes, strict=True):
            for partner in partners[:n]:
                ask(partner.go(move, fitted, rng).position)
                moved.append(partner)
        return moved

    def give(self, evaluations, conditions):
        """Take the Evaluations at these positions, made under the target's `conditions`."""
        self.conditions = conditions
        for partner, evaluation in zip(self.waiting, evaluations, strict=True):
            partner.evaluation = evaluation

    def next(self, target):
        """Return the next partner, evaluated anew, under its noise, if the target has changed."""
        partner = self.waiting.popleft()
        if self.conditions != target.conditions:
            evaluation = partner.evaluation
            partner.evaluation = target.evaluate(evaluation.position, evaluation.noise)
        return partner
