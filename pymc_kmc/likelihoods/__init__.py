"""Noisy likelihoods as PyMC potentials."""

from pymc_kmc.likelihoods.abc import ABCPotential
from pymc_kmc.likelihoods.noisy_log_likelihood import EstimatorError
from pymc_kmc.likelihoods.pseudo_marginal import PseudoMarginalPotential
from pymc_kmc.likelihoods.synthetic import SyntheticLikelihoodPotential

__all__ = [
    "ABCPotential",
    "EstimatorError",
    "PseudoMarginalPotential",
    "SyntheticLikelihoodPotential",
]
