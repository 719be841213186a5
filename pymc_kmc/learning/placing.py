r"""The places that a round evaluates.

*Without noise* places are chosen where the log density is most uncertain. *With noise* one
evaluation says little, and the most uncertain places are corners that no draw depends on. There the
acquisition is the reduction of the log density's summed variance at draws x,

.. math:: \sum_x \frac{c(x, z)^2}{c(z, z) + \sigma^2},

with c the emulator's covariance, given all places before, less its mean over draws (Järvenpää et
al., 2021, use the expected loss of a posterior instead). An estimate that fails says nothing of c:
the reduction is multiplied by the probability that it doesn't. Whether it fails tells how likely
that is: the reduction by this label is added, times 4 p (1 - p), as what is certain tells nothing.

*Optimistic draws*: an emulator may be right at its draws, and wrong about where mass ends. With
half of the variance subtracted draws stay where the emulator is certain; with a standard deviation
added, they go wherever mass can't be excluded. If the moments of the two differ by more than the
emulator's error at its own draws explains, places between the two are evaluated. Under noise half
of all places are there as soon as the draws are known: informative places don't lead along a
banana's arms.

References
----------
Järvenpää, M., Gutmann, M. U., Vehtari, A. and Marttinen, P. (2021). Parallel Gaussian process
surrogate Bayesian inference with noisy likelihood evaluations. *Bayesian Analysis* 16, 147-178.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from pymc_kmc.learning.composite import Draws, draw, joined
from pymc_kmc.numerics.samples import JITTER, far_apart

# Largest standard deviation, in nats, that is added: without a limit draws leave for ever farther
# places.
MOST_OPTIMISM = 2.0
# Stretches of optimistic draws, the first half of them burn-in, and transitions of each, as many as
# lead to a round's exploring temperature: fifty transitions hardly come along a banana's arms.
N_STRETCHES, STRETCH = 10, 10
# Distance of a second estimate's place from the first one's, in standard deviations of draws: the
# record tells evaluations apart by their places.
TWIN_DISTANCE = 1e-6
# Largest standard deviation, in nats, of an optimistic draw that is used: beyond, a polynomial that
# bends up may lead thousands of nats down. Without a limit one banana of ten had its arms cut off;
# 3 and 10 cost other models the same.
MOST_UNCERTAIN = 5.0
# Share of each value's prior draws, at either end, that are never looked at: many a simulator fails
# there, or takes minutes. With .05 a jump at the prior's 90 % quantile wasn't seen.
END = 0.01


class OptimisticDraws(NamedTuple):
    """Draws from the region in which the emulators can't exclude mass.

    `draws` are between the emulators' own and the optimistic ones, where they are certain enough.
    `beyond` (k, d) are places too uncertain for that, in falling order of their log density. `gap`
    is the largest difference between the two of a mean, in standard deviations, or of a log
    standard deviation.
    """

    draws: Draws
    beyond: np.ndarray
    gap: float


def optimistic_draws(composite, draws, factor, rng, maps=None) -> OptimisticDraws:
    """Return the :class:`OptimisticDraws` of a composite, from its draws at temperature 1."""

    def density(X, temperature):
        return composite.optimistic(X, MOST_OPTIMISM)

    last, way = draws, [draws]
    for _ in range(N_STRETCHES):
        last = draw(density, last.X, factor, last.step_size, STRETCH, rng, maps=maps)
        way.append(last)
    end = joined(way[-(N_STRETCHES // 2) :])
    X = end.X
    # The draws' own moments by weights: two sets of draws would differ by chance.
    weights = softmax(composite(X).own - end.values.penalised)
    mean = weights @ X
    sd = np.sqrt(np.maximum(weights @ (X - mean) ** 2, np.finfo(float).tiny))
    gap = max(
        np.max(np.abs(X.mean(axis=0) - mean) / sd), np.max(np.abs(np.log(X.std(axis=0) / sd)))
    )
    visited = joined(way)
    is_known = visited.values.variance <= MOST_UNCERTAIN**2
    beyond = visited.rows(~is_known)
    beyond = beyond.X[np.argsort(-beyond.values.mean, kind="stable")]
    return OptimisticDraws(visited.rows(is_known), beyond, float(gap))


def uncertain(emulators, inputs_at, X, variance, picked, n, region=None, of_region=0.0):
    """Return n of the places X (k, d), those of the largest `variance` (k,) of the log density.

    With one emulator they are chosen in turn, given those before and the `picked` (k, d).
    `inputs_at(X)` returns opaque inputs. With a FeasibleRegion `region` the variance `of_region`
    (k,) is added: what is evaluated next to a place tells whether this is feasible.
    """
    if len(emulators) > 1:
        return X[np.argsort(-variance - of_region, kind="stable")[:n]]
    (emulator,) = emulators
    places = np.vstack([picked, X])
    covariance = emulator.covariance(places, inputs_at(places))
    n_picked = len(picked)
    noise = emulator.noise + JITTER * np.trace(covariance) / len(covariance)
    known, variances = [(covariance, noise)], [variance]
    if region is not None:
        known.append(region.labels(places))
        variances.append(of_region)
    pairs, tiny = zip(known, variances, strict=True), np.finfo(float).tiny
    scales = [each / np.maximum(np.diag(C)[n_picked:], tiny) for (C, _), each in pairs]
    chosen = []
    for k in range(n_picked + n):
        i = k
        if k >= n_picked:
            left = zip(known, scales, strict=True)
            left = sum(np.diag(C)[n_picked:] * scale for (C, _), scale in left)
            i = n_picked + int(np.argmax(left))
            chosen.append(i)
        known = [(conditioned(C, i, noise), noise) for C, noise in known]
    return places[chosen]


def informative(emulators, inputs_at, draws, places, n, region=None):
    """Return n of the places (k, d), the most informative ones on noisy terms at draws (n', d).

    With a FeasibleRegion `region` estimates may fail.
    """
    X = np.vstack([draws, places])
    inputs, first = inputs_at(X), len(draws)
    succeeds = np.ones(len(X))
    if region is not None:
        succeeds = np.exp(region.at(X).log_probability)
    known = [(emulator.covariance(X, inputs), emulator.noise, succeeds) for emulator in emulators]
    if region is not None:
        known.append((*region.labels(X, first), 4.0 * succeeds * (1.0 - succeeds)))
    chosen = []
    for _ in range(n):
        gains = [p[first:] * _gain(C, noise, first) for C, noise, p in known]
        i = first + int(np.argmax(sum(gains)))
        chosen.append(i)
        known = [(conditioned(C, i, noise, p[i]), noise, p) for C, noise, p in known]
    return X[chosen]


def _gain(covariance, noise, first):
    to_draws = covariance[:first, first:]
    to_draws = to_draws - to_draws.mean(axis=0)
    return np.sum(to_draws**2, axis=0) / (np.diag(covariance)[first:] + noise)


def conditioned(covariance, i, noise, probability=1.0):
    """Return the covariance of places, given a noisy evaluation of the i-th.

    If it fails, its `probability` being that it doesn't, it is the expected one.
    """
    column = covariance[:, i]
    return covariance - probability * np.outer(column, column) / (column[i] + noise)


def unseen(prior, known, n):
    """Return at most n of the prior's draws (k, d), far in ranks from known places (m, d).

    Ranks fill a cube evenly. Draws with an extreme value are left out.
    """
    middle = ranks(prior, prior)
    middle, X = middle[chosen := np.abs(middle - 0.5).max(axis=1) <= 0.5 - END], prior[chosen]
    return X[far_apart(middle, n, ranks(known, prior))]


def ranks(X, among):
    """Return the ranks (n, d) of values among those of draws (k, d), from 0 to 1."""
    levels = (np.arange(len(among)) + 0.5) / len(among)
    columns = zip(X.T, np.sort(among, axis=0).T, strict=True)
    return np.stack([np.interp(x, each, levels) for x, each in columns], axis=1)


def bounds_of(prior, evaluations, periods):
    """Return the lowest and highest place (d,) of mass, by draws (k, d) of the prior.

    Emulators may predict mass farther away: after one value of 1e9 they are wrong everywhere.
    Angles (finite `periods`) have whole turns, in which each place has as many copies.
    """
    best = evaluations.X[np.argmax(evaluations.log_densities)]
    width, known = np.ptp(prior, axis=0), np.vstack([prior, best])
    low, high = known.min(axis=0) - width, known.max(axis=0) + width
    angles = np.isfinite(periods)
    turns = periods[angles]
    high[angles] = (1.5 + np.abs(np.round(best[angles] / turns))) * turns
    low[angles] = -high[angles]
    return low, high


def new_places(places, n_fresh, state, rng):
    """Return the unknown places (k, d), else steps from these, and the number of fresh ones."""
    _, first = np.unique(places, axis=0, return_index=True)
    new = np.sort(first)
    new = new[state.evaluations.rows(places[new]) < 0]
    if len(new):
        return places[new], int(np.sum(new < n_fresh))
    return places + rng.standard_normal(places.shape) @ state.factor.T, 0


def next_to(places, factor, rng):
    """Return places (k, d) of second estimates, given a factor (d, d) of the draws' covariance."""
    return places + TWIN_DISTANCE * rng.standard_normal(places.shape) @ factor.T


def starts_of(state, composite, n, rng):
    """Return the starts (n, d) of a round's chains, half last draws, half evaluated points."""
    evaluations, T, model = state.evaluations, state.temperature, composite.model
    values = evaluations.log_densities
    tempered = values / T
    n_kept = 0 if state.composite is None else n // 2
    if model.is_sum:
        terms = model.emulated(evaluations.outputs).sum(axis=1)
        terms = np.where(np.isfinite(values), terms, 0.0)
        known = values - terms
        tempered = known + terms / T
        if n_kept:
            exceed = exceed_by_prior(known, terms, state.draws, composite, T)
            tempered = np.where(exceed, -np.inf, tempered)
    if not np.isfinite(tempered).any():
        return state.draws
    kept = state.draws[rng.choice(len(state.draws), n_kept, replace=False)]
    weights = np.exp(tempered - tempered.max())
    new = rng.choice(len(weights), n - n_kept, p=weights / weights.sum())
    return np.vstack([kept, evaluations.X[new]])


def exceed_by_prior(known, terms, draws, composite, T):
    """Return a mask (n,) of points above all draws because of the prior (a funnel's neck).

    `known` (n,) are log priors, `terms` (n,) are opaque terms, which T divides. A mode that draws
    have missed is high because of its terms.
    """
    values, model = composite(draws, T, penalty=0.0), composite.model
    no_terms = np.zeros((len(draws), sum(node.n_outputs for node in model.nodes)))
    known_of_draws, _, _ = model.log_density(draws, no_terms)
    terms_of_draws = values.mean - known_of_draws
    rises = known - np.nanmedian(known_of_draws) > terms - np.nanmedian(terms_of_draws)
    return rises & (known + terms / T > np.nanmax(values.penalised))
