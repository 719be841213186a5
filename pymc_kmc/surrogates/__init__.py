"""Surrogates of log densities, fitted to points or to values: arrays in, arrays out."""

from pymc_kmc.numerics.evaluation import gradient_at, log_density_at
from pymc_kmc.surrogates.finite import FiniteParameters, KernelExpFinite
from pymc_kmc.surrogates.gp_evaluation import LogDensityGPParameters
from pymc_kmc.surrogates.lite import KernelExpLite, LiteParameters
from pymc_kmc.surrogates.log_density_gp import LogDensityGP
from pymc_kmc.surrogates.protocol import NotFittedError, Surrogate
from pymc_kmc.surrogates.selection import SelectionResult, select, unique_states

__all__ = [
    "FiniteParameters",
    "KernelExpFinite",
    "KernelExpLite",
    "LiteParameters",
    "LogDensityGP",
    "LogDensityGPParameters",
    "NotFittedError",
    "SelectionResult",
    "Surrogate",
    "gradient_at",
    "log_density_at",
    "select",
    "unique_states",
]
