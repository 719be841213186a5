"""The mixture of moves."""

import numpy as np
import pytest

from pymc_kmc.adaptation.moves import MoveMixture, Whitening


def test_the_better_move_is_chosen_more_often_and_none_is_dropped():
    mixture = MoveMixture([0.1, 0.05, 0.05], 2)
    np.testing.assert_allclose(mixture.probabilities.sum(), 1.0)
    for _ in range(50):
        for move, jump in enumerate((0.1, 0.8, 0.4)):
            mixture.learn(move, np.full(4, jump))
    p = mixture.probabilities
    assert p[1] > 0.6 and p[0] >= 0.1 and p[2] >= 0.05
    assert p[1] - 0.05 == pytest.approx(8 * (p[2] - 0.05), rel=0.1)  # the third power


def test_what_counts_is_the_coordinate_that_moves_least():
    mixture = MoveMixture([0.05, 0.05], 1)
    for _ in range(50):
        mixture.learn(0, np.array([3.0, 0.0]))
        mixture.learn(1, np.array([0.5, 0.5]))
    assert mixture.probabilities[1] > 0.9


def test_a_move_of_smallest_probability_zero_is_never_made():
    mixture = MoveMixture([0.0, 0.05], 1)
    rng = np.random.default_rng(0)
    assert {mixture.choose(rng) for _ in range(1000)} == {1}


def test_choice_follows_the_probabilities():
    mixture = MoveMixture([0.2, 0.3, 0.1], 1)
    rng = np.random.default_rng(1)
    counts = np.bincount([mixture.choose(rng) for _ in range(20_000)], minlength=3)
    # 4.5 binomial standard errors
    error = 4.5 * np.sqrt(mixture.probabilities * (1 - mixture.probabilities) / 20_000)
    assert np.all(np.abs(counts / 20_000 - mixture.probabilities) < error)


def test_jumps_have_mean_one_between_independent_draws():
    rng = np.random.default_rng(2)
    root = rng.standard_normal((3, 3))
    states = rng.standard_normal((20_000, 3)) @ root
    whitening = Whitening(states)
    jumps = np.array(
        [whitening.squared_jumps(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
    )
    assert jumps.max() <= 3.0
    assert np.all((jumps.mean(axis=0) > 0.5) & (jumps.mean(axis=0) <= 1.05))
    np.testing.assert_allclose(whitening.squared_jumps(states[0], states[:2])[0], 0.0, atol=1e-28)
