r"""Averages over a learned posterior, with standard errors that cover the truth.

Draws of an emulator are of :math:`e^{f - V/2}` (:mod:`pymc_kmc.learning.composite`). Weights
:math:`e^{V/2}` turn averages over them into averages over :math:`e^f`. With the influence h of a
functional (for a mean: x less its mean), two errors are left.

*The surrogate's error.* An error e of the log density moves the functional by
:math:`\mathrm{Cov}(e, h)`, to first order. Under the Gaussian processes e has mean zero and
covariance C, so that the functional's variance is

.. math:: \sigma^2 = \kappa^2 \iint h(x)\, C(x, x')\, h(x')\, \pi(x)\, \pi(x')\, dx\, dx'

(Bayesian quadrature; O'Hagan, 1991). The calibration :math:`\kappa \ge 1` is the root mean square
of the standardised errors of evaluations that are predicted from all others (leave one out;
Rasmussen and Williams, 2006, equation 5.12). Where learning has not converged, the error measured
at fresh draws, times the standard deviation of h, is added: the largest covariance there can be.

*The Monte Carlo error.* The functions of Stein's identity have mean zero and are control variates,

.. math:: \Delta P + \nabla P \cdot \nabla f, \qquad P = x_j, \; x_j x_k.

Near a Gaussian the regression of h on them takes most of this error away (Mira, Solgi and
Imparato, 2013). Where the log density jumps their means are not zero, and they are left out.

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
# Size of a control variate's mean, in standard errors, from which on it isn't zero: by chance one
# of 65 is so far off in four cases of a thousand, which then have larger standard errors.
NOT_ZERO = 4.0
# Draws for each control variate, at least: a regression on more of them fits noise.
DRAWS_PER_CONTROL = 20
# Half the width, in probability, of the interval that a quantile's density is taken from.
HALF_WIDTH = 0.05


class Averages:
    """Averages over n draws of an emulated posterior.

    `variances` (n,) are the log density's, `controls` (n, c) control variates of mean zero, and
    `covariance` (k, k) that of the log density's errors at the first k draws. `calibration` is the
    ratio of actual errors to the emulators' standard deviations, `unknown` the standard deviation
    of an additional error. One independent draw is worth `inefficiency` draws.
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
        self._controls, self._unknown = self._of_mean_zero(controls), unknown
        first = self.weights[: len(covariance)]
        self._first = first / first.sum()
        self._covariance = calibration**2 * covariance

    def _of_mean_zero(self, controls):
        """Return the control variates; none if their means over the draws differ from zero."""
        means = self.weights @ controls
        variances = self._inefficiency * (self.weights**2 @ (controls - means) ** 2)
        is_zero = np.all(means**2 <= NOT_ZERO**2 * variances)
        return controls if is_zero else controls[:, :0]

    def surrogate_variance(self, influences):
        """Return the surrogate's part (q,) of functionals' variances, given influences (n, q)."""
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
        """Return control variates' corrections (q,) to subtract, and standard errors (q,)."""
        roots = np.sqrt(self.weights)[:, None]
        means = self.weights @ self._controls
        centred = self._controls - means
        slopes = np.linalg.lstsq(roots * centred, roots * influences, rcond=None)[0]
        sampling = self._inefficiency * (self.weights**2 @ (influences - centred @ slopes) ** 2)
        return means @ slopes, np.sqrt(self.surrogate_variance(influences) + sampling)

    def table(self, values, labels, quantiles):
        """Return estimates with standard errors, a DataFrame with a row for each of p columns."""
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
        order = np.argsort(values, axis=0)
        result = np.empty(values.shape[1])
        for j, rows in enumerate(order.T):
            weights = self.weights[rows]
            result[j] = np.interp(level, np.cumsum(weights) - 0.5 * weights, values[rows, j])
        return result


def _weights(variances):
    for power in POWERS:
        logs = 0.5 * power * variances
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        if 1.0 / np.sum(weights**2) >= SMALLEST_SHARE * len(weights):
            break
    return weights


def control_variates(X, gradients):
    """Return functions of mean zero (n, c) at draws X (n, d), given gradients of the log density.

    They belong to second-order polynomials; with many coordinates to squares, or to first order.
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

    `r_hat` is the potential scale reduction of chains of n draws; n, where each chain never moves.
    """
    between = max(r_hat**2 - (n - 1.0) / n, 0.0)  # variance of chains' means, in that within
    return max(INEFFICIENCY, n * between / ((n - 1.0) / n + between))


def calibration(errors, sds):
    """Return the ratio of errors (n,) to their predicted standard deviations (n,), 1 at least."""
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
