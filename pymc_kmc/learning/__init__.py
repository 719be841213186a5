"""Learning a posterior once, before sampling, for all chains."""

from pymc_kmc.learning.averages import LogEvidence
from pymc_kmc.learning.convergence import Round
from pymc_kmc.learning.learning_run import learn
from pymc_kmc.learning.modes import LearnedMode
from pymc_kmc.learning.posterior import LearnedPosterior

__all__ = ["LearnedMode", "LearnedPosterior", "LogEvidence", "Round", "learn"]
