"""Surrogates that are fitted again and again along a chain."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from pymc_kmc.adaptation.fitted import FittedSurrogate, LogWeights
from pymc_kmc.dynamics import SurrogateHamiltonian
from pymc_kmc.numerics.coordinates import IDENTITY, Identity, ScaleWarp
from pymc_kmc.numerics.linear_algebra import single_threaded_blas


class Fit(NamedTuple):
    """A surrogate before moves on it are learned.

    `hamiltonian` is its log density with a momentum, `warp` the coordinates that it is in.
    """

    surrogate: Any
    hamiltonian: SurrogateHamiltonian
    warp: ScaleWarp | Identity = IDENTITY


class RepeatedFit(ABC):
    """Makes surrogates of a chain's history, and learns moves on them.

    ``learn_moves(hamiltonian, states, rng)`` returns the moves, learned from states (n, d) in the
    surrogate's coordinates. `n_fits` counts the fits that made a surrogate; `failure` is the reason
    why the last fit was given up, or None.
    """

    # Share of the chain's states that is learned from: the rest is burn-in. Any share from .5 to .8
    # did equally well.
    RECENT_SHARE = 2 / 3
    # Whether learning makes a new surrogate.
    makes_surrogates = True

    def __init__(self, learn_moves):
        self.learn_moves = learn_moves
        self.n_fits = 0
        self.failure = None

    @property
    def complaint(self):
        """The warning's text where the last fit was given up."""
        return (
            f"A surrogate could not be fitted and the one before it stays in use: {self.failure} "
            "Tune for longer, or start nearer the posterior's mass: initvals={...}."
        )

    @abstractmethod
    def _fit(self, history, last, rng):
        """Return a :class:`Fit`, or None where the history is too short for one."""

    def n_recent(self, history):
        """Return the number of last states that are learned from."""
        return int(np.ceil(self.RECENT_SHARE * len(history)))

    def recent(self, history):
        """Return the states that are learned from, (n, d), and their log densities, (n,)."""
        n = self.n_recent(history)
        return history.states.last(n), history.log_densities.last(n)[:, 0]

    def fit(self, history, last, rng):
        """Return a :class:`FittedSurrogate` of a history.

        `last`, the surrogate in use or None, and the history are not changed. Counters and
        `failure` are updated in place. None is returned where no surrogate could be fitted;
        `failure` says why if that was an error.
        """
        self.failure = None
        with single_threaded_blas():
            try:
                fit = self._fit(history, last, rng)
            except (ValueError, np.linalg.LinAlgError) as error:
                self.failure = f"{type(error).__name__}: {error}"
                return None
            if fit is None:
                return None
            self.n_fits += self.makes_surrogates
            return self._with_moves(fit, *self.recent(history), rng)

    def _with_moves(self, fit, positions, log_densities, rng):
        """Return the fit with moves and log weights learned from states, (n, d) and (n,)."""
        states = fit.warp.forward(positions)
        log_densities = log_densities + fit.warp.log_volume(positions)
        moves = self.learn_moves(fit.hamiltonian, states, rng)
        weights = LogWeights.of(moves.hamiltonian, states, log_densities)
        return FittedSurrogate(fit.surrogate, fit.warp, moves, weights)


class GivenSurrogate(RepeatedFit):
    """A given fitted surrogate: only moves on it are learned."""

    makes_surrogates = False

    def __init__(self, surrogate, hamiltonian, learn_moves):
        super().__init__(learn_moves)
        self.given = Fit(surrogate, hamiltonian)

    def _fit(self, history, last, rng):
        return self.given

    def begin(self, position, log_density, rng):
        """Return the surrogate with moves learned from the chain's first state and log density."""
        with single_threaded_blas():
            states = position[None, :], np.array([log_density])
            return self._with_moves(self.given, *states, rng)


def fisher_information(gradients, covariance, weights=None):
    """Return E[grad f grad f'] (d, d) over a chain's states, plus the inverse of their covariance.

    The inverse covariance counts as d states beside the n of the gradients (n, d); `weights` (n,)
    are ones by default. The metric in which draws and gradients have equal spread is the geometric
    mean of the covariance and of this matrix's inverse.
    """
    n, d = gradients.shape
    share = d / (d + n)
    weighted = (1 - share) * gradients.T
    total = n
    if weights is not None:
        weighted, total = weighted * weights, weights.sum()
    return weighted @ gradients / total + share * np.linalg.inv(covariance)
