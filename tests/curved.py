"""A model with gradients that is neither Gaussian nor symmetric, and a proposal in it."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.moves import evaluation


def curved_model():
    """Return a model of three variables, one vector."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=3)
        pm.Potential("curved", -0.3 * pt.exp(x[0]) - 0.5 * (x[1] - x[0] ** 2) ** 2 + x[2] * x[0])
    return model


def evaluated(target, position):
    """Return a differentiable target's evaluation, its gradient included."""
    log_density, gradient = target.density((position,))
    return evaluation(position, log_density, np.asarray(gradient))


def proposal_case(seed=0):
    """Return a factor, a place and noise."""
    rng = np.random.default_rng(seed)
    factor = np.tril(0.2 * rng.standard_normal((3, 3))) + 0.5 * np.eye(3)
    return factor, 0.5 * rng.standard_normal(3), rng.standard_normal(3)
