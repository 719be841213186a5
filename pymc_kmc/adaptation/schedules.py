r"""When to learn, and how much.

Adaptation that goes on for ever keeps the target only if it dies out: :math:`\sum_t a_t = \infty`
and :math:`a_t \to 0` (Andrieu and Thoms, 2008; Roberts and Rosenthal, 2007).

References
----------
Andrieu, C. and Thoms, J. (2008). A tutorial on adaptive MCMC. *Statistics and Computing* 18,
343-373.

Roberts, G. O. and Rosenthal, J. S. (2007). Coupling and ergodicity of adaptive Markov chain Monte
Carlo algorithms. *Journal of Applied Probability* 44, 458-475.
"""

import numpy as np


def vanishing_weight(t):
    r"""Return :math:`a_t = 1 / \sqrt{t + 1}`, the schedule of the KMC and KAMH papers.

    Parameters
    ----------
    t : int
        Iterations done.

    Returns
    -------
    float
    """
    return 1.0 / np.sqrt(t + 1.0)


class GeometricSchedule:
    """Times that grow by a factor: each refit sees that much more history than the one before it.

    The total cost of refits is then a fixed multiple of the last one's, and the probability of a
    refit at iteration t falls as 1/t: adaptation vanishes also where it isn't stopped.

    Parameters
    ----------
    first : int
        The first due time.
    factor : float
        At least this much growth between due times.
    """

    def __init__(self, first, factor):
        self.factor = factor
        self.next = first

    def is_due(self, t):
        """Say whether time `t` is due, and if so plan the next one."""
        if t < self.next:
            return False
        self.next = max(t + 1, int(np.ceil(t * self.factor)))
        return True
