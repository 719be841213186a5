"""Runs that are killed and run again: the draws are the same, and no evaluation is made twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pymc_kmc as kmc
from tests.faults.killed import CALL, CALLS, N_WORKERS, STORE
from tests.scripts import uncompiled

ROOT = Path(__file__).parents[2]
# Seconds after which a run counts as hanging.
LONGEST = 240.0


def start(kind, folder, seed=1):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.killed", kind, folder, str(seed)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=uncompiled(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def draws(process):
    out, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, errors.decode()
    return json.loads(out.splitlines()[-1])


def n_calls(folder):
    calls = folder / CALLS
    return calls.stat().st_size if calls.exists() else 0


def kill_after(process, folder, n):
    """Kill a run and its children, as by `kill -9`, some time after the n-th call."""
    deadline = time.monotonic() + LONGEST
    while n_calls(folder) < n:
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.2 * CALL)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


# Lost evaluations a kill: those under way, and on a cluster as many whose results are on their way.
# A run that went on is killed again once: where the calls are made makes no difference to that.
@pytest.mark.long
@pytest.mark.one_line
@pytest.mark.parametrize(
    ("kind", "n_lost", "n_kills"),
    [("black_box", 1, 2), ("estimate", 2, 1), ("on_dask", 2 * N_WORKERS, 1)],
)
def test_a_killed_run_goes_on(kind, n_lost, n_kills, tmp_path):
    if kind == "on_dask":
        pytest.importorskip("distributed")
    expected = draws(start(kind, tmp_path / "whole"))
    n = n_calls(tmp_path / "whole")
    rng, folder = np.random.default_rng(), tmp_path / "killed"
    # One kill in each part of the run: of two, the first is while it learns.
    parts = np.linspace(3, n - 10, n_kills + 1).astype(int)
    for low, high in zip(parts, parts[1:], strict=False):
        kill_after(start(kind, folder), folder, int(rng.integers(low, high)))
    assert draws(start(kind, folder)) == expected
    n_kept, n_whole = [
        len(kmc.EvaluationStore(each / STORE)) for each in (folder, tmp_path / "whole")
    ]
    n_repeated = n - n_whole  # to see whether the function always returns the same
    assert 0 <= n_repeated <= 2
    assert n_calls(folder) <= n_kept + n_repeated + n_kills * n_lost
    # Workers begin with a sweep at each chain's end that nobody asks for. How much of it they come
    # to depends on their speed.
    n_begun = 2 * N_WORKERS if kind == "on_dask" else 0
    assert abs(n_kept - n_whole) <= n_begun


@pytest.mark.one_line
def test_two_scripts_write_at_once(tmp_path):
    together = [start("black_box", tmp_path / "two", seed) for seed in (1, 2)]
    found = [draws(process) for process in together]
    n = n_calls(tmp_path / "two")
    assert found[0] != found[1]
    assert draws(start("black_box", tmp_path / "two", 2)) == found[1]
    assert n_calls(tmp_path / "two") == n
