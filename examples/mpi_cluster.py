"""A chain whose evaluations run on all processes of an MPI job, as on a cluster.

    pip install 'pymc-kmc[mpi]'                       # or mpi4py, built for the cluster's own MPI
    mpiexec -n 33 python -m mpi4py.futures examples/mpi_cluster.py --draws 1000

The first process learns and draws, the other 32 evaluate; see docs/on_a_cluster.md.
"""

import argparse

import arviz as az
import numpy as np
import pymc as pm

import pymc_kmc as kmc

TIMES = np.linspace(0, 4, 5)


def solver(size, rate):
    """A simulator of your own: whatever takes a minute."""
    return size * np.exp(-rate * TIMES)


def build_model():
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        curve = kmc.BlackBox("curve", solver, size, rate, shape=5)
        pm.Normal("y", curve, 0.1, observed=[3.1, 1.45, 0.82, 0.27, 0.2])
    return model


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
    parser.add_argument("--draws", type=int, default=1000, help="of each of four chains")
    parser.add_argument("--here", type=int, metavar="N", help="without MPI, N places at a time")
    options = parser.parse_args(arguments)
    if options.here:
        return print(az.summary(sample(None, options.draws, options.here)).to_string())
    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor() as pool:
        print(az.summary(sample(pool, options.draws)).to_string())


if __name__ == "__main__":
    main()
