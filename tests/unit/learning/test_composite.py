"""Draws from an emulated log density."""

import numpy as np
import pytest

from pymc_kmc.learning.composite import PENALTY, Values, draw
from tests.bananas import Banana

BANANA = Banana(spread=10.0, bend=0.03)
SD = np.array([10.0, 4.36])


def known(X, temperature=1.0):
    """A banana that is emulated without error."""
    values = BANANA.log_density(X)
    return Values(values, BANANA.gradient(X), values, *np.zeros((3, len(X))))


def test_draws_come_into_the_arms():
    """Of 4096 chains that begin in the middle, after 150 transitions.

    .90 of the second coordinate's standard deviation, with a standard error of .01; with one step
    size for all .81.
    """
    shares = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        starts = rng.standard_normal((4096, 2))
        draws = draw(known, starts, np.diag(SD), 0.5, 150, rng).X
        shares.append(draws.std(axis=0) / SD)
    assert np.mean(shares, axis=0)[1] > 0.86


def with_a_cliff(X, temperature=1.0):
    """A normal density, but numbers end at 20."""
    values = np.where(X[:, 0] < 20.0, -0.5 * np.sum(X**2, axis=1), -np.inf)
    return Values(values, np.where(X < 20.0, -X, np.nan), values, *np.zeros((3, len(X))))


def test_the_step_size_is_that_of_the_chains_that_are_in_place():
    """Others begin where no trajectory is accepted; 40 draws have a mean square of 1 +- .16."""
    in_place, lost = np.zeros((40, 2)), np.full((40, 2), 30.0)

    def sizes(starts, **options):
        rng = np.random.default_rng(0)
        return draw(with_a_cliff, starts, np.eye(2), 0.5, 60, rng, **options)

    led = sizes(np.vstack([in_place, lost]), n_steering=40)
    assert led.step_size == pytest.approx(sizes(in_place).step_size, rel=0.2)
    assert np.mean(led.X[:40] ** 2) == pytest.approx(1.0, abs=0.5)
    assert sizes(np.vstack([in_place, lost])).step_size < 0.1


class Uncertain:
    """A standard Gaussian whose variance x^2 / 2 is penalised: the law has variance 2 / 3."""

    def __call__(self, X, temperature=1.0):
        variance = 0.5 * X[:, 0] ** 2
        mean, none = -0.5 * X[:, 0] ** 2, np.zeros(len(X))
        return Values(mean - PENALTY * variance, -1.5 * X, mean, variance, none, none)

    def slopes(self, X, temperature):
        return -X


def test_trajectories_without_the_penalty_have_its_law():
    """A standard error of the ratio is .02; without the penalty it would be 1.5."""
    start = np.random.default_rng(0).standard_normal((4096, 1))
    drawn = draw(Uncertain(), start, np.eye(1), 0.5, 20, np.random.default_rng(1), most_steps=11)
    assert abs(drawn.X.var() * 1.5 - 1.0) < 0.1
