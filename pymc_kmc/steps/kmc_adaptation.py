"""The state of KMC's adaptation, and a chain's start from a posterior learned before it."""

import numpy as np

from pymc_kmc.adaptation.fit_to_values import first_fit
from pymc_kmc.adaptation.history import History
from pymc_kmc.adaptation.move_probabilities import ByAcceptance
from pymc_kmc.adaptation.random_walk import RandomWalkAdaptation
from pymc_kmc.adaptation.schedules import GeometricSchedule
from pymc_kmc.moves.auxiliary import AuxiliaryChain
from pymc_kmc.moves.base import OneOf
from pymc_kmc.moves.frontier import ActiveLearning
from pymc_kmc.moves.modes import ModeJump, ModeTransition
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.moves.settling import LearnedDraw, Stay
from pymc_kmc.moves.transitions import KINDS, SurrogateTransition, TemperedTransition

# Number of evaluations in which a chain settles on what was learned before it: enough to tell a
# surrogate that fails, and to learn the probabilities of moves.
SETTLING = 8
# The same under noise, which hides how wrong a surrogate is.
SETTLING_IN_NOISE = 15
# Number of draws a dimension from which the random walk learns its covariance beforehand.
DRAWS_PER_DIMENSION = 20
# Temperature of the tempered moves and of the auxiliary chain: at 2 chains stick now and then.
TEMPERATURE = 1.5
# Factors on the random walk's scale, once there is a surrogate for the long moves.
FACTORS = (1.0, 0.3, 0.1)
# Growth of the number of iterations from one fit to the next; updates learn what happens between.
REFIT_GROWTH = 1.2


class KMCAdaptation:
    """State of KMC's adaptation.

    `fits` makes surrogates of the `history` on a `schedule`; `fitted` is the one in use, with moves
    on it, None before the first. `transitions` are the moves on it, with their probabilities.
    `modes` are moves between modes that were learned before the chain, empty where there is one
    mode. `settling` is the chain's start from a posterior learned before it; None without one, and
    where that failed.
    """

    def __init__(self, n_dimensions, fits, is_noisy):
        self.history = History(n_dimensions)
        self.fits = fits
        self.schedule = GeometricSchedule(first_fit(n_dimensions), REFIT_GROWTH)
        self.fitted = None

        def random_walk():
            return RandomWalk(RandomWalkAdaptation(n_dimensions, is_noisy=is_noisy), FACTORS)

        self.random_walk = random_walk()
        self.tempered = TemperedTransition(is_noisy, TEMPERATURE)
        kinds = [SurrogateTransition(size, is_noisy) for size in KINDS]
        self.transitions = OneOf(kinds, ByAcceptance(len(kinds)))
        self.auxiliary = AuxiliaryChain(random_walk(), is_noisy, TEMPERATURE)
        self.active_learning = ActiveLearning(is_noisy)
        self.settling = None
        self.modes = ()
        self.is_noisy = is_noisy

    def use(self, fitted):
        """Continue with a new FittedSurrogate; attributes are changed in place."""
        self.fitted = fitted
        jumps = [fitted.transitions.jump(size.share, size.length) for size in KINDS]
        self.transitions.probabilities = self.transitions.probabilities.renewed(jumps)

    def know(self, evaluations):
        """Add evaluations made before the chain to those that fits learn from."""
        values = evaluations.log_densities
        for row in np.column_stack([evaluations.X, values])[np.isfinite(values)]:
            self.history.evaluations.append(row)

    def start_from(self, posterior, fitted):
        """Start from a :class:`LearnedPosterior`; attributes are changed in place.

        `fitted` is its surrogate, or one on its emulators.
        """
        self.know(posterior.evaluations)
        n = DRAWS_PER_DIMENSION * posterior.n_dimensions
        pairs = zip(posterior.positions[:n], posterior.log_densities[:n], strict=True)
        for position, value in pairs:
            self.history.states.append(position)
            self.history.log_densities.append(value)
        self.use(fitted)
        if (maps := posterior.mode_maps) is not None:
            self.modes = ModeJump(maps), ModeTransition(maps, self.is_noisy)
        n_evaluations = SETTLING_IN_NOISE if self.is_noisy else SETTLING
        self.settling = Settling(posterior, n_evaluations)


class Settling:
    """The start of a chain from a posterior learned before it, in `most` evaluations.

    `errors` lists the errors of the predictions for these, in nats.
    """

    def __init__(self, posterior, most):
        self.most = most
        self.start, self.stay = LearnedDraw(posterior.wide_positions), Stay()
        self.n_evaluations = 0
        self.errors = []

    @property
    def error(self):
        """Half the width of the errors' middle two thirds: a constant is no error."""
        if not self.errors:
            return np.inf
        return 0.5 * float(np.ptp(np.quantile(self.errors, [0.16, 0.84])))

    @property
    def is_over(self):
        return self.n_evaluations >= self.most
