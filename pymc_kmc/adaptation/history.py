"""A chain's states and evaluations, from which surrogates learn."""

import numpy as np

# Share of a chain's history that covariances are learned from; the rest is burn-in.
RECENT_SHARE = 0.5


class GrowingArray:
    """Rows of one length, in order of arrival, in memory that grows by doubling."""

    # Rows that there is room for at first; it doubles when full.
    FIRST_CAPACITY = 256

    def __init__(self, length):
        self._rows = np.empty((self.FIRST_CAPACITY, length))
        self._n = 0

    def __len__(self):
        return self._n

    def append(self, row):
        if self._n == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._n] = row
        self._n += 1

    def recent(self, fraction):
        """Return a view of the last `fraction` of the rows, shape (n, d)."""
        return self.last(int(np.ceil(self._n * fraction)))

    def last(self, n):
        return self._rows[self._n - n : self._n]


class History:
    """A chain's states and evaluations, of d dimensions."""

    def __init__(self, n_dimensions):
        # (n, d), repeated ones too: how long the chain stayed is information.
        self.states = GrowingArray(n_dimensions)
        # (n, 1), of the states.
        self.log_densities = GrowingArray(1)
        # (n', d + 1): points and the finite log densities found there.
        self.evaluations = GrowingArray(n_dimensions + 1)

    def __len__(self):
        return len(self.states)

    def append(self, outcome):
        """Add an iteration's outcome: its final state, and its evaluation if there was one."""
        self.states.append(outcome.end.position)
        self.log_densities.append(outcome.end.log_density)
        if outcome.evaluation is not None:
            self.append_evaluation(outcome.evaluation)

    def append_evaluation(self, evaluation):
        """Add an evaluation, if its log density is finite."""
        if np.isfinite(evaluation.log_density):
            row = np.append(evaluation.position, evaluation.log_density)
            self.evaluations.append(row)


def systematic_sample(weights, n, rng):
    """Return distinct indices in order, and their counts in n systematic draws by weights (k,)."""
    cumulative = np.cumsum(weights)
    places = (np.arange(n) + rng.uniform()) / n * cumulative[-1]
    drawn = np.minimum(np.searchsorted(cumulative, places), len(weights) - 1)
    return np.unique(drawn, return_counts=True)
