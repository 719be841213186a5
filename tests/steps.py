"""Every step class; the contract and exactness suites run on all of them."""

import pymc_kmc as kmc

STEPS = {
    "AdaptiveMetropolis": kmc.AdaptiveMetropolis,
    "KMC": kmc.KMC,
    "KMCLite": kmc.KMCLite,
    "KMCFinite": kmc.KMCFinite,
}
