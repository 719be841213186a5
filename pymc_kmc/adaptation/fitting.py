"""Surrogates that are fitted again and again along a chain."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from pymc_kmc.adaptation.fitted import FittedSurrogate, LogWeights
from pymc_kmc.dynamics import SurrogateHamiltonian
from pymc_kmc.numerics.coordinates import IDENTITY, Identity, ScaleWarp
from pymc_kmc.numerics.threads import single_threaded_blas


class Fit(NamedTuple):
    """A surrogate before moves on it are learned.

    Attributes
    ----------
    surrogate : Surrogate
    hamiltonian : SurrogateHamiltonian
        Its log density, with a momentum.
    warp : ScaleWarp or Identity
        The coordinates that it is in.
    """

    surrogate: Any
    hamiltonian: SurrogateHamiltonian
    warp: ScaleWarp | Identity = IDENTITY


class RepeatedFit(ABC):
    """Makes surrogates of a chain's history, and learns moves on them.

    Parameters
    ----------
    learn_moves : callable
        ``learn_moves(hamiltonian, states, rng)`` returns the moves, learned from states in the
        surrogate's coordinates, shape (n, d).

    Attributes
    ----------
    n_fits : int
        Number of fits that made a surrogate.
    failure : str or None
        Reason why the last fit was given up, if it was.
    """

    # Share of the chain's states that is learned from: the rest is burn-in.
    RECENT_SHARE = 2 / 3
    # Whether learning makes a new surrogate.
    makes_surrogates = True

    def __init__(self, learn_moves):
        self.learn_moves = learn_moves
        self.n_fits = 0
        self.failure = None

    @property
    def complaint(self):
        """A message where the last fit was given up."""
        return (
            f"A surrogate could not be fitted and the one before it stays in use: {self.failure} "
            "Tune for longer, or start nearer the posterior's mass: initvals={...}."
        )

    @abstractmethod
    def _fit(self, history, last, rng):
        """Return a :class:`Fit`, or None where the history says too little for one."""

    def n_recent(self, history):
        """Return the number of states, the last ones, that are learned from."""
        return int(np.ceil(self.RECENT_SHARE * len(history)))

    def recent(self, history):
        """Return the states that are learned from, (n, d), and their log densities, (n,)."""
        n = self.n_recent(history)
        return history.states.last(n), history.log_densities.last(n)[:, 0]

    def fit(self, history, last, rng):
        """Fit a surrogate and learn moves on it; counters and `failure` are updated in place.

        Parameters
        ----------
        history : History
            Of the chain; not changed.
        last : FittedSurrogate or None
            The surrogate in use; not changed.
        rng : numpy.random.Generator

        Returns
        -------
        FittedSurrogate or None
            None where no surrogate could be fitted; `failure` says why if that was an error.
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
    """A surrogate that is used as it was given: moves on it alone are learned.

    Parameters
    ----------
    surrogate : Surrogate
        Fitted.
    hamiltonian : SurrogateHamiltonian
        Its log density, with a momentum.
    learn_moves : callable
        As of :class:`RepeatedFit`.
    recent : float
        Share of the chain's states that is learned from.
    """

    makes_surrogates = False

    def __init__(self, surrogate, hamiltonian, learn_moves, recent=RepeatedFit.RECENT_SHARE):
        super().__init__(learn_moves)
        self.RECENT_SHARE = recent
        self.given = Fit(surrogate, hamiltonian)

    def _fit(self, history, last, rng):
        return self.given

    def begin(self, position, log_density, rng):
        """Return the surrogate with moves learned from the chain's first state.

        Parameters
        ----------
        position : ndarray, shape (d,)
        log_density : float
            Of the target there.
        rng : numpy.random.Generator

        Returns
        -------
        FittedSurrogate
        """
        with single_threaded_blas():
            states = position[None, :], np.array([log_density])
            return self._with_moves(self.given, *states, rng)


def fisher_information(gradients, covariance, weights=None):
    """Return E[grad f grad f'] over a chain's states, to which the inverse covariance is added.

    The metric in which draws and gradients have equal spread is the geometric mean of the
    covariance and of this matrix's inverse.

    Parameters
    ----------
    gradients : ndarray, shape (n, d)
        Of the surrogate at the states.
    covariance : ndarray, shape (d, d)
        Of the states; its inverse counts as d more of them.
    weights : ndarray, shape (n,), optional
        Of the states; ones by default.

    Returns
    -------
    ndarray, shape (d, d)
    """
    n, d = gradients.shape
    share = d / (d + n)
    weighted = (1 - share) * gradients.T
    total = n
    if weights is not None:
        weighted, total = weighted * weights, weights.sum()
    return weighted @ gradients / total + share * np.linalg.inv(covariance)
