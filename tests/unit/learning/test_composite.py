"""Draws from an emulated log density."""

import numpy as np

from pymc_kmc.learning.composite import Values, draw
from tests.bananas import Banana

BANANA = Banana(spread=10.0, bend=0.03)
SD = np.array([10.0, 4.36])


def known(X, temperature=1.0):
    """A banana that is emulated without error."""
    values = BANANA.log_density(X)
    return Values(values, BANANA.gradient(X), values, np.zeros(len(X)))


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
