r"""Moves by many transitions on a surrogate, for one evaluation of the target.

A proposal is the end of a sequence of HMC transitions that leave :math:`e^{f(x) / T}` invariant
(:func:`pymc_kmc.dynamics.transition_sequence`). The sequence is reversible. Its end, accepted with
probability

.. math:: \min\left(1, \frac{\pi(x')}{\pi(x)} \exp\left(\frac{f(x) - f(x')}T\right)\right),

therefore leaves :math:`\pi` invariant. This is the surrogate transition method (Liu, 2001, section
9.4.3), a delayed acceptance (Christen and Fox, 2005) with any number of first stages. At T = 1 only
the surrogate's errors cause rejections. T > 1 reaches tails where f is too low.

References
----------
Christen, J. A. and Fox, C. (2005). Markov chain Monte Carlo using an approximation. *Journal of
Computational and Graphical Statistics* 14, 795-810.

Liu, J. S. (2001). *Monte Carlo Strategies in Scientific Computing*. Springer.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.dynamics import transition_sequence
from pymc_kmc.moves.base import MoveKind, Proposal, WarpedMove


class SequenceSize(NamedTuple):
    """The size of a sequence.

    `share` is the number of transitions as a share of the longest sequence's, 0 for a single one,
    `length` that of leapfrog steps as a share of a full trajectory's.
    """

    kind: MoveKind
    share: float
    length: float

    def numbers(self, transitions):
        """Return the numbers of transitions and of steps, given the SurrogateTransitions."""
        n_transitions = max(1, round(self.share * transitions.n_transitions))
        return n_transitions, max(1, round(self.length * transitions.n_steps))


SHORT = SequenceSize(MoveKind.SHORT_TRANSITION, 0.0, 0.3)
FEW = SequenceSize(MoveKind.FEW_TRANSITIONS, 0.25, 1.0)
TEMPERED = FEW._replace(kind=MoveKind.TEMPERED_TRANSITION)
# Short and single transitions are for when the surrogate is poor, few and many for when it is good.
KINDS = (
    SHORT,
    SequenceSize(MoveKind.SINGLE_TRANSITION, 0.0, 1.0),
    FEW,
    SequenceSize(MoveKind.MANY_TRANSITIONS, 1.0, 1.0),
)


class SurrogateTransition(WarpedMove):
    """A sequence of transitions on the surrogate f / T, whose temperature is T.

    A sequence that ends at its start is a rejection that costs nothing, or under noise a new
    estimate.
    """

    def __init__(self, size, is_noisy, temperature=1.0):
        self.size = size
        self.kind = size.kind
        self.is_noisy = is_noisy
        self.temperature = temperature

    def _propose_from(self, place, fitted, rng):
        return self._proposal(self._sequence(place, fitted, rng), fitted)

    def _sequence(self, place, fitted, rng):
        transitions = fitted.transitions
        numbers = self.size.numbers(transitions)
        return transition_sequence(
            transitions.hamiltonian, place, transitions.step_size, *numbers, rng, self.temperature
        )

    def _proposal(self, end, fitted):
        transitions = fitted.transitions
        is_evaluated = np.isfinite(end.log_ratio) and (end.moved or self.is_noisy)
        return Proposal(
            end.position,
            self,
            end.log_ratio if is_evaluated else -np.inf,
            step_size=transitions.step_size,
            n_steps=end.n_steps,
            n_transitions=self.size.numbers(transitions)[0],
        )
