"""The state of learning, and its convergence: small errors, certain draws, no missing mass."""

from typing import NamedTuple

import numpy as np
from scipy.stats import chi2, norm

from pymc_kmc.adaptation.schedules import FIRST_STEP_SIZE
from pymc_kmc.learning.composite import Composite, on_circles
from pymc_kmc.learning.emulator import SHALLOW
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.numerics.coordinates import ModeMaps
from pymc_kmc.numerics.linear_algebra import cholesky_factor

# Consecutive rounds with small errors at convergence. With two a dose-response model had an ESS of
# 817 (250) after 76 evaluations, with three 842 (586) after 84: two had missed a tail.
N_CONVERGED_ROUNDS = 3
# Lowest temperature of the draws among which uncertain places are chosen: posterior draws of a
# wrong emulator don't reach the places where it is wrong.
EXPLORING = 1.7
# Largest error at other places than draws, in tolerances: a surrogate that is right at its draws
# may miss mass beyond. Half of it took 500 to 1000 evaluations of Student's t.
UNCERTAIN_TOLERANCE = 3.0
# Quantile of the draws' log densities whose depth, scaled to the exploring temperature, bounds the
# depth that counts. With the draws' largest depth a time series had an ESS of 81 in place of 800.
DEEP_SHARE = 0.01
# Largest standard deviation of the log density at draws, in standard deviations of the noise; it is
# the tolerance at least. The penalty of a larger one hides mass. With one tolerance Student's t had
# an ESS of 727 (650) after 266 evaluations, with two 630 (407) after 167, and Glass ended once at
# .44 nats, after 451 evaluations, with an ESS of 114.
OWN_NOISE = 2.0 / 3.0
# Largest difference of moments (a mean in sds, or a log sd) between draws and optimistic draws: at
# least, and per nat of the emulators' own sd. Learned models have hardly .1, Student's t in eight
# dimensions .3 to .8 (up to 1.6 per nat), bananas with unknown arms .3 to 7 (2 to 20 per nat); one
# at .17 had a log sd off by .86.
LARGEST_GAP, GAP_OF_OWN = 0.1, 1.5
# Largest share of a round's draws that may be infeasible, besides one.
MOST_FAILED = 0.1
# Standard deviations by which the noise's mean square may be off by chance.
NOISE_SDS = 2.0


class Round(NamedTuple):
    """The record of a round.

    Attributes
    ----------
    n_evaluations : int
        Number of all evaluations at its end.
    temperature : float
        Temperature of the emulated posterior whose draws were evaluated.
    error : float
        Error of predictions at the fresh draws, in nats, with the noise.
    uncertain_error : float
        Error elsewhere, in nats; log densities much deeper than draws count as equally deep.
    n_fresh : int
        Number of fresh draws, the round's first evaluations.
    predicted, variance : ndarray, shape (k,)
        Predicted log densities of the round's evaluations, and variances without noise.
    """

    n_evaluations: int
    temperature: float
    error: float
    uncertain_error: float
    n_fresh: int
    predicted: np.ndarray
    variance: np.ndarray


class LearningState(NamedTuple):
    """The state of learning after a round.

    `composite` is fitted to all evaluations but the last round's. `draws` (n, d) are the last
    round's, with `factor` (d, d) of their covariance; `temperature` is the next round's. `error` is
    the root mean square error at fresh draws, in nats; `errors` lists all errors of each round.
    `n_converged_rounds` is the number of consecutive rounds with small errors at temperature 1,
    `n_gaps` of those whose optimistic draws found more mass. `modes` are those with mass, if there
    were searches.
    """

    evaluations: Evaluations
    composite: Composite | None
    draws: np.ndarray
    factor: np.ndarray
    temperature: float
    error: float
    n_converged_rounds: int
    step_size: float
    errors: tuple
    modes: tuple
    n_gaps: int = 0

    @property
    def has_converged(self):
        return self.n_converged_rounds >= N_CONVERGED_ROUNDS

    @property
    def maps(self):
        return ModeMaps.between(self.modes, self.draws)


def begin(evaluations, draws, covariance, temperature, modes=()):
    """Return the state before the first round, for a surrogate around draws (n, d)."""
    # The step size of one acceptance rate falls with the fourth root of the dimension.
    step_size = FIRST_STEP_SIZE * draws.shape[1] ** -0.25
    factor = cholesky_factor(covariance)
    start = evaluations, None, draws, factor, temperature, np.inf, 0, step_size, ()
    return LearningState(*start, tuple(modes))


class Limits(NamedTuple):
    """Largest errors at convergence, in nats, given the tolerance and the noise's sd."""

    tolerance: float
    noise: float

    @property
    def error(self):
        """Largest error at draws; a third of the noise is negligible."""
        return max(self.tolerance, self.noise / 3.0)

    @property
    def uncertain_error(self):
        return UNCERTAIN_TOLERANCE * self.error

    @property
    def own(self):
        """Largest standard deviation of the log density at draws, as the emulators predict it."""
        return max(self.tolerance, OWN_NOISE * self.noise)

    def gap(self, own):
        """Return the largest difference of moments, given the standard deviation `own` at draws."""
        return max(LARGEST_GAP, GAP_OF_OWN * own)

    def excess(self, error, n):
        """Return an error of n values without the part that noise may explain."""
        may_be_noise = self.noise**2 * (1.0 + NOISE_SDS * np.sqrt(2.0 / max(n, 1)))
        return np.sqrt(max(error**2 - may_be_noise, 0.0))


def largest_variance(squares):
    """Return the upper limit of a Gaussian's variance, given squares (n,) of draws; inf of none."""
    n = len(squares)
    return np.sum(squares) / chi2.ppf(norm.sf(NOISE_SDS), n) if n else np.inf


class RoundPlan(NamedTuple):
    """Places (n, d) to evaluate in a round: fresh draws, then distant places, then uncertain ones.

    `is_sure` says whether the emulators are certain at their draws at temperature 1. `n_gaps`
    counts consecutive rounds with possible mass elsewhere. `unseen` (k, d) are places far from all
    evaluations. The last `n_twins` places are next to the first ones.
    """

    X: np.ndarray
    n_fresh: int
    n_distant: int
    is_sure: bool
    n_gaps: int
    unseen: np.ndarray
    n_twins: int = 0

    def variances(self, values):
        """Return the variance (k,) of each pair of two finite estimates, given values (n,)."""
        n = self.n_twins
        pairs = np.array([values[:n], values[len(values) - n :]])
        return pairs[:, np.isfinite(pairs).all(axis=0)].var(axis=0, ddof=1)


class Judgement(NamedTuple):
    """Errors of a round's predictions, in nats, and whether they are small enough.

    Attributes
    ----------
    errors : ndarray, shape (n_fresh,)
        At fresh draws.
    error, excess : float
        Root mean square about the median, with and without the part that noise may explain.
    uncertain_error : float
        Root mean square at uncertain places; values much deeper than draws count as equally deep.
    is_right : bool
        Whether emulators are certain at draws, and errors are small wherever there is mass.
    is_confirmed : bool
        Whether no mass seems to be missing.
    """

    errors: np.ndarray
    error: float
    excess: float
    uncertain_error: float
    is_right: bool
    is_confirmed: bool


def judge(limits, plan, values, predicted, heights, compression, last_errors, by_chance=None):
    """Return the :class:`Judgement` of a round, given :class:`Limits` and its :class:`RoundPlan`.

    `values` and `predicted` (n,) are log densities at the plan's places and their predictions,
    `heights` (k,) the draws' predicted log densities, `last_errors` the errors of the last round, a
    list of one array or none. `by_chance` (n,) are probabilities of estimates that aren't finite.

    Estimates that all fail tell of no error: the last errors stand, and confirm nothing.
    """
    # A log density that isn't finite is no error of the emulators.
    is_finite, end = np.isfinite(values), plan.n_fresh + plan.n_distant
    n, n_distant = is_finite[: plan.n_fresh].sum(), is_finite[plan.n_fresh : end].sum()
    expected = 0.0 if by_chance is None else by_chance[: plan.n_fresh].sum()
    is_feasible = plan.n_fresh - n <= 1 + MOST_FAILED * plan.n_fresh + expected
    values, predicted = values[is_finite], predicted[is_finite]
    errors = compression(values) - compression(predicted)
    elsewhere, of_mass = errors, errors
    if n < len(values):
        elsewhere, of_mass = errors_in_reach(values[n:], predicted[n:], heights)
        # That the emulators knew nothing of distant places was known.
        if len(elsewhere) > n_distant:
            elsewhere = elsewhere[n_distant:]
    uncertain_error, missed = root_mean_square(elsewhere), root_mean_square(of_mass)
    errors = errors[:n]
    says_nothing = not n and by_chance is not None
    if says_nothing and last_errors:
        (errors,) = last_errors
    error = error_about_median(errors, last_errors)
    excess, most = limits.excess(error, len(errors)), limits.uncertain_error
    is_small = excess < limits.error and limits.excess(missed, len(of_mass)) < most
    is_right = plan.is_sure and is_feasible and is_small
    # Predicted mass that isn't there says nothing of the end, or against it.
    is_confirmed = limits.excess(uncertain_error, len(elsewhere)) < most
    is_confirmed = is_confirmed and not plan.n_gaps and not says_nothing
    return Judgement(errors, error, excess, uncertain_error, is_right, is_confirmed)


def root_mean_square(errors):
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else np.inf


def error_about_median(errors, others=()):
    """Return the root mean square of errors about their median; infinite of no errors."""
    if not len(errors):
        return np.inf
    return root_mean_square(errors - np.median(np.concatenate([*others, errors])))


def lowest_of_mass(heights):
    """Return the log density below which there is hardly any mass, given those (k,) of draws."""
    best = heights.max()
    return best - EXPLORING * (best - np.quantile(heights, DEEP_SHARE))


def errors_in_reach(values, predicted, heights):
    """Return prediction errors (n,), and those at places with mass, zero elsewhere.

    Log densities much deeper than those of draws, `heights` (k,), count as equally deep.
    """
    floor = lowest_of_mass(heights)
    errors = np.fmax(values, floor) - np.fmax(predicted, floor)
    return errors, np.where(values > floor, errors, 0.0)


def unchecked(draws, evaluations, model):
    """Return a mask (n,) of draws far from evaluations with mass, where nothing was predicted.

    Many small nodes have none: a place that is far for the whole is near for each of them.
    """
    if model.has_small_nodes:
        return np.zeros(len(draws.X), dtype=bool)
    periods = model.periods
    have_mass = evaluations.log_densities >= lowest_of_mass(draws.values.mean)
    X, known = on_circles(draws.X, periods), on_circles(evaluations.X[have_mass], periods)
    margin, most = X.std(axis=0), np.inf
    low, high = known.min(axis=0, initial=most), known.max(axis=0, initial=-most)
    return ((X < low - margin) | (X > high + margin)).any(axis=1)


def without_refuted(state, composite, fewest):
    """Return the state without draws that the new fit finds too deep, if `fewest` are left."""
    heights = composite(state.draws, state.temperature).penalised
    keep = are_high(heights, state.draws.shape[1])
    if state.composite is None or keep.sum() < fewest:
        return state
    return state._replace(draws=state.draws[keep])


def are_high(heights, n_dimensions):
    """Return the mask (k,) of log densities less deep below the highest than mass may be."""
    highest = np.nanmax(np.where(np.isfinite(heights), heights, np.nan))
    return np.isfinite(heights) & (heights >= highest - SHALLOW * COMPRESSION_DEPTH * n_dimensions)


def in_place(draws, n):
    """Return the places of the first n draws, and of others as high as these."""
    heights = draws.values.penalised
    usual = heights[:n][np.isfinite(heights[:n])]
    keep = np.arange(len(heights)) < n
    if len(usual):
        keep |= heights >= lowest_of_mass(usual)
    return draws.X[keep]
