r"""Sizes of the subsets, the probabilities with which they are reached, and their consequences.

Level t has :math:`n_t = \min(a 2^t, N)` data, t = 0 ... t_max, where t_max is the first level with
all N of them. The truncation level has the geometric distribution restricted to these levels,

.. math:: P(T = t) = \frac{2^{-\alpha t}}{\sum_{s=0}^{t_{max}} 2^{-\alpha s}},
          \qquad t = 0, \dots, t_{max} .

Every level up to the full data has a positive :math:`P(T \ge t)`. Therefore :math:`E \varphi^* =
\sum_{t=0}^{t_{max}} E(\varphi_t - \varphi_{t-1}) = E \varphi_{t_{max}}` exactly, as long as the law
of :math:`\varphi_t` doesn't depend on T: settings of the sampler may depend on t alone.

*Rate of convergence.* If :math:`E|\varphi_t - \varphi_{t_{max}}|^2` falls as :math:`n_t^{-\beta}`,
so do the mean squared differences of successive levels, which the replications show. Then

- the variance of :math:`\varphi^*`, a sum of terms :math:`2^{(\alpha - \beta) t}`, is bounded
  however many data there are where :math:`\alpha < \beta`;
- the mean cost, a sum of terms :math:`2^{(1 - \alpha) t}`, is bounded where :math:`\alpha > 1`, and
  grows as :math:`N^{1 - \alpha}` where :math:`\alpha < 1`.

Posterior means of regular models have :math:`\beta = 1`, so that no alpha bounds both.
"""

import numbers
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, polygamma

from pymc_kmc.likelihoods.checks import is_positive_integer


class Schedule:
    """Nested subsets whose `sizes` double from `first_size` to `n_data`.

    `alpha` is the decay of the truncation level's distribution, `reach` has P(T >= t) of all t.
    """

    def __init__(self, n_data, first_size, alpha):
        if not is_positive_integer(first_size) or first_size > n_data:
            raise ValueError(
                f"first_size must be a whole number from 1 to the number of data, {n_data}, got "
                f"{first_size!r}."
            )
        if not isinstance(alpha, numbers.Real) or not 0.0 < alpha < np.inf:
            raise ValueError(
                f"alpha must be a positive number, got {alpha!r}: the mean cost grows as "
                "N^(1 - alpha), and the variance is bounded for alpha below the rate of "
                "convergence, which is 1 for most posterior means."
            )
        self.n_data, self.first_size, self.alpha = int(n_data), int(first_size), float(alpha)
        sizes = [self.first_size]
        while sizes[-1] < self.n_data:
            sizes.append(min(2 * sizes[-1], self.n_data))
        self.sizes = np.array(sizes)
        weights = 2.0 ** (-self.alpha * np.arange(len(sizes)))
        self.reach = np.cumsum(weights[::-1])[::-1] / weights.sum()

    def draw(self, rng):
        """Return a truncation level T."""
        # The number of levels t > 0 whose P(T >= t) exceeds a uniform number.
        return int(np.count_nonzero(self.reach[1:] > rng.random()))

    def debiased(self, path):
        """Return phi*, the weighted sum of the differences of a path (T + 1, ...)."""
        differences = np.diff(path, axis=0, prepend=np.zeros_like(path[:1]))
        return np.tensordot(1.0 / self.reach[: len(path)], differences, axes=1)

    @property
    def mean_terms(self):
        """Mean number of data in a replication's subsets, summed over its levels."""
        return float(self.sizes @ self.reach)


# Fewest differences of a level whose mean square enters the fit.
FEWEST_DIFFERENCES = 2
# Prior mean and standard error of the rate that extrapolates to levels with too few differences:
# most posterior means have rate 1.
USUAL_RATE, USUAL_ERROR = 1.0, 0.5
# Smallest ratio of successive sizes whose difference enters the fit: sizes double, but the last
# may grow by less.
LEAST_GROWTH = 1.9


class Rate(NamedTuple):
    """The rate at which mean squared differences fall with the size of the subset.

    Attributes
    ----------
    exponent, standard_error : ndarray, shape (k,)
        beta for each element of the functional; NaN where fewer than two levels are known.
    mean_squares : ndarray, shape (t_max + 1, k)
        Mean squared differences to the level before, extrapolated from the fit for levels that few
        replications have reached. Row 0 is NaN.
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
