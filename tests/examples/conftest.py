"""What the tests of examples and documentation have in common."""

import pytensor
import pytest


@pytest.fixture(autouse=True)
def quick(with_short_sequences):
    """Draws that depend more on each other are good enough here."""


@pytest.fixture
def uncompiled(emulated_by_numpy):
    """Chains of pages are so short that compiling models, and what is learned, takes longer."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield
