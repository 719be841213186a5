"""Every step class with settings that keep its tests short; the contract and exactness suites run on all."""

import pymc_kmc as kmc

STEPS = {
    "AdaptiveMetropolis": lambda **kwargs: kmc.AdaptiveMetropolis(**kwargs),
}
