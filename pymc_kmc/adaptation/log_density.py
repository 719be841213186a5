r"""A surrogate fitted to log-density values, again and again along a chain.

Every evaluation of the target is used, rejected proposals included, each estimate once, at the
proposal that it was drawn for: the estimate that a chain carries is biased upwards, having been
accepted. Values at one point are averaged.

The surrogate's coordinates whiten the geometric mean of the states' covariance and the inverse
Fisher information :math:`E[\nabla f \nabla f^\top]^{-1}` of the last surrogate
(:func:`pymc_kmc.numerics.linear_algebra.geometric_mean`): in them draws and gradients have
about unit spread, which is what both the leapfrog integrator and an isotropic kernel ask for.
Before, a warp takes out what some coordinates' scales owe to others (:mod:`.warping`), where a fit
in warped coordinates has the larger marginal likelihood: that learned from the states, or that
learned from the last surrogate's curvature.
"""

import numpy as np

from pymc_kmc.adaptation.fitting import RepeatedFit
from pymc_kmc.adaptation.warping import learn_warp
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.numerics.linear_algebra import geometric_mean
from pymc_kmc.numerics.samples import shrunk_covariance, whitening
from pymc_kmc.surrogates.gp import LogDensityGP

__all__ = ["LogDensityAdaptation", "first_fit"]

# Kinds of warp.
NO_WARP, FROM_STATES, FROM_CURVATURE = 0, 1, 2


def first_fit(n_dimensions):
    """Return the number of evaluations at which a first fit makes sense.

    A quadratic's coefficients and a tenth more, so that it is determined; with more dimensions
    than are ever fitted fully, six evaluations a dimension for the diagonal.
    """
    n_coefficients = n_dimensions * (n_dimensions + 3) / 2
    if not can_be_full(n_dimensions):
        n_coefficients = 0
    return int(max(60, 6 * n_dimensions, 1.15 * n_coefficients))


def can_be_full(n_dimensions):
    """Say whether a fit's values can ever determine the whole quadratic."""
    return n_dimensions * (n_dimensions + 3) / 2 <= LogDensityAdaptation.MOST_VALUES / 1.2


class LogDensityAdaptation(RepeatedFit):
    """Fits :class:`~pymc_kmc.surrogates.LogDensityGP` to a chain.

    Parameters
    ----------
    n_landmarks : int
        Most kernel functions of a fit.
    is_noisy : bool
        Whether values are estimates: score matching on the states then joins them where that
        predicts held-out values better.

    Attributes
    ----------
    noise_variance : float
        Of the values, as far as it is known; NaN where it isn't.
    """

    # In many dimensions the first fit comes late. So many states a dimension that were made since
    # are enough, without those of the random walk before: in 50 dimensions these had a sixth of the
    # target's spread in some directions.
    STATES_PER_DIMENSION = 5
    # Most values of a fit, the newest.
    MOST_VALUES = 2500
    # Weights of score matching tried beside noisy values: states of a chain are worth less than
    # independent ones.
    NOISY_SCORE_WEIGHTS = (0.0, 0.03, 0.1, 0.3)
    # Kinds of warps that lose are tried in every so many fits.
    RETRIED = 4
    # Of the residual variance beyond the noise's: above the first, fits have twice as many
    # landmarks, until it is below the second with them.
    LARGE_VARIANCE, SMALL_VARIANCE = 0.01, 0.001
    # Noise is known to this share.
    NOISE_ERROR = 0.2
    # States that the Fisher information is averaged over.
    N_FISHER = 400

    def __init__(self, n_landmarks, is_noisy=False):
        super().__init__()
        self.n_landmarks = n_landmarks
        self.noise_variance = np.nan if is_noisy else 0.0
        self.first_length = None
        self._n_lost = [0, 0, 0]
        self.score_weights = self.NOISY_SCORE_WEIGHTS if is_noisy else (0.0,)

    def n_recent(self, record):
        n = super().n_recent(record)
        n_since = len(record) - (self.first_length or 0)
        d = record.states.last(1).shape[1]
        return min(n, n_since) if n_since >= self.STATES_PER_DIMENSION * d else n

    def evaluations(self, record):
        """Return the evaluations that are learned from, shape (n, d + 1)."""
        return record.evaluations.last(min(len(record.evaluations), self.MOST_VALUES))

    def _fit(self, record, rng):
        states = record.states.last(self.n_recent(record))
        points, values = distinct(self.evaluations(record))
        if len(points) < states.shape[1] + 2:
            return None
        recent = record.log_densities.last(len(states))[:, 0]
        seed = int(rng.integers(2**31))
        fits = [
            (kind, warp, self._fit_in(warp, states, recent, points, values, seed))
            for kind, warp in self._warps(states)
        ]
        best, warp, surrogate = max(fits, key=lambda fit: fit[2].log_evidence_)
        for kind, _, _ in fits:
            self._n_lost[kind] = 0 if kind == best else self._n_lost[kind] + 1
        if self.surrogate is None and can_be_full(states.shape[1]) and not surrogate.is_full_:
            return None  # half a surrogate is worse than the random walk: wait
        if self.surrogate is None:
            self.first_length = len(record)
        self.warp = warp
        return surrogate

    def _warps(self, states):
        """Kinds of warps that are worth a fit, and the warps.

        One that lost time and again is tried now and then.
        """
        n_lost = self._n_lost if self.n_fits % self.RETRIED else [0, 0, 0]
        thinned = states[:: max(1, len(states) // self.N_FISHER)]
        candidates = []
        if n_lost[FROM_STATES] < 2:
            candidates.append((FROM_STATES, learn_warp(states)))
        if n_lost[FROM_CURVATURE] < 2 and self.surrogate is not None:
            log_scales = self._conditional_log_scales(thinned)
            candidates.append((FROM_CURVATURE, learn_warp(thinned, log_scales)))
        candidates = [(kind, warp) for kind, warp in candidates if warp is not IDENTITY]
        if n_lost[NO_WARP] < 2 or not candidates:
            candidates.append((NO_WARP, IDENTITY))
        return candidates

    def _conditional_log_scales(self, states):
        """Of each coordinate given all others, as the last surrogate's curvature has it."""
        Y = self.warp.forward(states)
        steps = 0.05 * Y.std(axis=0)
        log_scales = np.zeros(Y.shape)
        for i, step in enumerate(steps):
            shift = np.zeros(len(steps))
            shift[i] = step
            change = self.surrogate.gradient(Y - shift) - self.surrogate.gradient(Y + shift)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_scales[:, i] = -0.5 * np.log(change[:, i] / (2.0 * step))
        if self.warp is not IDENTITY:
            log_scales[:, self.warp.driven] += self.warp.log_scales(states)
        return log_scales

    def _most_landmarks(self):
        """Return how many kernel functions the next fit may have: more where the last were too few.

        Eight schools, five seeds: 423 to 615 effective draws with 600 always, 166 to 674 with 300.
        Where 300 say all, 600 only slow transitions down.
        """
        last = self.surrogate
        if last is None:
            return self.n_landmarks
        excess = last.variance_ - (1.0 + self.NOISE_ERROR) * self.noise_variance
        has_more = last.n_landmarks > self.n_landmarks
        limit = self.SMALL_VARIANCE if has_more else self.LARGE_VARIANCE
        return 2 * self.n_landmarks if excess > limit else self.n_landmarks

    def _fit_in(self, warp, states, log_densities, points, values, seed):
        """A surrogate in a warp's coordinates."""
        before = self.warp.forward(states)
        values = values + warp.log_volume(points)
        log_densities = log_densities + warp.log_volume(states)
        log_densities = log_densities[np.isfinite(log_densities)]
        states = warp.forward(states)
        n_landmarks = self._most_landmarks()
        return LogDensityGP(n_landmarks, score_weights=self.score_weights, rng=seed).fit(
            warp.forward(points),
            values,
            reference=states,
            whitening=whitening(self._metric(states, before)),
            bulk=np.quantile(log_densities, 0.9) if len(log_densities) else None,
            last=self.surrogate,
        )

    def _metric(self, states, before):
        """The metric at states, which are `before` in the last surrogate's coordinates."""
        covariance = shrunk_covariance(states)
        if self.surrogate is None:
            return covariance
        gradients = self.surrogate.gradient(before[:: max(1, len(before) // self.N_FISHER)])
        n_states, n_dimensions = gradients.shape
        # The inverse covariance is d more states.
        share = n_dimensions / (n_dimensions + n_states)
        information = (1 - share) * gradients.T @ gradients / n_states
        information += share * np.linalg.inv(covariance)
        return geometric_mean(covariance, np.linalg.inv(information))


def distinct(evaluations):
    """Return distinct points (k, d) in order and the mean of the values at each, (k,)."""
    points, values = evaluations[:, :-1], evaluations[:, -1]
    _, first, inverse = np.unique(points, axis=0, return_index=True, return_inverse=True)
    means = np.bincount(inverse.ravel(), weights=values) / np.bincount(inverse.ravel())
    order = np.argsort(first)
    return points[first[order]], means[order]
