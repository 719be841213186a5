"""The chains of the main example have the reference posterior, its spread above all.

Ten importance samples a likelihood have the same posterior as the example's hundred.
"""

from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from examples import glass_gp_classification as example

pytestmark = [pytest.mark.documentation, pytest.mark.long, pytest.mark.one_line]

REFERENCE = Path(example.__file__).parent / "benchmarks" / "data" / "glass_posterior.npz"


def test_chains_of_the_example_cover_the_posterior():
    with np.load(REFERENCE) as arrays:
        reference = dict(arrays)
    with example.build_model(n_samples=10):
        step = kmc.KMC()
        assert step.posterior is not None
        idata = pm.sample(
            step=step,
            tune=step.default_tune_steps,
            draws=2000,
            chains=2,
            cores=2,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    summary = az.summary(idata, var_names=["theta"], round_to="none").astype(float)
    error = np.hypot(summary["mcse_mean"].to_numpy(), reference["mcse_mean"])
    assert np.all(np.abs(summary["mean"].to_numpy() - reference["mean"]) < 5 * error)
    # A confined chain believes its own Monte Carlo errors; half the spread is what it looks like.
    # Of draws worth some 100 independent ones the sd is known to about 7 %, tails apart.
    ratio = summary["sd"].to_numpy() / reference["sd"]
    assert np.all((0.7 < ratio) & (ratio < 1.4))
    assert summary["r_hat"].max() < 1.1
