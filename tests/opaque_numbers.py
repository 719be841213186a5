"""Models whose log likelihood is one opaque number, and searches for its maximum."""

import numpy as np
import pymc as pm

import pymc_kmc as kmc
from pymc_kmc.learning.modes import Mode
from pymc_kmc.learning.trust_region import TrustRegion
from pymc_kmc.model.opaque import OpaqueModel

# Standard deviation of the prior, about 0: wide, so that it hardly matters.
PRIOR_SD = 10.0


def number(function, d=2, likelihood=kmc.BlackBox):
    """A model with a vector x of a wide prior, and an opaque log likelihood of it; NaN is -inf."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, PRIOR_SD, shape=d)
        if likelihood is kmc.BlackBox:
            pm.Potential("p", kmc.BlackBox("loglik", function, x, on_error="reject"))
        else:
            likelihood("loglik", function, x)
    return model


def prior(x):
    """Log density of the prior."""
    return np.sum(-0.5 * (x / PRIOR_SD) ** 2 - np.log(PRIOR_SD) - 0.5 * np.log(2.0 * np.pi))


def opaque(model):
    return OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))


def stepped(region, evaluations):
    """Let a search make one evaluation; return it with all others, other searches' included."""
    step = region.next(evaluations)
    new = region.model.evaluate(step.X)
    region.learn(step, evaluations, new.log_densities, len(evaluations))
    return evaluations.joined(new)


def search_from(x, model, most, seed=1, **arguments):
    """Search from x with at most so many evaluations; return the search and all evaluations."""
    x = np.asarray(x, dtype=float)
    evaluations = model.evaluate(x[None])
    value = evaluations.log_densities[0]
    rng = np.random.default_rng(seed)
    region = TrustRegion(model, Mode(x, value, np.eye(len(x))), rng, **arguments)
    while not region.has_ended and region.n_evaluations < most:
        evaluations = stepped(region, evaluations)
    return region, evaluations
