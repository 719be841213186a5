"""DifferentiableTarget: gradients, second derivatives, impossible parameters."""

import numpy as np
import pymc as pm

from pymc_kmc.model.differentiable import DifferentiableTarget
from tests.targets import target_of


def test_gradient_and_hessian_are_the_models():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 2.0)
        pm.Normal("x", 0.5, scale, shape=2)
    target = target_of(model, kind=DifferentiableTarget, curvature=True)
    rng = np.random.default_rng(1)
    d = target.n_dimensions
    for _ in range(3):
        position, direction = rng.standard_normal((2, d))
        evaluation = target.propose(position, rng)
        differences = np.empty(d)
        for i in range(d):
            step = 1e-6 * np.eye(d)[i]
            ends = [target.propose(position + s * step, rng).log_density for s in (1, -1)]
            differences[i] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(evaluation.gradient, differences, rtol=1e-6, atol=1e-7)
        ends = [target.gradient(position + s * 1e-6 * direction) for s in (1, -1)]
        np.testing.assert_allclose(
            target.hessian_product(position, direction),
            (ends[0] - ends[1]) / 2e-6,
            rtol=1e-6,
            atol=1e-7,
        )


def test_impossible_parameters_have_density_zero():
    """As in pm.sample: no exception from inside the compiled density."""
    with pm.Model() as model:
        scale = pm.Normal("scale", 1.0)
        pm.Normal("y", 0.0, scale, observed=1.0)
    target = target_of(model, kind=DifferentiableTarget)
    evaluation = target.propose(np.array([-1.0]), np.random.default_rng(0))
    assert evaluation.log_density == -np.inf
