"""What a chain shows by itself: whether it has arrived, and whether it drifts away.

PyMC compares chains with each other (R-hat), which needs several. A single chain that is still on
its way shows it too: the first half of its draws differs from the second. And where a posterior
isn't proper, a chain's range grows for ever. The states are kept thinned, so that the memory that
this takes doesn't grow with the chain.
"""

import numpy as np
from scipy.stats import rankdata

# States that are kept: a check costs some 0.1 ms a dimension.
MOST_STATES = 256
# Number of draws at the first check, and their growth from one check to the next.
FIRST_CHECK, GROWTH = 512, 1.5
# R-hat of a chain's two halves, of ranks, above which they differ: their means are 1.2 standard
# deviations apart. By chance a coordinate with 15 effective draws has it in 2 % of cases, one with
# 40 in 2 of 10,000.
LARGEST_SPLIT_R_HAT = 1.3
# Growth of a chain's interquartile range since its first 256 iterations that says that nothing
# holds it back, where its halves differ and where they don't: an adaptive step goes on growing on
# an improper posterior, and a proper one's scale is found before the first iteration.
DRIFT_OF_HALVES, DRIFT = 1e3, 1e6


class OwnChecks:
    """Thinned states of a chain and what they say; updated in place.

    Attributes
    ----------
    n_draws : int
        Number of draws since tuning.
    n_expected : int or None
        Number of draws that the chain will have, where PyMC says so.
    """

    def __init__(self):
        self.n_draws = 0
        self._all = Thinned()
        self._draws = Thinned()
        self._first_range = None
        self._next_check = FIRST_CHECK
        self.n_expected = None

    def observe(self, position, is_tuning):
        """Take note of a chain's state.

        Parameters
        ----------
        position : ndarray, shape (d,)
        is_tuning : bool
        """
        if self._all.append(position) and self._first_range is None:
            self._first_range = interquartile_range(self._all.states)
        if not is_tuning:
            self.n_draws += 1
            self._draws.append(position)

    def is_due(self):
        """Say whether a check is due, and plan the next one; the last draw's too, if known."""
        n = self.n_draws
        if n < FIRST_CHECK or not (n >= self._next_check or n == self.n_expected):
            return False
        self._next_check = int(np.ceil(n * GROWTH))
        return True

    def drifting(self):
        """Return indices of coordinates that nothing seems to hold back."""
        if self._first_range is None:
            return np.array([], dtype=int)
        states = self._all.states
        with np.errstate(all="ignore"):
            growth = interquartile_range(states[len(states) // 2 :]) / self._first_range
            halves_differ = self.split_r_hat() > LARGEST_SPLIT_R_HAT
        grows = (growth > DRIFT) | ((growth > DRIFT_OF_HALVES) & halves_differ)
        grows &= self._first_range > 0
        return np.flatnonzero(grows | ~np.isfinite(states[-1]))

    def split_r_hat(self):
        """Return R-hat of the halves of the draws, of ranks, (d,); NaN if constant."""
        states = self._draws.states
        n = len(states) // 2
        ranks = rankdata(states, axis=0) / len(states)
        first, second = ranks[:n], ranks[-n:]
        within = 0.5 * (first.var(axis=0, ddof=1) + second.var(axis=0, ddof=1))
        between = 0.5 * (first.mean(axis=0) - second.mean(axis=0)) ** 2
        with np.errstate(all="ignore"):
            found = np.sqrt((n - 1) / n + between / within)
        return np.where(np.ptp(states, axis=0) > 0, found, np.nan)


def interquartile_range(states):
    low, high = np.quantile(states, [0.25, 0.75], axis=0)
    return high - low


class Thinned:
    """Evenly spaced states of a chain, at most `MOST_STATES`."""

    def __init__(self):
        self._kept = []
        self._stride = 1
        self._n = 0

    @property
    def states(self):
        """The states, shape (n, d)."""
        return np.array(self._kept)

    def append(self, position):
        """Take note of the chain's next state; say whether the chain has doubled since."""
        self._n += 1
        if self._n % self._stride:
            return False
        self._kept.append(position)
        if len(self._kept) < MOST_STATES:
            return False
        self._kept = self._kept[1::2]
        self._stride *= 2
        return True
