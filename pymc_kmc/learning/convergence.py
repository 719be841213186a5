"""The state of learning, and when what was learned is right: small errors, sure draws, no gaps."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.composite import Composite, on_circles
from pymc_kmc.learning.emulator import SHALLOW
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.numerics.coordinates import ModeMaps
from pymc_kmc.numerics.linear_algebra import cholesky_factor

# Number of rounds in a row with a small error. With two a dose-response model had an ESS of 817
# (250) after 76 evaluations, with three 842 (586) after 84: a tail was unknown.
N_CONVERGED_ROUNDS = 3
# First step size at dimension 1; it falls with the fourth root of the dimension.
FIRST_STEP_SIZE = 0.5
# Temperature of the places that are evaluated because they are uncertain, at least: posterior draws
# of an emulator that is wrong outside of them are not dispersed enough to find that out.
EXPLORING = 1.7
# Error at all other places that is small enough, in tolerances: a surrogate that is right where it
# draws may know nothing of mass beyond. Half of it took 500 to 1000 evaluations of Student's t.
UNCERTAIN_TOLERANCE = 3.0
# Share of the draws that are deeper than what counts there, if these are as much deeper as at the
# exploring temperature: a place that is known to be deep may be anything below. With the draws' own
# depth tails were unknown: a time series had an ESS of 81 in place of 800.
DEEP_SHARE = 0.01
# Standard deviation of the log density at draws, as the emulators see it, that is small enough, in
# tolerances, or in standard deviations of the noise. Half the variance is taken off the density
# that is drawn from: where that is much, mass beyond is missing, however well the places are
# predicted that are drawn. With two tolerances Student's t had an ESS of 630 (407) after 167
# evaluations, with one 727 (650) after 266; Glass ended at .44 nats once, after 451 evaluations,
# with an ESS of 114.
OWN_TOLERANCE, OWN_NOISE = 1.0, 2.0 / 3.0
# Largest difference between draws and those that emulators can't exclude, of a mean in standard
# deviations or of a log standard deviation: a number, and so many times what the emulators are off
# by at draws, in nats. The first is what errors may be. Bananas whose arms weren't known mostly had
# .3 to 7, and 2 to 20 times; one ended at .17 with a log standard deviation off by .86. Student's t
# in eight dimensions has .3 to .8, up to 1.6 times, when it is learned; others hardly .1, unless
# there is a region of which nothing is known.
LARGEST_GAP, GAP_OF_OWN = 0.1, 1.5
# Draws of a round that may turn out not to be feasible: a number, and a share of all.
FEW_FAILED, MOST_FAILED = 1, 0.1
# Noise, in standard deviations of its mean square, that is not taken for an error.
NOISE_SDS = 2.0


class Round(NamedTuple):
    """The record of a round.

    Attributes
    ----------
    n_evaluations : int
        Number of all evaluations until its end.
    temperature : float
        That of the emulated posterior whose draws were evaluated.
    error : float
        That of predictions at the fresh draws, in nats, with the noise.
    uncertain_error : float
        That elsewhere, where log densities much deeper than draws count as equally deep.
    n_fresh : int
        Number of fresh draws, the round's first evaluations.
    predicted, variance : ndarray, shape (k,)
        Log densities at the round's evaluations as predicted before, with their variance without
        noise.
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

    The `composite` is fitted to all evaluations but the last round's. `draws` (n, d) are the last
    round's, with `factor` (d, d) of their covariance; `temperature` is the next round's. `error` is
    that of predictions at fresh draws, in nats, and `errors` has those of each round.
    `n_converged_rounds` in a row had a small error at temperature 1. `modes` have mass; empty where
    no search was needed. In the last `n_gaps` rounds the emulators could not exclude mass
    elsewhere.
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
    """Return the state before the first round, for a surrogate that is good at draws (n, d)."""
    step_size = FIRST_STEP_SIZE * draws.shape[1] ** -0.25
    factor = cholesky_factor(covariance)
    start = evaluations, None, draws, factor, temperature, np.inf, 0, step_size, ()
    return LearningState(*start, tuple(modes))


class Limits(NamedTuple):
    """Errors that are small enough, in nats, given the aim and the noise's standard deviation."""

    tolerance: float
    noise: float

    @property
    def error(self):
        """Largest error at draws: a third of the noise is small enough."""
        return max(self.tolerance, self.noise / 3.0)

    @property
    def uncertain_error(self):
        """Largest error at all other places."""
        return UNCERTAIN_TOLERANCE * self.error

    @property
    def own(self):
        """Largest standard deviation of the log density at draws, as the emulators state it."""
        return max(OWN_TOLERANCE * self.tolerance, OWN_NOISE * self.noise)

    def gap(self, own):
        """Largest difference of moments, given the emulators' own standard deviation at draws."""
        return max(LARGEST_GAP, GAP_OF_OWN * own)

    def excess(self, error, n):
        """Return an error of n values without the part that may be noise."""
        may_be_noise = self.noise**2 * (1.0 + NOISE_SDS * np.sqrt(2.0 / max(n, 1)))
        return np.sqrt(max(error**2 - may_be_noise, 0.0))


class RoundPlan(NamedTuple):
    """Places (n, d) of a round's evaluations: fresh draws, then distant ones, then uncertain ones.

    `is_sure` says whether the emulators are sure of the draws at temperature 1; `n_gaps` counts the
    rounds in a row in which they couldn't exclude mass elsewhere. `unseen` (k, d) are those of the
    last kind that are evaluated because nobody has looked there.
    """

    X: np.ndarray
    n_fresh: int
    n_distant: int
    is_sure: bool
    n_gaps: int
    unseen: np.ndarray


class Judgement(NamedTuple):
    """Errors of a round's predictions, in nats, and what follows from them.

    Attributes
    ----------
    errors : ndarray, shape (n_fresh,)
        At fresh draws.
    error, excess : float
        Their root mean square, and that without the part that may be noise.
    uncertain_error : float
        Root mean square at all other places but distant ones; all that is much deeper than draws
        counts as equally deep.
    is_right : bool
        Whether draws are sure, and errors small wherever mass is.
    is_confirmed : bool
        Whether nothing says that mass is missing.
    """

    errors: np.ndarray
    error: float
    excess: float
    uncertain_error: float
    is_right: bool
    is_confirmed: bool


def judge(limits, plan, values, predicted, heights, compression, last_errors):
    """Return the :class:`Judgement` of a round.

    Parameters
    ----------
    limits : Limits
    plan : RoundPlan
    values, predicted : ndarray, shape (n,)
        Log densities at the plan's places, and their predictions.
    heights : ndarray, shape (k,)
        Predicted log densities of the draws.
    compression : Compression
    last_errors : sequence of ndarray
        Errors at fresh draws of the round before, if there was one.
    """
    # A log density that isn't finite is no error of the emulators.
    is_finite, end = np.isfinite(values), plan.n_fresh + plan.n_distant
    n, n_distant = is_finite[: plan.n_fresh].sum(), is_finite[plan.n_fresh : end].sum()
    is_feasible = plan.n_fresh - n <= FEW_FAILED + MOST_FAILED * plan.n_fresh
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
    error = error_about_median(errors, last_errors)
    excess, most = limits.excess(error, n), limits.uncertain_error
    is_small = excess < limits.error and limits.excess(missed, len(of_mass)) < most
    is_right = plan.is_sure and is_feasible and is_small
    # Predicted mass that isn't there says nothing of the end, or against it.
    is_confirmed = not plan.n_gaps and limits.excess(uncertain_error, len(elsewhere)) < most
    return Judgement(errors, error, excess, uncertain_error, is_right, is_confirmed)


def root_mean_square(errors):
    """Return the root mean square of errors (n,), a float; infinite of none."""
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else np.inf


def error_about_median(errors, others=()):
    """Return the root mean square of errors (n,) about their median and others' (k arrays).

    Infinite of none. A constant offset of a log density is no error.
    """
    if not len(errors):
        return np.inf
    return root_mean_square(errors - np.median(np.concatenate([*others, errors])))


def lowest_of_mass(heights):
    """Return the log density below which there is hardly any mass, given those (k,) of draws."""
    best = heights.max()
    return best - EXPLORING * (best - np.quantile(heights, DEEP_SHARE))


def errors_in_reach(values, predicted, heights):
    """Return the errors (n,) of predictions, and those (n,) of them that mass depends on.

    All log densities much deeper than those of draws, `heights` (k,), count as equally deep. No
    mass is missing where a place was predicted to be higher than that and isn't.
    """
    floor = lowest_of_mass(heights)
    errors = np.fmax(values, floor) - np.fmax(predicted, floor)
    return errors, np.where(values > floor, errors, 0.0)


def unchecked(draws, evaluations, model):
    """Return the mask (n,) of draws, at temperature 1, far from all evaluated places with mass.

    The last fit may see mass where earlier ones saw none: no prediction was checked there.
    Places that are few for all values are many for each of small nodes.
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
    """Return the state without draws where the last evaluations have refuted that there is mass.

    As it is if fewer than the `fewest` would be left.
    """
    heights = composite(state.draws, state.temperature).penalised
    keep = are_high(heights, state.draws.shape[1])
    if state.composite is None or keep.sum() < fewest:
        return state
    return state._replace(draws=state.draws[keep])


def are_high(heights, n_dimensions):
    """Return the mask of log densities (k,) not deeper below the highest than mass is.

    A chain that is stuck far down is no measure of that depth.
    """
    highest = np.nanmax(np.where(np.isfinite(heights), heights, np.nan))
    return np.isfinite(heights) & (heights >= highest - SHALLOW * COMPRESSION_DEPTH * n_dimensions)


def in_place(draws, n):
    """Return the places of the first n draws, and of others that are as high."""
    heights = draws.values.penalised
    usual = heights[:n][np.isfinite(heights[:n])]
    keep = np.arange(len(heights)) < n
    if len(usual):
        keep |= heights >= lowest_of_mass(usual)
    return draws.X[keep]
