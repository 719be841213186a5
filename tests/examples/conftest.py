"""What the tests of examples and documentation have in common."""

import pytensor
import pytest

# Here chains are as users have them, in processes of their own or long, or compiled code is what is
# tested.
COMPILED = (
    "test_cluster.py",
    "test_docs.py",
    "test_gallery_forms.py",
    "test_glass_posterior.py",
    "test_notebooks.py",
    "test_readme.py",
    "test_same_draws.py",
)


@pytest.fixture(autouse=True)
def quick(with_short_sequences):
    """Draws that depend more on each other are good enough here."""


@pytest.fixture
def uncompiled(emulated_by_numpy):
    """Chains are so short that compiling models, and what is learned of them, takes longer."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(autouse=True)
def quickly_compiled(request):
    if request.node.get_closest_marker("documentation") and request.path.name not in COMPILED:
        request.getfixturevalue("uncompiled")
