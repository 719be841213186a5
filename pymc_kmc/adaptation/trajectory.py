"""Step size and length of trajectories, learned on the surrogate alone.

Both come from trajectories that start at states of the chain and never evaluate the target. A step
size driven by the target's acceptance would answer the surrogate's errors, which no step size
cures, by shrinking until the chain stands still; here it answers the integrator's error only. The
number of steps is uniform between L / 3 and L. L is the length with the largest expected squared
jump of the coordinate (of the whitened states, and of their squares) that moves least (Pasarica and
Gelman, 2010, for the criterion).

References
----------
Hoffman, M. D. and Gelman, A. (2014). The No-U-Turn sampler. *Journal of Machine Learning
Research* 15, 1593-1623.

Pasarica, C. and Gelman, A. (2010). Adaptively scaling the Metropolis algorithm using expected
squared jumped distance. *Statistica Sinica* 20, 343-364.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.adaptation.jumps import Whitening
from pymc_kmc.adaptation.step_size import DualAveraging
from pymc_kmc.dynamics import SurrogateHamiltonian

# First step size: coordinates have about unit scale.
FIRST_STEP_SIZE = 0.5
# Bounds of the step size, in the same unit.
STEP_SIZE_BOUNDS = (1e-3, 2.0)
# Bounds of a trajectory's step size, in learned ones: fixed ones can resonate with the target
# (Neal, 2011, section 3.2).
STEP_SIZE_JITTER = (0.7, 1.1)
# Number of trajectories after which dual averaging has settled.
N_STEP_SIZE_TRAJECTORIES = 60
# Number of leapfrog steps in each of them: enough to show an instability.
N_STEP_SIZE_STEPS = 5
# Numbers of leapfrog steps that are compared.
LENGTHS = np.array([4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128])
# Number of trajectories by which they are compared.
N_LENGTH_TRAJECTORIES = 40
# Shortest trajectory, as a share of the longest.
SHORTEST = 1 / 3
# Ratio of squared jumps that a longer trajectory must promise: it costs more.
WORTH = 1.1


class Trajectories(NamedTuple):
    """Uniform bounds (low, high) of `step_size` and `n_steps` of trajectories on one surrogate.

    A value; `whitening` is the scale that the trajectories' jumps are measured on.
    """

    hamiltonian: SurrogateHamiltonian
    step_size: tuple
    n_steps: tuple
    whitening: Whitening

    def following(self, surrogate):
        """Return the same on a surrogate updated in its coordinates."""
        return self._replace(hamiltonian=self.hamiltonian.following(surrogate.parameters_))


class TrajectoryLearning(NamedTuple):
    """Learns the step size and the number of steps of trajectories where they are not given.

    `step_size` and `n_steps` are given bounds (low, high), or None. `target_acceptance` is the
    acceptance rate of trajectories if the surrogate were the target.
    """

    step_size: tuple | None
    n_steps: tuple | None
    target_acceptance: float

    def __call__(self, hamiltonian, states, rng):
        """Return :class:`Trajectories`, learned from a chain's states (n, d)."""
        step_size, n_steps = self.step_size, self.n_steps
        if step_size is None:
            scale = learn_step_size(hamiltonian, states, self.target_acceptance, rng)
            low, high = STEP_SIZE_JITTER
            step_size = low * scale, high * scale
        if n_steps is None:
            n_steps = learn_n_steps(hamiltonian, states, np.mean(step_size), rng)
        return Trajectories(hamiltonian, step_size, n_steps, Whitening(states))


def learn_step_size(hamiltonian, states, target_acceptance, rng):
    """Return the step size at which trajectories on the surrogate have a given acceptance rate.

    They start at states (n, d) and are accepted by the surrogate's own energy.
    """
    averaging = DualAveraging(target_acceptance, FIRST_STEP_SIZE, STEP_SIZE_BOUNDS)
    for _ in range(N_STEP_SIZE_TRAJECTORIES):
        start = states[rng.integers(len(states))]
        momentum = hamiltonian.metric.draw_momentum(rng)
        _, energies = hamiltonian.path(start, momentum, averaging.step_size, N_STEP_SIZE_STEPS)
        averaging.update(acceptance(energies[-1]))
    return averaging.averaged_step_size


def learn_n_steps(hamiltonian, states, step_size, rng):
    """Return the bounds (low, high) of leapfrog steps whose expected jumps are largest.

    Trajectories start at states (n, d), whose spread jumps are measured by.
    """
    whitening = Whitening(states)
    jumps = np.zeros((LENGTHS[-1], 2 * states.shape[1]))
    for _ in range(N_LENGTH_TRAJECTORIES):
        start = states[rng.integers(len(states))]
        momentum = hamiltonian.metric.draw_momentum(rng)
        positions, energies = hamiltonian.path(start, momentum, step_size, LENGTHS[-1])
        weights = acceptance(energies)[:, None]
        jumps += np.where(weights > 0, weights * whitening.squared_jumps(start, positions), 0.0)
    cumulative = np.vstack([np.zeros(jumps.shape[1]), np.cumsum(jumps, axis=0)])
    best, interval = -np.inf, None
    for high in LENGTHS:
        low = max(1, int(SHORTEST * high))
        score = ((cumulative[high] - cumulative[low - 1]) / (high - low + 1)).min()
        if interval is None or score > WORTH * best:
            best, interval = score, (low, int(high))
    return interval


def acceptance(energy_changes):
    """Return the acceptance probability of a change of energy; 0 where it is NaN."""
    return np.exp(-np.maximum(np.nan_to_num(energy_changes, nan=np.inf, neginf=0.0), 0.0))
