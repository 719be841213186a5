r"""The random walk of adaptive Metropolis: :math:`x' \sim N(x, c^2 s^2 \frac{2.38^2}d \Sigma)`.

Scale s and covariance :math:`\Sigma` are learned
(:class:`~pymc_kmc.adaptation.random_walk.RandomWalkAdaptation`). The factor c is 1 or random. The
proposal is symmetric for each c.
"""

import numpy as np

from pymc_kmc.adaptation.random_walk import RandomWalkAdaptation
from pymc_kmc.moves.base import MoveKind, Proposal, WarpedMove

# Two steps of half the variance have that of one step.
SQRT_HALF = 0.5**0.5


class RandomWalk(WarpedMove):
    """A Gaussian random walk in the learned coordinates; :meth:`learn` updates its scale in place.

    With a surrogate the scale has one of the `factors`, drawn uniformly. With `has_momentum` the
    energy of a momentum is drawn, only for statistics comparable with trajectories'.
    """

    kind = MoveKind.RANDOM_WALK

    def __init__(self, adaptation: RandomWalkAdaptation, factors=(), has_momentum=False):
        self.adaptation = adaptation
        self.factors = tuple(factors)
        self.has_momentum = has_momentum

    def _propose_from(self, place, fitted, rng):
        factor = self._factor(fitted, rng)
        scale = self.adaptation.scale
        return Proposal(
            place + self._step(factor, rng),
            self,
            details=factor,
            step_size=factor * scale,
            kinetic_energy=0.5 * rng.chisquare(len(place)) if self.has_momentum else np.nan,
        )

    def _factor(self, fitted, rng):
        if self.factors and fitted is not None:
            return self.factors[rng.integers(len(self.factors))]
        return 1.0

    def _step(self, factor, rng):
        step = self.adaptation.factor @ rng.standard_normal(len(self.adaptation.factor))
        return factor * self.adaptation.optimal_scale * self.adaptation.scale * step

    def around(self, current, n, fitted, rng):
        """Return n proposals, exchangeable with the chain's state, around a centre near it.

        The centre is half a step's variance from the state, and each proposal as far from the
        centre.
        """
        factor, warp = self._factor(fitted, rng), fitted.warp
        centre = warp.forward(current.position) + SQRT_HALF * self._step(factor, rng)
        size = factor * self.adaptation.scale
        ends = [centre + SQRT_HALF * self._step(factor, rng) for _ in range(n)]
        return [Proposal(warp.backward(end), self, step_size=size) for end in ends]

    def learn(self, outcome, rng):
        """Adapt the scale by proposals of the full scale."""
        if outcome.proposal.details == 1.0:
            self.adaptation.scale_adaptation.update(outcome.acceptance_rate)
