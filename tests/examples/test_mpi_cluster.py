"""The example of an MPI job: it draws what one process does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.documentation

ROOT, HERE = Path(__file__).parents[2], Path(sys.executable).parent
N_DRAWS, N_WORKERS = 20, 2
ONE_PROCESS = f"""
from examples import mpi_cluster
mpi_cluster.main(["--draws", "{N_DRAWS}", "--here", "{N_WORKERS}"])
"""


def printed(*command):
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-3:]


def test_it_draws_what_one_process_does():
    pytest.importorskip("mpi4py")
    mpiexec = shutil.which("mpiexec", path=f"{HERE}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        pytest.skip("There is no MPI.")
    python = sys.executable, "-W", "ignore"
    script = "-m", "mpi4py.futures", "examples/mpi_cluster.py", "--draws", N_DRAWS
    job = printed(mpiexec, "-n", 1 + N_WORKERS, *python, *script)
    assert job == printed(*python, "-c", ONE_PROCESS)
