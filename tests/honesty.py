"""What `kmc.learn` says of a model, held against a grid of the model's own log density.

The grid knows PyMC and nothing of what learning reads off the graph.
"""

import re
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytensor

import pymc_kmc as kmc

# Unconstrained values are searched for mass this far from 0, in passes, each on the box of what the
# one before found within so many nats of its highest point. The last grid needs the box of fewer
# nats: what is cut off counts for less than 1e-8.
FARTHEST, DEEP, COUNTS = 12.0, 30.0, 20.0
# Points a dimension by the number of dimensions: of each pass, the first of which must not miss a
# mode, and of the last grid.
COARSE, FINE = {1: (301, 301, 301), 2: (61, 31, 31)}, {1: 601, 2: 81}
# Largest change of a moment, in standard deviations, by leaving out every other point: twice the
# grid's error, at edges.
ROUGHNESS = 0.06
# Share of the prior's mass in the places that it hardly ever comes to.
RARE = 0.01
# How far a moment may be off: in standard deviations, and in standard errors as they are stated.
# These are of 2048 draws, near .025 standard deviations.
MARGIN, SCORES = 0.1, 4.0
# Warnings about single places, which say nothing about how right the moments are.
OF_PLACES = re.compile("taken for impossible|rejected|slightly different")


class Exact(NamedTuple):
    """Moments of a model's free values on their natural scale, and the log evidence."""

    means: np.ndarray
    sds: np.ndarray
    log_evidence: float

    @classmethod
    def of(cls, natural, log_densities, cell):
        """Return those of points (n, k) with these log densities, each of so large a cell."""
        highest = log_densities.max()
        weights = np.exp(log_densities - highest)
        log_evidence = highest + np.log(weights.sum() * cell)
        weights /= weights.sum()
        means = weights @ natural
        return cls(means, np.sqrt(weights @ (natural - means) ** 2), float(log_evidence))


class TooRough(Exception):
    """A grid can't tell the moments: a mode is narrow, or an edge long."""


def exact_moments(model, farthest=FARTHEST, fine=None, with_rare=True):
    """Return a model's :class:`Exact` moments by summation over one or two unconstrained values.

    Parameters
    ----------
    model : pymc.Model
    farthest : float
        Distance from 0 up to which is looked for mass.
    fine : int, optional
        Points a dimension of the last grid.
    with_rare : bool
        Whether mass counts where the prior hardly ever comes, RARE of its own.
    """
    evaluate, d = _compiled(model)
    smallest = -np.inf if with_rare else _rare(model, farthest)
    low, high = np.full(d, -farthest), np.full(d, farthest)
    for n, nats in zip(COARSE[d], (DEEP, DEEP, COUNTS), strict=True):
        X, width = _grid(low, high, n)
        log_densities = evaluate(X)[0]
        has_mass = X[log_densities > log_densities.max() - nats]
        low, high = has_mass.min(axis=0) - width, has_mass.max(axis=0) + width
    n = FINE[d] if fine is None else fine
    X, width = _grid(low, high, n)
    log_densities, natural = evaluate(X)
    if not with_rare:
        log_prior, _ = _compiled(model, model.free_RVs)[0](X)
        log_densities = np.where(log_prior < smallest, -np.inf, log_densities)
    exact = Exact.of(natural, log_densities, np.prod(width))
    every_other = (np.indices(d * (n,)).reshape(d, -1) % 2 == 0).all(axis=0)
    rough = Exact.of(natural[every_other], log_densities[every_other], np.prod(2 * width))
    change = np.abs([exact.means - rough.means, exact.sds - rough.sds]) / exact.sds
    if not change.max() < ROUGHNESS:
        raise TooRough(f"moments change by {change.max():.2g} standard deviations")
    return exact


def _rare(model, farthest):
    """Return the log density of a model's prior below which it has RARE of its mass."""
    evaluate, d = _compiled(model, model.free_RVs)
    heights = np.sort(evaluate(_grid(np.full(d, -farthest), np.full(d, farthest), FINE[d])[0])[0])
    masses = np.exp(heights - heights[-1])
    return heights[np.searchsorted(np.cumsum(masses), RARE * masses.sum())]


def _grid(low, high, n):
    """Return points (n ** d, d) that fill a box, and their distances (d,)."""
    axes = [np.linspace(*ends, n) for ends in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(low)), (
        (high - low) / (n - 1)
    )


def _compiled(model, variables=None):
    """Return a function of unconstrained points (n, d), and d.

    It returns log densities (n,), of all variables by default, -inf where they are not a number,
    and the free values (n, k).
    """
    values = model.value_vars
    natural = model.replace_rvs_by_values(model.free_RVs)
    compiled = pytensor.function(values, [model.logp(variables), *natural], mode="FAST_COMPILE")
    start = model.initial_point(0)
    shapes = [np.shape(start[v.name]) for v in values]
    ends = np.cumsum([0, *[int(np.prod(shape)) for shape in shapes]])

    def at(x):
        parts = [x[i:j].reshape(s) for i, j, s in zip(ends, ends[1:], shapes, strict=False)]
        log_density, *free = compiled(*parts)
        return log_density, np.concatenate([np.ravel(value) for value in free])

    def evaluate(X):
        with np.errstate(all="ignore"):
            log_densities, free = zip(*map(at, X), strict=True)
        return np.where(np.isfinite(log_densities), log_densities, -np.inf), np.array(free)

    return evaluate, int(ends[-1])


class Outcome(NamedTuple):
    """What came of `kmc.learn`: a posterior or its refusal, and what was said."""

    posterior: kmc.LearnedPosterior | None
    messages: tuple
    refusal: Exception | None

    @property
    def is_doubtful(self):
        """Whether a user was told not to rely on the moments."""
        if self.posterior is None or not self.posterior.has_converged:
            return True
        return bool(self.messages)


def learn(model, **kwargs):
    """Return what came of `kmc.learn`, a :class:`Outcome`.

    An exception that the package didn't raise itself is no refusal, and is passed on.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            posterior, refusal = kmc.learn(model, progressbar=False, **kwargs), None
        except (TypeError, ValueError) as error:
            raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            if not Path(raised_in).is_relative_to(Path(kmc.__file__).parent):
                raise
            posterior, refusal = None, error
    # PyTensor's own warnings say nothing of what was learned.
    origins = (str(Path(kmc.__file__).parent), __file__)
    messages = [
        str(w.message)
        for w in caught
        if w.category is UserWarning and w.filename.startswith(origins)
    ]
    return Outcome(posterior, tuple(s for s in messages if not OF_PLACES.search(s)), refusal)


def deviation(learned, exact):
    """Return how moments differ from exact ones where it is too much, a string, or else "".

    By more than a tenth of a standard deviation and four stated standard errors; the log evidence
    by more than .1 nats and four.
    """
    table = learned.posterior.summary()
    wrong = []
    for name, expected in (("mean", exact.means), ("sd", exact.sds)):
        found, error = table[name].to_numpy(), table[f"se_{name}"].to_numpy()
        is_right = np.abs(found - expected) <= MARGIN * exact.sds + SCORES * error
        if not is_right.all():
            wrong.append(f"{name} {found} +- {error}, exact {expected}")
    value, error = learned.posterior.log_evidence
    if not abs(value - exact.log_evidence) <= MARGIN + SCORES * error:
        wrong.append(f"log evidence {value:.3f} +- {error:.3f}, exact {exact.log_evidence:.3f}")
    return "; ".join(wrong)


def silent_error(model, exact, **kwargs):
    """Learn a model; return its :func:`deviation` from exact moments, "" if it was told too."""
    learned = learn(model, **kwargs)
    return "" if learned.is_doubtful else deviation(learned, exact)
