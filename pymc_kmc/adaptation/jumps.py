"""Lengths of a chain's jumps, on the scale of its own spread."""

import numpy as np

from pymc_kmc.numerics.samples import shrunk_covariance, whitening

# Largest squared jump that counts, in means under independence: a few very long jumps are not what
# makes a chain mix.
LONGEST_JUMP = 3.0
# Number of lags at which states are paired for independence: a hundred states give its jumps within
# 10 %.
N_LAGS = 8


class Whitening:
    """The scale that jumps are measured on: it whitens states (n, d), repetitions included."""

    def __init__(self, states):
        self.mean = states.mean(axis=0)
        self.matrix = np.ascontiguousarray(whitening(shrunk_covariance(states)).T)

    def squared_jumps(self, start, ends):
        """Return squared jumps (..., 2 d) of the whitened coordinates and of their squares.

        They are in units of their means under independence for a Gaussian, 2 and 4, and capped.
        `start` has shape (d,) or that of the ends, (..., d).
        """
        z0, z = (start - self.mean) @ self.matrix, (ends - self.mean) @ self.matrix
        jumps = np.concatenate([(z - z0) ** 2 / 2, (z**2 - z0**2) ** 2 / 4], axis=-1)
        return np.minimum(jumps, LONGEST_JUMP)

    def independent_jumps(self, states):
        """Return the mean squared jumps (2 d,) between states far from each other in time.

        The states (n, d) are in the chain's order. The means are less than 1, because long jumps
        are capped, and much less where tails are heavy or the squares of a coordinate are nearly
        the same, as in two modes.
        """
        n = len(states)
        lags = np.unique(np.linspace(0, n, N_LAGS + 2)[1:-1].round().astype(int).clip(1, n - 1))
        others = (np.roll(states, lag, axis=0) for lag in lags)
        return np.mean([self.squared_jumps(states, other) for other in others], axis=(0, 1))
