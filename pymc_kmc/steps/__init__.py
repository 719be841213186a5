"""The samplers, as PyMC step methods: one file an algorithm."""

from pymc_kmc.steps.gad import GadMALA, GadRWM
from pymc_kmc.steps.kamh import KAMH
from pymc_kmc.steps.kernel_hmc import KMCFinite, KMCLite
from pymc_kmc.steps.kmc import KMC
from pymc_kmc.steps.metropolis import AdaptiveMetropolis

__all__ = ["KAMH", "KMC", "AdaptiveMetropolis", "GadMALA", "GadRWM", "KMCFinite", "KMCLite"]
