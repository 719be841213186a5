"""Every step on models in single precision: pytensor.config.floatX = "float32"."""

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_kmc as kmc
from tests.models import NoisyEstimator
from tests.steps import NOISY_STEPS, STEPS

QUIET = {"progressbar": False, "compute_convergence_checks": False, "chains": 1, "cores": 1}


@pytest.fixture(autouse=True)
def single_precision(with_short_sequences):
    with pytensor.config.change_flags(floatX="float32"):
        yield


def sample(step):
    return pm.sample(step=step, tune=150, draws=60, random_seed=5, **QUIET)


# Compiled as by users: one step of each way to look at a model. The others without compilation.
COMPILED = ("AdaptiveMetropolis", "GadMALA", "KMC")


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, pytensor.config.mode) for name in COMPILED]
    + [
        pytest.param(name, "FAST_COMPILE", marks=pytest.mark.one_line)
        for name in STEPS
        if name not in COMPILED
    ],
)
def test_of_one_type(name, mode):
    with pytensor.config.change_flags(mode=mode), pm.Model():
        x = pm.Normal("x", shape=2)
        scale = pm.HalfNormal("scale")
        pm.Normal("y", x, scale, observed=np.ones(2, "float32"))
        idata = sample(STEPS[name]())
    assert np.ptp(idata.posterior["x"].values) > 0
    assert idata.posterior["x"].dtype == np.float32


@pytest.mark.parametrize("name", NOISY_STEPS)
def test_with_a_noisy_likelihood(name):
    with pytensor.config.change_flags(mode="FAST_COMPILE"), pm.Model():
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", NoisyEstimator(0.5), x)
        idata = sample(STEPS[name]())
    assert np.ptp(idata.posterior["x"].values) > 0


@pytest.mark.parametrize("name", STEPS)
def test_beside_another_step(name):
    with pytensor.config.change_flags(mode="FAST_COMPILE"), pm.Model():
        x = pm.Normal("x")
        z = pm.Normal("z", x, 1.0)
        idata = sample([STEPS[name]([x]), kmc.AdaptiveMetropolis([z])])
    assert np.ptp(idata.posterior["x"].values) > 0
    assert np.ptp(idata.posterior["z"].values) > 0


@pytest.mark.one_line
@pytest.mark.parametrize("name", ["GadRWM", "AdaptiveMetropolis"])
def test_scales_and_a_log_density_of_a_thousand(name):
    # A single-precision number of 1000 is known to 6e-5. ESS is some 300 of 3000 draws: a standard
    # deviation is off by a factor of 1.3 by chance once in 1e9.
    scales = np.array([1e-3, 1.0, 1e3], "float32")
    with pm.Model():
        pm.Normal("x", 0, scales, shape=3)
        pm.Potential("constant", pytensor.tensor.constant(np.float32(1e3)))
        idata = pm.sample(step=STEPS[name](), tune=2000, draws=3000, random_seed=1, **QUIET)
    found = idata.posterior["x"].values[0].std(axis=0) / scales
    np.testing.assert_allclose(found, 1.0, atol=0.3)
