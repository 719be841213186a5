"""The state of learning, and what a round leaves."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.composite import Composite
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.numerics.linear_algebra import cholesky_factor
from pymc_kmc.numerics.mode_maps import ModeMaps

# Number of rounds in a row with a small error. With two a dose-response model had an ESS of 817
# (250) after 76 evaluations, with three 842 (586) after 84: a tail was unknown.
N_CONVERGED_ROUNDS = 3
# First step size at dimension 1; it falls with the fourth root of the dimension.
FIRST_STEP_SIZE = 0.5


class Round(NamedTuple):
    """What a round found.

    Attributes
    ----------
    n_evaluations : int
        Number of all evaluations at its end.
    temperature : float
    error : float
        Of predictions at fresh draws, in nats, with the noise.
    uncertain_error : float
        Of those elsewhere; all that is much deeper than draws are counts as equally deep.
    n_fresh : int
        Number of its evaluations at draws; they are the first.
    predicted : ndarray, shape (k,)
        Log densities at its evaluations, before these were made.
    variance : ndarray, shape (k,)
        Of these predictions, without noise.
    """

    n_evaluations: int
    temperature: float
    error: float
    uncertain_error: float
    n_fresh: int
    predicted: np.ndarray
    variance: np.ndarray


class LearningState(NamedTuple):
    """The state of learning after a round.

    Attributes
    ----------
    evaluations : Evaluations
    composite : Composite
        Fitted to all evaluations but the last round's.
    draws : ndarray, shape (n, d)
        The last round's, at its temperature.
    factor : ndarray, shape (d, d)
        Of the draws' covariance.
    temperature : float
        Of the next round.
    error : float
        Of predictions at fresh draws, in nats.
    n_converged_rounds : int
        Number of rounds in a row with a small error, at temperature 1.
    step_size : float
    errors : tuple of ndarray
        Of each round's fresh draws.
    modes : tuple of Mode
        That have mass; empty where no search was needed.
    n_gaps : int
        Number of rounds in a row in which the emulators could not exclude mass elsewhere.
    """

    evaluations: Evaluations
    composite: Composite | None
    draws: np.ndarray
    factor: np.ndarray
    temperature: float
    error: float
    n_converged_rounds: int
    step_size: float
    errors: tuple
    modes: tuple
    n_gaps: int = 0

    @property
    def has_converged(self):
        """Whether the error is small."""
        return self.n_converged_rounds >= N_CONVERGED_ROUNDS

    @property
    def maps(self):
        """Maps between the modes, or None."""
        return ModeMaps.between(self.modes, self.draws)


def begin(evaluations, draws, covariance, temperature, modes=()):
    """Return the state before the first round.

    Parameters
    ----------
    evaluations : Evaluations
    draws : ndarray, shape (n, d)
        Places where the surrogate is to be good.
    covariance : ndarray, shape (d, d)
        Of such places.
    temperature : float
    modes : sequence of Mode
        That have mass.
    """
    step_size = FIRST_STEP_SIZE * draws.shape[1] ** -0.25
    factor = cholesky_factor(covariance)
    start = evaluations, None, draws, factor, temperature, np.inf, 0, step_size, ()
    return LearningState(*start, tuple(modes))
