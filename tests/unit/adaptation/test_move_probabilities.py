"""How often each of several moves is made."""

import numpy as np
import pytest

from pymc_kmc.adaptation.move_probabilities import ByAcceptance, ByJumps
from tests.fitted import snapshot


def test_choice_follows_the_probabilities():
    moves = ByJumps([0.2, 0.3, 0.1], 1)
    rng = np.random.default_rng(1)
    counts = np.bincount([moves.choose(rng) for _ in range(20_000)], minlength=3)
    # 4.5 binomial standard errors
    error = 4.5 * np.sqrt(moves.probabilities * (1 - moves.probabilities) / 20_000)
    assert np.all(np.abs(counts / 20_000 - moves.probabilities) < error)


def test_choice_among_the_last_ones():
    """With the probabilities that these have given that none of the first was chosen."""
    moves = ByJumps([0.2, 0.3, 0.1], 1)
    rng = np.random.default_rng(2)
    counts = np.bincount([moves.choose(rng, first=1) for _ in range(20_000)], minlength=3)
    expected = moves.probabilities * [0, 1, 1]
    expected /= expected.sum()
    error = 4.5 * np.sqrt(expected * (1 - expected) / 20_000)
    assert np.all(np.abs(counts / 20_000 - expected) <= error)


# By jumps


def test_the_better_move_is_chosen_more_often_and_none_is_dropped():
    moves = ByJumps([0.1, 0.05, 0.05], 2)
    np.testing.assert_allclose(moves.probabilities.sum(), 1.0)
    for _ in range(50):
        for move, jump in enumerate((0.1, 0.8, 0.4)):
            moves.learn(move, np.full(4, jump))
    p = moves.probabilities
    assert p[1] > 0.6 and p[0] >= 0.1 and p[2] >= 0.05
    assert p[1] - 0.05 == pytest.approx(8 * (p[2] - 0.05), rel=0.1)  # the third power


def test_what_counts_is_the_coordinate_that_moves_least():
    moves = ByJumps([0.05, 0.05], 1)
    for _ in range(50):
        moves.learn(0, np.array([3.0, 0.0]))
        moves.learn(1, np.array([0.5, 0.5]))
    assert moves.probabilities[1] > 0.9


def test_a_move_of_smallest_probability_zero_is_never_made():
    moves = ByJumps([0.0, 0.05], 1)
    rng = np.random.default_rng(0)
    assert {moves.choose(rng) for _ in range(1000)} == {1}


def test_what_was_seen_before_a_refit_counts_less():
    """It takes some 60 trials to outweigh 100 of before, which would take 100."""
    moves = ByJumps([0.05, 0.05], 1)
    for _ in range(100):
        moves.learn(0, np.full(2, 0.9))
        moves.learn(1, np.full(2, 0.1))
    favoured = moves.probabilities[0]
    moves.discount()
    assert 0.8 < moves.probabilities[0] <= favoured
    for _ in range(60):
        moves.learn(0, np.full(2, 0.1))
        moves.learn(1, np.full(2, 0.9))
    assert np.argmax(moves.probabilities) == 1
    assert moves.probabilities.sum() == pytest.approx(1.0)


# By acceptance


def test_what_moves_and_is_accepted_is_preferred():
    moves = ByAcceptance(3).renewed([0.1, 0.8, 0.9])
    for _ in range(30):
        for move, rate in enumerate([0.9, 0.8, 0.02]):
            moves.learn(move, rate)
    assert moves.probabilities.sum() == pytest.approx(1.0)
    assert np.argmax(moves.probabilities) == 1
    assert moves.probabilities.min() >= ByAcceptance.SMALLEST
    rng = np.random.default_rng(5)
    counts = np.bincount([moves.choose(rng) for _ in range(2000)], minlength=3)
    assert counts[1] > 1800


def test_a_refit_discounts_what_was_seen_of_the_last_surrogate():
    """And leaves the probabilities of its moves as they are: the refit may be given up."""
    moves = ByAcceptance(2)
    for _ in range(100):
        moves.learn(0, 0.9)
        moves.learn(1, 0.1)
    assert moves.probabilities[0] > 0.98
    before = snapshot(moves)
    renewed = moves.renewed([0.5, 0.5])
    assert renewed.recent == []
    for _ in range(100):
        renewed.learn(0, 0.1)
        renewed.learn(1, 0.9)
    assert np.argmax(renewed.probabilities) == 1
    assert renewed.probabilities.sum() == pytest.approx(1.0)
    assert snapshot(moves) == before
