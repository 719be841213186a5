"""Noisy likelihoods and black boxes as parts of a PyMC model."""

from pymc_kmc.likelihoods.abc import ABCPotential
from pymc_kmc.likelihoods.black_box import BlackBox, black_boxes
from pymc_kmc.likelihoods.black_box_op import BlackBoxError, BlackBoxOp
from pymc_kmc.likelihoods.commands import command
from pymc_kmc.likelihoods.noisy_log_likelihood import EstimatorError
from pymc_kmc.likelihoods.pseudo_marginal import PseudoMarginalPotential
from pymc_kmc.likelihoods.store import EvaluationStore, FunctionEvaluations
from pymc_kmc.likelihoods.synthetic import SyntheticLikelihoodPotential
from pymc_kmc.likelihoods.um_bridge import umbridge

__all__ = [
    "ABCPotential",
    "BlackBox",
    "BlackBoxError",
    "BlackBoxOp",
    "EstimatorError",
    "EvaluationStore",
    "FunctionEvaluations",
    "PseudoMarginalPotential",
    "SyntheticLikelihoodPotential",
    "black_boxes",
    "command",
    "umbridge",
]
