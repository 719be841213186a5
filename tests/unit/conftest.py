"""Unit tests don't wait for a compiler, unless compiled models are what they are about."""

from pathlib import Path

import pytensor
import pytest

# Graphs of models. Their own models are compiled as users' are; so are black boxes in C or numba
# where a test of theirs asks for it, and all of contracts, exactness, faults and documentation that
# don't say otherwise.
COMPILED = Path(__file__).parent / "model"


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled(request):
    """PyTensor's C costs three seconds an expression, its numba one, chains here milliseconds."""
    mode = pytensor.config.mode if COMPILED in request.path.parents else "FAST_COMPILE"
    with pytensor.config.change_flags(mode=mode):
        yield
