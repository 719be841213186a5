r"""One Hamiltonian trajectory on a surrogate, as in Algorithm 1 of the KMC paper.

Draw a momentum p ~ N(0, M), a step size and a number of leapfrog steps, each independently of x,
and follow :math:`H(x, p) = -f(x) + \frac12 p^\top M^{-1} p` from (x, p) to (x', p'). The leapfrog
map followed by a flip of the momentum is a volume-preserving involution for any f. The acceptance
probability of x' is therefore

.. math:: \min\left(1, \frac{\pi(x')}{\pi(x)}
          \exp\left(\tfrac12 p^\top M^{-1} p - \tfrac12 p'^\top M^{-1} p'\right)\right)

(Neal, 2011, section 2.3; Strathmann et al., 2015, Algorithm 1). A trajectory whose energy H changes
by more than a thousand has diverged and is rejected without an evaluation; the way back changes H
by as much, so that the target stays invariant.

References
----------
Neal, R. M. (2011). MCMC using Hamiltonian dynamics. In *Handbook of Markov Chain Monte Carlo*,
Chapman and Hall/CRC.

Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.
"""

import numpy as np

from pymc_kmc.dynamics import SHORTEST_SHARE, STEP_JITTER
from pymc_kmc.moves.base import Move, Proposal

# Change of energy, in nats, above which a trajectory has diverged, as in PyMC's NUTS and Stan.
LARGEST_ENERGY_CHANGE = 1000.0


class Trajectory(Move):
    """A trajectory on the surrogate, of a :class:`SequenceSize` of a single transition.

    `step_size` and `n_steps` are uniform between bounds (low, high), by default around learned
    ones.
    """

    def __init__(self, size, step_size=None, n_steps=None):
        self.size, self.kind = size, size.kind
        self.step_size = step_size
        self.n_steps = n_steps

    def propose(self, current, fitted, rng):
        learned = fitted.transitions
        hamiltonian = learned.hamiltonian
        metric = hamiltonian.metric
        sizes = self.step_size or learned.step_size * np.array(STEP_JITTER)
        numbers = self.n_steps or (SHORTEST_SHARE * learned.n_steps, learned.n_steps)
        step_size = rng.uniform(*sizes)
        low, high = (max(1, round(self.size.length * n)) for n in numbers)
        n_steps = int(rng.integers(low, high, endpoint=True))
        momentum = metric.draw_momentum(rng)
        end, end_momentum = hamiltonian.trajectory(current.position, momentum, step_size, n_steps)
        kinetic = metric.kinetic_energy(momentum)
        log_ratio = kinetic - metric.kinetic_energy(end_momentum)
        diverging = not np.isfinite(log_ratio)
        if not diverging:
            rise = hamiltonian.log_density(end) - hamiltonian.log_density(current.position)
            diverging = not abs(log_ratio + rise) <= LARGEST_ENERGY_CHANGE
        return Proposal(
            end,
            self,
            -np.inf if diverging else log_ratio,
            step_size=step_size,
            n_steps=n_steps,
            kinetic_energy=kinetic,
            diverging=diverging,
        )
