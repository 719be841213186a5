r"""Step size and length of trajectories, learned on the surrogate alone.

Both come from trajectories that start at states of the chain and never touch the target. A step
size driven by the target's acceptance answers the surrogate's errors, which no step size cures,
by shrinking until the chain stands still; here it answers the integrator's error only. The number
of steps is uniform between a third of some L and L, with the L whose expected squared jump, over
the coordinate (of the whitened states, and of their squares) that moves least, is largest
(Pasarica and Gelman, 2010, for the criterion).

References
----------
Hoffman, M. D. and Gelman, A. (2014). The No-U-Turn sampler. *Journal of Machine Learning
Research* 15, 1593-1623.

Pasarica, C. and Gelman, A. (2010). Adaptively scaling the Metropolis algorithm using expected
squared jumped distance. *Statistica Sinica* 20, 343-364.
"""

import numpy as np

from pymc_kmc.adaptation.moves import Whitening
from pymc_kmc.adaptation.step_size import DualAveraging

__all__ = ["learn_n_steps", "learn_step_size"]

# Coordinates have about unit scale.
FIRST_STEP_SIZE = 0.5
STEP_SIZE_BOUNDS = (1e-3, 2.0)
# Dual averaging has settled after so many trajectories, of so many steps: enough to show an
# instability.
N_STEP_SIZE_TRAJECTORIES = 60
N_STEP_SIZE_STEPS = 5

# Lengths compared, by trajectories from so many states.
LENGTHS = np.array([4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128])
N_LENGTH_TRAJECTORIES = 40
# The shortest trajectory, as a share of the longest.
SHORTEST = 1 / 3
# A longer trajectory must promise this much more.
WORTH = 1.1


def learn_step_size(hamiltonian, states, target_acceptance, rng):
    """Return the step size at which trajectories on the surrogate have a given acceptance rate.

    Parameters
    ----------
    hamiltonian : SurrogateHamiltonian
    states : ndarray, shape (n, d)
        To start from.
    target_acceptance : float
        Of the surrogate's own energy.
    rng : numpy.random.Generator

    Returns
    -------
    float
    """
    averaging = DualAveraging(target_acceptance, FIRST_STEP_SIZE, STEP_SIZE_BOUNDS)
    for _ in range(N_STEP_SIZE_TRAJECTORIES):
        start = states[rng.integers(len(states))]
        momentum = hamiltonian.metric.draw_momentum(rng)
        _, energies = hamiltonian.path(start, momentum, averaging.step_size, N_STEP_SIZE_STEPS)
        averaging.update(acceptance(energies[-1]))
    return averaging.averaged_step_size


def learn_n_steps(hamiltonian, states, step_size, rng):
    """Return the interval of leapfrog steps that promises the largest jumps.

    Parameters
    ----------
    hamiltonian : SurrogateHamiltonian
    states : ndarray, shape (n, d)
        To start from; their spread is what a jump is measured by.
    step_size : float
    rng : numpy.random.Generator

    Returns
    -------
    low, high : int
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
    """Acceptance probability for a change of energy; 0 where it is NaN."""
    return np.exp(-np.maximum(np.nan_to_num(energy_changes, nan=np.inf, neginf=0.0), 0.0))
