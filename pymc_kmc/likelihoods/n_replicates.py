r"""Averages of independent replicates of an estimate, and how many there should be.

N replicates cost N times as much as one and make the estimate's variance N times smaller. For the
plain pseudo-marginal method a variance of the log estimate between 1 and 2 or so makes the most of
a given number of particles (Doucet, Pitt, Deligiannidis and Kohn, 2015: 1 to 2.9, depending on how
good the proposals would be without noise; Sherlock, Thiery, Roberts and Rosenthal, 2015: 3.3 for
random walks in many dimensions), provided that an estimate's cost is proportional to N and the
variance of its log falls as 1 / N.

Averages of few heavy-tailed estimates are not like that: their log's variance falls more slowly,
and where replicates are all that an iteration costs, N = 1 is often best, with the longest stays
at one place (Sherlock, Thiery and Lee, 2017). The target variance of 2 is a compromise between that
and chains that move: with 1.5 there were up to twice as many replicates as did best
(examples/benchmarks/README.md, "Replicates and correlated noise").

References
----------
Doucet, A., Pitt, M. K., Deligiannidis, G. and Kohn, R. (2015). Efficient implementation of Markov
chain Monte Carlo when using an unbiased likelihood estimator. *Biometrika* 102, 295-313.

Sherlock, C., Thiery, A. H. and Lee, A. (2017). Pseudo-marginal Metropolis-Hastings sampling using
averages of unbiased estimators. *Biometrika* 104, 727-734.

Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
pseudo-marginal random walk Metropolis algorithms. *Annals of Statistics* 43, 238-275.
"""

from itertools import islice

import numpy as np

__all__ = ["TARGET_VARIANCE", "choose_n_replicates", "log_mean_exp", "log_variance"]

# Of the log of an average of replicates; the module's docstring says why.
TARGET_VARIANCE = 2.0
# Estimates that a variance is computed from: its relative standard deviation is .32, to which the
# efficiency is not sensitive.
N_ESTIMATES = 30
# With fewer finite ones among them, the variance counts as infinite.
LEAST_FINITE = 0.9
# A number of replicates stays if the variance is so many times the target, or as many times less.
NEAR_ENOUGH = 1.6
# In one round the number grows or shrinks by at most this factor, and there are so many rounds.
LARGEST_FACTOR, MOST_ROUNDS = 16, 6
# Each replicate is a call of a Python function: more than this wants a better or a vectorised one.
MOST_REPLICATES = 1000
# Variances below this are all the same: there is no noise.
TINY = 1e-6


def log_mean_exp(log_estimates):
    """Return the log of the mean of exp(log_estimates), of shape (n,).

    A NaN or +inf among them is the result.
    """
    if len(log_estimates) == 1:
        return log_estimates[0]
    log_estimates = np.asarray(log_estimates)
    largest = log_estimates.max()
    if not np.isfinite(largest):
        return float(largest)
    return float(largest + np.log(np.mean(np.exp(log_estimates - largest))))


def choose_n_replicates(log_estimates, start, target_variance, fewest=1):
    r"""Find the number of replicates whose log estimate has a given variance.

    Averages of few heavy-tailed estimates have a variance that falls more slowly than 1 / N, so
    the search goes on from where the last number leads.

    Parameters
    ----------
    log_estimates : callable
        ``log_estimates(n)`` yields log estimates of n replicates at one point for as long as it
        is asked, each under the last one's noise renewed.
    start : int
        First number tried.
    target_variance : float
    fewest : int

    Returns
    -------
    n : int
    variance : float
        Of the log estimate with n replicates, see :func:`log_variance`.
    """
    n, tried = start, {}
    for _ in range(MOST_ROUNDS):
        tried[n] = log_variance(list(islice(log_estimates(n), N_ESTIMATES)))
        excess = tried[n] / target_variance
        if 1.0 / NEAR_ENOUGH <= excess <= NEAR_ENOUGH:
            break
        factor = np.clip(excess, 1.0 / LARGEST_FACTOR, LARGEST_FACTOR)
        n = int(np.clip(np.ceil(n * factor), fewest, max(start, MOST_REPLICATES)))
        if n in tried:
            break

    if min(tried.values()) > NEAR_ENOUGH * target_variance:
        n = max(tried)
    else:
        n = min(sorted(tried), key=lambda n: abs(np.log(max(tried[n], TINY) / target_variance)))
    return n, tried[n]


def log_variance(log_estimates):
    """Half the mean squared difference of successive log estimates.

    Of independent ones this is their variance, of correlated ones what of it matters to
    acceptance. It is inf where more than a tenth of them are not finite.

    Parameters
    ----------
    log_estimates : sequence of float

    Returns
    -------
    float
    """
    log_estimates = np.asarray(log_estimates)
    finite = log_estimates[np.isfinite(log_estimates)]
    if len(finite) < LEAST_FINITE * len(log_estimates):
        return np.inf
    return float(0.5 * np.mean(np.diff(finite) ** 2))
