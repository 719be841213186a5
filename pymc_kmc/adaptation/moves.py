r"""Which of several proposals to make how often, learned from how far they really move the chain.

A mixture of kernels that leave the target invariant leaves it invariant, whatever its fixed
probabilities. While tuning, each kernel's expected squared jump an evaluation is estimated (jump
times acceptance probability, over the coordinate of the whitened states, or of their squares,
that moves least; Pasarica and Gelman, 2010, for the criterion), and the probabilities follow its
third power: a kernel twice as good is chosen eight times as often, and each keeps a smallest
probability, so that a kernel that becomes good is noticed.

References
----------
Pasarica, C. and Gelman, A. (2010). Adaptively scaling the Metropolis algorithm using expected
squared jumped distance. *Statistica Sinica* 20, 343-364.
"""

import numpy as np

from pymc_kmc.numerics.samples import shrunk_covariance, whitening

__all__ = ["Mixture", "MoveMixture", "Whitening"]

# A squared jump counts up to this many times its mean under independence: a few very long jumps
# are not what makes a chain mix.
LONGEST_JUMP = 3.0


class Whitening:
    """The scale that jumps are measured on.

    Parameters
    ----------
    states : ndarray, shape (n, d)
        Of a chain, repetitions included.
    """

    def __init__(self, states):
        self.mean = states.mean(axis=0)
        self.matrix = np.ascontiguousarray(whitening(shrunk_covariance(states)).T)

    def squared_jumps(self, start, ends):
        """Return squared jumps of the whitened coordinates and of their squares.

        In units of their mean under independence for a Gaussian, 2 and 4, and capped.

        Parameters
        ----------
        start : ndarray, shape (d,)
        ends : ndarray, shape (..., d)

        Returns
        -------
        ndarray, shape (..., 2 d)
        """
        z0, z = (start - self.mean) @ self.matrix, (ends - self.mean) @ self.matrix
        jumps = np.concatenate([(z - z0) ** 2 / 2, (z**2 - z0**2) ** 2 / 4], axis=-1)
        return np.minimum(jumps, LONGEST_JUMP)


class Mixture:
    """Kinds of move that are made with given probabilities.

    Attributes
    ----------
    probabilities : ndarray, shape (n_moves,)
    """

    def choose(self, rng, first=0):
        """Draw a kind of move's index among those from `first` on."""
        cumulative = np.cumsum(self.probabilities[first:])
        drawn = np.searchsorted(cumulative[:-1], rng.uniform() * cumulative[-1], side="right")
        return first + int(drawn)


class MoveMixture(Mixture):
    """Probabilities of several kinds of move.

    Parameters
    ----------
    smallest : array_like, shape (n_moves,)
        Smallest probability of each; one of 0 is never made.
    n_dimensions : int

    Attributes
    ----------
    probabilities : ndarray, shape (n_moves,)
    """

    POWER = 3.0
    # What one imagined trial of every move gave: enough for a start, soon outweighed.
    PRIOR_JUMP = 0.3
    # How much what was seen before a refit counts after it.
    MEMORY = 0.3

    def __init__(self, smallest, n_dimensions):
        self.smallest = np.asarray(smallest, dtype=np.float64)
        n_moves = len(self.smallest)
        self.counts = np.zeros(n_moves)
        self.jumps = np.zeros((n_moves, 2 * n_dimensions))
        self._update()

    def _update(self):
        utility = (self.jumps + self.PRIOR_JUMP) / (self.counts + 1.0)[:, None]
        shares = np.where(self.smallest > 0, utility.min(axis=1) ** self.POWER, 0.0)
        free = 1.0 - self.smallest.sum()
        self.probabilities = self.smallest + free * shares / shares.sum()

    def learn(self, move, squared_jumps):
        """Learn from one proposal: squared jumps (2 d,) times its acceptance probability."""
        self.counts[move] += 1.0
        self.jumps[move] += squared_jumps
        self._update()

    def forget(self):
        """Discount what was seen: the moves have changed."""
        self.counts *= self.MEMORY
        self.jumps *= self.MEMORY
        self._update()
