"""PyMC step methods for likelihoods without gradients, costly likelihoods and noisy likelihoods.

A name is imported when it is first used.
"""

# ruff: noqa: F401 (type checkers read the imports, _MODULES is what runs)
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymc_kmc import datasets, plots, surrogates
    from pymc_kmc.advice import NoiseEstimate, estimate_noise
    from pymc_kmc.diagnostics import Diagnosis, diagnose
    from pymc_kmc.discrepancy import MMD, mmd
    from pymc_kmc.exact_averages import log_evidence, summary
    from pymc_kmc.findings import EvaluationCounts
    from pymc_kmc.kept import (
        compute_log_likelihood,
        extras,
        sample_posterior_predictive,
        with_extras,
    )
    from pymc_kmc.learning import LearnedMode, LearnedPosterior, LogEvidence, Round, learn
    from pymc_kmc.likelihoods import (
        ABCPotential,
        BlackBox,
        BlackBoxError,
        EstimatorError,
        EvaluationStore,
        FunctionEvaluations,
        PseudoMarginalPotential,
        SyntheticLikelihoodPotential,
        black_boxes,
        command,
        umbridge,
    )
    from pymc_kmc.model.evaluations import Evaluations
    from pymc_kmc.partial import PartialPosteriors, partial_posteriors
    from pymc_kmc.steps import KAMH, KMC, AdaptiveMetropolis, GadMALA, GadRWM, KMCFinite, KMCLite

__version__ = "0.1.0"

# The module of each public name; modules that are public themselves have none.
_MODULES = {
    "KAMH": "steps",
    "KMC": "steps",
    "MMD": "discrepancy",
    "ABCPotential": "likelihoods",
    "AdaptiveMetropolis": "steps",
    "BlackBox": "likelihoods",
    "BlackBoxError": "likelihoods",
    "Diagnosis": "diagnostics",
    "EstimatorError": "likelihoods",
    "EvaluationCounts": "findings",
    "EvaluationStore": "likelihoods",
    "Evaluations": "model.evaluations",
    "FunctionEvaluations": "likelihoods",
    "GadMALA": "steps",
    "GadRWM": "steps",
    "KMCFinite": "steps",
    "KMCLite": "steps",
    "LearnedMode": "learning",
    "LearnedPosterior": "learning",
    "LogEvidence": "learning",
    "NoiseEstimate": "advice",
    "PartialPosteriors": "partial",
    "PseudoMarginalPotential": "likelihoods",
    "Round": "learning",
    "SyntheticLikelihoodPotential": "likelihoods",
    "black_boxes": "likelihoods",
    "command": "likelihoods",
    "compute_log_likelihood": "kept",
    "diagnose": "diagnostics",
    "estimate_noise": "advice",
    "extras": "kept",
    "log_evidence": "exact_averages",
    "learn": "learning",
    "mmd": "discrepancy",
    "partial_posteriors": "partial",
    "sample_posterior_predictive": "kept",
    "summary": "exact_averages",
    "umbridge": "likelihoods",
    "with_extras": "kept",
}

__all__ = [*_MODULES, "datasets", "plots", "surrogates"]


def __dir__():
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name):
        module = f"{__name__}.{_MODULES.get(name, name)}"
        if find_spec(module) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = import_module(module)
        if name in _MODULES:
            found = globals()[name] = getattr(found, name)
        return found
