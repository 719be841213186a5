"""Short runs that all plots share, and pictures that are closed again."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor  # noqa: E402
import pytest  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from tests.chains import short_sequences  # noqa: E402
from tests.models import noisy_gaussian  # noqa: E402

QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1, "random_seed": 1}
KEPT = QUIET | {"discard_tuned_samples": False}
# Runs here are so short that compiling would take longer.
quickly_compiled = pytensor.config.change_flags(mode="FAST_COMPILE")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
@quickly_compiled
def curved():
    """A run of KMC and its step: a banana, and a variable with a transform."""
    with pm.Model():
        x = pm.Normal("x")
        pm.Normal("y", x**2, 0.5)
        pm.HalfNormal("s")
        step = kmc.KMC()
        with short_sequences():
            return pm.sample(step=step, tune=150, draws=100, chains=2, **KEPT), step


@pytest.fixture(scope="session")
@quickly_compiled
def walked():
    """A run of KAMH and its step, on two of three coordinates with names."""
    with pm.Model(coords={"place": ["a", "b", "c"]}):
        z = pm.Normal("z", dims="place")
        pm.Potential("bend", -2.0 * (z[1] - z[0] ** 2) ** 2)
        step = kmc.KAMH()
        return pm.sample(step=step, tune=300, draws=200, chains=1, **KEPT), step


@pytest.fixture(scope="session")
@quickly_compiled
def noisy():
    """A run on a noisy likelihood, without its tuning."""
    with noisy_gaussian(2.0):
        return pm.sample(step=kmc.AdaptiveMetropolis(), tune=300, draws=400, chains=2, **QUIET)
