"""The variance of a log-density estimate, from pairs of estimates at one place."""

import numpy as np
from scipy.special import ndtr

# Number of the last pairs that count: noise depends on the place, and chains come from elsewhere.
RECENT_PAIRS = 40


class NoiseVariance:
    """Learns half the mean squared difference of two log estimates.

    If the second estimate's noise renews the first one's as a proposal's renews the chain's, this
    is the variance that matters to acceptance, of correlated noise too.

    Attributes
    ----------
    n_pairs : int
    """

    def __init__(self):
        self.forget()

    def forget(self):
        """Start anew: the noise is another one."""
        self._mean = 0.0
        self.n_pairs = 0

    @property
    def value(self):
        """The variance; NaN while there is no pair."""
        return self._mean if self.n_pairs else np.nan

    def learn(self, first, second):
        """Learn from two evaluations.

        They are a pair if the likelihood's parameters are the same, neither the position nor
        another step's variables among them having moved, and both estimates are finite.

        Parameters
        ----------
        first, second : Evaluation
        """
        estimates = first.log_likelihood_estimate, second.log_likelihood_estimate
        if first.parameters != second.parameters or not np.isfinite(estimates).all():
            return
        if not np.array_equal(first.position, second.position):
            return
        self.n_pairs += 1
        square = 0.5 * (estimates[0] - estimates[1]) ** 2
        self._mean += (square - self._mean) / min(self.n_pairs, RECENT_PAIRS)

    @property
    def ideal_acceptance(self):
        """Of perfect proposals under this noise, see :func:`ideal_acceptance`; 1 if unknown."""
        return ideal_acceptance(self.value) if self.n_pairs else 1.0


def ideal_acceptance(variance):
    r"""Return the acceptance rate of perfect proposals under noise, :math:`2 \Phi(-s / \sqrt 2)`.

    For Gaussian noise of variance s^2 in the log estimate, the same everywhere (Pitt, Silva,
    Giordani and Kohn, 2012, Journal of Econometrics 171, corollary 4).
    """
    return float(2.0 * ndtr(-np.sqrt(variance / 2.0)))
