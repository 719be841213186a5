"""Places at the frontier: in the bulk, where the surrogate doesn't know, or none."""

from types import SimpleNamespace

import numpy as np

from pymc_kmc.adaptation.exploration import Frontier
from pymc_kmc.surrogates import LogDensityGP
from tests.records import banana, banana_draws


def test_walks_along_a_ridge_that_nobody_has_seen():
    """From the middle half of a banana's ridge to beyond two standard deviations on each side.

    Rejected places are rare: each is likely to be in the bulk by what was known before.
    """
    rng = np.random.default_rng(0)
    X = banana_draws(400, rng)
    X = X[np.abs(X[:, 0]) < 2.5]
    X = np.vstack([X, X + 0.5 * rng.standard_normal(X.shape)])
    surrogate = LogDensityGP(100, rng=0).fit(X, banana(X))
    frontier = Frontier(surrogate, X, X)
    places = []
    for _ in range(60):
        if not frontier.search(rng):
            continue
        places.append(frontier.place)
        frontier.learn(frontier.place, float(banana(frontier.place)[0]))
    places = np.array(places)
    inside = banana(places) > -6
    assert inside.mean() > 0.5
    assert places[inside, 0].min() < -6 and places[inside, 0].max() > 6
    ridge = np.column_stack([np.linspace(-6, 6, 40)] * 2)
    ridge[:, 1] = 0.3 * (ridge[:, 0] ** 2 - 9)
    assert np.std(surrogate.predict(ridge) - banana(ridge)) < 1.0


class UnsureOutside:
    """A Gaussian log density whose standard deviation is the distance from its mode."""

    variance_ = 0.0

    def __init__(self, d):
        self.parameters_ = SimpleNamespace(centre=np.zeros(d), whitening=np.eye(d))

    def predict(self, X, return_std=False):
        squares = np.sum(X**2, axis=-1)
        return (-0.5 * squares, np.sqrt(squares)) if return_std else -0.5 * squares


def test_inside_places_count_by_their_density():
    """200 searches each: standard errors of the medians below .1."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((300, 3))
    frontier = Frontier(UnsureOutside(3), X, X)
    distances = []
    for edge in (1.0, 0.0):
        places = []
        for _ in range(200):
            assert frontier.search(rng, edge)
            places.append(frontier.place)
        distances.append(np.median(np.linalg.norm(places, axis=1)))
    assert distances[0] > distances[1] + 0.5


def test_inside_half_of_the_candidates_change_one_coordinate():
    """From some origin; squared distances in all coordinates but one, .06 to .12 and .6 to 2."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((400, 6))
    frontier = Frontier(UnsureOutside(6), X, X)
    alone = np.arange(Frontier.N_CANDIDATES) % 8 < 4  # eight of each origin
    for along_coordinates in (True, False):
        candidates = frontier._candidates(X, along_coordinates, rng)
        squares = (candidates[:, None] - X) ** 2
        distances = (squares.sum(axis=2) - squares.max(axis=2)).min(axis=1)
        assert (np.median(distances[alone]) < 0.3) == along_coordinates
        assert np.median(distances[~alone]) > 0.4


def test_nothing_to_learn_where_the_surrogate_is_sure():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 3))

    def gaussian(X):
        return -0.5 * (X**2).sum(axis=1)

    surrogate = LogDensityGP(60, rng=0).fit(X, gaussian(X))
    frontier = Frontier(surrogate, X, X)
    assert not any(frontier.search(rng) for _ in range(20))


def test_nothing_from_too_few_places():
    rng = np.random.default_rng(2)
    X = banana_draws(40, rng)
    surrogate = LogDensityGP(30, rng=0).fit(X, banana(X))
    assert not Frontier(surrogate, X[:5], X[:5]).search(rng)


def test_learns_from_what_was_uncertain_or_wrong_alone():
    rng = np.random.default_rng(3)
    X = banana_draws(300, rng)
    X = X[np.abs(X[:, 0]) < 4]
    surrogate = LogDensityGP(100, rng=0).fit(X, banana(X))
    frontier = Frontier(surrogate, X, X)
    known = X[0] + 0.01
    assert not frontier.learn(known, float(banana(known)[0]))
    wrong = float(banana(known)[0]) - 1.0
    assert frontier.learn(known, wrong)
    far = np.array([7.0, 12.0])
    assert frontier.learn(far, float(banana(far)[0]))
    assert abs(surrogate.predict(far) - banana(far)[0]) < 0.1


def test_values_far_below_the_bulk_are_left_to_the_next_fit():
    rng = np.random.default_rng(3)
    X = banana_draws(300, rng)
    surrogate = LogDensityGP(100, rng=0).fit(X, banana(X))
    frontier, kept = Frontier(surrogate, X, X), surrogate.parameters_
    for place in np.array([[0.0, 15.0], [0.0, -25.0]]):
        surprise = surrogate.predict(place) - 20.0
        assert not frontier.learn(place, float(surprise))
    assert surrogate.parameters_ is kept


def test_searches_end_when_many_were_in_vain(monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 3))
    surrogate = LogDensityGP(60, rng=0).fit(X, -0.5 * (X**2).sum(axis=1))
    frontier = Frontier(surrogate, X, X)
    n_predictions, predict = 0, LogDensityGP.predict

    def counted(*arguments, **options):
        nonlocal n_predictions
        n_predictions += 1
        return predict(*arguments, **options)

    monkeypatch.setattr(LogDensityGP, "predict", counted)
    assert not any(frontier.search(rng) for _ in range(Frontier.PATIENCE + 20))
    assert n_predictions == Frontier.PATIENCE
