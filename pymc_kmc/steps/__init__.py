"""The samplers, as PyMC step methods: one file an algorithm."""

from pymc_kmc.steps.kmc import KMC, KMCFinite, KMCLite
from pymc_kmc.steps.metropolis import AdaptiveMetropolis

__all__ = ["KMC", "AdaptiveMetropolis", "KMCFinite", "KMCLite"]
