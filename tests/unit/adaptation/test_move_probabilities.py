"""How often each of several moves is made."""

import numpy as np
import pytest

from pymc_kmc.adaptation.move_probabilities import ByAcceptance
from tests.fitted import snapshot


def test_choice_follows_the_probabilities():
    moves = ByAcceptance(3).renewed([0.7, 0.8, 0.6])
    rng = np.random.default_rng(1)
    counts = np.bincount([moves.choose(rng) for _ in range(20_000)], minlength=3)
    # 4.5 binomial standard errors
    error = 4.5 * np.sqrt(moves.probabilities * (1 - moves.probabilities) / 20_000)
    assert np.all(np.abs(counts / 20_000 - moves.probabilities) < error)
    assert moves.probabilities.min() > 0.01


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
