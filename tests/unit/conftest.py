"""Unit tests don't wait for a compiler, unless compiled models are what they are about."""

import pytensor
import pytest

# Models of these files are compiled as users' are: they are what is tested, or chains are long. So
# are black boxes in C or numba where a test of theirs asks for it, and all of contracts, exactness
# and documentation that don't say otherwise.
COMPILED = (
    "test_differentiable.py",
    "test_gad.py",
    "test_langevin.py",
    "test_log_density.py",
    "test_target.py",
)


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled(request):
    """A new expression costs PyTensor's C or numba seconds, chains here milliseconds."""
    mode = pytensor.config.mode if request.path.name in COMPILED else "FAST_COMPILE"
    with pytensor.config.change_flags(mode=mode):
        yield
