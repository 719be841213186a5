r"""A surrogate fitted to log-density values, again and again along a chain.

Every evaluation of the target is used, rejected proposals included, each estimate once, at the
proposal that it was drawn for: the estimate that a chain carries is biased upwards, having been
accepted. Values at one point are averaged.

The surrogate's coordinates are the symmetric root of the geometric mean of the states'
covariance and the inverse Fisher information :math:`E[\nabla f \nabla f^\top]^{-1}` of the last
surrogate (:func:`pymc_kmc.adaptation.metric.geometric_mean`): in them draws and gradients have
about unit spread, which is what both the leapfrog integrator and an isotropic kernel ask for.
"""

import numpy as np

from pymc_kmc.adaptation.metric import geometric_mean, shrunk_covariance, symmetric_power
from pymc_kmc.surrogates.gp import LogDensityGP

__all__ = ["LogDensityAdaptation", "first_fit"]


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


class LogDensityAdaptation:
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
    surrogate : LogDensityGP or None
        None until the first fit.
    n_fits : int
    failure : str or None
        Why the last fit was given up, if it was; the surrogate before it stays in use.
    """

    # Share of the history that is used: the rest is burn-in.
    RECENT = 2 / 3
    # Most values of a fit, the newest.
    MOST_VALUES = 2500
    # Weights of score matching tried beside noisy values: states of a chain are worth less than
    # independent ones.
    NOISY_SCORE_WEIGHTS = (0.0, 0.03, 0.1, 0.3)
    # States that the Fisher information is averaged over.
    N_FISHER = 400

    def __init__(self, n_landmarks, is_noisy=False):
        self.n_landmarks = n_landmarks
        self.score_weights = self.NOISY_SCORE_WEIGHTS if is_noisy else (0.0,)
        self.surrogate = None
        self.n_fits = 0
        self.failure = None

    def fit(self, history, log_densities, evaluations, rng):
        """Fit anew.

        Parameters
        ----------
        history : History
            The chain's states, shape (n, d).
        log_densities : History
            Theirs, shape (n, 1).
        evaluations : History
            Proposals and the finite log densities found there, shape (n', d + 1).
        rng : numpy.random.Generator

        Returns
        -------
        bool
            Whether there is a new surrogate.
        """
        self.failure = None
        states = history.recent(self.RECENT)
        points, values = distinct(evaluations.last(min(len(evaluations), self.MOST_VALUES)))
        if len(points) < states.shape[1] + 2:
            return False
        recent = log_densities.recent(self.RECENT)
        recent = recent[np.isfinite(recent)]
        surrogate = LogDensityGP(
            self.n_landmarks, score_weights=self.score_weights, rng=int(rng.integers(2**31))
        )
        try:
            surrogate.fit(
                points,
                values,
                reference=states,
                whitening=symmetric_power(self._metric(states), -0.5),
                bulk=np.quantile(recent, 0.9) if len(recent) else None,
                last=self.surrogate,
            )
        except (ValueError, np.linalg.LinAlgError) as error:
            self.failure = f"{type(error).__name__}: {error}"
            return False
        if self.surrogate is None and can_be_full(states.shape[1]) and not surrogate.is_full_:
            return False  # half a surrogate is worse than the random walk: wait
        self.surrogate = surrogate
        self.n_fits += 1
        return True

    def _metric(self, states):
        covariance = shrunk_covariance(states)
        if self.surrogate is None:
            return covariance
        gradients = self.surrogate.gradient(states[:: max(1, len(states) // self.N_FISHER)])
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
