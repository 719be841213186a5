"""What the exactness tests have in common."""

import pytest

from pymc_kmc.adaptation import transitions


@pytest.fixture(autouse=True)
def short_sequences(monkeypatch):
    """KMC moves an eighth as far on its surrogate: what is exact stays so, and tests take less."""
    monkeypatch.setattr(transitions, "BUDGET", transitions.BUDGET / 8)
