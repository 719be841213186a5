"""The example of a cluster: it draws what one process does, by MPI, by Slurm's jobs, by a pool."""

import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from examples import cluster

pytestmark = [pytest.mark.documentation, pytest.mark.one_line]

ROOT, HERE = Path(__file__).parents[2], Path(sys.executable).parent
N_DRAWS, N_WORKERS = "8", "2"
#: What Open MPI wants to be told besides: in a container, and by mpi4py's wheel.
OPEN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OPEN["MPI4PY_MPIABI"] = "openmpi"
#: Names of mpiexec, where it is looked for, options and environment: PyPI's MPICH, and Debian's.
MPI = {
    "mpich": ("mpiexec", HERE, (), {}),
    "openmpi": ("mpiexec.openmpi", None, ("--oversubscribe",), OPEN),
}


@pytest.fixture(scope="module")
def printed_here():
    """What the example prints without a pool: made before sequences are shortened."""
    with redirect_stdout(io.StringIO()) as said:
        cluster.main(["none", "--workers", N_WORKERS, "--draws", N_DRAWS])
    return said.getvalue().splitlines()[-3:]


@pytest.mark.parametrize("kind", MPI)
def test_on_mpi(kind, printed_here):
    """Whose MPI it is concerns mpi4py: the second one is tried on GitHub alone, which sets CI."""
    pytest.importorskip("mpi4py")
    name, folder, options, environment = MPI[kind]
    if (mpiexec := shutil.which(name, path=folder)) is None:
        pytest.skip(f"There is no {name}.")
    if kind == "openmpi" and not os.environ.get("CI"):
        pytest.skip("Another MPI is tried where CI is set.")
    python = sys.executable, "-W", "ignore", "-m", "mpi4py.futures"
    job = mpiexec, *options, "-n", str(1 + int(N_WORKERS)), *python, "examples/cluster.py", "mpi"
    done = subprocess.run(
        [*job, "--draws", N_DRAWS],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == printed_here


def test_on_slurm(monkeypatch, capsys):
    """Its jobs are workers of this computer."""
    distributed = pytest.importorskip("distributed")
    asked = []

    def jobs(**options):
        asked.append(options)
        here = {"n_workers": 0, "threads_per_worker": 1, "processes": False}
        return distributed.LocalCluster(**here, dashboard_address=None)

    monkeypatch.setitem(sys.modules, "dask_jobqueue", SimpleNamespace(SLURMCluster=jobs))
    found = []
    for pool in ("slurm", "none"):
        cluster.main([pool, "--workers", N_WORKERS, "--draws", N_DRAWS])
        found.append(capsys.readouterr().out)
    assert asked == [{"cores": 1, "memory": "4GB", "walltime": "08:00:00"}]
    assert found[0] == found[1] != ""


def test_chains_in_processes_with_a_client_each():
    """All of them ask one cluster's workers."""
    distributed = pytest.importorskip("distributed")
    here = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    quiet = {"random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    found = []
    with distributed.LocalCluster(**here, protocol="tcp", host="127.0.0.1") as workers:
        client = partial(distributed.Client, workers.scheduler_address)
        with cluster.build_model():
            learned = kmc.learn(n_parallel=2, random_seed=1, progressbar=False)
            for way in (
                {"cores": 1},
                {"cores": 2, "mp_ctx": "fork"},
                {"cores": 2, "mp_ctx": "spawn"},
            ):
                step = kmc.KMC(learned, executor=client if way["cores"] > 1 else None, n_parallel=2)
                idata = pm.sample(step=step, tune=10, draws=10, chains=2, **quiet, **way)
                found.append(idata.posterior["size"].values)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_a_worker_of_dask_that_dies_costs_no_draws(tmp_path):
    distributed = pytest.importorskip("distributed")
    parent, has_died = os.getpid(), tmp_path / "died"

    def deadly(size, rate):
        if os.getpid() != parent and not has_died.exists():
            has_died.touch()
            os._exit(1)
        return cluster.solver(size, rate)

    quiet = {"random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    with cluster.build_model(deadly):
        learned = kmc.learn(n_parallel=4, random_seed=1, progressbar=False)
        run = partial(pm.sample, tune=10, draws=20, chains=1, cores=1, **quiet)
        here = run(step=kmc.KMC(learned, n_parallel=4))
        workers = distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None)
        with workers, distributed.Client(workers) as client:
            there = run(step=kmc.KMC(learned, executor=client, n_parallel=4))
    assert has_died.exists()
    np.testing.assert_array_equal(there.posterior["size"], here.posterior["size"])


def test_the_number_of_workers_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        cluster.main(["slurm"])
    assert "slurm needs --workers" in capsys.readouterr().err
