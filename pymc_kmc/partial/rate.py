r"""Rate of convergence of the partial posteriors, from the replications themselves.

If :math:`E|\varphi_t - \varphi_{t_{max}}|^2` falls as :math:`n_t^{-\beta}`, so do the mean squared
differences of successive levels, which the replications show. Then

- the variance of :math:`\varphi^*`, a sum of terms :math:`2^{(\alpha - \beta) t}`, is bounded
  however many data there are where :math:`\alpha < \beta`;
- the mean cost, a sum of terms :math:`2^{(1 - \alpha) t}`, is bounded where :math:`\alpha > 1`, and
  grows as :math:`N^{1 - \alpha}` where :math:`\alpha < 1`.

Posterior means of regular models have :math:`\beta = 1`, so that no alpha bounds both.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import digamma, polygamma

# Differences of a level from which a mean square is worth fitting.
FEWEST_DIFFERENCES = 2
# Where the rate is badly known, levels that weren't seen are guessed with that of most posterior
# means, 1, as if it had been seen with this standard error.
USUAL_RATE, USUAL_ERROR = 1.0, 0.5
# The last level may have fewer than twice as many data as the one before: with less than this
# factor its difference isn't one of the others' kind.
LEAST_GROWTH = 1.9


class Rate(NamedTuple):
    """The rate at which mean squared differences fall with the size of the subset.

    Attributes
    ----------
    exponent, standard_error : ndarray, shape (k,)
        beta for each element of the functional; NaN where fewer than two levels are known.
    mean_squares : ndarray, shape (t_max + 1, k)
        Of the differences to the level before, extrapolated from the fit for levels that few
        replications have reached. Row 0 is NaN: there is no level before.
    """

    exponent: np.ndarray
    standard_error: np.ndarray
    mean_squares: np.ndarray


def convergence_rate(values, sizes):
    """Return the :class:`Rate` of paths (replications, t_max + 1, k), NaN beyond a path's end."""
    n_levels, k = values.shape[1:]
    exponent, standard_error = np.full((2, k), np.nan)
    mean_squares = np.full((n_levels, k), np.nan)
    squares = np.diff(values, axis=1) ** 2
    counts = np.count_nonzero(np.isfinite(squares).all(axis=2), axis=0)
    known = np.flatnonzero(counts >= FEWEST_DIFFERENCES)
    for element in range(k):
        means = np.array([np.nanmean(squares[:, t, element]) for t in known])
        mean_squares[known + 1, element] = means
        # The mean of m squared normal variables is chi-squared: its log has these two moments.
        half = counts[known] / 2.0
        log_means = np.log2(np.where(means > 0.0, means, np.nan))
        log_means -= (digamma(half) - np.log(half)) / np.log(2.0)
        variances = polygamma(1, half) / np.log(2.0) ** 2
        usable = np.isfinite(log_means) & (sizes[known + 1] >= LEAST_GROWTH * sizes[known])
        if np.count_nonzero(usable) < 2:
            continue
        weights = 1.0 / variances[usable]
        x, y = np.log2(sizes[known][usable]), log_means[usable]
        centre = weights @ x / weights.sum()
        precision = weights @ (x - centre) ** 2
        slope = weights @ ((x - centre) * y) / precision
        intercept = weights @ y / weights.sum()
        exponent[element], standard_error[element] = -slope, precision**-0.5
        unknown = np.setdiff1d(np.arange(n_levels - 1), known)
        guess = (precision * -slope + USUAL_RATE / USUAL_ERROR**2) / (precision + USUAL_ERROR**-2)
        fitted = intercept - guess * (np.log2(sizes[unknown]) - centre)
        mean_squares[unknown + 1, element] = 2.0**fitted
    return Rate(exponent, standard_error, mean_squares)
