"""What tests of several folders ask for."""

import logging

import pytest

from tests.chains import short_sequences


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
