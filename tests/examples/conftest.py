"""What the tests of examples and documentation have in common."""

import pytest


@pytest.fixture(autouse=True)
def quick(with_short_sequences):
    """Draws that depend more on each other are good enough here."""
