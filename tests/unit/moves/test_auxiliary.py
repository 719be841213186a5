"""The auxiliary chain: a state of its own, accepted by a power of the target, never a draw.

Its detailed balance is tested with that of the other moves.
"""

import numpy as np
import pytest

from pymc_kmc.moves.auxiliary import AuxiliaryChain
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.surrogates import LogDensityGP
from tests.bananas import Banana
from tests.fitted import fitted_surrogate
from tests.moves import evaluation, outcome_of

BANANA = Banana(spread=1.0, bend=0.5)
X = BANANA.draws(100, np.random.default_rng(0))
CURRENT = evaluation(np.array([50.0, 50.0]), -1000.0)


@pytest.fixture(scope="module")
def fitted():
    surrogate = LogDensityGP(30, rng=0).fit(X, BANANA.log_density(X))
    return fitted_surrogate(surrogate, X, BANANA.log_density(X))


def begun():
    move = AuxiliaryChain(RandomWalk(2), False, 1.5)
    move.begin(evaluation(X[0], BANANA.log_density(X[0])))
    return move


def test_it_begins_once():
    move = begun()
    first = move.state
    move.begin(CURRENT)
    assert move.state is first


def test_proposals_are_of_its_own_state_and_kind(fitted):
    """By random walks, .3 of them, and sequences on the surrogate: 4.5 binomial errors of 2000."""
    move, rng = begun(), np.random.default_rng(1)
    proposals = [move.propose(CURRENT, fitted, rng) for _ in range(2000)]
    assert {proposal.move for proposal in proposals} == {move}
    assert move.kind == MoveKind.AUXILIARY and not proposals[0].is_draw
    ends = np.array([proposal.position for proposal in proposals])
    assert np.abs(ends - X[0]).max() < 15
    walks = np.mean([proposal.n_steps == 0 for proposal in proposals])
    assert abs(walks - AuxiliaryChain.RANDOM_WALKS) < 4.5 * np.sqrt(0.21 / 2000)
    assert len({proposal.n_transitions for proposal in proposals}) == 3  # none, one and a few


def proposal_of(move, fitted, is_walk, seed):
    """The first that is a random walk, or isn't."""
    rng = np.random.default_rng(seed)
    while True:
        proposal = move.propose(CURRENT, fitted, rng)
        if (proposal.n_steps == 0) == is_walk and proposal.log_ratio > -np.inf:
            return proposal


@pytest.mark.parametrize("value", [-np.inf, np.nan, np.inf])
def test_what_is_no_density_is_rejected(fitted, value):
    move, rng = begun(), np.random.default_rng(2)
    before = move.state
    for seed in range(10):
        proposal = proposal_of(move, fitted, True, seed)
        move.learn(outcome_of(proposal, CURRENT, lambda x: value), rng)
    move.learn(outcome_of(proposal, CURRENT), rng)  # rejected without an evaluation
    assert move.state is before


def test_what_is_much_better_becomes_its_state_and_not_the_chains(fitted):
    move = begun()
    proposal = proposal_of(move, fitted, True, 3)
    outcome = outcome_of(proposal, CURRENT, lambda x: 100.0)
    move.learn(outcome, np.random.default_rng(3))
    assert move.state is outcome.evaluation
    assert outcome.end is CURRENT and not outcome.accepted


def test_its_random_walk_learns_from_its_own_acceptance(fitted):
    """Whatever the chain's acceptance rate, and nothing from sequences on the surrogate."""
    for is_walk, value in ((True, 100.0), (True, -100.0), (False, 100.0)):
        move = begun()
        scale, rng = move.random_walk.scale, np.random.default_rng(4)
        proposal = proposal_of(move, fitted, is_walk, 4)
        move.learn(outcome_of(proposal, CURRENT, lambda x, value=value: value), rng)
        change = np.sign(move.random_walk.scale - scale)
        assert change == (np.sign(value) if is_walk else 0)
