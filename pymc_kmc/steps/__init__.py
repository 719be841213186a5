"""The samplers, as PyMC step methods: one file an algorithm."""

from pymc_kmc.steps.gad import GadMALA, GadRWM
from pymc_kmc.steps.kamh import KAMH
from pymc_kmc.steps.kmc import KMCFinite, KMCLite
from pymc_kmc.steps.metropolis import AdaptiveMetropolis
from pymc_kmc.steps.surrogate_transition import KMC

__all__ = ["KAMH", "KMC", "AdaptiveMetropolis", "GadMALA", "GadRWM", "KMCFinite", "KMCLite"]
