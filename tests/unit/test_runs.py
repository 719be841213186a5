"""Runs as people have changed them: chosen chains, variables of their own, a group alone."""

import copy

import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_kmc as kmc
from tests.chains import QUIET


@pytest.fixture(scope="module")
def sampled():
    with pm.Model(coords={"place": ["u", "v"]}) as model:
        z = pm.Normal("z", dims="place")

        def estimator(z, rng):
            return 0.3 * rng.standard_normal(), {"seen": z}

        kmc.PseudoMarginalPotential("noisy", estimator, z, extras={"seen": "place"})
        pm.Normal("y", z, 1.0, observed=[0.5, 0.7], dims="place")
        options = QUIET | {"chains": 2, "cores": 1, "random_seed": 1}
        idata = pm.sample(step=kmc.AdaptiveMetropolis(), tune=60, draws=40, **options)
    return model, idata


def test_a_chosen_chain_is_a_run_of_one(sampled):
    model, idata = sampled
    one, expected = idata.sel(chain=1), idata.sel(chain=[1])
    pd.testing.assert_frame_equal(kmc.diagnose(one).chains, kmc.diagnose(expected).chains)
    xr.testing.assert_equal(kmc.extras(one, model), kmc.extras(expected, model))
    kmc.plots.plot_moves(one)


def test_dimensions_of_variables_of_ones_own_have_any_order(sampled):
    """That of numbers times draws begins with the numbers' dimension."""
    model, changed = sampled[0], copy.deepcopy(sampled[1])
    factors = xr.DataArray([1.0, 2.0, 3.0], dims="time")
    changed.posterior["curve"] = factors * changed.posterior["z"]
    assert changed.posterior["curve"].dims[0] == "time"
    found, expected = kmc.diagnose(changed), kmc.diagnose(sampled[1])
    pd.testing.assert_frame_equal(found.chains, expected.chains)
    assert found.findings == expected.findings
    kmc.plots.plot_moves(changed)
    predicted = kmc.sample_posterior_predictive(changed, model, random_seed=1, progressbar=False)
    assert predicted.posterior_predictive["y"].shape == (2, 40, 2)
