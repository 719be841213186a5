"""PyMC step methods for likelihoods without gradients, costly likelihoods and noisy likelihoods."""

from pymc_kmc import datasets, plots, surrogates
from pymc_kmc.advice import NoiseEstimate, estimate_noise
from pymc_kmc.diagnostics import Diagnosis, diagnose
from pymc_kmc.discrepancy import MMD, mmd
from pymc_kmc.learning import LearnedMode, LearnedPosterior, LogEvidence, learn
from pymc_kmc.likelihoods import (
    ABCPotential,
    BlackBox,
    BlackBoxError,
    EstimatorError,
    PseudoMarginalPotential,
    SyntheticLikelihoodPotential,
    black_boxes,
)
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.partial import PartialPosteriors, partial_posteriors
from pymc_kmc.steps import KAMH, KMC, AdaptiveMetropolis, GadMALA, GadRWM, KMCFinite, KMCLite
from pymc_kmc.verdict import EvaluationCounts

__version__ = "0.1.0"

__all__ = [
    "KAMH",
    "KMC",
    "MMD",
    "ABCPotential",
    "AdaptiveMetropolis",
    "BlackBox",
    "BlackBoxError",
    "Diagnosis",
    "EstimatorError",
    "EvaluationCounts",
    "Evaluations",
    "GadMALA",
    "GadRWM",
    "KMCFinite",
    "KMCLite",
    "LearnedMode",
    "LearnedPosterior",
    "LogEvidence",
    "NoiseEstimate",
    "PartialPosteriors",
    "PseudoMarginalPotential",
    "SyntheticLikelihoodPotential",
    "black_boxes",
    "datasets",
    "diagnose",
    "estimate_noise",
    "learn",
    "mmd",
    "partial_posteriors",
    "plots",
    "surrogates",
]
