"""What the exactness tests have in common."""

import pytest

from tests.chains import short_sequences


@pytest.fixture(autouse=True)
def quick():
    """What is exact stays so, and tests take less."""
    with short_sequences(1 / 32):
        yield
