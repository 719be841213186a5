r"""Averages over a learned posterior, with standard errors that cover.

Draws of an emulator are of :math:`e^{f - V/2}` (:mod:`pymc_kmc.learning.composite`): weights
:math:`e^{V/2}` make averages over them those of :math:`e^f`. With the influence h of a functional,
x less its mean for a mean, two errors are left.

*The surrogate's.* An error e of the log density moves the functional by :math:`\mathrm{Cov}(e, h)`,
to first order. Under the Gaussian processes e has mean zero and the covariance C, which makes

.. math:: \sigma^2 = \kappa^2 \iint h(x)\, C(x, x')\, h(x')\, \pi(x)\, \pi(x')\, dx\, dx'

(Bayesian quadrature; O'Hagan, 1991). The calibration :math:`\kappa \ge 1` is the root mean square
of the standardised errors of evaluations that are predicted from all others (leave one out;
Rasmussen and Williams, 2006, equation 5.12). Where learning has not converged emulators are not to
be believed: the error that was measured at fresh draws, times the standard deviation of h, is
added, the largest covariance there can be.

*Monte Carlo's*, of the finite number of draws. Functions whose mean is known to be zero, those of
Stein's identity

.. math:: \Delta P + \nabla P \cdot \nabla f, \qquad P = x_j, \; x_j x_k,

are control variates: the regression of h on them takes most of it away, where the posterior is near
a Gaussian (Mira, Solgi and Imparato, 2013).

References
----------
Mira, A., Solgi, R. and Imparato, D. (2013). Zero variance Markov chain Monte Carlo for Bayesian
estimators. *Statistics and Computing* 23, 653-662.

O'Hagan, A. (1991). Bayes-Hermite quadrature. *Journal of Statistical Planning and Inference* 29,
245-260.

Rasmussen, C. E. and Williams, C. K. I. (2006). *Gaussian Processes for Machine Learning*. MIT
Press.
"""

import numpy as np
import pandas as pd

# Powers of the weights that are tried, and the smallest share of draws that they must be worth:
# where an emulator knows little, its variances say nothing of the density.
POWERS, SMALLEST_SHARE = (1.0, 0.5, 0.25, 0.0), 0.5
# Number of evaluations that the calibration's prior, a calibrated emulator, counts for.
PRIOR_EVALUATIONS = 4.0
# Number of draws that one independent draw is worth, where chains have mixed.
INEFFICIENCY = 1.25
# Draws for each control variate, at least: a regression on more of them fits noise.
DRAWS_PER_CONTROL = 20
# Half the width, in probability, of the interval that a quantile's density is taken from.
HALF_WIDTH = 0.05


class Averages:
    """Averages over draws of an emulated posterior.

    Parameters
    ----------
    variances : ndarray, shape (n,)
        Of the log density at the draws.
    controls : ndarray, shape (n, c)
        Control variates, of mean zero.
    covariance : ndarray, shape (k, k)
        Of the log density's errors at the first k draws.
    calibration : float
        Ratio of the emulators' errors to what they say of them.
    unknown : float
        Standard deviation of an error of the log density that the emulators know nothing of.
    inefficiency : float
        Number of draws that one independent draw is worth.
    """

    def __init__(
        self,
        variances,
        controls,
        covariance,
        calibration,
        unknown=0.0,
        inefficiency=INEFFICIENCY,
    ):
        self.weights, self._inefficiency = _weights(variances), inefficiency
        self._controls, self._unknown = controls, unknown
        first = self.weights[: len(covariance)]
        self._first = first / first.sum()
        self._covariance = calibration**2 * covariance

    def surrogate_variance(self, influences):
        """Return the variance of functionals by errors of the surrogate.

        Parameters
        ----------
        influences : ndarray, shape (n, q)
            Of each draw on each functional.
        """
        h = influences[: len(self._first)]
        parts = self._first[:, None] * (h - self._first @ h)
        known = np.einsum("ia,ij,ja->a", parts, self._covariance, parts)
        if self._unknown == 0.0:
            return known
        # The largest covariance with an error of that size.
        return known + self._unknown**2 * (self.weights @ influences**2)

    @property
    def constant_error(self):
        """Standard deviation of the log density's mean error: that of a log evidence."""
        known = max(self._first @ self._covariance @ self._first, 0.0)
        return float(np.hypot(np.sqrt(known), self._unknown))

    def controlled(self, influences):
        """Return what control variates take off functionals, and the standard errors then.

        Parameters
        ----------
        influences : ndarray, shape (n, q)

        Returns
        -------
        excess : ndarray, shape (q,)
        errors : ndarray, shape (q,)
        """
        roots = np.sqrt(self.weights)[:, None]
        means = self.weights @ self._controls
        centred = self._controls - means
        slopes = np.linalg.lstsq(roots * centred, roots * influences, rcond=None)[0]
        sampling = self._inefficiency * (self.weights**2 @ (influences - centred @ slopes) ** 2)
        return means @ slopes, np.sqrt(self.surrogate_variance(influences) + sampling)

    def table(self, values, labels, quantiles):
        """Return means, standard deviations and quantiles with their standard errors.

        Parameters
        ----------
        values : ndarray, shape (n, p)
        labels : list of str
        quantiles : tuple of float

        Returns
        -------
        pandas.DataFrame
        """
        means = self.weights @ values
        deviations = values - means
        sds = np.sqrt(self.weights @ deviations**2)
        units = np.where(sds > 0, sds, 1.0)
        found = {
            "mean": (means, deviations),
            "sd": (sds, (deviations**2 - sds**2) / (2.0 * units)),
        }
        for p in quantiles:
            found[f"{100 * p:g}%"] = self._quantile(values, p)
        columns, errors = {}, {}
        for name, (estimates, influences) in found.items():
            excess, errors[f"se_{name}"] = self.controlled(influences)
            columns[name] = estimates - excess
        return pd.DataFrame(columns | errors, index=labels)

    def _quantile(self, values, p):
        """Return quantiles of columns (n, p), and the draws' influences on them."""
        half = min(HALF_WIDTH, 0.5 * p, 0.5 * (1.0 - p))
        low, found, high = (self._inverse(values, level) for level in (p - half, p, p + half))
        below = values <= found
        return found, (self.weights @ below - below) * (high - low) / (2.0 * half)

    def _inverse(self, values, level):
        """Return the weighted quantiles of columns."""
        order = np.argsort(values, axis=0)
        result = np.empty(values.shape[1])
        for j, rows in enumerate(order.T):
            weights = self.weights[rows]
            result[j] = np.interp(level, np.cumsum(weights) - 0.5 * weights, values[rows, j])
        return result


def _weights(variances):
    """Return the weights of draws, sum 1."""
    for power in POWERS:
        logs = 0.5 * power * variances
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        if 1.0 / np.sum(weights**2) >= SMALLEST_SHARE * len(weights):
            break
    return weights


def control_variates(X, gradients):
    """Return functions of mean zero (n, c) of draws X (n, d), given gradients of the log density.

    Those of second-order polynomials; of squares alone, or of first order, where there are many
    coordinates.
    """
    n, d = X.shape
    most = n // DRAWS_PER_CONTROL
    if d > most:
        return np.zeros((n, 0))
    Z = X - X.mean(axis=0)
    i, j = np.triu_indices(d)
    if d + len(i) > most:
        i = j = np.arange(d if 2 * d <= most else 0)
    second = Z[:, i] * gradients[:, j] + Z[:, j] * gradients[:, i] + 2.0 * (i == j)
    return np.hstack([gradients, second])


def inefficiency(r_hat, n):
    """Return the number of draws that one independent draw is worth, 1.25 at least.

    Parameters
    ----------
    r_hat : float
        Potential scale reduction of chains of n draws; n, where each stays where it is.
    n : int
    """
    between = max(r_hat**2 - (n - 1.0) / n, 0.0)  # variance of chains' means, in that within
    return max(INEFFICIENCY, n * between / ((n - 1.0) / n + between))


def calibration(errors, sds):
    """Return the ratio of errors (n,) to their predicted standard deviations, 1 at least."""
    usable = np.isfinite(errors) & np.isfinite(sds) & (sds > 0)
    squares = (errors[usable] / sds[usable]) ** 2
    ratio = (PRIOR_EVALUATIONS + squares.sum()) / (PRIOR_EVALUATIONS + len(squares))
    return float(np.sqrt(max(1.0, ratio)))


def flattened(variables):
    """Return variables (n, ...) as columns (n, p), and the columns' names."""
    columns, labels = [], []
    for name, values in variables.items():
        columns.append(values.reshape(len(values), -1))
        shape = values.shape[1:]
        labels += (
            [f"{name}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)] if shape else [name]
        )
    return np.hstack(columns).astype(float), labels
