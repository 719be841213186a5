"""Search for the bandwidth whose best regularisation has the smallest held-out loss."""

import dataclasses
import math

import numpy as np
import scipy.optimize

from pymc_kmc.surrogates.kernels import median_squared_distance
from pymc_kmc.surrogates.selection_paths import regularisation_path

#: Bandwidths tried first, in units of the median squared distance.
COARSE_GRID = 4.0 ** np.arange(-2, 4)
#: Bandwidths tried first around an earlier choice, in units of it.
WARM_GRID = 4.0 ** np.arange(-1, 2)
#: Entries of the coarse grid at which a warm-started search looks too.
COLD_CHECKS = [2, 4]
#: Ratio of neighbours in a grid that is extended.
GRID_STEP = 4.0
#: Most steps by which the default range may grow on either side.
MOST_EXTENSIONS = 6
#: Gain of a step, in standard errors, below which the range stops growing.
PLATEAU = 0.05
#: Evaluations spent on refining log sigma.
REFINEMENTS = 8
#: Accuracy at which refining stops: the loss is flat near its minimum, and 10 % in sigma are not to
#: be seen in it.
LOG_SIGMA_TOLERANCE = 0.1

#: Regularisations tried, in units of the system's mean eigenvalue: quarter decades from rounding
#: error to a fit that is switched off.
RELATIVE_REGULARISATIONS = 10.0 ** np.arange(-12.0, 3.01, 0.25)
#: Difference of held-out losses, in its standard errors over folds, below which the larger
#: regularisation is taken: it transfers better to other numbers of points and features.
INDISTINCT = 0.5


@dataclasses.dataclass(frozen=True)
class Trial:
    """The best regularisation for one bandwidth, with its losses."""

    sigma: float
    regularisation: float
    loss: float
    standard_error: float
    fold_losses: np.ndarray
    regularisation_at_edge: bool


class Search:
    """Held-out loss as a function of sigma, each value computed once and kept in `trials`."""

    def __init__(self, path):
        self.path = path
        self.trials = {}

    def loss(self, sigma):
        if sigma not in self.trials:
            self.trials[sigma] = self._try(sigma)
        return self.trials[sigma].loss

    def best(self):
        return min(self.trials.values(), key=lambda trial: trial.loss)

    def table(self):
        fields = ("sigma", "regularisation", "loss", "standard_error")
        rows = sorted(tuple(getattr(t, field) for field in fields) for t in self.trials.values())
        return np.array(rows, dtype=[(field, float) for field in fields])

    def _try(self, sigma):
        systems = list(self.path.systems(sigma))
        scale = np.mean([np.trace(s.A) / np.trace(s.P) for s in systems])
        regularisations = scale * RELATIVE_REGULARISATIONS
        with np.errstate(all="ignore"):
            losses = np.array([regularisation_path(s, regularisations) for s in systems])
        losses[~np.isfinite(losses)] = np.inf
        weights = np.array([s.weight for s in systems])
        weights = weights / weights.sum()
        means = weights @ losses
        index = _largest_indistinct(losses, weights, int(np.argmin(means)))
        with np.errstate(invalid="ignore"):
            error = _standard_error(losses[:, index], weights)
        usable = np.flatnonzero(np.isfinite(means))
        return Trial(
            sigma=sigma,
            regularisation=float(regularisations[index]),
            loss=float(means[index]),
            standard_error=error,
            fold_losses=losses[:, index],
            regularisation_at_edge=len(usable) > 1 and index in (usable[0], usable[-1]),
        )


def _largest_indistinct(losses, weights, best):
    """Return the index of the largest regularisation whose losses are like those of ``best``."""
    for index in range(losses.shape[1] - 1, best, -1):
        if np.isfinite(losses[:, index]).all():
            difference = losses[:, index] - losses[:, best]
            if weights @ difference <= INDISTINCT * _standard_error(difference, weights):
                return index
    return best


def _standard_error(fold_losses, weights):
    """Return the weighted mean's standard error from the spread of folds; weights have sum 1."""
    spread = fold_losses - weights @ fold_losses
    return math.sqrt(float(weights @ spread**2) / (len(weights) - 1))


def search_sigma(search, X, sigmas, warm_sigma, rng):
    """Try bandwidths; return whether the best lies at the edge of the allowed ones.

    `X` (n, d) are distinct states. `sigmas` bound the bandwidths; None takes a range from the
    states' distances. `warm_sigma` is an earlier choice to search around, or None.
    """
    if sigmas is not None:
        for sigma in sigmas:
            search.loss(float(sigma))
        grid = sigmas
    else:
        if warm_sigma is None:
            grid = median_squared_distance(X, rng) * COARSE_GRID
        else:
            grid = warm_sigma * WARM_GRID
        grid = _extended_grid(search, grid)
        if warm_sigma is not None:
            # The loss can have several minima: leave a stale one if a cold start begins lower.
            warm = min(search.loss(sigma) for sigma in grid)
            cold = median_squared_distance(X, rng) * COARSE_GRID
            if min(search.loss(float(sigma)) for sigma in cold[COLD_CHECKS]) < warm:
                grid = _extended_grid(search, cold)
    losses = [search.loss(float(sigma)) for sigma in grid]
    index = int(np.argmin(losses))
    if 0 < index < len(grid) - 1:
        _refine(search, grid[index - 1], grid[index + 1])
        return False
    if len(grid) > 1 and sigmas is not None:
        # A range may have its best value inside and yet next to the edge of the grid.
        neighbours = (0, 1) if index == 0 else (-2, -1)
        _refine(search, *(grid[i] for i in neighbours))
        return search.best().sigma in (float(grid[0]), float(grid[-1]))
    return len(grid) > 1


def _extended_grid(search, grid):
    """Return the grid, longer by steps on the side where its best value is at the edge."""
    grid = [float(sigma) for sigma in grid]
    for _ in range(MOST_EXTENSIONS):
        losses = [search.loss(sigma) for sigma in grid]
        index = int(np.argmin(losses))
        if 0 < index < len(grid) - 1:
            break
        neighbour = losses[1] if index == 0 else losses[-2]
        if neighbour - losses[index] < PLATEAU * search.best().standard_error:
            break
        if index == 0:
            grid.insert(0, grid[0] / GRID_STEP)
        else:
            grid.append(grid[-1] * GRID_STEP)
    return grid


def _refine(search, low, high):
    scipy.optimize.minimize_scalar(
        lambda log_sigma: min(search.loss(math.exp(log_sigma)), np.finfo(float).max),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"maxiter": REFINEMENTS, "xatol": LOG_SIGMA_TOLERANCE},
    )
