"""Noisy likelihoods as PyMC potentials."""

from pymc_kmc.likelihoods.pseudo_marginal import EstimatorError, PseudoMarginalPotential

__all__ = ["EstimatorError", "PseudoMarginalPotential"]
