"""What tests of several folders ask for, and which of them one line of PyMC is enough for."""

import logging
from itertools import count
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from pymc_kmc.learning.emulated_density import EmulatedDensity
from tests.chains import short_sequences

TESTS = Path(__file__).parent
UNIT = TESTS / "unit"
EXACTNESS, FAULTS = TESTS / "exactness", TESTS / "faults"
# Rooms that know nothing of PyMC: arrays in, arrays out. `numerics` isn't one of them: its cache of
# compiled code stands on inner parts of numba, whose version comes with that of PyMC.
ROOMS_OF_ARRAYS = [UNIT / name for name in ("adaptation", "moves", "surrogates")]
ROOMS_OF_ARRAYS += [UNIT / "test_dynamics.py"]
# Files whose outcome is that of algorithms: all that PyMC has to do there is to give a density.
# Tests of contracts, of models' log densities and of exactness show on both lines that it does.
OF_ALGORITHMS = [
    UNIT / "steps" / f"test_{name}.py"
    for name in (
        "kamh",
        "kernel_hmc",
        "kmc",
        "kmc_at_once",
        "messages",
        "noise_probe",
        "surrogate",
    )
]
OF_ALGORITHMS += [
    UNIT / "learning" / f"test_{name}.py"
    for name in (
        "averages",
        "coarse",
        "composite",
        "convergence",
        "emulator",
        "faults",
        "hard_fits",
        "learn",
        "many_workers",
        "modes",
        "multistart",
        "placing",
        "region",
        "resuming",
        "rounds",
        "trust_region",
        "warm_start",
    )
]
# Exactness of algorithms, on densities that PyMC only evaluates. What is learned of models' graphs,
# and chains on transformed variables, are tested on both lines.
OF_ALGORITHMS += [
    EXACTNESS / f"test_{name}.py"
    for name in ("abc", "correlated", "failed_simulations", "learned", "partial_posteriors")
]
OF_ALGORITHMS += [FAULTS / "test_compositions.py"]
# What runs beside a model: files, processes, servers; paths of posteriors of subsets; the text of
# the package.
OF_ALGORITHMS += [
    UNIT / "likelihoods" / f"test_{name}.py" for name in ("commands", "store", "um_bridge")
]
OF_ALGORITHMS += [*(UNIT / "partial").glob("test_*.py"), UNIT / "test_discrepancy.py"]
OF_ALGORITHMS += [UNIT / "test_architecture.py", UNIT / "test_project.py"]
# Scripts and benchmarks too, but for what shows how PyMC is used: README, the documentation's code
# and notebooks, models of PyMC's gallery.
EXAMPLES = TESTS / "examples"
USES_OF_PYMC = [
    EXAMPLES / f"test_{name}.py"
    for name in ("docs", "gallery_forms", "notebooks", "readme", "same_draws")
]
# A test file of a room that imports one of these has a model.
OF_MODELS = {"pymc", "pymc_kmc", "pytensor", "pytensor.tensor", "arviz"}


def pytest_collection_modifyitems(items):
    """Mark whole files; single tests bear markers where they are written. Long ones begin first."""
    for item in items:
        if item.path.is_relative_to(EXACTNESS) or item.path.is_relative_to(FAULTS):
            item.add_marker("exactness")
        is_example = item.path.parent == EXAMPLES and item.path not in USES_OF_PYMC
        if is_of_arrays(item) or is_example or item.path in OF_ALGORITHMS:
            item.add_marker("one_line")
    # A test of minutes that begins last would leave the other processes idle.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def is_of_arrays(item):
    """Say whether a test is of a room of arrays, and none of its file's tests has a model."""
    in_room = any(item.path.is_relative_to(room) for room in ROOMS_OF_ARRAYS)
    if not (in_room and isinstance(item, pytest.Function)):
        return False
    imported = {getattr(value, "__name__", "") for value in vars(item.module).values()}
    return not imported & OF_MODELS


@pytest.fixture
def with_short_sequences():
    with short_sequences():
        yield


@pytest.fixture
def emulated_by_numpy(monkeypatch):
    """What is learned is evaluated as where it can't be compiled, which takes numba 5 to 20 s."""
    monkeypatch.setattr(EmulatedDensity, "_compiled", None)


@pytest.fixture(autouse=True)
def unseeded(request, monkeypatch):
    """What nobody seeds is the same whenever this test runs: a step made without `rng=`, say."""
    original, calls, name = np.random.default_rng, count(), crc32(request.node.nodeid.encode())

    def default_rng(seed=None):
        return original([name, next(calls)] if seed is None else seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)


@pytest.fixture(autouse=True)
def log_level():
    """Benchmarks silence PyMC's messages, which the next test may wait for."""
    logger = logging.getLogger("pymc")
    level = logger.level
    yield
    logger.setLevel(level)
