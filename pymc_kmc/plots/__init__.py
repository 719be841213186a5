"""Pictures of what the samplers did and learned, with matplotlib.

First comes what the picture is of: the step or the surrogate, what was learned, or what `pm.sample`
returned; draws follow it. Each function returns what ArviZ's plots return: axes with ArviZ 0.x, a
`PlotCollection` with ArviZ 1.x.
"""

from pymc_kmc.plots.learned import plot_emulator
from pymc_kmc.plots.learning import plot_learning
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
