r"""Sizes of the subsets, and the probabilities with which they are reached.

Level t has :math:`n_t = \min(a 2^t, N)` data, t = 0 ... t_max, where t_max is the first level with
all N of them. The truncation level has the geometric distribution restricted to these levels,

.. math:: P(T = t) = \frac{2^{-\alpha t}}{\sum_{s=0}^{t_{max}} 2^{-\alpha s}},
          \qquad t = 0, \dots, t_{max} .

Finite data truncate the distribution, not the sum: every level up to the full data has a positive
:math:`P(T \ge t)`, and beyond the full data there is nothing to add. Therefore
:math:`E \varphi^* = \sum_{t=0}^{t_{max}} E(\varphi_t - \varphi_{t-1}) = E \varphi_{t_{max}}`
exactly, as long as the law of :math:`\varphi_t` doesn't depend on T: settings of the sampler may
depend on the level, never on T.
"""

import numbers

import numpy as np


class Schedule:
    """Nested subsets whose `sizes` double from `first_size` to `n_data`.

    `alpha` is the decay of the distribution of the last one: large values make far levels rare.
    `reach` has the probabilities P(T >= t) of all levels.
    """

    def __init__(self, n_data, first_size, alpha):
        is_number = isinstance(first_size, numbers.Integral) and not isinstance(first_size, bool)
        if not is_number or not 1 <= first_size <= n_data:
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
