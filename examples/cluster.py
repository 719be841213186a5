"""Chains whose evaluations run on a cluster's nodes, by Slurm or MPI; see docs/on_a_cluster.md.

    pip install 'pymc-kmc[dask]' dask-jobqueue
    python examples/cluster.py slurm --workers 32

    pip install 'pymc-kmc[mpi]'                       # or mpi4py, built for the cluster's own MPI
    mpiexec -n 33 python -m mpi4py.futures examples/cluster.py mpi

Slurm is asked for 32 jobs of one core each; this process, on a login node, learns and draws. Under
MPI the first process does, and the other 32 evaluate.

    python examples/cluster.py processes --workers 2  # this computer
    python examples/cluster.py none --workers 32      # the same draws as 32 workers', here
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext

import arviz as az
import numpy as np
import pymc as pm

import pymc_kmc as kmc

TIMES = np.linspace(0, 4, 5)


def solver(size, rate):
    """A simulator of your own: whatever takes a minute."""
    return size * np.exp(-rate * TIMES)


def build_model(solver=solver):
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        curve = kmc.BlackBox("curve", solver, size, rate, shape=5)
        pm.Normal("y", curve, 0.1, observed=[3.1, 1.45, 0.82, 0.27, 0.2])
    return model


@contextmanager
def slurm(n_workers):
    """Dask's client, once all workers are there."""
    from dask.distributed import Client
    from dask_jobqueue import SLURMCluster

    with SLURMCluster(cores=1, memory="4GB", walltime="08:00:00") as cluster:
        cluster.scale(n_workers)
        with Client(cluster) as client:
            client.wait_for_workers(n_workers)
            yield client


def mpi(n_workers):
    """A pool of all other processes of the job."""
    from mpi4py.futures import MPIPoolExecutor

    return MPIPoolExecutor()


POOLS = {
    "slurm": slurm,
    "mpi": mpi,
    "processes": ProcessPoolExecutor,
    "none": lambda n_workers: nullcontext(),
}


def sample(pool, n_draws, n_parallel=None):
    """Learn the posterior and draw from it, with all workers of a pool."""
    with build_model():
        learned = kmc.learn(executor=pool, n_parallel=n_parallel, random_seed=1, progressbar=False)
        step = kmc.KMC(learned, executor=pool, n_parallel=n_parallel)
        return pm.sample(
            step=step, tune=50, draws=n_draws, chains=4, cores=1, random_seed=1, progressbar=False
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pool", choices=POOLS, help="where the model is evaluated")
    parser.add_argument("--workers", type=int, metavar="N", help="of Slurm, or of this computer")
    parser.add_argument("--draws", type=int, default=1000, help="of each of four chains")
    options = parser.parse_args(arguments)
    if options.workers is None and options.pool != "mpi":
        parser.error(f"{options.pool} needs --workers")
    with POOLS[options.pool](options.workers) as pool:
        print(az.summary(sample(pool, options.draws, options.workers)).to_string())


if __name__ == "__main__":
    main()
