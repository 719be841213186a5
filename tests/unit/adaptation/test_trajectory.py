"""Step size and length of trajectories, on surrogates that are Gaussian."""

import numpy as np

from pymc_kmc.adaptation.trajectory import (
    STEP_SIZE_JITTER,
    TrajectoryLearning,
    acceptance,
    learn_n_steps,
    learn_step_size,
)
from pymc_kmc.dynamics import SurrogateHamiltonian
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.surrogates import KernelExpLite
from pymc_kmc.surrogates.lite import LiteParameters


def gaussian(sd):
    """A surrogate that is its base density, N(0, diag(sd^2)), and states of it."""
    d = len(sd)
    parameters = LiteParameters(
        np.zeros((d, 1)), np.zeros(1), 1.0, np.zeros(d), np.diag(1.0 / np.square(sd))
    )
    states = sd * np.random.default_rng(0).standard_normal((500, d))
    return SurrogateHamiltonian(parameters, Coordinates.identity(d)), states


def test_step_size_follows_the_narrowest_direction():
    rng = np.random.default_rng(1)
    sizes = [
        learn_step_size(*gaussian(np.array([scale, 3 * scale, 10 * scale])), 0.9, rng)
        for scale in (0.1, 1.0)
    ]
    assert 5 < sizes[1] / sizes[0] < 20
    assert 0.3 < sizes[1] < 2.0  # the leapfrog is stable below 2


def test_higher_target_smaller_step():
    rng = np.random.default_rng(2)
    hamiltonian, states = gaussian(np.ones(8))
    low, high = (learn_step_size(hamiltonian, states, a, rng) for a in (0.6, 0.99))
    assert high < 0.7 * low


def test_length_follows_the_widest_direction():
    rng = np.random.default_rng(3)
    short = learn_n_steps(*gaussian(np.array([1.0, 1.0])), 0.5, rng)
    long = learn_n_steps(*gaussian(np.array([1.0, 10.0])), 0.5, rng)
    assert short[0] <= short[1] <= 12
    assert long[1] >= 24
    assert long[0] >= 1


def test_acceptance_of_a_divergence_is_zero():
    values = acceptance(np.array([np.nan, np.inf, -1.0, 0.0, 1.0]))
    np.testing.assert_allclose(values, [0.0, 0.0, 1.0, 1.0, np.exp(-1.0)])


def test_what_is_given_is_not_learned():
    hamiltonian, states = gaussian(np.ones(2))
    given = TrajectoryLearning((0.2, 0.3), (3, 6), 0.9)(
        hamiltonian, states, np.random.default_rng(4)
    )
    assert given.step_size == (0.2, 0.3) and given.n_steps == (3, 6)
    assert given.hamiltonian is hamiltonian
    learned = TrajectoryLearning(None, None, 0.9)(hamiltonian, states, np.random.default_rng(5))
    size = learn_step_size(hamiltonian, states, 0.9, np.random.default_rng(5))
    assert learned.step_size == (STEP_SIZE_JITTER[0] * size, STEP_SIZE_JITTER[1] * size)
    assert learned.n_steps != given.n_steps
    one_length = TrajectoryLearning(None, (3, 6), 0.9)(
        hamiltonian, states, np.random.default_rng(5)
    )
    assert one_length.step_size == learned.step_size and one_length.n_steps == (3, 6)


def test_follow_a_surrogate_that_has_learned_more():
    hamiltonian, states = gaussian(np.ones(2))
    last = TrajectoryLearning((0.2, 0.3), (3, 6), 0.9)(
        hamiltonian, states, np.random.default_rng(6)
    )
    surrogate = KernelExpLite(4.0, 1.0, base="gaussian").fit(states[:50])
    following = last.following(surrogate)
    assert following.hamiltonian.parameters is surrogate.parameters_
    assert following.hamiltonian.coordinates is hamiltonian.coordinates
    assert last.hamiltonian.parameters is hamiltonian.parameters
    assert following[1:] == last[1:]
