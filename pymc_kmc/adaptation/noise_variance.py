"""The noise of a log-density estimate at a chain's place, from fresh estimates there.

Two fresh estimates give the noise's variance. A fresh estimate beside the one that the chain keeps
gives the acceptance probability of a proposal that changes nothing but the noise. That is the
acceptance rate of perfect proposals, whatever the law of the noise. Some fresh estimates may be
zero.
"""

import numpy as np
from scipy.special import ndtr

# Number of the last pairs that count: noise depends on the place, and chains come from elsewhere.
RECENT_PAIRS = 40
# Number of kept estimates, compared with fresh ones, from which on the comparisons' mean counts.
# Its standard error is .18 at most, and a tuning of 1000 iterations makes 9. With fewer, noise is
# taken for Gaussian: a chain that rests at one estimate compares its luck again and again.
ENOUGH_COMPARISONS = 8
# Number of pairs that a variance known beforehand counts as: noise depends on the place.
EXPECTED_PAIRS = 8


class NoiseVariance:
    """Learns half the mean squared difference of two log estimates.

    If the second estimate's noise renews the first one's as a proposal's renews the chain's, this
    is the variance that matters to acceptance, of correlated noise too. `zero_share` is the share
    of fresh estimates that were zero, their log -inf; NaN before the first.
    """

    def __init__(self):
        self.forget()

    def forget(self):
        """Start anew, for another noise."""
        self._mean = self._acceptance = 0.0
        self.n_pairs = self.n_comparisons = self.n_kept = self.n_estimates = 0
        self.zero_share = np.nan
        self._expected_pairs, self._last_kept = 0, None

    def expect(self, variance):
        """Begin with a variance that is known beforehand."""
        self._mean, self._expected_pairs = variance, EXPECTED_PAIRS

    @property
    def value(self):
        """The variance; NaN without a pair and without an expected value."""
        return self._mean if self.n_pairs + self._expected_pairs else np.nan

    def count(self, fresh):
        """Update the share of zero estimates with an evaluation of the chain's place."""
        self.n_estimates += 1
        weight = 1.0 / min(self.n_estimates, 2 * RECENT_PAIRS)
        last = self.zero_share if self.n_estimates > 1 else 0.0
        self.zero_share = last + weight * ((fresh.log_likelihood_estimate == -np.inf) - last)

    def compare(self, kept, fresh):
        """Update perfect proposals' acceptance rate with the chain's evaluation and a fresh one.

        `fresh` is under the noise of `kept`, renewed.
        """
        change = fresh.log_likelihood_estimate - kept.log_likelihood_estimate
        if kept.log_likelihood_estimate == -np.inf or np.isnan(change):
            return
        self.n_comparisons += 1
        self.n_kept += kept is not self._last_kept
        self._last_kept = kept
        rate = np.exp(min(0.0, change))
        self._acceptance += (rate - self._acceptance) / min(self.n_comparisons, RECENT_PAIRS)

    def learn(self, first, second):
        """Update the variance with two fresh evaluations, if they are a pair.

        They are if both estimates are finite and the likelihood's parameters are the same: neither
        the position nor another step's variables among them have moved.
        """
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
