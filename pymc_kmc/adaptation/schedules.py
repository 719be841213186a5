r"""Schedules of adaptation, and scales and step sizes driven to an acceptance rate.

Endless adaptation keeps the target only if it dies out: :math:`\sum_t a_t = \infty` and
:math:`a_t \to 0` (Andrieu and Thoms, 2008; Roberts and Rosenthal, 2007).

References
----------
Andrieu, C. and Thoms, J. (2008). A tutorial on adaptive MCMC. *Statistics and Computing* 18,
343-373.

Hoffman, M. D. and Gelman, A. (2014). The No-U-Turn sampler. *Journal of Machine Learning
Research* 15, 1593-1623.

Roberts, G. O. and Rosenthal, J. S. (2007). Coupling and ergodicity of adaptive Markov chain Monte
Carlo algorithms. *Journal of Applied Probability* 44, 458-475.
"""

import numpy as np

# First leapfrog step size that is tried, in coordinates of about unit scale.
FIRST_STEP_SIZE = 0.5


def vanishing_weight(t):
    r"""Return :math:`a_t = 1 / \sqrt{t + 1}` at iteration t, as in the KMC and KAMH papers."""
    return 1.0 / np.sqrt(t + 1.0)


class GeometricSchedule:
    """Times of refits that grow by at least a `factor`.

    The total cost of refits is a fixed multiple of the last one's. The probability of a refit at
    iteration t falls like 1/t, so that adaptation vanishes.
    """

    def __init__(self, first, factor):
        self.factor = factor
        self.next = first

    def is_due(self, t):
        """Return whether time `t` is due; if so, plan the next one."""
        if t < self.next:
            return False
        self.next = max(t + 1, int(np.ceil(t * self.factor)))
        return True


class RobbinsMonroScale:
    r"""A proposal's scale, driven to the acceptance rate `target` by stochastic approximation.

    :math:`\log s_{t+1} = \log s_t + a_t (\alpha_t - \alpha^*)` with
    :math:`a_t = \min(1, 4 t^{-0.6})` (Andrieu and Thoms, 2008, algorithm 4).
    """

    # Gain of the steps in log scale: it corrects a factor 10 in tens of iterations.
    GAIN = 4.0
    # Power of t by which the gain falls: the steps' sum diverges, that of their squares doesn't.
    DECAY = 0.6

    def __init__(self, target, scale=1.0):
        self.target = target
        self.scale = scale
        self.t = 0

    def update(self, acceptance_rate):
        self.t += 1
        gain = min(1.0, self.GAIN / self.t**self.DECAY)
        self.scale *= np.exp(gain * (acceptance_rate - self.target))


class DualAveraging:
    """A leapfrog step size by dual averaging (Hoffman and Gelman, 2014, section 3.2).

    It is driven to the acceptance rate `target`, within `bounds`. `step_size` is for tuning,
    `averaged_step_size` for sampling.
    """

    # gamma of the paper, section 3.2.1.
    SHRINKAGE = 0.05
    # t_0 of the paper.
    STABILISATION = 10.0
    # kappa of the paper.
    DECAY = 0.75

    def __init__(self, target, step_size, bounds=(0.0, np.inf)):
        self.target = target
        self.bounds = bounds
        self.step_size = float(np.clip(step_size, *self.bounds))
        self.averaged_step_size = self.step_size
        # The paper shrinks towards 10 times the first step size, which here is a better guess.
        self.centre = np.log(2.0 * self.step_size)
        self.t = 0
        self.error = 0.0
        self.log_average = np.log(self.step_size)

    def update(self, acceptance_rate):
        self.t += 1
        weight = 1.0 / (self.t + self.STABILISATION)
        self.error += weight * (self.target - acceptance_rate - self.error)
        log_step = self.centre - np.sqrt(self.t) / self.SHRINKAGE * self.error
        lower, upper = self.bounds
        log_step = np.clip(log_step, np.log(max(lower, 1e-300)), np.log(upper))
        self.step_size = float(np.exp(log_step))
        weight = self.t**-self.DECAY
        self.log_average += weight * (log_step - self.log_average)
        self.averaged_step_size = float(np.exp(self.log_average))
