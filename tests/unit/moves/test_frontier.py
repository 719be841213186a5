"""Active learning: places in the bulk where the surrogate doesn't know, or none."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.adaptation.fitted import Comparison
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.frontier import ActiveLearning, Frontier
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.surrogates import LogDensityGP
from tests.bananas import Banana
from tests.fitted import fitted_surrogate, stretching_warp
from tests.moves import evaluation

BANANA = Banana()


def test_walks_along_a_ridge_that_nobody_has_seen():
    """From the middle half of a banana's ridge to beyond two standard deviations on each side.

    Rejected places are rare: each is likely to be in the bulk by what was known before.
    """
    rng = np.random.default_rng(0)
    X = BANANA.draws(400, rng)
    X = X[np.abs(X[:, 0]) < 2.5]
    X = np.vstack([X, X + 0.5 * rng.standard_normal(X.shape)])
    fitted = fitted_surrogate(
        LogDensityGP(100, rng=0).fit(X, BANANA.log_density(X)), X, BANANA.log_density(X)
    )
    frontier = Frontier(fitted.surrogate, X, X)
    places = []
    for _ in range(60):
        place = frontier.search(fitted.surrogate, rng)
        if place is None:
            continue
        places.append(place)
        before = fitted
        fitted = fitted.learn(fitted.compare(place, float(BANANA.log_density(place))))
        if fitted is not before:
            frontier.add(fitted.surrogate, place)
    places = np.array(places)
    inside = BANANA.log_density(places) > -6
    assert inside.mean() > 0.5
    assert places[inside, 0].min() < -6 and places[inside, 0].max() > 6
    x1 = np.linspace(-6, 6, 40)
    ridge = np.column_stack([x1, BANANA.ridge(x1)])
    assert np.std(fitted.surrogate.predict(ridge) - BANANA.log_density(ridge)) < 1.0


class UnsureOutside:
    """A Gaussian log density whose standard deviation is the distance from its mode."""

    variance_ = 0.0
    kernel_ = "any"

    def __init__(self, d):
        self.parameters_ = SimpleNamespace(centre=np.zeros(d), whitening=np.eye(d))

    def predict(self, X, return_std=False):
        squares = np.sum(X**2, axis=-1)
        return (-0.5 * squares, np.sqrt(squares)) if return_std else -0.5 * squares


def test_inside_places_count_by_their_density():
    """200 searches each: standard errors of the medians below .1."""
    rng = np.random.default_rng(7)
    X, surrogate = rng.standard_normal((300, 3)), UnsureOutside(3)
    frontier = Frontier(surrogate, X, X)
    distances = []
    for edge in (1.0, 0.0):
        places = np.array([frontier.search(surrogate, rng, edge) for _ in range(200)])
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


def gaussian():
    """A surrogate that is sure of itself, and states of its density."""
    X = np.random.default_rng(1).standard_normal((300, 3))
    return LogDensityGP(60, rng=0).fit(X, -0.5 * (X**2).sum(axis=1)), X


def test_nothing_to_learn_where_the_surrogate_is_sure():
    surrogate, X = gaussian()
    frontier, rng = Frontier(surrogate, X, X), np.random.default_rng(1)
    assert all(frontier.search(surrogate, rng) is None for _ in range(20))


def test_nothing_from_too_few_places():
    rng = np.random.default_rng(2)
    X = BANANA.draws(40, rng)
    surrogate = LogDensityGP(30, rng=0).fit(X, BANANA.log_density(X))
    assert Frontier(surrogate, X[:5], X[:5]).search(surrogate, rng) is None


def test_searches_end_when_many_were_in_vain(monkeypatch):
    surrogate, X = gaussian()
    frontier, rng = Frontier(surrogate, X, X), np.random.default_rng(1)
    n_predictions, predict = 0, LogDensityGP.predict

    def counted(*arguments, **options):
        nonlocal n_predictions
        n_predictions += 1
        return predict(*arguments, **options)

    monkeypatch.setattr(LogDensityGP, "predict", counted)
    assert all(frontier.search(surrogate, rng) is None for _ in range(Frontier.PATIENCE + 20))
    assert n_predictions == Frontier.PATIENCE


def test_places_outside_of_the_bulk_are_not_added():
    X, surrogate = np.random.default_rng(3).standard_normal((300, 3)), UnsureOutside(3)
    frontier = Frontier(surrogate, X, X)
    n = len(frontier._points)
    frontier.add(surrogate, np.full(3, 9.0))
    assert len(frontier._points) == n
    frontier.add(surrogate, np.full(3, 0.1))
    np.testing.assert_array_equal(frontier._points[n:], [np.full(3, 0.1)])


# The move


class Ready:
    """A frontier that finds something always."""

    PLACE = np.array([0.3, -0.5])

    def search(self, surrogate, rng, edge):
        self.edge = edge
        return self.PLACE


class Known:
    """What the move sees of what was learned."""

    def __init__(self, surrogate, warp=IDENTITY):
        self.surrogate, self.warp = surrogate, warp


CURRENT = evaluation(np.zeros(2))


@pytest.mark.parametrize(
    ("is_noisy", "search_error", "share"),
    [(False, 1.0, 0.2), (False, 0.5, 0.1), (False, 0.0, 0.04), (True, 1.0, 0.4), (True, 0.0, 0.4)],
)
def test_searches_are_rarer_where_the_last_ones_found_what_was_predicted(
    is_noisy, search_error, share
):
    """And they go on inside; values under noise teach less, so that the share is fixed there."""
    move, known = ActiveLearning(is_noisy), Known(UnsureOutside(2))
    X = np.random.default_rng(9).standard_normal((50, 2))
    assert move.share == 0.0  # there is nothing to search
    move.search_error = search_error
    move.begin(known, X, X)
    assert move.share == pytest.approx(share)
    move.frontier = Ready()
    proposal = move.propose(CURRENT, known, None)
    assert move.frontier.edge == (1.0 if is_noisy else search_error)
    assert proposal.move.kind == MoveKind.ACTIVE_LEARNING and not proposal.is_draw


def test_a_search_in_vain_is_no_proposal():
    move = ActiveLearning(False)
    surrogate, X = gaussian()
    move.frontier = Frontier(surrogate, X, X)
    assert move.propose(CURRENT, Known(surrogate), np.random.default_rng(4)) is None


def test_places_and_states_are_in_the_surrogates_coordinates():
    warp, rng = stretching_warp(), np.random.default_rng(5)
    states = rng.standard_normal((200, 2))
    known = Known(UnsureOutside(2), warp)
    move = ActiveLearning(False)
    move.begin(known, states, states)
    expected = Frontier(known.surrogate, warp.forward(states), warp.forward(states))
    np.testing.assert_array_equal(move.frontier._points, expected._points)
    assert move.frontier.threshold == expected.threshold
    move.frontier = Ready()
    proposal = move.propose(CURRENT, known, rng)
    np.testing.assert_array_equal(proposal.position, warp.backward(Ready.PLACE))
    move.end()
    assert move.share == 0.0


def test_a_quadratic_has_no_bends_to_find():
    X = np.random.default_rng(6).standard_normal((50, 2))
    surrogate = UnsureOutside(2)
    surrogate.kernel_ = None
    move = ActiveLearning(False)
    move.begin(Known(surrogate), X, X)
    assert move.frontier is None


def test_the_search_error_is_an_average_of_what_was_badly_predicted():
    """In nats, at most 1 each, and usual errors don't count."""
    move, surrogate = ActiveLearning(False), SimpleNamespace(variance_=0.01)

    def compare(error, n):
        for _ in range(n):
            move.compare(Comparison(np.zeros(2), error, 0.0, 0.5), surrogate)

    assert move.search_error == 1.0
    compare(100.0, 50)
    assert move.search_error == pytest.approx(1.0)
    compare(-0.19, 100)  # below two residual standard deviations
    assert move.search_error < 0.01
    compare(-0.7, 200)
    assert move.search_error == pytest.approx(0.5, abs=0.01)
