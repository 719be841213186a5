"""What repeated fits share, and a surrogate that is given."""

from copy import deepcopy
from threading import Lock

import numpy as np
import pytest

from pymc_kmc.adaptation.fitted import Fit, GivenSurrogate, RepeatedFit
from pymc_kmc.adaptation.transitions import whitened_hamiltonian
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.surrogates import LogDensityGP
from tests.fitted import short_transitions, stretching_warp
from tests.histories import history_of
from tests.surrogates import OnlyDensityAndGradient


def gaussian(X):
    return -0.5 * (X**2).sum(axis=1)


@pytest.fixture(scope="module")
def surrogate():
    X = np.random.default_rng(0).standard_normal((80, 2))
    return LogDensityGP(20, rng=0).fit(X, gaussian(X))


@pytest.fixture
def history():
    states = np.random.default_rng(1).standard_normal((90, 2))
    return history_of(states, gaussian(states))


class Remembering:
    """Learns no moves, but keeps what it is given."""

    def __call__(self, hamiltonian, states, rng):
        self.states = states
        return short_transitions(hamiltonian)


def test_moves_and_log_weights_are_learned_in_the_fits_coordinates(surrogate, history):
    rng, warp = np.random.default_rng(2), stretching_warp()

    class InAWarp(RepeatedFit):
        def _fit(self, history, last, rng):
            return Fit(surrogate, whitened_hamiltonian(surrogate), warp)

    fits = InAWarp(Remembering())
    fitted = fits.fit(history, None, rng)
    states, log_densities = fits.recent(history)
    assert len(states) == 60  # two thirds
    np.testing.assert_array_equal(fits.learn_moves.states, warp.forward(states))
    values = log_densities + warp.log_volume(states)
    weights = values - surrogate.log_density(warp.forward(states))
    assert fitted.log_weights.median == pytest.approx(np.median(weights), abs=1e-9)
    assert fitted.warp is warp and fitted.surrogate is surrogate and fits.n_fits == 1


def test_a_given_surrogate_is_no_fit(surrogate, history):
    fits = GivenSurrogate(surrogate, Remembering())
    first = fits.begin(np.array([0.3, -1.0]), -0.5, np.random.default_rng(3))
    np.testing.assert_array_equal(fits.learn_moves.states, [[0.3, -1.0]])
    later = fits.fit(history, first, np.random.default_rng(3))
    np.testing.assert_array_equal(fits.learn_moves.states, history.states.last(60))
    assert first.surrogate is later.surrogate is surrogate
    assert first.warp is later.warp is IDENTITY
    assert fits.n_fits == 0 and fits.failure is None


def test_a_given_surrogate_is_shared_by_copies(surrogate):
    """PyMC copies a step's state before a chain; a lock, for one, can't be copied."""
    own = OnlyDensityAndGradient(surrogate)
    own.lock = Lock()
    fits = GivenSurrogate(own, Remembering())
    copied = deepcopy(fits)
    copied.n_fits = 3
    assert copied.given.surrogate is own and fits.n_fits == 0
