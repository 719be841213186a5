"""Kernel exponential family surrogates: arrays in, arrays out; nothing here knows of MCMC."""

from pymc_kmc.surrogates.base import NotFittedError, Surrogate, gradient_at, log_density_at
from pymc_kmc.surrogates.finite import KernelExpFinite
from pymc_kmc.surrogates.lite import KernelExpLite
from pymc_kmc.surrogates.nystrom import KernelExpNystrom

__all__ = [
    "KernelExpFinite",
    "KernelExpLite",
    "KernelExpNystrom",
    "NotFittedError",
    "Surrogate",
    "gradient_at",
    "log_density_at",
]
