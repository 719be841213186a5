"""The random walk: its proposals, and what it learns from them."""

import numpy as np

from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.numerics.coordinates import IDENTITY
from tests.bananas import Banana
from tests.fitted import stretching_warp
from tests.moves import evaluation, outcome_of

COVARIANCE = np.array([[4.0, 1.8], [1.8, 1.0]])
POSITION = np.array([1.0, -2.0])
STATE = evaluation(POSITION)


class Warped:
    """What a random walk sees of what was learned: coordinates."""

    def __init__(self, warp=IDENTITY):
        self.warp = warp


def steps_of(move, fitted, n, rng):
    return np.array([move.propose(STATE, fitted, rng).position for _ in range(n)]) - POSITION


def assert_covariance(steps, expected):
    """Mean 0 and the covariance within 4.5 standard errors."""
    variances, n = np.diag(expected), len(steps)
    assert np.all(np.abs(steps.mean(axis=0)) < 4.5 * np.sqrt(variances / n))
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / n)
    assert np.all(np.abs(steps.T @ steps / n - expected) < 4.5 * errors)


def test_proposals_have_the_stated_distribution():
    """20,000 proposals; factors are for where there is a surrogate."""
    move = RandomWalk(2, COVARIANCE, scale=0.5, factors=(1.0, 0.1))
    steps = steps_of(move, None, 20_000, np.random.default_rng(0))
    assert_covariance(steps, (0.5 * 2.38) ** 2 / 2 * COVARIANCE)


def test_beside_a_surrogate_scales_are_drawn():
    """Each as often as any other, and it says which: the scale of the statistics."""
    move = RandomWalk(2, COVARIANCE, scale=2.0, factors=(1.0, 0.1))
    rng, n = np.random.default_rng(1), 8000
    proposals = [move.propose(STATE, Warped(), rng) for _ in range(n)]
    steps = np.array([proposal.position - POSITION for proposal in proposals])
    scales = np.array([proposal.step_size for proposal in proposals])
    assert set(scales) == {2.0, 0.2}
    assert abs(np.mean(scales == 2.0) - 0.5) < 4.5 * 0.5 / np.sqrt(n)
    for scale in (2.0, 0.2):
        assert_covariance(steps[scales == scale], (scale * 2.38) ** 2 / 2 * COVARIANCE)
    assert all(proposal.log_ratio == 0.0 for proposal in proposals)


def test_in_a_warp_steps_are_of_its_coordinates():
    """With the change of volume in the ratio."""
    warp = stretching_warp()
    move = RandomWalk(2, COVARIANCE)
    rng = np.random.default_rng(2)
    proposals = [move.propose(STATE, Warped(warp), rng) for _ in range(8000)]
    ends = np.array([proposal.position for proposal in proposals])
    steps = warp.forward(ends) - warp.forward(POSITION)
    assert_covariance(steps, 2.38**2 / 2 * COVARIANCE)
    changes = warp.log_volume(ends) - warp.log_volume(POSITION)
    np.testing.assert_allclose([proposal.log_ratio for proposal in proposals], changes, atol=1e-9)
    assert np.ptp(changes) > 0.5


def test_the_scale_is_learned_from_proposals_of_the_full_one():
    move, rng = RandomWalk(2, factors=(1.0, 0.1)), np.random.default_rng(3)
    n_learned = 0
    for _ in range(40):
        before = move.scale
        proposal = move.propose(STATE, Warped(), rng)
        is_full = proposal.step_size == before
        move.learn(outcome_of(proposal, STATE, Banana().log_density, acceptance_rate=0.9), rng)
        assert (move.scale > before) == is_full  # accepted too often
        n_learned += is_full
    assert 0 < n_learned < 40


def test_a_momentums_energy_is_that_of_a_gaussian():
    """Where it is asked for: half a chi-squared variable's, whose mean is d / 2 and variance too.

    10,000 energies: 4.5 standard errors of the mean.
    """
    rng = np.random.default_rng(4)
    assert np.isnan(RandomWalk(2).propose(STATE, None, rng).kinetic_energy)
    move = RandomWalk(2, has_momentum=True)
    energies = [move.propose(STATE, None, rng).kinetic_energy for _ in range(10_000)]
    assert abs(np.mean(energies) - 1.0) < 4.5 / 100
