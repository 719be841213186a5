r"""Preconditioners of Langevin proposals and random walks, learned with gradients.

*The generalised speed measure* learns a proposal's scale and shape by following a gradient.

A proposal :math:`q_L` with a lower triangular factor L should be wide and accepted. The generalised
speed measure is :math:`\exp(\beta H(q_L))` times the acceptance probability, and

.. math:: F_L = E\left[\log\min\left(1, \frac{\pi(y) q_L(x | y)}{\pi(x) q_L(y | x)}\right)\right]
          + \beta \sum_i \log L_{ii}

bounds its logarithm from below (Titsias and Dellaportas, 2019, section 2). The weight beta is
driven to the wanted acceptance rate. The gradient in L of one proposal's log ratio is the lower
triangle of a sum of outer products :math:`\sum_k u_k v_k^\top`, computed by the steps
(:mod:`pymc_kmc.steps.gad`); it counts where the log ratio is negative.

The paper's *additive* rule scales every element of the gradient by the root of its mean square
(RMSprop); its step size and the floor of the diagonal are in the parameters' units. The
*multiplicative* rule, :math:`L \leftarrow L + \gamma_t L M`, moves :math:`L L^\top` along

.. math:: L (S + S^\top) L^\top / 2 + \beta L L^\top,
          \quad S = \sum_k (L^\top u_k) v_k^\top,

the natural gradient (Amari, 1998), so that the chain's path does not depend on the linear
coordinates of the target.

*Draws and gradients*: the preconditioner is the geometric mean of the draws' covariance and the
gradients' inverse covariance (Bhatia, 2007, chapter 4). In its coordinates draws and gradients have
equal spread. For a Gaussian target it is the covariance exactly, from any d + 1 points: gradients
are linear in the draws, so that both covariances have the same error. It is computed from the
recent half of the chain on a geometric schedule, like the windows of NUTS's tuning. Before the
first window the generalised speed measure is used.

References
----------
Titsias, M. K. and Dellaportas, P. (2019). Gradient-based adaptive Markov chain Monte Carlo.
*NeurIPS* 32.

Amari, S. (1998). Natural gradient works efficiently in learning. *Neural Computation* 10, 251-276.

Bhatia, R. (2007). *Positive Definite Matrices*. Princeton University Press.
"""

import numpy as np

from pymc_kmc.adaptation.history import RECENT_SHARE, GrowingArray
from pymc_kmc.adaptation.schedules import FIRST_STEP_SIZE, GeometricSchedule, RobbinsMonroScale
from pymc_kmc.numerics.jit import njit
from pymc_kmc.numerics.linear_algebra import geometric_mean, single_threaded_blas
from pymc_kmc.numerics.samples import count_distinct, shrunk_covariance


class SpeedMeasure:
    """A lower triangular `factor` L (d, d) that learns from proposals.

    `update` is the rule: "additive", with step size `rate`, or "multiplicative". `beta` is the
    weight of the entropy, driven to `target_acceptance`. `scale` is the geometric mean of L's
    diagonal.
    """

    # A proposal is one step of unit size.
    step_size, n_steps = 1.0, 1
    # The factor is not learned from windows of the chain.
    has_window = False

    # First L over the identity, times sqrt(d) (the authors' code).
    FIRST_SCALE = 0.1
    # Rate of beta <- beta (1 + rate (accepted - target)) (the authors' code).
    BETA_RATE = 0.02
    # Smallest beta of the additive rule (the authors' code).
    SMALLEST_BETA = 1e-4
    # gamma_0 of the multiplicative rule's gamma_t = GAIN / (1 + t / DELAY)^DECAY: with .1 and a
    # delay of 100 there were 10 to 20 % fewer effective draws.
    GAIN = 0.03
    # Iterations before gamma falls.
    DELAY = 300.0
    # Power of its fall: the sum of gamma diverges, that of its squares doesn't.
    DECAY = 0.7
    # Largest step, as a share of L. While steps are cut, beta may fall but not rise: shrinking L
    # far from the mode takes tens of proposals, in which beta would wind up.
    LARGEST_STEP = 0.1
    # Bounds of the multiplicative rule's beta.
    BETA_RANGE = (1e-3, 1e2)
    # Factor on L where a proposal had no finite log density.
    SHRINKAGE = 0.5

    def __init__(self, n_dimensions, target_acceptance, rate, update):
        self.target_acceptance = target_acceptance
        self.rate = rate
        self.update = update
        self.scale = self.FIRST_SCALE / np.sqrt(n_dimensions)
        self.factor = self.scale * np.eye(n_dimensions)
        self.beta = 1.0
        self.t = 0
        self.mean_square = np.zeros((n_dimensions, n_dimensions))

    def learn(self, U, V, outcome, weight=1.0):
        """Learn from a proposal's Outcome, with the outer products' vectors U and V (k, d).

        They are None where they aren't finite. `weight` multiplies the step; it falls below 1 where
        adaptation dies out.
        """
        self.t += 1
        counts = outcome.acceptance_rate < 1.0
        if self.update == "additive":
            if U is not None:
                self.scale = additive_update(
                    self.factor,
                    self.mean_square,
                    U,
                    V,
                    counts,
                    self.beta,
                    weight * self.rate,
                    self.t == 1,
                )
            error = outcome.accepted - self.target_acceptance
            beta = self.beta * (1 + weight * self.BETA_RATE * error)
            self.beta = max(self.SMALLEST_BETA, beta)
            return
        if U is None:
            self.factor *= self.SHRINKAGE
            self.scale *= self.SHRINKAGE
            return
        gain = weight * self.GAIN / (1 + self.t / self.DELAY) ** self.DECAY
        self.scale, limited = multiplicative_update(
            self.factor, U, V, counts, self.beta, gain, self.LARGEST_STEP
        )
        error = outcome.acceptance_rate - self.target_acceptance
        if limited:
            error = min(error, 0.0)
        beta = self.beta * (1 + weight * self.BETA_RATE * error)
        self.beta = min(max(beta, self.BETA_RANGE[0]), self.BETA_RANGE[1])


# Smallest diagonal element of L under the additive rule (the authors' code).
SMALLEST_DIAGONAL = 1e-3
# RMSprop's memory (the authors' code).
SQUARE_MEMORY = 0.9


@njit
def additive_update(factor, mean_square, U, V, counts, beta, rate, first):
    """Step along the gradient in place, and return the geometric mean of the new diagonal of L.

    `factor` is L and `mean_square` the mean squares of the gradient's elements, both (d, d); if
    `first`, the latter is still empty. The outer products of U and V (k, d) enter if `counts`, that
    is if the log ratio was negative.
    """
    d = factor.shape[0]
    log_scale = 0.0
    for i in range(d):
        for j in range(i + 1):
            gradient = beta / factor[i, i] if i == j else 0.0
            if counts:
                for k in range(U.shape[0]):
                    gradient += U[k, i] * V[k, j]
            square = gradient * gradient
            if not first:
                square = SQUARE_MEMORY * mean_square[i, j] + (1.0 - SQUARE_MEMORY) * square
            mean_square[i, j] = square
            factor[i, j] += rate * gradient / (1.0 + np.sqrt(square))
        factor[i, i] = max(factor[i, i], SMALLEST_DIAGONAL)
        log_scale += np.log(factor[i, i])
    return np.exp(log_scale / d)


@njit
def multiplicative_update(factor, U, V, counts, beta, gain, largest_step):
    """Step along the natural gradient in place; return L's new scale and whether the step was cut.

    M is the lower triangular matrix whose symmetric part is that of S: only L L' matters, and to
    first order this M changes it like S. The other arguments are those of :func:`additive_update`;
    `gain` is gamma_t. A step's norm relative to L is at most `largest_step`.
    """
    d = factor.shape[0]
    size = beta
    if counts:
        U = U @ factor  # of L' u in the rows
        for k in range(U.shape[0]):
            size += np.sqrt(np.sum(U[k] ** 2) * np.sum(V[k] ** 2))
    limited = gain * size > largest_step
    if limited:
        gain = largest_step / size
    left, right = np.zeros(U.shape[0]), np.zeros(U.shape[0])
    log_scale = 0.0
    for i in range(d):
        left[:] = 0.0
        right[:] = 0.0
        for j in range(i, -1, -1):
            # (L M)_ij is a sum over j <= k <= i: partial sums from the diagonal to the left.
            element = factor[i, j]
            change = beta * element
            if counts:
                for k in range(U.shape[0]):
                    change += left[k] * V[k, j] + right[k] * U[k, j] + element * U[k, j] * V[k, j]
                    left[k] += element * U[k, j]
                    right[k] += element * V[k, j]
            factor[i, j] = element + gain * change
        log_scale += np.log(factor[i, i])
    return np.exp(log_scale / d), limited


class DrawsAndGradients:
    """Coordinates in which draws and gradients have equal spread, and trajectories in them.

    A trajectory has `n_steps` leapfrog steps. Their `step_size`, in units of the lower triangular
    `factor` (d, d), is driven to the acceptance rate `target_acceptance`.
    """

    # Fewest iterations before the first window; there is at least one a dimension.
    FIRST_WINDOW = 50
    # Factor by which the chain grows from one window to the next.
    GROWTH = 1.5

    # Weight of the covariances' diagonals, in points.
    PRIOR_POINTS = 5.0
    # Length of a trajectory where the target has unit spread: pi / 2 makes draws and their squares
    # uncorrelated with the start. From 1.3 to 1.7 it hardly matters.
    LENGTH = 1.55
    # Fewest leapfrog steps: one of that length is rarely accepted even in two dimensions.
    FEWEST_STEPS = 2
    # Most leapfrog steps, for the time that a proposal takes.
    MOST_STEPS = 10
    # Largest factor on the step size by which a step of the trajectory may be saved.
    STRETCH = 1.05
    # Iteration at which the step size's stochastic approximation restarts with a new window.
    RESTART = 20

    def __init__(self, n_dimensions, target_acceptance, speed_measure):
        self.speed_measure = speed_measure
        self.positions = GrowingArray(n_dimensions)
        self.gradients = GrowingArray(n_dimensions)
        self.schedule = GeometricSchedule(max(self.FIRST_WINDOW, n_dimensions), self.GROWTH)
        self.scale_adaptation = RobbinsMonroScale(target_acceptance, FIRST_STEP_SIZE)
        self.has_window = False
        self.is_settled = False
        self.factor, self.step_size, self.n_steps = speed_measure.factor, 1.0, 1

    @property
    def scale(self):
        """The step size; before the first window it is in the parameters' units."""
        return self.step_size if self.has_window else self.speed_measure.scale

    def learn(self, U, V, outcome, weight=1.0):
        """Learn from :meth:`SpeedMeasure.learn`'s arguments."""
        self.positions.append(outcome.end.position)
        self.gradients.append(outcome.end.gradient)
        if not self.has_window:
            self.speed_measure.learn(U, V, outcome, weight)
        elif not self.is_settled:
            self.scale_adaptation.update(outcome.acceptance_rate)
            self._set_trajectory()
        if self.schedule.is_due(len(self.positions)):
            self._learn_factor()

    def _learn_factor(self):
        positions = self.positions.recent(RECENT_SHARE)
        gradients = self.gradients.recent(RECENT_SHARE)
        n_distinct = count_distinct(positions)
        if n_distinct < max(3, RECENT_SHARE * positions.shape[1] / 2):
            return
        share = self.PRIOR_POINTS / (self.PRIOR_POINTS + n_distinct)
        with single_threaded_blas():
            spread = shrunk_covariance(positions, share=share)
            information = shrunk_covariance(gradients, share=share)
            try:
                metric = geometric_mean(spread, np.linalg.inv(information))
                factor = np.linalg.cholesky(metric)
            except np.linalg.LinAlgError:
                return
        if not np.isfinite(factor).all():
            return
        self.factor = factor
        self.scale_adaptation.t = min(self.scale_adaptation.t, self.RESTART)
        self.has_window = True
        if not self.is_settled:
            self._set_trajectory()

    def _set_trajectory(self):
        largest = self.LENGTH / self.FEWEST_STEPS * self.STRETCH
        self.scale_adaptation.scale = min(self.scale_adaptation.scale, largest)
        self.step_size = self.scale_adaptation.scale
        self.n_steps = self._steps_of(self.step_size)

    def _steps_of(self, step_size):
        n_steps = np.ceil(self.LENGTH / step_size / self.STRETCH)
        return int(np.clip(n_steps, self.FEWEST_STEPS, self.MOST_STEPS))

    def settle(self):
        """Fix the trajectories for sampling."""
        self.is_settled = True
        if self.has_window:
            self.n_steps = self._steps_of(self.step_size)
            self.step_size = min(self.STRETCH * self.step_size, self.LENGTH / self.n_steps)
