"""How far moves take a chain, on the scale of its own spread."""

import numpy as np

from pymc_kmc.numerics.samples import shrunk_covariance, whitening

# Largest squared jump that counts, in means under independence: a few very long jumps are not what
# makes a chain mix.
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
