"""What the exactness tests have in common."""

import pytest


@pytest.fixture(autouse=True)
def quick(with_short_sequences):
    """What is exact stays so, and tests take less."""
