"""Where a round evaluates, and what emulators can't exclude."""

import numpy as np
import pytest

from pymc_kmc.learning.composite import PENALTY, Draws, Values, draw
from pymc_kmc.learning.placing import (
    MOST_UNCERTAIN,
    informative,
    optimistic_draws,
    uncertain,
)
from pymc_kmc.learning.region import Feasibility


class Ridge:
    """A Gaussian log density in two dimensions, known but for places on one side.

    Parameters
    ----------
    unknown : float
        Standard deviation of what is not known beyond the mean along the first coordinate.
    """

    def __init__(self, unknown):
        self.unknown = unknown

    def __call__(self, X, temperature=1.0):
        mean, sd, slope = self._said(X)
        gradient = -X - 2.0 * PENALTY * (sd * slope)[:, None] * [1.0, 0.0]
        return Values(mean - PENALTY * sd**2, gradient, mean, sd**2, *np.zeros((2, len(X))))

    def optimistic(self, X, most):
        mean, sd, slope = self._said(X)
        share = np.tanh(sd / most)
        gradient = -X + ((1.0 - share**2) * slope)[:, None] * [1.0, 0.0]
        return Values(mean + most * share, gradient, mean, sd**2, *np.zeros((2, len(X))))

    def _said(self, X):
        is_beyond = X[:, 0] > 0
        sd = np.where(is_beyond, self.unknown * X[:, 0], 0.0)
        return -0.5 * (X**2).sum(axis=1), sd, np.where(is_beyond, self.unknown, 0.0)


@pytest.mark.parametrize(("unknown", "lowest", "highest"), [(0.0, 0.0, 1e-12), (1.5, 0.5, 10.0)])
def test_optimistic_draws_differ_where_something_is_not_known(unknown, lowest, highest):
    rng = np.random.default_rng(0)
    composite = Ridge(unknown)
    draws = draw(composite, rng.standard_normal((64, 2)), np.eye(2), 0.5, 50, rng)
    found = optimistic_draws(composite, draws, np.eye(2), rng)
    assert isinstance(found.draws, Draws)
    assert lowest <= found.gap <= highest
    if unknown:
        assert found.draws.X[:, 0].mean() > draws.X[:, 0].mean() + 0.3


def test_optimistic_places_are_no_farther_than_an_evaluation_tells_of():
    rng = np.random.default_rng(0)
    composite = Ridge(8.0)
    draws = draw(composite, rng.standard_normal((64, 2)), np.eye(2), 0.5, 50, rng)
    found = optimistic_draws(composite, draws, np.eye(2), rng).draws
    sd = np.sqrt(found.values.variance)
    # The draws themselves are sure, those that optimism leads to up to some 20 nats uncertain.
    assert 4.5 < sd.max() <= MOST_UNCERTAIN
    assert len(found.X) == len(sd) > len(draws.X)
    np.testing.assert_allclose(composite(found.X).variance, found.values.variance)


def test_places_beyond_are_those_too_uncertain_the_highest_first():
    rng = np.random.default_rng(0)
    composite = Ridge(8.0)
    draws = draw(composite, rng.standard_normal((64, 2)), np.eye(2), 0.5, 50, rng)
    beyond = composite(optimistic_draws(composite, draws, np.eye(2), rng).beyond)
    assert len(beyond.mean) > 10
    assert beyond.variance.min() > MOST_UNCERTAIN**2
    assert np.all(np.diff(beyond.mean) <= 0.0)


class Line:
    """An emulator of a line with an unknown constant, slope, and anything beyond 5."""

    noise = 1.0

    def covariance(self, X, inputs):
        x = X[:, 0]
        corner = np.where(np.abs(x) > 5.0, 1000.0, 0.0)
        return 100.0 + np.outer(x, x) + np.diag(corner)


def test_places_under_noise_are_those_that_tell_about_draws():
    """The ends of the line; not the middle, and not where most is unknown but no draw is."""
    draws = np.linspace(-1.0, 1.0, 9)[:, None]
    places = np.array([[-6.0], [-3.0], [0.0], [0.5], [3.0], [6.0]])
    chosen = informative([Line()], lambda X: X, draws, places, 2)
    assert set(np.abs(chosen[:, 0])) == {3.0}


class Falling:
    """A region that estimates are in with probability one half at 0, .02 at 3 and .98 at -3.

    Labels are known but for their slope, or with `length` independent at that distance.
    """

    def __init__(self, length=None):
        self.length = length

    def at(self, X):
        return Feasibility(-np.logaddexp(0.0, 1.3 * X[:, 0]), None, None)

    def labels(self, X, n=0):
        x = X[:, 0]
        if self.length is None:
            return 0.1 * np.outer(x, x), 0.25
        return np.exp(-0.5 * (np.subtract.outer(x, x) / self.length) ** 2), 0.04


def test_places_under_noise_are_those_whose_estimates_may_not_fail():
    """Two thirds of all places were where nearly all estimates failed."""
    draws = np.linspace(-1.0, 1.0, 9)[:, None]
    places = np.array([[-3.0], [-1.0], [1.0], [3.0], [3.1]])
    chosen = informative([Line()], lambda X: X, draws, places, 3, Falling())
    assert chosen[0] == -3.0
    assert chosen.max() < 3.0


def test_places_at_an_edge_are_not_all_the_same():
    """An emulator that knows all said that it knows the edge too after the first one."""
    X, picked = np.array([[0.0], [0.01], [4.0], [4.01], [8.0]]), np.zeros((0, 1))
    of_region = np.array([1.0, 0.99, 0.9, 0.89, 0.01])
    known = X, np.zeros(5), picked, 2
    chosen = uncertain([Line()], lambda X: X, *known, Falling(length=1.0), of_region)
    np.testing.assert_array_equal(chosen, X[[0, 2]])
