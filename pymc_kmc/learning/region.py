r"""The feasible region: where a model's log density is finite.

Evaluations have the label 1 if finite and -1 if not, and less in absolute value next to one of the
other kind: a step would be taken for noise, which blurs the edge. The labels are values of a
Gaussian process of mean 1: places far from failures are feasible. With its predictive mean m and
variance v, a point is feasible with probability

.. math:: \Phi\left(\frac{m(x)}{\sqrt{v(x) + s^2}}\right)

(least-squares classification; Rasmussen and Williams, 2006, section 6.5). The density is multiplied
by it, for moves by a logistic function that is nearly the same. Emulators are fitted to finite
values only.

An estimate may fail by chance, with a probability that depends on the place: zero successes of a
few simulations, say. Labels then are random about their mean, the process finds the variance of
that, and s is as large: the probability is that of a finite estimate.

References
----------
Rasmussen, C. E. and Williams, C. K. I. (2006). *Gaussian Processes for Machine Learning*. MIT
Press.
"""

from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from scipy.linalg import LinAlgError
from scipy.spatial.distance import cdist
from scipy.special import expit, log_ndtr

from pymc_kmc.learning.emulator import ProcessState, process_about, shrunk
from pymc_kmc.numerics.linear_algebra import ROUNDING

# Standard deviation s, in labels, at least: the probability's slope is finite for trajectories, and
# a label is five of them from zero.
SMOOTHING = 0.2
# Distance to the nearest evaluation of the other kind, in standard deviations of draws, below which
# a label is less. With .5 to 2 more mass was seen beyond the edges of seven densities of a value.
RAMP = 0.25
# Least probability for chains' moves: where the region is wrong a chain stays for some twenty
# iterations at most. Without it one chain of four had 1.2 times the standard deviation.
LEAST = 0.05
# Standard deviation, in nats, of a log density that is finite with probability one half: the
# density is either zero or twice its mean.
DOUBT = np.log(2.0)
# Slope of the logistic function that approximates the Gaussian distribution function within .01.
STEEPNESS = 1.702


class Feasibility(NamedTuple):
    """Log probabilities (k,) of k points to be feasible, and their gradients (k, d).

    `doubt` (k,) is the variance of the log density since they are uncertain.
    """

    log_probability: np.ndarray
    gradient: np.ndarray
    doubt: np.ndarray


class FeasibleRegion:
    """The probability that points are feasible, by a fitted `process` of labels less 1.

    `is_noisy` says that values are estimates, which may fail by chance.
    """

    def __init__(self, process, is_noisy=False):
        self.process = process
        noise = np.exp(process.hyperparameters_.log_noise) if is_noisy else 0.0
        self.smoothing = float(np.sqrt(max(SMOOTHING**2, noise)))

    @classmethod
    def of(cls, evaluations, draws, last=None, is_noisy=False):
        """Return the region, in coordinates of draws (n, d), or `last` if all values are finite."""
        is_finite = np.isfinite(evaluations.log_densities)
        if is_finite.all() or not is_finite.any():
            return last
        # With noise, so that a process of some smoothness takes what is left of a step for it.
        process = process_about(draws, shrunk(draws), deterministic=False)
        labels = np.where(is_finite, 1.0, -1.0)
        if not is_noisy:
            Z = process.coordinates(evaluations.X)
            away = cdist(Z, Z[~is_finite]).min(axis=1), cdist(Z, Z[is_finite]).min(axis=1)
            labels *= np.fmin(np.where(is_finite, *away) / RAMP, 1.0)
        try:
            process.fit(evaluations.X, labels[:, None] - 1.0, last=last and last.process)
        except LinAlgError:
            return last
        return cls(process, is_noisy)

    @classmethod
    def restored(cls, state, is_noisy=False):
        return cls(state.process(deterministic=False), is_noisy)

    @property
    def state(self):
        return ProcessState.of(self.process)

    @property
    def packable(self):
        """The arguments of :func:`~pymc_kmc.surrogates.exact_gp_evaluation.packed`."""
        return self.process, np.ones(1), np.ones(1), False

    def at(self, X, n_sds=0.0):
        """Return the :class:`Feasibility` at X (k, d), `n_sds` standard deviations optimistic."""
        predicted = self.process.predict(X)
        variance = self.smoothing**2 + predicted.variance
        ratio = (1.0 + predicted.mean[:, 0]) / np.sqrt(variance)
        log_probability, slope = _log_normal(ratio + n_sds)
        by_mean = (slope / np.sqrt(variance))[:, None]
        pulled = predicted.pullback(by_mean, -0.5 * slope * ratio / variance)
        doubt = self._doubt(log_probability, predicted.variance)
        return Feasibility(log_probability, pulled, doubt)

    def labels(self, X, n=0):
        """Return the covariance (k, k) of labels at X (k, d), and their variance by chance.

        The first n are not labels but log densities, as far as they follow from these.
        """
        predicted = self.process.predict(X[:n])
        sds, scale = np.sqrt(self.smoothing**2 + predicted.variance), np.ones(len(X))
        scale[:n] = _log_normal((1.0 + predicted.mean[:, 0]) / sds)[1] / sds
        return self.process.covariance(X) * np.outer(scale, scale), self.smoothing**2

    def covariance(self, X):
        """Return the covariance (k, k) of the density's relative errors at X (k, d).

        A point is in the region or not, and the density is 1 / p times its mean or zero: the errors
        at both sides of one edge have the covariance 1 / max(p, p') - 1. Those of distant edges are
        independent, as the labels are.
        """
        p = np.fmax(np.exp(self.at(X).log_probability), LEAST)
        labels = self.process.covariance(X)
        variances = np.fmax(np.diag(labels), ROUNDING)
        sds = np.sqrt(variances / self._share_of_doubt(variances))
        return (1.0 / np.maximum.outer(p, p) - 1.0) * labels / np.outer(sds, sds)

    def _share_of_doubt(self, variances):
        """Return which share of what is uncertain about labels isn't chance, given their variances.

        All of it, unless estimates fail by chance.
        """
        return (SMOOTHING**2 + variances) / (self.smoothing**2 + variances)

    def _doubt(self, log_probability, variances):
        """Return variances (k,) of the log density, given log probabilities and labels' variances.

        That an estimate may fail by chance is known.
        """
        p = np.exp(log_probability)
        return 4.0 * p * (1.0 - p) * DOUBT**2 * self._share_of_doubt(variances)

    def for_moves(self, X):
        """Return the :class:`Feasibility` for chains' moves, with a lower bound.

        The process's variance is ignored.
        """
        predicted = self.process.predict(X)
        p = expit(STEEPNESS / self.smoothing * (1.0 + predicted.mean[:, 0]))
        floored = LEAST + (1.0 - LEAST) * p
        slope = STEEPNESS / self.smoothing * (1.0 - LEAST) * p * (1.0 - p) / floored
        log_probability, none = np.log(floored), np.zeros(len(X))
        pulled = predicted.pullback(slope[:, None], none)
        return Feasibility(log_probability, pulled, self._doubt(log_probability, none))


def _log_normal(z):
    """Return the logarithm of the Gaussian distribution function at z (k,), and its slope."""
    values = log_ndtr(z)
    return values, np.exp(-0.5 * z**2 - values) / np.sqrt(2.0 * np.pi)


def log_probability_graph(mean, smoothing):
    """Return the graph of the log probability for moves, given that of the predictive mean."""
    return pt.log(LEAST + (1.0 - LEAST) * pt.sigmoid(STEEPNESS / smoothing * mean))
