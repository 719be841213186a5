"""Models with black boxes under PyMC's loop: processes, start methods, executors, compounds."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.chains import QUIET
from tests.learned import curve, learned_curve


def model_of(**options):
    """Two black boxes, one of which fails in a part of the prior; closures all."""
    shift = 0.25

    def line(x, z):
        if x > 1.5:
            raise ArithmeticError("no solution")
        return x * np.arange(3.0) + z + shift

    with pm.Model() as model:
        x = pm.Normal("x", initval=0.0)
        z = pm.Normal("z", initval=0.0)
        mean = kmc.BlackBox("line", line, x, z, shape=3, on_error="reject", **options)
        pm.Normal("y", mean, 1.0, observed=[1.0, 2.0, 3.0])
        pm.Potential("p", kmc.BlackBox("log density", lambda z: -(z**2), z, **options))
    return model


def draws_of(model, make_step, **options):
    with model:
        idata = pm.sample(
            step=make_step(), tune=60, draws=60, chains=2, random_seed=5, **(QUIET | options)
        )
    return np.stack([idata.posterior[name].values for name in ("x", "z")])


def steps_of_both():
    """One of this package and one of PyMC's, each with a variable."""
    model = pm.modelcontext(None)
    return [kmc.AdaptiveMetropolis([model["x"]]), pm.Slice([model["z"]])]


@pytest.mark.exactness
@pytest.mark.filterwarnings("ignore:The black box 'line' raised")
def test_same_seed_same_draws_whatever_cores_and_start_method(caplog):
    """And rejections in other processes are told."""
    model = model_of()
    one_core = draws_of(model, steps_of_both, cores=1)
    assert one_core[0].max() <= 1.5
    assert not np.array_equal(one_core[:, 0], one_core[:, 1])
    for start_method in ("fork", "spawn"):
        caplog.clear()
        processes = draws_of(model, steps_of_both, cores=2, mp_ctx=start_method)
        np.testing.assert_array_equal(processes, one_core)
        messages = [record.getMessage() for record in caplog.records]
        told = [message for message in messages if "black box 'line' failed" in message]
        assert len(told) == 2  # once a chain


@pytest.mark.exactness
@pytest.mark.long
def test_draws_on_what_was_learned_do_not_depend_on_processes():
    """Spawned ones get it by pickle, and compile its code anew."""
    learned, options = learned_curve(), {"tune": 20, "draws": 20, "chains": 2, "random_seed": 5}
    with curve():
        one, two = (
            pm.sample(step=kmc.KMC(learned), **options, **(QUIET | where))
            for where in ({"cores": 1}, {"cores": 2, "mp_ctx": "spawn"})
        )
    for name in ("size", "rate"):
        np.testing.assert_array_equal(one.posterior[name], two.posterior[name])


@pytest.mark.exactness
@pytest.mark.one_line
@pytest.mark.filterwarnings("ignore:The black box 'line' raised")
def test_same_draws_on_executors():
    here = draws_of(model_of(), kmc.AdaptiveMetropolis, cores=1)
    for executor in (partial(ThreadPoolExecutor, 2), partial(ProcessPoolExecutor, 1)):
        there = model_of(executor=executor, timeout=60)
        np.testing.assert_array_equal(draws_of(there, kmc.AdaptiveMetropolis, cores=1), here)
    # A pool of threads is made anew in each of PyMC's processes.
    threads = model_of(executor=partial(ThreadPoolExecutor, 1), timeout=60)
    spawned = draws_of(threads, kmc.AdaptiveMetropolis, cores=2, mp_ctx="spawn")
    np.testing.assert_array_equal(spawned, here)


@pytest.mark.filterwarnings("ignore:The black box 'line' raised")
def test_sequential_monte_carlo():
    with model_of():
        idata = pm.sample_smc(
            draws=200,
            chains=1,
            cores=1,
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
        )
    x = idata.posterior["x"].values
    assert np.isfinite(x).all() and x.max() <= 1.5
