"""Checks of a single chain: whether it has converged, and whether it drifts away.

PyMC's R-hat compares several chains. In a single chain that is still in burn-in, or hardly moves
along a long ridge, parts of the draws differ from each other. On an improper posterior a chain's
range grows for ever. States are thinned: their memory doesn't grow with the chain.
"""

import numpy as np
from scipy.stats import rankdata

from pymc_kmc.surrogates.exact_gp_evaluation import LARGEST_LOG

# Most states that are kept: a check costs some 0.1 ms a dimension.
MOST_STATES = 256
# Number of draws at the first check, for drift alone, and its factor from one check to the next.
FIRST_CHECK, CHECK_GROWTH = 64, 1.5
# Number of draws from which on their parts are compared: fewer show nothing.
FIRST_PARTS = 256
# Number of parts that are compared: eight find 96 % of the chains that drift like a Brownian
# motion, halves 60 %, at the same rate of false alarms.
N_PARTS = 8
# Rank-based R-hat above which parts differ: their means spread as much as the draws within them. By
# chance it is exceeded in .5 % of cases with 25 effective draws, in less than .02 % with 40.
R_HAT_OF_DIFFERENT_PARTS = 1.45
# Factor on the interquartile range since the first 256 iterations that shows an improper posterior,
# if the parts differ and if they don't: a proper one's scale is found before the first iteration.
DRIFT_OF_PARTS, DRIFT = 1e3, 1e6
# Range of the central 95 % of the draws, in interquartile ranges, above which tails are heavy:
# Gaussian 2.9, Laplace 4.3, Cauchy 12.7. Found in 145 of 150 chains on a Cauchy, 4 on a Laplace.
HEAVY_TAILS = 6.0
# Number of draws from which on tails are checked: fewer correlated draws don't show them.
FIRST_TAILS = 1000


class OwnChecks:
    """Thinned states of a chain and checks of them; updated in place.

    `n_draws` counts draws since tuning; `n_expected` is the chain's number of draws, None if
    unknown.
    """

    def __init__(self):
        self.n_draws = 0
        self._all = Thinned()
        self._draws = Thinned()
        self._first_range = None
        self._next_check = FIRST_CHECK
        self.n_expected = None

    def observe(self, position, is_tuning):
        if self._all.append(position) and self._first_range is None:
            self._first_range = interquartile_range(self._all.states)
        if not is_tuning:
            self.n_draws += 1
            self._draws.append(position)

    def is_due(self):
        """Return whether a check is due (the last draw, if known, has one); plan the next one."""
        n = self.n_draws
        planned = (self.n_expected, FIRST_PARTS, FIRST_TAILS)
        if n < FIRST_CHECK or not (n >= self._next_check or n in planned):
            return False
        self._next_check = int(np.ceil(n * CHECK_GROWTH))
        return True

    def drifting(self, is_free):
        """Return indices of coordinates along which the chain seems to drift without bound.

        `is_free`, bool (d,), marks values that are a variable's own, not a transform of it.
        """
        states = self._all.states
        # A chain on its way to infinity ends at the limit of double precision.
        far = ~is_free & (np.median(np.abs(states), axis=0) > LARGEST_LOG)
        if self._first_range is None:
            return np.flatnonzero(far)
        with np.errstate(all="ignore"):
            growth = interquartile_range(states[len(states) // 2 :]) / self._first_range
            parts_differ = self.r_hat() > R_HAT_OF_DIFFERENT_PARTS
        grows = (growth > DRIFT) | ((growth > DRIFT_OF_PARTS) & parts_differ)
        grows &= self._first_range > 0
        return np.flatnonzero(far | grows | ~np.isfinite(states[-1]))

    def heavy_tailed(self):
        if self.n_draws < FIRST_TAILS:
            return np.array([], dtype=int)
        states = self._draws.states
        return np.flatnonzero(
            quantile_range(states, 0.95) > HEAVY_TAILS * interquartile_range(states)
        )

    def r_hat(self):
        """Return rank-based R-hat of the draws' parts (d,); NaN if constant or with few draws."""
        states = self._draws.states
        if self.n_draws < FIRST_PARTS:
            return np.full(states.shape[1], np.nan)
        ranks = rankdata(states, axis=0)
        n = len(ranks) // N_PARTS
        parts = ranks[len(ranks) - n * N_PARTS :].reshape(N_PARTS, n, -1)
        within = parts.var(axis=1, ddof=1).mean(axis=0)
        between = parts.mean(axis=1).var(axis=0, ddof=1)
        with np.errstate(all="ignore"):
            found = np.sqrt((n - 1) / n + between / within)
        return np.where(np.ptp(states, axis=0) > 0, found, np.nan)


def interquartile_range(states):
    return quantile_range(states, 0.5)


def quantile_range(states, share):
    """Return the range (d,) of the central `share` of states (n, d)."""
    low, high = np.quantile(states, [0.5 - 0.5 * share, 0.5 + 0.5 * share], axis=0)
    return high - low


class Thinned:
    """Evenly spaced states of a chain, at most `MOST_STATES`."""

    def __init__(self):
        self._kept = []
        self._stride = 1
        self._n = 0

    @property
    def states(self):
        return np.array(self._kept)

    def append(self, position):
        """Record the chain's next state; return whether the spacing was doubled."""
        self._n += 1
        if self._n % self._stride:
            return False
        self._kept.append(position)
        if len(self._kept) < MOST_STATES:
            return False
        self._kept = self._kept[1::2]
        self._stride *= 2
        return True
