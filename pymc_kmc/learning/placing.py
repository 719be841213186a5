r"""The places that a round evaluates.

*Without noise* an evaluation determines the log density at its place: places are chosen where the
log density is most uncertain. *With noise* one evaluation says little, and the most uncertain
places are corners that no draw depends on. There the places are those most informative about the
draws. One after another, each reduces the summed variance of the log density at draws x most,

.. math:: \sum_x \frac{c(x, z)^2}{c(z, z) + \sigma^2},

with c the emulator's covariance, given all before, less its mean over draws: a constant does not
matter (Järvenpää et al., 2021, use the expected loss of a posterior instead).

*Beyond the known region*: an emulator may be right wherever it draws, and wrong about where mass
ends. Its variance shows that. With half of the variance subtracted, draws stay where the emulator
is sure; with a standard deviation added, they go wherever mass can't be excluded. If the moments of
the two differ by more than the emulator's error at its own draws may explain, the posterior isn't
known. Then places on the way there are evaluated. Under noise half of the places are there as soon
as the draws are known: those that tell most of the draws don't lead along a banana's arms.

References
----------
Järvenpää, M., Gutmann, M. U., Vehtari, A. and Marttinen, P. (2021). Parallel Gaussian process
surrogate Bayesian inference with noisy likelihood evaluations. *Bayesian Analysis* 16, 147-178.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.composite import Draws, draw, joined
from pymc_kmc.numerics.samples import far_apart

# A standard deviation counts at most so many nats: with no bound draws leave for places of which
# nothing is known, ever farther.
MOST_OPTIMISM = 2.0
# Optimistic draws are made in stretches of so many transitions; the first half leads
# there. Fifty transitions hardly come along a banana's arms.
N_STRETCHES, N_TRANSITIONS = 10, 10
# Places with a larger standard deviation, in nats, are not on the way. A polynomial that bends up
# far away leads draws there: what is found, thousands of nats down, tells nothing of where mass
# ends. With no bound one banana of ten had its arms cut off; 3 and 10 cost other models the same.
MOST_UNCERTAIN = 5.0
# Share of each value's draws of the prior, at either end, that isn't looked at unasked: there many
# a simulator fails, or takes minutes. With .05 a jump at the prior's 90 % quantile wasn't seen.
END = 0.01


class OptimisticDraws(NamedTuple):
    """Draws from the region in which the emulators can't exclude mass.

    `draws` are on the way from the emulators' own to those from the log density with its standard
    deviation added, where it is certain enough for an evaluation to show where mass ends. `beyond`
    (k, d) are the places too uncertain for that, in falling order of their log density. `gap` is
    the largest change, from the draws' own density to the optimistic one, of a mean, in standard
    deviations, or of a log standard deviation.
    """

    draws: Draws
    beyond: np.ndarray
    gap: float


def optimistic_draws(composite, draws, factor, rng, maps=None) -> OptimisticDraws:
    """Draw as far as the emulators can't exclude mass, from their draws at temperature 1."""

    def density(X, temperature):
        return composite.optimistic(X, MOST_OPTIMISM)

    last, way = draws, [draws]
    for _ in range(N_STRETCHES):
        last = draw(density, last.X, factor, last.step_size, N_TRANSITIONS, rng, maps=maps)
        way.append(last)
    end = joined(way[-(N_STRETCHES // 2) :])
    X = end.X
    # The draws' own moments by weights: two sets of draws would differ by chance.
    log_weights = composite(X).own - end.values.penalised
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
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


def uncertain(emulators, inputs_at, X, variance, picked, n):
    """Return n of places X (k, d) with the most uncertain log densities, of `variance` (k,).

    With one emulator they are chosen one after another, as if those before, and the `picked` places
    (k, d), were evaluated already. `inputs_at` returns the opaque inputs at points.
    """
    if len(emulators) > 1:
        return X[np.argsort(-variance, kind="stable")[:n]]
    (emulator,) = emulators
    places = np.vstack([picked, X])
    covariance = emulator.covariance(places, inputs_at(places))
    n_picked = len(picked)
    scale = variance / np.maximum(np.diag(covariance)[n_picked:], np.finfo(float).tiny)
    noise = emulator.noise + 1e-9 * np.trace(covariance) / len(covariance)
    chosen = []
    for k in range(n_picked + n):
        i = k
        if k >= n_picked:
            i = n_picked + int(np.argmax(np.diag(covariance)[n_picked:] * scale))
            chosen.append(i)
        covariance = conditioned(covariance, i, noise)
    return places[chosen]


def informative(emulators, inputs_at, draws, places, n):
    """Return n of the places (k, d), the most informative on noisy terms at draws (n', d)."""
    X = np.vstack([draws, places])
    inputs, first = inputs_at(X), len(draws)
    known = [(emulator.covariance(X, inputs), emulator.noise) for emulator in emulators]
    chosen = []
    for _ in range(n):
        i = first + int(np.argmax(sum(_gain(C, noise, first) for C, noise in known)))
        chosen.append(i)
        known = [(conditioned(C, i, noise), noise) for C, noise in known]
    return X[chosen]


def _gain(covariance, noise, first):
    """Return by how much each place's evaluation reduces the summed variance at draws."""
    to_draws = covariance[:first, first:]
    to_draws = to_draws - to_draws.mean(axis=0)
    return np.sum(to_draws**2, axis=0) / (np.diag(covariance)[first:] + noise)


def conditioned(covariance, i, noise):
    """Return the covariance of places, given a noisy evaluation of the i-th."""
    column = covariance[:, i]
    return covariance - np.outer(column, column) / (column[i] + noise)


def unseen(prior, known, n):
    """Return n of the prior's middle draws (k, d) at most, far from known places (m, d).

    They are far in each value's ranks among the draws, which fill a cube evenly: a transform's ends
    are no farther than any other place, and the largest share of the prior is looked at.
    """
    middle = ranks(prior, prior)
    middle, X = middle[chosen := np.abs(middle - 0.5).max(axis=1) <= 0.5 - END], prior[chosen]
    return X[far_apart(middle, n, ranks(known, prior))]


def ranks(X, among):
    """Return the values' ranks (n, d), from 0 to 1, among those of draws (k, d)."""
    levels = (np.arange(len(among)) + 0.5) / len(among)
    columns = zip(X.T, np.sort(among, axis=0).T, strict=True)
    return np.stack([np.interp(x, each, levels) for x, each in columns], axis=1)


def bounds_of(prior, evaluations):
    """Return the lowest and highest places (d,) where mass may be, given draws (k, d) of the prior.

    A prior has none farther away from its draws than these are from each other. Emulators may
    see some there: one value at 1e9 and they are wrong everywhere.
    """
    best = evaluations.X[[np.argmax(evaluations.log_densities)]]
    width, known = np.ptp(prior, axis=0), np.vstack([prior, best])
    return known.min(axis=0) - width, known.max(axis=0) + width


def new_places(places, n_fresh, state, rng):
    """Return the places (k, d) that aren't known, each once, and the number of fresh ones.

    Where no chain has moved from known places, new ones are a step of the metric away.
    """
    _, first = np.unique(places, axis=0, return_index=True)
    new = np.sort(first)
    new = new[state.evaluations.rows(places[new]) < 0]
    if len(new):
        return places[new], int(np.sum(new < n_fresh))
    return places + rng.standard_normal(places.shape) @ state.factor.T, 0


def starts_of(state, composite, n, rng):
    """Return the starts (n, d) of a round's chains, given the LearningState before it.

    Half are the last draws; others are evaluated points, chosen by their density.
    """
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
    """Return a mask (n,) of points that are higher than all draws because of the prior.

    A funnel's neck is such a place, with hardly any mass; a mode that draws have missed is high
    because of its terms. `known` (n,) are the points' log priors, `terms` (n,) their opaque terms,
    which T divides.
    """
    values, model = composite(draws, T, penalty=0.0), composite.model
    no_terms = np.zeros((len(draws), sum(node.n_outputs for node in model.nodes)))
    known_of_draws, _, _ = model.log_density(draws, no_terms)
    terms_of_draws = values.mean - known_of_draws
    rises = known - np.nanmedian(known_of_draws) > terms - np.nanmedian(terms_of_draws)
    return rises & (known + terms / T > np.nanmax(values.penalised))
