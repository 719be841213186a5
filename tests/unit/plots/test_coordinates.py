"""Draws are brought to the coordinates that a step works in; coordinates bear the model's names."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.plots.panels import choose, elements_of, positions_of
from tests.models import constrained

QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1, "random_seed": 1}


@pytest.fixture(scope="module")
def bounded():
    with constrained():
        step = kmc.AdaptiveMetropolis()
        return pm.sample(
            step=step,
            tune=50,
            draws=20,
            chains=1,
            idata_kwargs={"include_transformed": True},
            **QUIET,
        ), step


def test_draws_in_the_steps_coordinates(bounded):
    """What the transforms make of the draws is what PyMC kept of the chain."""
    idata, step = bounded
    kept = positions_of(step, idata, step.n_dimensions)
    names = [name for name in idata.posterior.data_vars if name.endswith("__")]
    assert len(names) == 3
    for name in names:
        del idata.posterior[name]
    np.testing.assert_allclose(positions_of(step, idata, step.n_dimensions), kept, atol=1e-8)


def test_a_dimension_of_draws_in_the_model():
    with pm.Model(coords={"sample": range(3)}):
        pm.Normal("x", dims="sample")
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=5, draws=5, chains=1, **QUIET)
    found = positions_of(step, idata, 3)
    np.testing.assert_array_equal(found, idata.posterior["x"].values[0])


def test_names(bounded, walked):
    labels = [element.label for element in elements_of(bounded[1], 4)]
    assert labels == ["scale (log)", "weights[0] (simplex)", "weights[1] (simplex)", "u (interval)"]
    assert [e.label for e in elements_of(walked[1], 3)] == ["z[a]", "z[b]", "z[c]"]


def test_choice(walked):
    elements = elements_of(walked[1], 3)
    assert choose(elements, None, None, 2) == [0, 1, 2]
    assert choose(elements, "z", {"place": ["c", "a"]}, 2) == [0, 2]
    assert choose(elements, None, {"place": "c"}, 1) == [2]
