r"""The random walk of adaptive Metropolis: :math:`x' \sim N(x, c^2 s^2 \frac{2.38^2}d \Sigma)`.

Scale s and covariance :math:`\Sigma` are learned
(:class:`~pymc_kmc.adaptation.random_walk.RandomWalkAdaptation`); the factor c is one, or drawn at
random from a few. The proposal is symmetric for each c.
"""

import numpy as np

from pymc_kmc.adaptation.random_walk import RandomWalkAdaptation
from pymc_kmc.moves.base import MoveKind, Proposal, WarpedMove


class RandomWalk(WarpedMove):
    """A Gaussian random walk in the learned coordinates.

    Parameters
    ----------
    adaptation : RandomWalkAdaptation
        Scale and covariance; updated in place by :meth:`learn`.
    factors : sequence of float
        Factors on the scale that are drawn with equal probability once there is a surrogate.
        Without any the scale is always the learned one.
    has_momentum : bool
        Whether the energy of a momentum is drawn. The move has no use for it: beside trajectories
        it keeps the statistics' energies comparable.
    """

    kind = MoveKind.RANDOM_WALK

    def __init__(self, adaptation: RandomWalkAdaptation, factors=(), has_momentum=False):
        self.adaptation = adaptation
        self.factors = tuple(factors)
        self.has_momentum = has_momentum

    def _propose_from(self, place, fitted, rng):
        factor = 1.0
        if self.factors and fitted is not None:
            factor = self.factors[rng.integers(len(self.factors))]
        step = self.adaptation.factor @ rng.standard_normal(len(place))
        scale = self.adaptation.scale
        return Proposal(
            place + factor * self.adaptation.optimal_scale * scale * step,
            self,
            details=factor,
            step_size=factor * scale,
            kinetic_energy=0.5 * rng.chisquare(len(place)) if self.has_momentum else np.nan,
        )

    def learn(self, outcome, rng):
        """Learn the scale from proposals of the full one."""
        if outcome.proposal.details == 1.0:
            self.adaptation.learn_scale(outcome.acceptance_rate)
