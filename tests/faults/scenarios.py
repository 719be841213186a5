"""The faults, one function each: it raises where something did not hold.

What is asked of each: the fault ends in an error in words, or in draws; nothing that PyMC could
keep is lost; and the next run in the same process is right, the one that was never disturbed.
"""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pymc as pm

import pymc_kmc as kmc
from pymc_kmc.likelihoods.noisy_log_likelihood import EstimatorError
from tests.steps import NOISY_STEPS, STEPS

QUIET = {"progressbar": False, "compute_convergence_checks": False, "chains": 2}
# Steps whose chains are short and need no surrogate: the faults are not theirs.
CHEAP = ("AdaptiveMetropolis", "KAMH")
N_TUNE, N_DRAWS = 40, 60
# Seconds that a run goes on, at most, before its interrupt.
LONGEST_WAIT = 0.5
# Seconds within which an interrupted run, and a short one after it, have ended.
ENDS_WITHIN = 30.0
ROOT = Path(__file__).parents[2]
# Spawned processes take seconds to begin.
START_METHODS = ("fork", "fork", "spawn")


class Faulty:
    """A noisy log likelihood that does something at its n-th call, as long as a file is there.

    Parameters
    ----------
    fault : callable
    at : int
        Number of the call, in the process where it is made.
    switch : str
        Path of the file; without it nothing happens.
    """

    def __init__(self, fault, at, switch):
        self.fault = fault
        self.at = at
        self.switch = switch
        self.n_calls = 0

    def __call__(self, x, rng):
        self.n_calls += 1
        if self.n_calls >= self.at and os.path.exists(self.switch):
            return self.fault()
        return -0.5 * x**2 + 0.5 * rng.standard_normal()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def hang():
    time.sleep(600.0)


def fail():
    raise ZeroDivisionError("the solver failed")


def model_with(estimator, **options):
    with pm.Model() as model:
        kmc.PseudoMarginalPotential("loglik", estimator, pm.Normal("x"), **options)
    return model


def sample(model, name, **options):
    arguments = {"tune": N_TUNE, "draws": N_DRAWS, "random_seed": 1, "cores": 1} | QUIET | options
    with model:
        return pm.sample(step=STEPS[name](), **arguments)


def undisturbed(name):
    return sample(model_with(Faulty(None, 0, "")), name).posterior["x"].values


def is_right_again(model, name, switch):
    """Check that a run without the fault has the draws of one that was never disturbed."""
    Path(switch).unlink()
    np.testing.assert_array_equal(sample(model, name).posterior["x"].values, undisturbed(name))


def a_pool_worker_dies(rng, folder):
    """Of a pool that a function makes: it is made anew, and the draws are the same."""
    switch, name = folder / "on", rng.choice(CHEAP)
    switch.touch()
    fault = [kill, leave][rng.integers(2)]
    model = model_with(Faulty(fault, int(rng.integers(2, 30)), str(switch)), executor=Pool())
    disturbed = sample(model, name).posterior["x"].values
    np.testing.assert_array_equal(disturbed, undisturbed(name))
    is_right_again(model, name, switch)


class Pool:
    """Makes an executor of one forked process."""

    def __call__(self):
        return ProcessPoolExecutor(1, mp_context=get_context("fork"))


def a_task_hangs(rng, folder):
    """On a pool with a time limit: an error that names it, and no process is left."""
    switch, name = folder / "on", rng.choice(CHEAP)
    switch.touch()
    estimator = Faulty(hang, int(rng.integers(2, 30)), str(switch))
    model = model_with(estimator, executor=Pool(), timeout=0.5)
    try:
        sample(model, name)
    except EstimatorError as error:
        assert "took longer than timeout=0.5 seconds" in str(error)
    else:
        raise AssertionError("no error")
    is_right_again(model, name, switch)


def a_chain_process_dies(rng, folder):
    """PyMC's own: its exception, in time; what a callback kept is there."""
    switch, name = folder / "on", rng.choice(CHEAP)
    switch.touch()
    at, start = int(rng.integers(N_TUNE + 20, N_TUNE + 60)), START_METHODS[rng.integers(3)]
    model = model_with(Faulty([kill, leave][rng.integers(2)], at, str(switch)))
    kept = []

    def keep(trace, draw):
        kept.append(draw)

    try:
        sample(model, name, cores=2, mp_ctx=start, callback=keep)
    except (ConnectionResetError, EOFError, BrokenPipeError, RuntimeError):
        pass
    else:
        raise AssertionError("no error")
    assert len(kept) > 0
    is_right_again(model, name, switch)


def an_interrupt(rng, folder):
    """In any iteration: the draws so far, or PyMC's word that there are none."""
    switch, name = folder / "on", rng.choice(NOISY_STEPS)
    switch.touch()
    model, at = model_with(Faulty(None, 10**9, str(switch))), int(rng.integers(2 * N_TUNE))
    cores, start = int(rng.integers(1, 3)), START_METHODS[rng.integers(3)]
    seen = []

    def interrupt(trace, draw):
        seen.append(draw.tuning)
        if len(seen) > at:
            raise KeyboardInterrupt

    try:
        found = sample(model, name, callback=interrupt, cores=cores, mp_ctx=start)
    except ValueError as error:
        assert "Not enough samples" in str(error) and (all(seen) or cores == 2)
    else:
        n_draws = len(seen) - sum(seen)
        n_found = found.posterior["x"].size
        assert n_found > 0 and (cores == 2 or abs(n_found - n_draws) <= 1)
    is_right_again(model, name, switch)


def a_real_interrupt(rng, folder):
    """SIGINT to a process and its workers, at any time: what PyMC keeps of the draws so far.

    With one core it ends the chain that runs, and PyMC begins the next one: one for each chain.
    """
    cores = int(rng.integers(1, 3))
    phase = ["tuning", "drawing"][rng.integers(2)]
    name = rng.choice(list(STEPS))
    options = json.dumps({"step": str(name), "cores": cores, "phase": phase})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.interrupted", options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # the signal goes to all of them, as from a terminal
    )
    try:
        lines = iter(process.stdout.readline, "")
        for _ in range(1 if cores == 2 else 2):
            assert any(line == "READY\n" for line in lines), "it ended before the interrupt"
            time.sleep(rng.uniform(0.0, LONGEST_WAIT))
            os.killpg(process.pid, signal.SIGINT)
        found = json.loads(process.communicate(timeout=ENDS_WITHIN)[0].splitlines()[-1])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    told = f"{options}: {found}"
    assert found["next_is_right"], told
    if phase == "tuning":
        assert "Not enough samples to build a trace" in found["error"], told
    else:
        assert found.get("draws", 0) > 0 and found["finite"], told
        assert 1 <= found["chains"] <= 2, told


def an_estimator_fails(rng, folder):
    """In a chain's process or in this one: the user's exception, with what reproduces it."""
    switch, name, cores = folder / "on", rng.choice(CHEAP), int(rng.integers(1, 3))
    start = START_METHODS[rng.integers(3)]
    switch.touch()
    model = model_with(Faulty(fail, int(rng.integers(2, 60)), str(switch)))
    try:
        sample(model, name, cores=cores, mp_ctx=start)
    except Exception as error:
        told = f"{error} {error.__cause__}"
        assert "the solver failed" in told and "PCG64(" in told
    else:
        raise AssertionError("no error")
    is_right_again(model, name, switch)


def a_cache_file_is_damaged(rng, folder):
    """Compiled anew, with a warning that names the file; the value is the same."""
    from numba.core import config

    from pymc_kmc.numerics.jit import njit

    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        expected = njit(sum_of_squares)(np.arange(4.0))
        path = rng.choice(sorted(folder.rglob("*.nb[ic]")))
        content = path.read_bytes()
        path.write_bytes(content[: rng.integers(len(content))])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert njit(sum_of_squares)(np.arange(4.0)) == expected
        assert any(str(path) in str(warning.message) for warning in caught)
    finally:
        config.CACHE_DIR = before


def sum_of_squares(x):
    total = 0.0
    for value in x:
        total += value * value
    return total


def a_small_disk_is_full(rng, folder):
    """A tmpfs without room for compiled code; where none may be mounted, no file may be long."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return the_disk_is_full(rng, folder)
    try:
        room = os.statvfs(folder)
        n_left = int(rng.integers(0, 2)) * room.f_frsize
        (folder / "filling").write_bytes(bytes(room.f_bavail * room.f_frsize - n_left))
        compiles_without_room(folder)
        (folder / "filling").unlink()
        assert njit_in(folder)(np.arange(4.0)) == 14.0
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def njit_in(folder):
    """Return a small function that is compiled with its code kept in a folder."""
    from numba.core import config

    from pymc_kmc.numerics.jit import njit

    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        return njit(sum_of_squares)
    finally:
        config.CACHE_DIR = before


def compiles_without_room(folder):
    """Check that what can't be kept is told, and right."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert njit_in(folder)(np.arange(4.0)) == 14.0
    assert any("can't be kept" in str(warning.message) for warning in caught)


def the_disk_is_full(rng, folder):
    """No file may be longer than some bytes: compiled code isn't kept, and a run goes on."""
    import resource

    from numba.core import config

    from pymc_kmc.numerics.jit import njit

    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(rng.integers(0, 900)), limits[1]))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert njit(sum_of_squares)(np.arange(4.0)) == 14.0
        assert any("can't be kept" in str(warning.message) for warning in caught)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        config.CACHE_DIR = before
    assert njit(sum_of_squares)(np.arange(4.0)) == 14.0


SCENARIOS = {
    function.__name__: function
    for function in (
        a_pool_worker_dies,
        a_task_hangs,
        a_chain_process_dies,
        an_interrupt,
        a_real_interrupt,
        an_estimator_fails,
        a_cache_file_is_damaged,
        the_disk_is_full,
        a_small_disk_is_full,
    )
}


def run(name, seed):
    """Run one trial of a scenario."""
    with TemporaryDirectory() as folder:
        SCENARIOS[name](np.random.default_rng(seed), Path(folder))
