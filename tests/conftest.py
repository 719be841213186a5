"""What tests of several folders ask for, and which of them one line of PyMC is enough for."""

import logging
from pathlib import Path

import pytest

from tests.chains import short_sequences

UNIT = Path(__file__).parent / "unit"
# Rooms that know nothing of PyMC: arrays in, arrays out. `numerics` isn't one of them: its cache of
# compiled code stands on inner parts of numba, whose version comes with that of PyMC.
ROOMS_OF_ARRAYS = [UNIT / name for name in ("adaptation", "moves", "surrogates")]
ROOMS_OF_ARRAYS += [UNIT / "test_dynamics.py"]
# A test file that imports one of these has a model.
OF_MODELS = {"pymc", "pymc_kmc", "pytensor", "pytensor.tensor", "arviz"}


def pytest_collection_modifyitems(items):
    for item in items:
        if any(item.path.is_relative_to(room) for room in ROOMS_OF_ARRAYS):
            names = {getattr(value, "__name__", "") for value in vars(item.module).values()}
            if not names & OF_MODELS:
                item.add_marker("arrays")


@pytest.fixture
def with_short_sequences():
    with short_sequences():
        yield


@pytest.fixture(autouse=True)
def log_level():
    """Benchmarks silence PyMC's messages, which the next test may wait for."""
    logger = logging.getLogger("pymc")
    level = logger.level
    yield
    logger.setLevel(level)
