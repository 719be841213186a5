from pymc_kmc.surrogates.lite import KernelExpLite
