"""What a chain went through, as something to learn from."""

import numpy as np


class GrowingArray:
    """Rows in the order in which they came, in memory that grows by doubling.

    Parameters
    ----------
    length : int
        That of a row, d.
    """

    FIRST_CAPACITY = 256

    def __init__(self, length):
        self._rows = np.empty((self.FIRST_CAPACITY, length))
        self._n = 0

    def __len__(self):
        return self._n

    def append(self, row):
        """Add one row."""
        if self._n == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._n] = row
        self._n += 1

    def recent(self, fraction):
        """Return a view of the last `fraction` of the rows, shape (n, d)."""
        return self.last(int(np.ceil(self._n * fraction)))

    def last(self, n):
        """Return a view of the last `n` of the rows, shape (n, d)."""
        return self._rows[self._n - n : self._n]


class History:
    """What a chain leaves for a surrogate to learn from.

    Parameters
    ----------
    n_dimensions : int
        Length d of a state.

    Attributes
    ----------
    states : GrowingArray
        Shape (n, d); repeated ones too: how long the chain stayed is information.
    log_densities : GrowingArray
        Those of the states, shape (n, 1).
    evaluations : GrowingArray
        Proposals and the finite log densities found there, shape (n', d + 1).
    """

    def __init__(self, n_dimensions):
        self.states = GrowingArray(n_dimensions)
        self.log_densities = GrowingArray(1)
        self.evaluations = GrowingArray(n_dimensions + 1)

    def __len__(self):
        return len(self.states)

    def append(self, outcome):
        """Add an iteration's outcome: the state that it ended with, and its evaluation."""
        self.states.append(outcome.end.position)
        self.log_densities.append(outcome.end.log_density)
        if outcome.evaluation is not None:
            self.append_evaluation(outcome.evaluation)

    def append_evaluation(self, evaluation):
        """Add a place where the target was evaluated, if its log density there was finite."""
        if np.isfinite(evaluation.log_density):
            row = np.append(evaluation.position, evaluation.log_density)
            self.evaluations.append(row)


def systematic_sample(weights, n, rng):
    """Draw indices with expected counts proportional to weights, evenly along the sequence.

    Parameters
    ----------
    weights : ndarray, shape (k,)
    n : int
        Number of draws.
    rng : numpy.random.Generator

    Returns
    -------
    indices, counts : ndarray
        The distinct indices drawn, in order, and how often each was.
    """
    cumulative = np.cumsum(weights)
    places = (np.arange(n) + rng.uniform()) / n * cumulative[-1]
    drawn = np.minimum(np.searchsorted(cumulative, places), len(weights) - 1)
    return np.unique(drawn, return_counts=True)
