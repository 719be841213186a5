"""The states a chain went through, as something to learn from."""

import numpy as np

__all__ = ["History"]


class History:
    """A chain's states in order, in memory that grows by doubling.

    Parameters
    ----------
    n_dimensions : int
        Length d of a state.
    """

    FIRST_CAPACITY = 256

    def __init__(self, n_dimensions):
        self._states = np.empty((self.FIRST_CAPACITY, n_dimensions))
        self._n = 0

    def __len__(self):
        return self._n

    def append(self, state):
        """Add one state; repeated ones too: how long the chain stayed is information."""
        if self._n == len(self._states):
            self._states = np.concatenate([self._states, np.empty_like(self._states)])
        self._states[self._n] = state
        self._n += 1

    def recent(self, fraction):
        """Return a view of the last `fraction` of the states, shape (n, d)."""
        return self._states[self._n - int(np.ceil(self._n * fraction)) : self._n]
