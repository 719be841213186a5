"""An opaque node that several terms of the log density share is one node."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.model.opaque import OpaqueModel

TIMES = np.arange(1.0, 5.0)


@pytest.mark.parametrize("on_error", ["raise", "reject"])
def test_a_black_box_of_two_likelihoods_is_paid_for_once(on_error):
    with pm.Model() as model:
        rate = pm.LogNormal("rate")
        curve = kmc.BlackBox(
            "curve", lambda r: np.exp(-r * TIMES), rate, shape=4, on_error=on_error
        )
        pm.Normal("early", curve[:2], 0.1, observed=[0.3, 0.1])
        pm.Normal("late", curve[2:], 0.1, observed=[0.05, 0.0])
    opaque = OpaqueModel(model.value_vars, model, np.random.default_rng(0))
    assert [node.n_outputs for node in opaque.nodes] == [4]
    (box,) = kmc.black_boxes(model)
    before, X = box.n_evaluations, np.array([[-0.5], [0.0], [0.7]])
    outputs = opaque.evaluate(X).outputs
    assert box.n_evaluations - before == len(X)
    log_density = model.compile_logp()
    expected = [log_density({"rate_log__": x[0]}) for x in X]
    np.testing.assert_allclose(opaque.log_density(X, outputs)[0], expected)
