"""Kernel exponential family surrogates: arrays in, arrays out; nothing here knows of MCMC."""

from pymc_kmc.surrogates.evaluation import gradient_at, log_density_at
from pymc_kmc.surrogates.finite import FiniteParameters, KernelExpFinite
from pymc_kmc.surrogates.gp import LogDensityGP, LogDensityGPParameters
from pymc_kmc.surrogates.lite import KernelExpLite, LiteParameters
from pymc_kmc.surrogates.nystrom import KernelExpNystrom, NystromParameters
from pymc_kmc.surrogates.protocol import NotFittedError, Surrogate
from pymc_kmc.surrogates.selection import SelectionResult, select, unique_states

__all__ = [
    "FiniteParameters",
    "KernelExpFinite",
    "KernelExpLite",
    "KernelExpNystrom",
    "LiteParameters",
    "LogDensityGP",
    "LogDensityGPParameters",
    "NotFittedError",
    "NystromParameters",
    "SelectionResult",
    "Surrogate",
    "gradient_at",
    "log_density_at",
    "select",
    "unique_states",
]
