"""The noise of a chain's likelihood, learned while tuning.

Now and then the chain's state is evaluated twice, in place of two iterations, under noise that is
renewed each time. Two fresh estimates give the noise's variance. A fresh estimate and the chain's
own give the acceptance rate of perfect proposals, which change nothing but the noise, whatever its
distribution. Likelihoods that ask for it choose their numbers of replicates
(:mod:`pymc_kmc.likelihoods.replicates`) after 25, 100 and 400 iterations.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from pymc_kmc.likelihoods.replicates import (
    ENOUGH_ACCEPTANCE,
    MANY_ZEROS,
    MOST_REPLICATES,
    TARGET_VARIANCE,
    remedy_of_zeros,
)
from pymc_kmc.moves.base import Move, MoveKind, Proposal

# Number of tuning iterations between pairs of probes.
PROBE_EVERY = 100
# Variance of the log estimate above which a chain sticks.
TOO_NOISY = 3.0
# Acceptance rate of perfect proposals below which it can't be told from 0.
SMALLEST_IDEAL = 0.02
# Fewest fresh estimates, two a pair, for a warning.
ENOUGH_ESTIMATES = 16
# Tuning iterations after which numbers of replicates are chosen.
REPLICATES_CHOSEN_AFTER = (25, 100, 400)
# Number of the last pairs that count: the noise depends on the place.
RECENT_PAIRS = 40
# Fewest different kept estimates for a mean acceptance rate, with a standard error of .18 at most;
# 1000 tuning iterations make 9. With fewer the noise is taken for Gaussian: a chain that stays at
# one estimate measures its luck.
ENOUGH_COMPARISONS = 8
# Weight of a variance that is known beforehand, in pairs: the noise depends on the place.
EXPECTED_PAIRS = 8


class NoNoise(NamedTuple):
    """The noise of an exact log density, in place of a :class:`NoiseVariance`."""

    value: float = 0.0
    ideal_acceptance: float = 1.0
    zero_share: float = 0.0


class NoiseProbe(Move):
    """An evaluation of the chain's state under renewed noise; never a draw.

    `variance` is a :class:`NoiseVariance`, updated in place, or :class:`NoNoise`. `first` is the
    first probe of a pair until the second is made.
    """

    kind = MoveKind.NOISE_PROBE
    is_draw = False

    def __init__(self, is_noisy):
        self.is_noisy = is_noisy
        self.variance = NoiseVariance() if is_noisy else NoNoise()
        self.first = None
        self._next_pair = PROBE_EVERY
        self._has_chosen = False

    def is_due(self, n_iterations):
        """Say whether a tuning iteration is to be a probe; plan the next pair."""
        if self.first is None:
            if not self.is_noisy or n_iterations < self._next_pair:
                return False
            self._next_pair = n_iterations + PROBE_EVERY
        return True

    def propose(self, current, fitted, rng):
        return Proposal(current.position, self, renewed=self.first)

    def learn(self, outcome, rng):
        """Learn from a fresh estimate and the chain's own, or another fresh one."""
        fresh = outcome.evaluation
        self.variance.count(fresh)
        if self.first is None:
            self.variance.compare(outcome.start, fresh)
            self.first = fresh
        else:
            self.variance.learn(self.first, fresh)
            self.first = None

    @property
    def ideal_acceptance(self):
        """Acceptance rate of perfect proposals under the noise; 1 if unknown."""
        ideal = self.variance.ideal_acceptance
        return 1.0 if np.isnan(ideal) else max(ideal, SMALLEST_IDEAL)

    def is_time_to_choose(self, n_iterations, is_tuning):
        """Say whether an iteration begins with the choice of numbers of replicates."""
        if is_tuning:
            return n_iterations in REPLICATES_CHOSEN_AFTER
        return not self._has_chosen  # tuning was shorter

    def choose(self, target, point, rng):
        """Let likelihoods choose numbers of replicates; return a warning's text or None."""
        self._has_chosen = True
        self.variance.forget()
        self.first = None
        for name, n, variance in target.choose_n_replicates(point, rng):
            if n >= MOST_REPLICATES and variance > TOO_NOISY:
                return (
                    f"{n} replicates of {name!r} still have a log estimate of variance "
                    f"{variance:.2g}. Make the estimator itself better: averages of estimates "
                    "that are mostly far too small hardly ever are."
                )
        return None

    @property
    def complaint(self):
        """The text of the warning about noise that is too large for a chain, else None."""
        noise = self.variance
        if noise.n_estimates < ENOUGH_ESTIMATES:
            return None
        if noise.zero_share > MANY_ZEROS:
            return (
                f"{100 * noise.zero_share:.0f} % of the likelihood's estimates were zero where the "
                f"chain was while tuning, and the chain will stick. "
                + remedy_of_zeros(noise.zero_share)
            )
        if not noise.value > TOO_NOISY or noise.ideal_acceptance > ENOUGH_ACCEPTANCE:
            return None
        return (
            f"The log of the likelihood's estimate had variance {noise.value:.2g} where the "
            "chain was while tuning: even perfect proposals would be accepted in "
            f"{100 * noise.ideal_acceptance:.0f} % of cases, and the chain will stick. Use "
            f"{np.ceil(noise.value / TARGET_VARIANCE):.0f} times as many simulations or "
            "particles, n_replicates='auto' (n_simulations='auto' with a simulator), or "
            "correlated noise (n_normals=, correlation=)."
        )


class NoiseVariance:
    """Learns half the mean squared difference of two log estimates.

    If the second estimate's noise renews the first one's as a proposal's renews the chain's, this
    is the variance that matters to acceptance, also of correlated noise. `zero_share` is the share
    of fresh estimates that were zero; NaN before the first.
    """

    def __init__(self):
        self.forget()

    def forget(self):
        self._mean = self._acceptance = 0.0
        self.n_pairs = self.n_comparisons = self.n_kept = self.n_estimates = 0
        self.zero_share = np.nan
        self._expected_pairs, self._last_kept = 0, None

    def expect(self, variance):
        """Begin with a variance that is known beforehand."""
        self._mean, self._expected_pairs = variance, EXPECTED_PAIRS

    @property
    def value(self):
        """The variance; NaN if nothing is known."""
        return self._mean if self.n_pairs + self._expected_pairs else np.nan

    def count(self, fresh):
        """Update the share of zero estimates with an evaluation at the chain's state."""
        self.n_estimates += 1
        weight = 1.0 / min(self.n_estimates, 2 * RECENT_PAIRS)
        last = self.zero_share if self.n_estimates > 1 else 0.0
        self.zero_share = last + weight * ((fresh.log_likelihood_estimate == -np.inf) - last)

    def compare(self, kept, fresh):
        """Update the acceptance rate of perfect proposals; `fresh` renews the noise of `kept`."""
        change = fresh.log_likelihood_estimate - kept.log_likelihood_estimate
        if kept.log_likelihood_estimate == -np.inf or np.isnan(change):
            return
        self.n_comparisons += 1
        # Not by identity, which a saved and restored chain loses.
        state = kept.position.tobytes(), kept.log_likelihood_estimate
        self.n_kept += state != self._last_kept
        self._last_kept = state
        rate = np.exp(min(0.0, change))
        self._acceptance += (rate - self._acceptance) / min(self.n_comparisons, RECENT_PAIRS)

    def learn(self, first, second):
        """Update the variance with two fresh evaluations, if finite and of the same parameters."""
        estimates = first.log_likelihood_estimate, second.log_likelihood_estimate
        if first.parameters != second.parameters or not np.isfinite(estimates).all():
            return
        if not np.array_equal(first.position, second.position):
            return
        self.n_pairs += 1
        square = 0.5 * (estimates[0] - estimates[1]) ** 2
        n = min(self.n_pairs + self._expected_pairs, RECENT_PAIRS)
        self._mean += (square - self._mean) / n

    @property
    def ideal_acceptance(self):
        """Acceptance rate of perfect proposals under this noise; NaN if nothing is known."""
        if self.n_kept >= ENOUGH_COMPARISONS:
            return self._acceptance
        if not np.isnan(self.value):
            return (1.0 - np.nan_to_num(self.zero_share)) * ideal_acceptance(self.value)
        return 0.0 if self.zero_share == 1.0 else np.nan


def ideal_acceptance(variance):
    r"""Return the acceptance rate of perfect proposals under noise, :math:`2 \Phi(-s / \sqrt 2)`.

    For Gaussian noise of variance s^2 in the log estimate, the same everywhere (Pitt, Silva,
    Giordani and Kohn, 2012, Journal of Econometrics 171, corollary 4).
    """
    return float(2.0 * ndtr(-np.sqrt(variance / 2.0)))
