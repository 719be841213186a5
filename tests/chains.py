"""Chains by hand: PyMC's loop without its storage; and what keeps PyMC's own quiet."""

from contextlib import contextmanager

import numpy as np
import pytest

from pymc_kmc.adaptation import transitions
from pymc_kmc.learning import emulated_density

QUIET = {"progressbar": False, "compute_convergence_checks": False}
ONE_CHAIN = QUIET | {"chains": 1, "cores": 1}


# Simulated trajectories by which each fit compares lengths: with ten, chains on the banana and the
# Gaussian of tests/exactness have the effective sizes that they have with 50.
FEW_STARTS = 10


@contextmanager
def short_sequences(share=1 / 8):
    """Let steps move that far on their surrogates, and learn how far from few simulations.

    In this process and in forks of it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "FEWEST_SEQUENCES", FEW_STARTS)
        for module, name in (
            (transitions, "BUDGET"),
            (emulated_density, "OPERATIONS"),
            (emulated_density, "FEWEST_GRADIENTS"),
        ):
            patch.setattr(module, name, share * getattr(module, name))
        yield


def iterate(step, point, n):
    """Yield the point and the statistics after each of n iterations from a point."""
    for _ in range(n):
        point, (statistics,) = step.step(point)
        yield point, statistics


def run(step, point, n):
    """Return the point after n iterations, and the statistics of all, a list."""
    points, statistics = zip(*iterate(step, point, n), strict=True)
    return points[-1], list(statistics)


def column(statistics, name):
    """Return one statistic of a list of them, an array."""
    return np.array([of_iteration[name] for of_iteration in statistics])
