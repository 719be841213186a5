"""Draws of a learned posterior: many short chains on the emulators that jump between maxima."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.composite import draw, on_circles
from pymc_kmc.learning.emulator import shrunk
from pymc_kmc.learning.maxima import maxima
from pymc_kmc.numerics.coordinates import ModeMaps
from pymc_kmc.numerics.linear_algebra import cholesky_factor

# Draws of what was learned: chains, transitions between draws, draws a chain.
N_CHAINS, N_BETWEEN, N_EACH = 256, 8, 8
# Growth of the transitions between draws until chains have mixed, and their most. A banana's chains
# need the most; with draws kept from before its log sds were off by .12 in place of .05.
GROWTH, MOST_BETWEEN = 4, 128
# Potential scale reduction below which chains have mixed.
MIXED = 1.03
# Drift of chains' averages, in standard errors, above which they still remember their starts: of a
# hundred averages that don't drift, one is above it in 1 of 150 calls.
DRIFT = 4.0
# Transitions that chains begin with.
N_BURNED = 16


class Drawn(NamedTuple):
    """Draws from a composite: successive Draws `parts` of all chains.

    The metric is `factor` (d, d). Chains jumped between `modes` by `maps`; `r_hat` is their
    potential scale reduction.
    """

    parts: list
    factor: np.ndarray
    modes: tuple
    maps: ModeMaps | None
    r_hat: float


def drawn(composite, state, rng) -> Drawn:
    """Return many chains' draws from a composite.

    Chains that have not mixed, or whose averages still drift, as along a curved ridge, go on with
    more transitions between draws, if learning has converged. Where the emulators have
    several maxima above the draws, chains jump between these.
    """
    starts = _finite(composite, state)
    starts = starts[rng.choice(len(starts), N_CHAINS)]
    factor, modes, maps, between = state.factor, tuple(state.modes), state.maps, N_BETWEEN
    last = draw(composite, starts, factor, state.step_size, N_BURNED, rng, maps=maps)
    while True:
        parts = []
        for _ in range(N_EACH):
            last = draw(composite, last.X, factor, last.step_size, between, rng, maps=maps)
            parts.append(last)
        X = np.stack([part.X for part in parts])
        turned = on_circles(X, composite.model.periods)
        r_hat = potential_scale_reduction(turned)
        if r_hat < MIXED and drift(turned) < DRIFT:
            break
        if between == N_BETWEEN and r_hat >= MIXED:
            found = tuple(maxima(composite, last.X))
            if len(found) > 1:
                modes, maps = found, ModeMaps.between(found, X.reshape(-1, X.shape[2]))
        if between >= MOST_BETWEEN or not state.has_converged:
            break
        factor = cholesky_factor(shrunk(X.reshape(-1, X.shape[2])))
        between *= GROWTH
    return Drawn(parts, factor, modes, maps, r_hat)


def _finite(composite, state):
    """Return the state's draws where the composite is finite, or else the best evaluation.

    A search's Gaussian may reach places where outputs overflow, and a chain would stay there.
    """
    with np.errstate(all="ignore"):
        values = composite(state.draws)
    usable = np.isfinite(values.penalised) & np.isfinite(values.gradient).all(axis=1)
    if usable.any():
        return state.draws[usable]
    evaluations = state.evaluations
    return evaluations.X[[np.argmax(evaluations.log_densities)]]


def potential_scale_reduction(X):
    """Return the largest potential scale reduction of the coordinates of c chains' draws (n, c, d).

    References
    ----------
    Gelman, A. and Rubin, D. B. (1992). Inference from iterative simulation using multiple
    sequences. *Statistical Science* 7, 457-472.
    """
    within = X.var(axis=0, ddof=1).mean(axis=0)
    between = X.mean(axis=0).var(axis=0, ddof=1)
    n = len(X)
    return float(np.sqrt(np.max((n - 1) / n + between / np.maximum(within, 1e-300))))


def drift(X):
    """Return the largest move of an average from the first to the second half of draws X (n, c, d).

    It is in standard errors, over means and mean squared deviations of all coordinates of c chains.
    """
    of_both = np.concatenate([X, (X - X.mean(axis=(0, 1))) ** 2], axis=-1)
    half = len(X) // 2
    moves = of_both[half:].mean(axis=0) - of_both[:half].mean(axis=0)
    errors = moves.std(axis=0, ddof=1) / np.sqrt(len(moves))
    return float(np.max(np.abs(moves.mean(axis=0)) / np.maximum(errors, 1e-300)))
