"""A run in a process of its own that may be killed, and goes on where it was.

`python -m tests.faults.killed KIND FOLDER SEED` samples a model with a store in a folder, and
prints the draws as JSON. Each call appends a byte to the file CALLS there before it begins.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_kmc as kmc

CALLS, STORE = "calls", "runs/store.db"
TIMES = np.arange(5.0)
# Seconds that a call takes: kills hit calls, and what is between them.
CALL = 0.002
# Calls of a cluster that are under way at once.
N_WORKERS = 2


def counted(folder):
    """Count a call."""
    file = os.open(folder / CALLS, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, b".")
    os.close(file)
    time.sleep(CALL)


def black_box(folder, **options):
    """A curve that is learned for two chains in this process; it fails where `rate` is large."""

    def decay(rate):
        counted(folder)
        if rate > 2:
            raise ValueError("too fast")
        return np.exp(-rate * TIMES)

    rate = pm.LogNormal("rate")
    options |= {"shape": 5, "on_error": "reject", "store": folder / STORE}
    curve = kmc.BlackBox("decay", decay, rate, **options)
    pm.Normal("y", curve, 0.1, observed=[1.0, 0.6, 0.4, 0.2, 0.1])
    return kmc.KMC(), 1, options.get("executor")


def on_dask(folder):
    """The curve, its calls on a cluster of two threads."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=1, threads_per_worker=N_WORKERS, processes=False, dashboard_address=None
    )
    return black_box(folder, executor=Client(cluster).get_executor())


def estimate(folder):
    """A noisy likelihood, and two chains on two cores."""

    def estimator(x, rng):
        counted(folder)
        return -0.5 * x**2 + rng.normal(-0.5, 1.0)

    x = pm.Normal("x", 0, 3)
    kmc.PseudoMarginalPotential("likelihood", estimator, x, store=folder / STORE)
    return kmc.AdaptiveMetropolis(), 2, None


KINDS = {"black_box": black_box, "estimate": estimate, "on_dask": on_dask}


def main():
    make, folder, seed = KINDS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3])
    with pm.Model() as model:
        step, cores, executor = make(folder)
        quiet = {"progressbar": False, "compute_convergence_checks": False}
        found = pm.sample(
            step=step, tune=100, draws=150, chains=2, cores=cores, random_seed=seed, **quiet
        )
    if executor is not None:
        executor.shutdown()  # what its workers have begun for a next draw is stored, too
    print(json.dumps(found.posterior[model.free_RVs[0].name].values.tolist()))


if __name__ == "__main__":
    main()
