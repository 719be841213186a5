r"""Averages over a learned posterior and its log evidence, with standard errors.

Draws of an emulator are of :math:`e^{f - V/2}` (:mod:`pymc_kmc.learning.composite`); weights
:math:`e^{V/2}` turn averages over them into averages over :math:`e^f`. With the influence h of a
functional (for a mean: x less its mean), two errors remain.

*The surrogate's error.* An error e of the log density moves the functional by
:math:`\mathrm{Cov}(e, h)`, to first order. Under the Gaussian processes e has mean zero and
covariance C, and the functional has the variance

.. math:: \sigma^2 = \kappa^2 \iint h(x)\, C(x, x')\, h(x')\, \pi(x)\, \pi(x')\, dx\, dx'

(Bayesian quadrature; O'Hagan, 1991). The calibration :math:`\kappa \ge 1` is the root mean square
of the standardised leave-one-out errors (Rasmussen and Williams, 2006, equation 5.12). C includes
the unknown edge of the region where the model doesn't fail (:mod:`pymc_kmc.learning.region`). If
learning has not converged, the error measured at fresh draws times the standard deviation of h is
added, the largest possible covariance.

A Gaussian process leaves out that its hyperparameters and transform are uncertain, and errors of
left-out values are hidden by noise. C includes the covariance of fits without a quarter of the
evaluations each (a delete-a-group jackknife; Shao and Wu, 1989).

Gaussian noise of variance :math:`s^2` in the logarithm lowers log estimates by :math:`s^2 / 2` on
average. Draws get the weights :math:`e^{s^2 / 2}` too, and C includes what isn't known of that
(:mod:`pymc_kmc.learning.noise_variance`).

*The Monte Carlo error.* The functions of Stein's identity have mean zero and are control variates,

.. math:: \Delta P + \nabla P \cdot \nabla f, \qquad P = x_j, \; x_j x_k.

Near a Gaussian the regression of h on them removes most of this error (Mira, Solgi and Imparato,
2013). An angle has :math:`-2 \cos x_j` in place of :math:`x_j^2`, and :math:`\sin x_j` in products,
for the gradient of P must have the period. If the log density jumps between draws their means are
not zero, and they are left out.

*The log evidence* is found by bridge sampling. The proposal q is a Student t fitted to half of the
draws of the density :math:`\tilde\pi`. Then

.. math:: Z = \frac{E_q[h \tilde\pi]}{E_\pi[h q]}, \qquad h \propto \frac{1}{\tilde\pi + Z q},

is iterated until Z converges, with as many draws from :math:`\pi` as from q (Meng and Wong, 1996).
The mean of the weights over the draws converts Z to the integral of :math:`e^{f + s^2 / 2}`.

References
----------
Meng, X.-L. and Wong, W. H. (1996). Simulating ratios of normalizing constants via a simple
identity: a theoretical exploration. *Statistica Sinica* 6, 831-860.

Mira, A., Solgi, R. and Imparato, D. (2013). Zero variance Markov chain Monte Carlo for Bayesian
estimators. *Statistics and Computing* 23, 653-662.

O'Hagan, A. (1991). Bayes-Hermite quadrature. *Journal of Statistical Planning and Inference* 29,
245-260.

Rasmussen, C. E. and Williams, C. K. I. (2006). *Gaussian Processes for Machine Learning*. MIT
Press.

Shao, J. and Wu, C. F. J. (1989). A general theory for jackknife variance estimation. *Annals of
Statistics* 17, 1176-1197.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit, logsumexp, softmax
from scipy.stats import multivariate_t

from pymc_kmc.learning.composite import NOT_BY_CHANCE, PENALTY
from pymc_kmc.learning.modes import NO_MASS
from pymc_kmc.numerics.checks import as_number

# Powers of the weights, tried in turn, and the smallest effective share of draws that is accepted:
# where an emulator knows little, its variance says nothing about the density.
POWERS, SMALLEST_SHARE = (1.0, 0.5, 0.25, 0.0), 0.5
# Largest weight of one draw. One of 2048 draws, in a tail that the emulator didn't know, counted
# for forty: a standard deviation was .83 +- .02 in place of .61.
LARGEST_WEIGHT = 0.01
# Weight of the calibration's prior, a calibrated emulator, in evaluations.
PRIOR_EVALUATIONS = 4.0
# Number of groups of evaluations that a jackknife leaves out in turn. Under noise of two (32 runs,
# six models) errors were 1.6 standard errors without it, and are .9 with it, without noise on a
# time series 2.2 and 1.1; eight tell no more.
N_GROUPS = 4
# Number of draws that one independent draw is worth, if chains have mixed.
INEFFICIENCY = 1.25
# Lines between draws that are searched for jumps, intervals of each, and most halvings of an
# interval that derivatives don't explain. 64 lines detect a jump with 2 % of the mass beyond in 90
# % of cases.
N_LINES, N_INTERVALS, N_HALVINGS = 64, 16, 20
# Number of intervals that derivatives don't explain above which the derivatives are wrong.
MOST_UNEXPLAINED = 4096
# Smallest jump, in nats.
SMALLEST_JUMP = 0.01
# Fewest draws for each control variate: with fewer the regression fits noise.
DRAWS_PER_CONTROL = 20
# Half the width, in probability, of the interval that gives the density at a quantile.
HALF_WIDTH = 0.05
# Degrees of freedom of the bridge's Student t: its tails are heavier than most posteriors'.
DEGREES = 5
# Most iterations of the bridge, and the change of log Z, in nats, at which it ends.
BRIDGE_ITERATIONS, CHANGE = 200, 1e-8
# Most outputs of a node that are kept, evenly spaced: as many as a plot can show.
MOST_OUTPUTS = 400


class EmulatedNode(NamedTuple):
    """An emulated node and the predictions of its outputs; `shape` is () for a term.

    `columns` (m,) are the indices of the outputs that are kept. `evaluated` (n, m) are their
    values. `held_out` and `held_out_sd` (n, m) are leave-one-out predictions and standard
    deviations, NaN where an evaluation failed; a term's depths are compressed. `outputs` and `sd`
    (k, m) are predictions and standard deviations at the first k draws.
    """

    name: str
    shape: tuple
    is_term: bool
    columns: np.ndarray
    evaluated: np.ndarray
    held_out: np.ndarray
    held_out_sd: np.ndarray
    outputs: np.ndarray
    sd: np.ndarray


class Emulated(NamedTuple):
    """The emulators' predictions, with one EmulatedNode a node.

    `held_out` and `held_out_sd` (n,) are the leave-one-out log densities of the evaluations and
    their standard deviations. `covariance` (k, k) is that of the log density's errors at the first
    k draws, with that of fits to fewer evaluations.
    """

    nodes: tuple
    held_out: np.ndarray
    held_out_sd: np.ndarray
    covariance: np.ndarray

    def with_errors(self, covariance):
        """Return the same with the covariance (k, k) of further errors of the log density."""
        return self._replace(covariance=self.covariance + covariance)


@np.errstate(all="ignore")  # as far away as a first design is, outputs overflow
def emulated(composite, evaluations, draws) -> Emulated:
    """Return a fitted composite's predictions at its evaluations and at draws (k, d)."""
    model, emulators = composite.model, composite.emulators
    inputs = model.inputs(draws)
    predictions = [emulator.predict(draws, inputs) for emulator in emulators]
    left_out = [emulator.leave_one_out(evaluations) for emulator in emulators]
    _, _, by_outputs = model.log_density(draws, np.hstack([p.outputs for p in predictions]))
    raw = np.hstack([outputs for outputs, _ in left_out])
    held_out, _, by_held_out = model.log_density(evaluations.X, raw)
    covariance = np.zeros((len(draws), len(draws)))
    held_out_variance = np.zeros(len(held_out))
    nodes = []
    of_each = zip(emulators, predictions, left_out, strict=True)
    for emulator, prediction, (outputs, variance) in of_each:
        node, factor = emulator.node, emulator.process.output_factor_
        spread = emulator.slopes(by_outputs[:, node.outputs], prediction.outputs) @ factor.T
        covariance += emulator.covariance(draws, inputs) * (spread @ spread.T)
        spread = emulator.slopes(by_held_out[:, node.outputs], outputs) @ factor.T
        held_out_variance += variance * np.einsum("ij,ij->i", spread, spread)
        m = node.n_outputs
        columns = np.unique(np.linspace(0, m - 1, min(m, MOST_OUTPUTS)).round().astype(int))
        deviations = emulator.standard_deviations
        parts = [node.emulated(evaluations.outputs), outputs, deviations(outputs, variance)]
        parts += prediction.outputs, deviations(prediction.outputs, prediction.variance)
        kept = [part[:, columns] for part in parts]
        nodes.append(EmulatedNode(node.name, node.shape, node.is_term, columns, *kept))
    if composite.region is not None:
        covariance += composite.region.covariance(draws)
    return Emulated(tuple(nodes), held_out, np.sqrt(held_out_variance), covariance)


@np.errstate(all="ignore")  # fits to fewer values may overflow
def jackknifed(found, fit_without, n, draws, means, largest, rng) -> Emulated:
    """Return predictions at draws (k, d) whose covariance includes the uncertainty of the fit.

    `fit_without` returns the composite of all n evaluations but some, given their mask (n,).
    `means` (k,) are the log densities at the draws; `largest` is the largest difference from these.
    """
    groups = rng.permutation(n) % N_GROUPS
    fits = np.array([fit_without(groups == group)(draws).mean for group in range(N_GROUPS)])
    # A fit that is further off at draws, as one of four of eight schools was, is no fit of these.
    away = np.clip(np.nan_to_num(fits - means, nan=largest), -largest, largest)
    away -= away.mean(axis=0)
    spread = (N_GROUPS - 1) / N_GROUPS * away.T @ away
    return found.with_errors(spread)


class Averages:
    """Averages over n draws of an emulated posterior.

    `variances` (n,) are the log density's, `controls` (n, c) are control variates of mean zero.
    `lowered` (n,) is what noise took off the log density.
    `covariance` (k, k) is that of the log density's errors at the first k draws. `calibration` is
    the ratio of errors to predicted standard deviations. `unknown` is the standard deviation of a
    further error. One independent draw is worth `inefficiency` draws.
    """

    def __init__(
        self,
        variances,
        controls,
        covariance,
        calibration,
        unknown=0.0,
        inefficiency=INEFFICIENCY,
        lowered=0.0,
    ):
        self.weights, self._inefficiency = _weights(variances, lowered), inefficiency
        self._controls, self._unknown = self._of_mean_zero(controls), unknown
        first = self.weights[: len(covariance)]
        self._first = first / first.sum()
        self._covariance = calibration**2 * covariance

    def _of_mean_zero(self, controls):
        means = self.weights @ controls
        variances = self._inefficiency * (self.weights**2 @ (controls - means) ** 2)
        is_zero = np.all(means**2 <= NOT_BY_CHANCE**2 * variances)
        return controls if is_zero else controls[:, :0]

    def surrogate_variance(self, influences):
        """Return the variances (q,) of functionals with influences (n, q), due to the surrogate."""
        h = influences[: len(self._first)]
        parts = self._first[:, None] * (h - self._first @ h)
        known = np.einsum("ia,ij,ja->a", parts, self._covariance, parts)
        if self._unknown == 0.0:
            return known
        # The largest covariance with an error of that size.
        return known + self._unknown**2 * (self.weights @ influences**2)

    @property
    def constant_error(self):
        """Standard deviation of the log density's mean error, an error of the log evidence."""
        known = max(self._first @ self._covariance @ self._first, 0.0)
        return float(np.hypot(np.sqrt(known), self._unknown))

    def controlled(self, influences):
        """Return corrections (q,) by control variates, to be subtracted, and standard errors."""
        roots = np.sqrt(self.weights)[:, None]
        means = self.weights @ self._controls
        centred = self._controls - means
        slopes = np.linalg.lstsq(roots * centred, roots * influences, rcond=None)[0]
        sampling = self._inefficiency * (self.weights**2 @ (influences - centred @ slopes) ** 2)
        return means @ slopes, np.sqrt(self.surrogate_variance(influences) + sampling)

    def table(self, values, labels, quantiles):
        """Return estimates and standard errors of the p columns (n, p), a DataFrame with p rows."""

        def mean_of(values):
            rough = self.weights @ values
            excess, error = self.controlled(values - rough)
            return rough - excess, error

        # The root comes last: its curvature had left errors of 4e-4, a hundred standard errors.
        means, of_means = mean_of(values)
        squares, of_squares = mean_of((values - means) ** 2)
        sds = np.sqrt(np.fmax(squares, 0.0))
        columns = {"mean": means, "sd": sds}
        errors = {"se_mean": of_means, "se_sd": of_squares / (2.0 * np.where(sds > 0, sds, 1.0))}
        for p in quantiles:
            name = f"{100 * p:g}%"
            found, influences = self._quantile(values, p)
            excess, errors[f"se_{name}"] = self.controlled(influences)
            columns[name] = found - excess
        return pd.DataFrame(columns | errors, index=labels)

    def _quantile(self, values, p):
        found, slopes = quantiles_and_slopes(values, self.weights, p)
        below = values <= found
        return found, (self.weights @ below - below) * slopes


def check_quantiles(quantiles):
    """Return probabilities as a tuple."""
    if np.ndim(quantiles) == 0:
        raise TypeError(f"quantiles={quantiles!r} must be a sequence, e.g. (0.05, 0.95)")
    quantiles = tuple(quantiles)
    if not all(0.0 < as_number(p) < 1.0 for p in quantiles):
        raise ValueError(
            f"quantiles={quantiles!r} must be numbers between 0 and 1, e.g. (0.05, 0.95)"
        )
    return quantiles


def quantiles_and_slopes(values, weights, p):
    """Return quantiles (q,) of values (n, q), and their derivatives by the probability p.

    Weights (n,) with sum one may be negative: what they add up to never falls.
    """
    half = min(HALF_WIDTH, 0.5 * p, 0.5 * (1.0 - p))
    found = np.empty((3, values.shape[1]))
    for j, rows in enumerate(np.argsort(values, axis=0).T):
        levels = np.maximum.accumulate(np.cumsum(weights[rows]) - 0.5 * weights[rows])
        found[:, j] = np.interp((p - half, p, p + half), levels, values[rows, j])
    low, middle, high = found
    return middle, (high - low) / (2.0 * half)


def _weights(variances, lowered):
    for power in POWERS:
        weights = softmax(0.5 * power * variances + lowered)
        worth = 1.0 / np.sum(weights**2)
        if worth >= SMALLEST_SHARE * len(weights) and weights.max() <= LARGEST_WEIGHT:
            break
    return weights


def control_variates(X, gradients, periods):
    """Return control variates (n, c) of draws X (n, d), of lower order where draws are few."""
    n, d = X.shape
    most = n // DRAWS_PER_CONTROL
    if d > most:
        return np.zeros((n, 0))
    # Where a gradient of P hasn't the density's period, its mean isn't zero: angles have sines.
    pace, angles = 2.0 * np.pi / periods, np.isfinite(periods)
    Z = X - X.mean(axis=0)
    Z[:, angles] = X[:, angles] - middles(X, periods)
    slopes = np.cos(pace * Z)
    Z[:, angles] = np.sin(pace * Z)[:, angles] / pace[angles]
    of_sines = slopes * gradients - pace**2 * Z
    i, j = np.triu_indices(d)
    if d + len(i) > most:
        i = j = np.arange(d if 2 * d <= most else 0)
    second = np.where(
        i == j,
        2.0 * (Z[:, i] * gradients[:, j] + slopes[:, i]),
        Z[:, i] * of_sines[:, j] + Z[:, j] * of_sines[:, i],
    )
    return np.hstack([gradients, second])


def middles(X, periods):
    """Return the mean directions of the angles (finite `periods`) among draws X (n, d)."""
    angles = np.isfinite(periods)
    directions = np.exp(2j * np.pi * X[:, angles] / periods[angles]).mean(axis=0)
    return np.angle(directions) / (2.0 * np.pi) * periods[angles]


@np.errstate(all="ignore")
def jumps(composite, draws, rng):
    """Say whether a composite's log density jumps on lines between draws (n, d) of it."""
    starts, ends = draws[rng.integers(len(draws), size=(2, N_LINES))]
    # Half as far beyond both: draws may end at an edge.
    starts, ends = 1.5 * starts - 0.5 * ends, 1.5 * ends - 0.5 * starts
    lowest = np.median(composite(draws, penalty=0.0).penalised) - NO_MASS

    def at(lines, places):
        ways = ends[lines] - starts[lines]
        values = composite(starts[lines] + places[:, None] * ways, penalty=0.0)
        has_mass = values.penalised > lowest
        slopes = np.where(has_mass, np.sum(values.gradient * ways, axis=1), 0.0)
        return np.where(has_mass, values.penalised, lowest), slopes

    lines = np.repeat(np.arange(N_LINES), N_INTERVALS)
    low = np.tile(np.arange(N_INTERVALS) / N_INTERVALS, N_LINES)
    width = 1.0 / N_INTERVALS
    for _ in range(N_HALVINGS):
        (f, slope), (next_f, next_slope) = at(lines, low), at(lines, low + width)
        off = np.abs(next_f - f - 0.5 * width * (slope + next_slope)) > SMALLEST_JUMP
        if not off.any() or off.sum() > MOST_UNEXPLAINED:
            return bool(off.any())
        width *= 0.5
        lines, low = np.repeat(lines[off], 2), np.repeat(low[off], 2)
        low[1::2] += width
    return True


def inefficiency(r_hat, n):
    """Return the number of draws per independent draw, for chains of n draws with R-hat `r_hat`."""
    between = max(r_hat**2 - (n - 1.0) / n, 0.0)  # variance of chains' means, in that within
    return max(INEFFICIENCY, n * between / ((n - 1.0) / n + between))


def calibration(errors, sds):
    """Return the ratio, at least 1, of errors (n,) to their predicted standard deviations (n,)."""
    usable = np.isfinite(errors) & np.isfinite(sds) & (sds > 0)
    squares = (errors[usable] / sds[usable]) ** 2
    ratio = (PRIOR_EVALUATIONS + squares.sum()) / (PRIOR_EVALUATIONS + len(squares))
    return float(np.sqrt(max(1.0, ratio)))


def flattened(variables):
    """Return variables (n, ...) as columns (n, p), and the columns' labels."""
    columns, labels = [], []
    for name, values in variables.items():
        columns.append(values.reshape(len(values), -1))
        shape = values.shape[1:]
        labels += (
            [f"{name}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)] if shape else [name]
        )
    return np.hstack(columns).astype(float), labels


class LogEvidence(NamedTuple):
    """A log marginal likelihood.

    Attributes
    ----------
    value : float
        Natural logarithm, with all constants of the model's log density.
    error : float
        Standard error.
    """

    value: float
    error: float


def of_emulated(composite, draws, values, lowered, rng) -> LogEvidence:
    """Return an emulated density's LogEvidence, given Values at draws (n, d) of the penalised.

    `lowered` (n,) is what noise took off the log density.
    """
    found, inside = of_penalised(composite, draws, values.penalised, rng)
    taken_off = log_mean((PENALTY * values.variance + lowered)[inside])
    error = np.hypot(found.error, taken_off.error)
    return LogEvidence(found.value + taken_off.value, float(error))


def of_penalised(composite, draws, penalised, rng):
    """Return the LogEvidence of the penalised density, and a mask (n,) of the draws in one turn."""
    is_inside = one_turn(draws, composite.model.periods)
    inside = is_inside(draws)

    def log_density(X):
        return np.where(is_inside(X), composite(X).penalised, -np.inf)

    return bridge(draws[inside], penalised[inside], log_density, rng), inside


def one_turn(draws, periods):
    """Return a function: the mask of points (n, d) in one turn of all angles (finite `periods`)."""
    angles = np.flatnonzero(np.isfinite(periods))
    X, turns, middle = draws[:, angles], periods[angles], middles(draws, periods)
    middle += turns * np.round(np.median((X - middle) / turns, axis=0))

    def is_inside(X):
        return np.all(np.abs(X[:, angles] - middle) <= 0.5 * turns, axis=1)

    return is_inside


def bridge(draws, log_densities, log_density, rng) -> LogEvidence:
    """Return a density's LogEvidence by bridge sampling, given nearly independent draws (n, d)."""
    half = len(draws) // 2
    d = draws.shape[1]
    # In units of standard deviations: SciPy takes variances below 2e-10 of the largest for zero.
    mean, sds = draws[:half].mean(axis=0), draws[:half].std(axis=0)
    sds = np.where(sds > 0, sds, 1.0)
    Z = (draws - mean) / sds
    covariance = np.cov(Z[:half].T).reshape(d, d)
    scale = covariance * (DEGREES - 2.0) / DEGREES
    proposal = multivariate_t(np.zeros(d), scale, DEGREES, allow_singular=True)
    n = len(draws) - half
    proposed = proposal.rvs(n, random_state=rng).reshape(n, d)
    at_proposed = log_density(mean + sds * proposed) - proposal.logpdf(proposed)
    at_proposed = np.where(np.isfinite(at_proposed), at_proposed, -np.inf)
    at_draws = log_densities[half:] - proposal.logpdf(Z[half:])
    at_draws = np.reshape(at_draws, n)
    log_z = float(np.median(at_draws))
    for _ in range(BRIDGE_ITERATIONS):
        # h times the density, and h times the proposal, with equal shares.
        upper, lower = expit(at_proposed - log_z), expit(log_z - at_draws)
        last, log_z = log_z, log_z + float(np.log(upper.mean()) - np.log(lower.mean()))
        if abs(log_z - last) < CHANGE:
            break
    variance = sum(part.var() / part.mean() ** 2 / n for part in (upper, lower))
    return LogEvidence(log_z + float(np.log(sds).sum()), float(np.sqrt(variance)))


def log_mean(log_weights) -> LogEvidence:
    n = len(log_weights)
    log_mean = float(logsumexp(log_weights) - np.log(n))
    return LogEvidence(log_mean, float(np.std(np.exp(log_weights - log_mean)) / np.sqrt(n)))
