r"""A surrogate fitted to log-density values, again and again along a chain.

Every evaluation of the target is used once, at its proposal, rejected proposals included. The
estimate that a chain carries is not used: it is biased upwards, because it was accepted. Values at
one point are averaged.

The surrogate's coordinates whiten the geometric mean of the states' covariance and the inverse
Fisher information :math:`E[\nabla f \nabla f^\top]^{-1}` of the last surrogate
(:func:`pymc_kmc.numerics.linear_algebra.geometric_mean`). A warp may first divide out the
dependence of some coordinates' scales on others (:mod:`.warping`); it is used where the fit in
warped coordinates has the larger marginal likelihood.
"""

import numpy as np

from pymc_kmc.adaptation.fitted import Fit, RepeatedFit, fisher_information
from pymc_kmc.adaptation.transitions import learn_transitions, whitened_hamiltonian
from pymc_kmc.adaptation.warping import learn_warp
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.numerics.linear_algebra import geometric_mean
from pymc_kmc.numerics.samples import mean_values, shrunk_covariance, thinned, whitening
from pymc_kmc.surrogates.kernels import N_AVERAGED
from pymc_kmc.surrogates.log_density_gp import LogDensityGP
from pymc_kmc.surrogates.regression import BULK


def first_fit(n_dimensions):
    """Return the fewest evaluations for a first fit, some more than a quadratic's coefficients."""
    n_coefficients = n_dimensions * (n_dimensions + 3) / 2
    if not can_be_full(n_dimensions):  # six a dimension are enough for the diagonal
        n_coefficients = 0
    return int(max(60, 6 * n_dimensions, 1.15 * n_coefficients))


def can_be_full(n_dimensions):
    """Return whether the most values of a fit can determine the whole quadratic."""
    return n_dimensions * (n_dimensions + 3) / 2 <= FitToValues.MOST_VALUES / 1.2


class FitToValues(RepeatedFit):
    """Fits :class:`~pymc_kmc.surrogates.LogDensityGP` to the log densities that a chain evaluated.

    A fit has at most `n_landmarks` kernel functions, or twice as many. If `is_noisy`, values are
    estimates, and score matching on the states joins them where that predicts held-out values
    better. The step sets `noise_variance`, NaN where it isn't known.
    """

    # States a dimension since the first fit from which on earlier ones are dropped: the random walk
    # before a late first fit had a sixth of the target's spread in some directions.
    STATES_PER_DIMENSION = 5
    # Most values in a fit, the newest, for the fit's cost.
    MOST_VALUES = 2500
    # Weights of score matching tried beside noisy values, below 1: states of a chain are worth less
    # than independent ones.
    NOISY_SCORE_WEIGHTS = (0.0, 0.03, 0.1, 0.3)
    # Residual variance beyond the noise's, in nats^2, above which fits get twice the landmarks:
    # these make transitions slower.
    LARGE_VARIANCE = 0.01
    # The same, below which they return to the usual number.
    SMALL_VARIANCE = 0.001
    # Relative error of the noise's variance.
    NOISE_ERROR = 0.2

    def __init__(self, n_landmarks, is_noisy=False):
        super().__init__(learn_transitions)
        self.n_landmarks = n_landmarks
        self.noise_variance = np.nan if is_noisy else 0.0
        self.first_length = None
        self.score_weights = self.NOISY_SCORE_WEIGHTS if is_noisy else (0.0,)

    def n_recent(self, history):
        n = super().n_recent(history)
        n_since = len(history) - (self.first_length or 0)
        d = history.states.last(1).shape[1]
        return min(n, n_since) if n_since >= self.STATES_PER_DIMENSION * d else n

    def evaluations(self, history):
        """Return the evaluations that a fit uses, the newest, shape (n, d + 1)."""
        return history.evaluations.last(min(len(history.evaluations), self.MOST_VALUES))

    def _fit(self, history, last, rng):
        states, log_densities = self.recent(history)
        evaluations = self.evaluations(history)
        points, values = mean_values(evaluations[:, :-1], evaluations[:, -1])
        if len(points) < states.shape[1] + 2:
            return None
        seed = int(rng.integers(2**31))
        fits = [
            (warp, self._fit_in(warp, last, states, log_densities, points, values, seed))
            for warp in self._warps(states)
        ]
        warp, surrogate = max(fits, key=lambda fit: fit[1].log_evidence_)
        if last is None and can_be_full(states.shape[1]) and not surrogate.is_full_:
            return None  # half a surrogate is worse than the random walk: wait
        if last is None:
            self.first_length = len(history)
        return Fit(surrogate, whitened_hamiltonian(surrogate), warp)

    def _warps(self, states):
        warp = learn_warp(states)
        return [IDENTITY] if warp is IDENTITY else [warp, IDENTITY]

    def _most_landmarks(self, last):
        """Return the number of kernel functions of the next fit: more if the last had too few."""
        if last is None:
            return self.n_landmarks
        surrogate = last.surrogate
        excess = surrogate.variance_ - (1.0 + self.NOISE_ERROR) * self.noise_variance
        has_more = surrogate.n_landmarks > self.n_landmarks
        limit = self.SMALL_VARIANCE if has_more else self.LARGE_VARIANCE
        return 2 * self.n_landmarks if excess > limit else self.n_landmarks

    def _fit_in(self, warp, last, states, log_densities, points, values, seed):
        before = states if last is None else last.warp.forward(states)
        values = values + warp.log_volume(points)
        log_densities = log_densities + warp.log_volume(states)
        log_densities = log_densities[np.isfinite(log_densities)]
        states = warp.forward(states)
        surrogate = None if last is None else last.surrogate
        return LogDensityGP(
            self._most_landmarks(last), score_weights=self.score_weights, rng=seed
        ).fit(
            warp.forward(points),
            values,
            reference=states,
            whitening=whitening(self._metric(states, surrogate, before)),
            bulk=np.quantile(log_densities, BULK) if len(log_densities) else None,
            last=surrogate,
        )

    def _metric(self, states, surrogate, before):
        """Return the metric at states, which are `before` in the last surrogate's coordinates."""
        covariance = shrunk_covariance(states)
        if surrogate is None:
            return covariance
        gradients = surrogate.gradient(thinned(before, N_AVERAGED))
        information = fisher_information(gradients, covariance)
        return geometric_mean(covariance, np.linalg.inv(information))
