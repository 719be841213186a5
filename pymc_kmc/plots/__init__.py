"""Pictures of a sampler's work and of the surrogates that it learned, with matplotlib.

The first argument is the picture's subject: the step or the surrogate, a learned posterior, or the
result of `pm.sample`; draws follow it. Each function returns what ArviZ's plots return: axes with
ArviZ 0.x, a `PlotCollection` with ArviZ 1.x.
"""

from pymc_kmc.plots.learning import plot_emulator, plot_learning
from pymc_kmc.plots.moves import plot_moves
from pymc_kmc.plots.noise import plot_noise
from pymc_kmc.plots.proposals import plot_proposals
from pymc_kmc.plots.surrogate import plot_surrogate
from pymc_kmc.plots.trajectories import plot_trajectories

__all__ = [
    "plot_emulator",
    "plot_learning",
    "plot_moves",
    "plot_noise",
    "plot_proposals",
    "plot_surrogate",
    "plot_trajectories",
]
