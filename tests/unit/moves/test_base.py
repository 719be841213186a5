"""Mixtures of moves: which one proposes, with which probability, and who learns."""

import numpy as np
import pytest

from pymc_kmc.moves.base import MoveKind, MoveMixture, OneOf, Proposal, Row
from tests.fitted import snapshot
from tests.moves import HasNothing, Stays, evaluation, outcome_of

STATE, OTHER = evaluation(np.array([0.5])), evaluation(np.array([-2.0]))
# A generator that nobody can ask.
NOBODY = None


def more_on_the_right(state):
    return 0.9 if state.position[0] > 0 else 0.2


def moves_made(mixture, n, rng, state=STATE):
    """Shares of the mixture's moves among n proposals from a state."""
    made = [mixture.propose(state, None, rng).move for _ in range(n)]
    return np.array([made.count(row.move) for row in mixture.rows]) / n


def test_numbers_of_moves_are_unique():
    """An alias would be left out of the members."""
    assert len(MoveKind.__members__) == len(MoveKind) == len({int(kind) for kind in MoveKind})


def test_a_single_move_costs_no_random_number():
    move = Stays()
    assert MoveMixture(Row(move, 1.0)).propose(STATE, None, NOBODY).move is move


def test_a_share_of_one_costs_no_random_number():
    """Wherever it stands: what comes after it is for where it has nothing to propose."""
    move = Stays()
    mixture = MoveMixture(Row(HasNothing(), 1.0), Row(move, 1.0), Row(Stays(), 0.5))
    assert mixture.propose(STATE, None, NOBODY).move is move


def test_moves_are_made_with_their_shares_of_what_is_left():
    """20,000 proposals: within 4.5 binomial standard errors."""
    mixture = MoveMixture(Row(Stays(), 0.2), Row(Stays(), more_on_the_right), Row(Stays(), 1.0))
    for state, share in ((STATE, 0.9), (OTHER, 0.2)):
        expected = np.array([0.2, 0.8 * share, 0.8 * (1 - share)])
        shares = moves_made(mixture, 20_000, np.random.default_rng(1), state)
        assert np.all(np.abs(shares - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 20_000))


def test_where_a_move_has_nothing_to_propose_the_next_one_is_made():
    """With the shares that these have among themselves."""
    mixture = MoveMixture(Row(HasNothing(), 0.5), Row(Stays(), 0.3), Row(Stays(), 1.0))
    shares = moves_made(mixture, 20_000, np.random.default_rng(2))
    assert shares[0] == 0.0
    assert abs(shares[1] - 0.3) < 4.5 * np.sqrt(0.21 / 20_000)


def test_a_mixture_that_has_nothing_to_propose_is_an_error():
    with pytest.raises(RuntimeError, match="no move of the mixture"):
        MoveMixture(Row(HasNothing(), 1.0)).propose(STATE, None, NOBODY)


def test_the_choices_ratio_is_that_of_the_probabilities():
    """At the proposal and at the state; fixed shares are no part of it."""
    mixture = MoveMixture(
        Row(Stays(), 0.2), Row(Stays(), more_on_the_right), Row(Stays(), 0.5), Row(Stays(), 1.0)
    )
    rng = np.random.default_rng(3)
    expected = dict(
        zip((row.move for row in mixture.rows), (0.0, 2 / 9, 8.0, 8.0), strict=True)  # odds
    )
    found = {}
    for _ in range(200):
        proposal = mixture.propose(STATE, None, rng)
        found[proposal.move] = proposal.log_choice_ratio(OTHER)
        assert proposal.log_choice_ratio(STATE) == pytest.approx(0.0)
    assert found.keys() == expected.keys()
    for move, odds in expected.items():
        assert found[move] == pytest.approx(np.log(odds) if odds else 0.0)


def test_what_a_move_alone_proposes_has_no_choices_ratio():
    proposal = Stays().propose(STATE, None, NOBODY)
    assert proposal.choice is None and proposal.log_choice_ratio(OTHER) == 0.0


def learning(one_of, *rates):
    """Let a choice learn one acceptance rate of each of its moves."""
    for move, rate in zip(one_of.moves, rates, strict=True):
        one_of.learn(outcome_of(Proposal(STATE.position, move), STATE, acceptance_rate=rate))


@pytest.mark.parametrize("jumps", [(0.7, 0.8), (0.7, 0.8, 0.6)])
def test_one_of_several_is_chosen_by_learned_probabilities(jumps):
    """20,000 proposals: within 4.5 binomial standard errors."""
    one_of = OneOf([Stays() for _ in jumps]).renewed(jumps)
    rng = np.random.default_rng(4)
    made = [one_of.propose(STATE, None, rng).move for _ in range(20_000)]
    p = one_of.probabilities
    assert p.min() > 0.01
    shares = np.array([made.count(move) for move in one_of.moves]) / 20_000
    assert np.all(np.abs(shares - p) < 4.5 * np.sqrt(p * (1 - p) / 20_000))


def test_one_of_several_learns_from_its_own_moves_alone():
    moves, another = (Stays(), Stays()), Stays()
    one_of = OneOf(moves)
    for move, rate in ((moves[1], 0.7), (another, 0.1), (moves[0], 0.2)):
        one_of.learn(outcome_of(Proposal(STATE.position, move), STATE, acceptance_rate=rate))
    assert one_of.recent == [0.7, 0.2]
    np.testing.assert_array_equal(one_of.acceptances, [0.2, 0.7])


def test_what_moves_and_is_accepted_is_preferred():
    one_of = OneOf([Stays() for _ in range(3)]).renewed([0.1, 0.8, 0.9])
    for _ in range(30):
        learning(one_of, 0.9, 0.8, 0.02)
    assert one_of.probabilities.sum() == pytest.approx(1.0)
    assert one_of.probabilities[1] > 0.9
    assert one_of.probabilities.min() >= OneOf.SMALLEST


def test_a_refit_discounts_what_was_seen_of_the_last_surrogate():
    """And leaves the probabilities of its moves as they are: the refit may be given up."""
    one_of = OneOf((Stays(), Stays()))
    for _ in range(100):
        learning(one_of, 0.9, 0.1)
    assert one_of.probabilities[0] > 0.98
    before = snapshot(one_of)
    renewed = one_of.renewed([0.5, 0.5])
    assert renewed.recent == []
    for _ in range(100):
        learning(renewed, 0.1, 0.9)
    assert np.argmax(renewed.probabilities) == 1
    assert renewed.probabilities.sum() == pytest.approx(1.0)
    assert snapshot(one_of) == before


def test_a_proposal_is_accepted_where_the_end_is_another_evaluation():
    proposal = Proposal(np.array([1.0]), Stays())
    start = evaluation(np.array([0.0]))
    density = np.sum
    assert not outcome_of(proposal, start, density).accepted
    assert outcome_of(proposal, start, density, is_accepted=True).accepted
