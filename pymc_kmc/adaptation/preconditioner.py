"""A preconditioner of Langevin proposals, learned from draws and gradients.

It is the geometric mean of the draws' covariance and the gradients' inverse covariance. In its
coordinates draws and gradients have equal spread. For a Gaussian target it is the covariance
*exactly*, from any d + 1 points: gradients are linear in the draws, so that both covariances have
the same error. It is computed from the recent half of the chain on a geometric schedule, like the
windows of NUTS's tuning. Before the first window the generalised speed measure
(:mod:`pymc_kmc.adaptation.speed_measure`) is used.

References
----------
Bhatia, R. (2007). *Positive Definite Matrices*, chapter 4. Princeton University Press.
"""

import numpy as np

from pymc_kmc.adaptation.history import RECENT_SHARE, GrowingArray
from pymc_kmc.adaptation.schedules import FIRST_STEP_SIZE, GeometricSchedule, RobbinsMonroScale
from pymc_kmc.numerics.linear_algebra import geometric_mean, single_threaded_blas
from pymc_kmc.numerics.samples import count_distinct, shrunk_covariance


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

    def learn(self, U, V, acceptance_rate, accepted, position, gradient, weight=1.0):
        """Learn from :meth:`SpeedMeasure.learn`'s arguments, the new state and its gradient."""
        self.positions.append(position)
        self.gradients.append(gradient)
        if not self.has_window:
            self.speed_measure.learn(U, V, acceptance_rate, accepted, weight)
        elif not self.is_settled:
            self.scale_adaptation.update(acceptance_rate)
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
