"""The samplers, as PyMC step methods: one file an algorithm."""

from pymc_kmc.steps.metropolis import AdaptiveMetropolis

__all__ = ["AdaptiveMetropolis"]
