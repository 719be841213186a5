r"""Schedules of adaptation.

A chain that adapts without end keeps its target only if the adaptation dies out:
:math:`\sum_t a_t = \infty` and :math:`a_t \to 0` (Andrieu and Thoms, 2008; Roberts and Rosenthal,
2007).

References
----------
Andrieu, C. and Thoms, J. (2008). A tutorial on adaptive MCMC. *Statistics and Computing* 18,
343-373.

Roberts, G. O. and Rosenthal, J. S. (2007). Coupling and ergodicity of adaptive Markov chain Monte
Carlo algorithms. *Journal of Applied Probability* 44, 458-475.
"""

import numpy as np


def vanishing_weight(t):
    r"""Return :math:`a_t = 1 / \sqrt{t + 1}` at iteration t, as in the KMC and KAMH papers."""
    return 1.0 / np.sqrt(t + 1.0)


class GeometricSchedule:
    """Times that grow by at least a `factor`: each refit has that much more history.

    The total cost of refits is then a fixed multiple of the last one's. The probability of a refit
    at iteration t falls as 1/t: adaptation vanishes also where it isn't stopped.
    """

    def __init__(self, first, factor):
        self.factor = factor
        self.next = first

    def is_due(self, t):
        """Return whether time `t` is due; if so the next one is planned."""
        if t < self.next:
            return False
        self.next = max(t + 1, int(np.ceil(t * self.factor)))
        return True
