"""The state of learning, and the record of a round."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.composite import Composite
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.numerics.coordinates import ModeMaps
from pymc_kmc.numerics.linear_algebra import cholesky_factor

# Number of rounds in a row with a small error. With two a dose-response model had an ESS of 817
# (250) after 76 evaluations, with three 842 (586) after 84: a tail was unknown.
N_CONVERGED_ROUNDS = 3
# First step size at dimension 1; it falls with the fourth root of the dimension.
FIRST_STEP_SIZE = 0.5


class Round(NamedTuple):
    """The record of a round.

    `error` is that of predictions at the `n_fresh` fresh draws, the round's first evaluations, in
    nats and with the noise; `uncertain_error` is that elsewhere, where log densities much deeper
    than draws count as equally deep. The log densities `predicted` (k,) before they were evaluated
    have a `variance` (k,) without noise. `n_evaluations` counts all until its end.
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

    The `composite` is fitted to all evaluations but the last round's. `draws` (n, d) are the last
    round's, with `factor` (d, d) of their covariance; `temperature` is the next round's. `error` is
    that of predictions at fresh draws, in nats, and `errors` has those of each round.
    `n_converged_rounds` in a row had a small error at temperature 1. `modes` have mass; empty where
    no search was needed. In the last `n_gaps` rounds the emulators could not exclude mass
    elsewhere.
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
        return self.n_converged_rounds >= N_CONVERGED_ROUNDS

    @property
    def maps(self):
        return ModeMaps.between(self.modes, self.draws)


def begin(evaluations, draws, covariance, temperature, modes=()):
    """Return the state before the first round, for a surrogate that is good at draws (n, d)."""
    step_size = FIRST_STEP_SIZE * draws.shape[1] ** -0.25
    factor = cholesky_factor(covariance)
    start = evaluations, None, draws, factor, temperature, np.inf, 0, step_size, ()
    return LearningState(*start, tuple(modes))
