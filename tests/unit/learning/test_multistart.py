"""Searches by numbers: searches that meet, modes that are told apart, masses."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning.modes import Mode
from pymc_kmc.learning.multistart import (
    FEWEST_CLIMBS,
    FEWEST_IN_NOISE,
    FEWEST_SEARCHES,
    HIDING_NOISE,
    LEAST_A_SEARCH,
    MOST_IN_NOISE,
    N_PRIOR,
    N_STOOD,
    MultiStart,
    has_stood,
    have_agreed,
)
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.learning.trust_region import TrustRegion
from tests.opaque_numbers import number, opaque, prior, stepped

AWAY = 4.0
N_STARTS = 4
SEEDS = range(4)


def two_modes(x, difference=0.0):
    """Unit Gaussians at -AWAY and AWAY, the former less by a difference of logarithms of mass."""
    left, right = (-0.5 * ((x[0] - sign * AWAY) ** 2 + x[1] ** 2) for sign in (-1, 1))
    return np.logaddexp(left - difference, right)


def arrived(function, seed, d=2):
    """An multistart, and the state that it returned."""
    multistart = MultiStart(opaque(number(function, d)), N_STARTS, 400, np.random.default_rng(seed))
    return multistart, multistart.state(None, lambda evaluations: None)


def lies_at(mode):
    """Sign of the mode's place."""
    assert abs(abs(mode.x[0]) - AWAY) < 1.5
    return np.sign(mode.x[0])


@pytest.fixture(scope="module")
def arrivals():
    """Of two modes of equal mass, one a seed."""
    return [arrived(two_modes, seed) for seed in SEEDS]


def test_two_modes_of_equal_mass_are_found(arrivals):
    """Searches see both on seven seeds of eight, and rounds find the other one where they don't.

    None of four sees both on one processor of 4000, whose roundings decide.
    """
    both = [(start, state) for start, state in arrivals if len(start.modes) > 1]
    assert both
    for multistart, state in both:
        assert {lies_at(mode) for mode in multistart.modes} == {-1, 1}
        share = np.mean(state.draws[:, 0] > 0)
        assert 0.4 < share < 0.6


def test_where_there_is_no_prior_to_draw_from_there_are_searches():
    """Starts near a mode are no reason for draws at a high temperature: nothing would hold them."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        pm.Potential("p", kmc.BlackBox("loglik", lambda x: -0.5 * np.sum(x**2), x))
    multistart = MultiStart(opaque(model), N_STARTS, 400, np.random.default_rng(0))
    state = multistart.state(None, lambda evaluations: None)
    assert len(multistart.found) == 1
    assert state.temperature == 2.0 and np.abs(state.draws).max() < 6.0


def test_searches_that_meet_are_stopped(arrivals):
    n_evaluations = [len(state.evaluations) - N_STARTS - N_PRIOR for _, state in arrivals]
    for multistart, _ in arrivals:
        assert sum(n for _, n in multistart.found) >= FEWEST_CLIMBS
    # Two searches in full, of some eight evaluations, and four that meet them.
    assert np.mean(n_evaluations) < 27


def test_a_search_that_is_led_to_a_known_mode_is_stopped():
    # Evaluations all around the mode: what is evaluated next was predicted, far away as it is.
    multistart = MultiStart(opaque(number(slope)), N_STARTS, 400, np.random.default_rng(0))
    around = np.random.default_rng(1).standard_normal((40, 2)) * [8.0, 1.0]
    start = np.array([[25.0, -5.0]])
    multistart.evaluations = multistart.opaque.evaluate(np.vstack([around, start]))
    multistart._note(Mode(np.zeros(2), prior(np.zeros(2)), np.diag([50.0, 1.0 / 1.01])))
    x, value = start[0], multistart.evaluations.log_densities[-1]
    region = TrustRegion(multistart.opaque, Mode(x, value, np.eye(2)), np.random.default_rng(2))
    assert multistart._known(region) is None
    for _ in range(2):
        multistart.evaluations = stepped(region, multistart.evaluations)
    assert not multistart._is_known(region.x, region.log_density)
    assert multistart._known(region) is multistart.found[0].mode
    # It isn't believed after a surprise.
    region.n_predicted = 0
    assert multistart._known(region) is None


def slope(x):
    return -0.5 * (x[0] ** 2 / 100.0 + x[1] ** 2)


def test_a_search_at_a_known_mode_costs_nothing():
    multistart = MultiStart(opaque(number(two_modes)), N_STARTS, 400, np.random.default_rng(0))
    x = np.array([[AWAY, 0.0]])
    multistart.evaluations = multistart.opaque.evaluate(x)
    multistart._note(Mode(x[0], multistart.evaluations.log_densities[0], np.eye(2)))
    multistart._by_numbers()
    assert len(multistart.evaluations) == 1
    assert multistart.found[0].n_searches == 2


@pytest.mark.parametrize(("most", "left"), [(400, 100), (100, 48), (40, 29)])
def test_a_search_that_is_given_up_is_no_maximum(most, left, monkeypatch):
    """It is judged by what is left to it: a quarter of all, 24 a dimension; three quarters."""
    multistart = MultiStart(opaque(number(two_modes)), N_STARTS, most, np.random.default_rng(0))
    x = np.array([3.0, 3.0])
    multistart.evaluations = multistart.opaque.evaluate(x[None])
    known = Mode(np.array([AWAY, 0.0]), 500.0, np.eye(2))
    multistart._note(known)
    asked = []

    def is_hopeless(self, height, n_left):
        asked.append((height, n_left))
        return len(asked) > 3

    monkeypatch.setattr(TrustRegion, "is_hopeless", is_hopeless)
    multistart.say = lambda evaluations: None
    value = multistart.evaluations.log_densities[0]
    region = TrustRegion(multistart.opaque, Mode(x, value, np.eye(2)), np.random.default_rng(0))
    ((end, has_stalled),) = multistart._search([region])
    assert asked == [(500.0, left - n) for n in range(4)]
    assert multistart.found == [(known, 1)]
    assert end.log_density < 500.0
    assert not has_stalled


def noisy_groups(sizes):
    """Noisy log likelihoods, each of a vector of its own."""
    with pm.Model() as model:
        for i, size in enumerate(sizes):
            x = pm.Normal(f"x{i}", 0.0, 10.0, shape=size)
            kmc.PseudoMarginalPotential(f"y{i}", noisy_bell, x)
    return model


def noisy_bell(x, rng):
    return -0.5 * np.sum(x**2) + rng.normal(-0.005, 0.1)


def bell(x):
    return -0.5 * np.sum(x**2)


def searches_of(multistart, search_from, monkeypatch):
    """Search by numbers with `search_from` in place of a search; return what it was asked."""
    asked = []

    def search(regions):
        (region,) = regions
        end = search_from(len(asked))
        asked.append((region.n_shared is not None, region.repulsion is not None))
        multistart._note(end)
        return [(end, False)]

    monkeypatch.setattr(multistart, "_search", search)
    multistart.say = lambda evaluations: None
    multistart._disperse()
    multistart._by_numbers()
    return asked


@pytest.mark.parametrize(
    ("model", "are_kept_away", "fewest"),
    [
        (lambda: number(bell, 6), [False] * 4, FEWEST_CLIMBS),
        (
            lambda: number(bell, 7),
            [False] * FEWEST_CLIMBS + [True] * 2,
            FEWEST_CLIMBS + N_STOOD,
        ),
        (lambda: noisy_groups([7]), [False, True, True, True], FEWEST_IN_NOISE),
        # Twelve dimensions, but no log likelihood of more than four.
        (lambda: noisy_groups([4, 4, 4]), [False] * 4, FEWEST_CLIMBS),
    ],
    ids=["six", "seven", "noisy", "groups"],
)
def test_searches_are_kept_from_known_modes(model, are_kept_away, fewest, monkeypatch):
    found = opaque(model())
    multistart = MultiStart(found, N_STARTS, 1000, np.random.default_rng(0))
    end = Mode(np.zeros(found.n_dimensions), 0.0, np.eye(found.n_dimensions))
    asked = searches_of(multistart, lambda n_before: end, monkeypatch)
    n = len(are_kept_away)
    assert [is_kept for _, is_kept in asked[:n]] == are_kept_away
    assert len(asked) == fewest


@pytest.mark.parametrize(
    ("noise", "depth", "n"),
    [
        (2.0 * HIDING_NOISE, 0.0, MOST_IN_NOISE),
        (0.5 * HIDING_NOISE, 0.0, FEWEST_IN_NOISE),
        # One end is far below the others: searches have come to different basins.
        (2.0 * HIDING_NOISE, 7.0 * COMPRESSION_DEPTH + 1.0, FEWEST_IN_NOISE),
    ],
    ids=["alike", "little", "apart"],
)
def test_where_noise_hides_slopes_and_all_maxima_are_alike_some_searches_climb_alone(
    noise, depth, n, monkeypatch
):
    """Of Lotka-Volterra with noise of one nat all eight missed the right mode on 2 seeds of 25."""
    monkeypatch.setattr(MultiStart, "_climb_on", lambda self: None)
    multistart = MultiStart(opaque(noisy_groups([7])), N_STARTS, 1000, np.random.default_rng(0))

    def search_from(n_before):
        multistart.noise = noise
        at, lower = (np.zeros(7), 0.0) if n_before else (np.full(7, 9.0), depth)
        return Mode(at, -lower, np.eye(7))

    asked = searches_of(multistart, search_from, monkeypatch)
    assert asked[:FEWEST_IN_NOISE] == [(False, False)] + [(False, True)] * (FEWEST_IN_NOISE - 1)
    assert asked[FEWEST_IN_NOISE:] == [(True, False)] * (n - FEWEST_IN_NOISE)
    assert multistart.may_have_missed == (n == MOST_IN_NOISE)


def test_under_noise_the_highest_maximum_is_climbed_on_from():
    found = opaque(noisy_groups([7]))
    multistart = MultiStart(found, N_STARTS, 1000, np.random.default_rng(0))
    multistart.say = lambda evaluations: None
    multistart._disperse()
    top, ridge, away = np.zeros((1, 7)), np.full((1, 7), 2.0), np.full((1, 7), 30.0)
    heights = [found.evaluate(x).log_densities[0] for x in (top, ridge, away)]
    multistart._evaluate(np.vstack([ridge, away]))
    multistart._note(Mode(away[0], heights[2], np.eye(7)))
    for _ in range(2):
        multistart._note(Mode(ridge[0], heights[1], np.eye(7)))
    n = len(multistart.evaluations)
    multistart._climb_on()
    (_, n_away), (best, n_best) = multistart.found
    assert (n_away, n_best) == (1, 2)
    # From 14 nats below.
    assert best.log_density > heights[0] - 2.0
    assert 7 <= len(multistart.evaluations) - n <= LEAST_A_SEARCH * 7


@pytest.mark.parametrize(("most", "n"), [(40, 40), (1000, N_STARTS + N_PRIOR + 250)])
def test_a_climb_that_does_not_end_is_ended(most, n, monkeypatch):
    monkeypatch.setattr(TrustRegion, "has_ended", False)
    multistart = MultiStart(opaque(noisy_groups([7])), N_STARTS, most, np.random.default_rng(0))
    multistart.say = lambda evaluations: None
    multistart._disperse()
    multistart._note(Mode(np.zeros(7), 0.0, np.eye(7)))
    multistart._climb_on()
    assert len(multistart.evaluations) == n


@pytest.mark.parametrize(
    ("model", "n"),
    [
        (lambda: noisy_groups([7]), 1),
        (lambda: noisy_groups([4, 4]), 0),
        (lambda: number(bell, 7), 0),
    ],
    ids=["noisy", "groups", "without noise"],
)
def test_searches_climb_on_where_noise_hides_a_ridge(model, n, monkeypatch):
    called = []
    monkeypatch.setattr(MultiStart, "_climb_on", lambda self: called.append(1))
    multistart = MultiStart(opaque(model()), N_STARTS, 1000, np.random.default_rng(0))
    d = multistart.opaque.n_dimensions
    end = Mode(np.zeros(d), 0.0, np.eye(d))
    searches_of(multistart, lambda n_before: end, monkeypatch)
    assert len(called) == n


def test_a_search_tells_the_noise():
    multistart = MultiStart(opaque(noisy_groups([2])), N_STARTS, 400, np.random.default_rng(0))
    multistart.say = lambda evaluations: None
    multistart._disperse()
    multistart._by_numbers()
    assert 0.03 < multistart.noise < HIDING_NOISE
    # Few parameters: searches don't miss modes there.
    multistart.noise = 1.0
    assert not multistart.may_have_missed


def test_fewer_searches_are_enough_where_some_end_far_below():
    multistart = MultiStart(opaque(number(bell, 8)), N_STARTS, 1000, np.random.default_rng(0))
    x, covariance = np.zeros(8), np.eye(8)
    far, near = (
        Mode(x, -depth, covariance)
        for depth in (8 * COMPRESSION_DEPTH + 1, 8 * COMPRESSION_DEPTH - 1)
    )
    best = Mode(x, 0.0, covariance)
    for other, fewest in ((far, FEWEST_SEARCHES), (near, FEWEST_CLIMBS + N_STOOD)):
        for n in range(2, fewest):
            assert not multistart._are_enough([best] + [other] * (n - 1))
        assert multistart._are_enough([best] + [other] * (fewest - 1))


def test_a_search_from_an_initial_point_has_its_scale_where_the_prior_is_wider(monkeypatch):
    begun, make = [], TrustRegion.__init__

    def init(self, model, start, *args):
        make(self, model, start, *args)
        begun.append(start)

    monkeypatch.setattr(TrustRegion, "__init__", init)
    with pm.Model() as model:
        x = pm.Normal("x", 0, [100.0, 0.5], shape=2)
        pm.Potential("p", kmc.BlackBox("f", lambda x: -0.5 * np.sum((x - 1) ** 2) / 0.01, x))
    multistart = MultiStart(opaque(model), N_STARTS, 400, np.random.default_rng(0))
    state = multistart.state(None, lambda evaluations: None)
    initial = multistart.starts[::2]
    for start in begun:
        is_initial = (start.x == initial).all(axis=1).any()
        scales = np.sqrt(np.diag(start.covariance))
        assert scales == pytest.approx([1.0 if is_initial else 100.0, 0.5], rel=0.3)
    assert any((start.x == initial).all(axis=1).any() for start in begun)
    assert np.abs(state.draws.mean(axis=0) - 1.0).max() < 0.2


def test_in_many_dimensions_searches_climb_by_their_own_evaluations(monkeypatch):
    """In few the second one does under noise, and in many none of the first then."""
    shared, n_dispersed = [], N_STARTS + N_PRIOR
    make = TrustRegion.__init__

    def init(self, *args):
        make(self, *args)
        shared.append(self.n_shared)

    monkeypatch.setattr(TrustRegion, "__init__", init)
    for model, first, second in (
        (number(bell, 7), n_dispersed, n_dispersed),
        (number(bell, 6), None, None),
        (noisy_groups([2]), None, n_dispersed),
        (noisy_groups([7]), None, None),
    ):
        shared.clear()
        multistart = MultiStart(opaque(model), N_STARTS, 1000, np.random.default_rng(0))
        multistart.say = lambda evaluations: None
        multistart._disperse()
        multistart._by_numbers()
        assert shared[:2] == [first, second] and set(shared[2:]) == {first}


def test_a_best_maximum_has_stood_for_later_searches():
    low, high = (Mode(np.zeros(2), value, np.eye(2)) for value in (0.0, 50.0))
    assert has_stood([high] + [low] * N_STOOD, 1 + N_STOOD)
    assert not has_stood([high] + [low] * N_STOOD, 2 + N_STOOD)
    assert not has_stood([low] * 5 + [high] + [low] * (N_STOOD - 1), 3)
    assert has_stood([low] * 5 + [high] + [low] * N_STOOD, 3)


def test_the_same_seed_makes_the_same_evaluations(arrivals):
    _, again = arrived(two_modes, SEEDS[0])
    np.testing.assert_array_equal(again.evaluations.X, arrivals[0][1].evaluations.X)
    np.testing.assert_array_equal(again.draws, arrivals[0][1].draws)


def test_a_mode_without_mass_is_left_out():
    both = [
        Mode(np.array([sign * AWAY, 0.0]), value, np.eye(2))
        for sign, value in ((1, 0.0), (-1, -12.0))
    ]
    multistart = MultiStart(opaque(number(two_modes)), N_STARTS, 400, np.random.default_rng(0))
    for mode in both:
        multistart._note(mode)
    assert len(multistart.found) == 2
    (kept,) = multistart.modes
    assert kept is both[0]


def test_the_largest_mode_has_mass_however_large_its_logarithm_is():
    multistart = MultiStart(opaque(number(two_modes, 2)), N_STARTS, 400, np.random.default_rng(0))
    for x, log_density in ((0.0, 1e19), (9.0, 0.0)):
        multistart._note(Mode(np.full(2, x), log_density, np.eye(2)))
    assert multistart.have_mass == [True, False]


def test_searches_that_end_in_one_mode_are_counted():
    multistart = MultiStart(opaque(number(two_modes)), N_STARTS, 400, np.random.default_rng(0))
    first = Mode(np.array([AWAY, 0.0]), -0.2, np.eye(2))
    better = Mode(np.array([AWAY + 0.3, 0.0]), 0.1, np.eye(2))
    other = Mode(np.array([-AWAY, 0.0]), 0.0, np.eye(2))
    for mode in (first, other, better):
        multistart._note(mode)
    assert [n for _, n in multistart.found] == [2, 1]
    assert multistart.found[0].mode is better
    lower = Mode(np.zeros(2), -3.0, np.eye(2))
    assert have_agreed(5 * [lower] + [first, better]) and not have_agreed(6 * [lower] + [first])


@pytest.fixture(scope="module")
def learned():
    return kmc.learn(number(two_modes), random_seed=2, progressbar=False)


def test_two_modes_are_drawn_from(learned):
    assert learned.has_converged
    # Chains stay in their modes: there are 32 that learn. Under fair shares one in 2000 is outside.
    assert 0.2 < np.mean(learned.positions[:, 0] > 0) < 0.8
    exact = np.log(2.0 * 2.0 * np.pi) + prior(np.array([AWAY, 0.0]))
    assert learned.log_evidence.value == pytest.approx(exact, abs=0.3)


def test_modes_are_told(learned):
    assert {lies_at(mode) for mode in learned.modes} == {-1, 1}
    assert not any(mode.was_left_out for mode in learned.modes)
    for mode in learned.modes:
        np.testing.assert_array_equal(mode.variables["x"], mode.x)
        np.testing.assert_allclose(mode.log_mass, learned.log_evidence.value, atol=2.5)


def test_half_of_the_space_is_impossible():
    def with_holes(x):
        if x[0] > 3.0:
            return np.nan
        return -np.inf if x[1] > 3.0 else -0.5 * x @ x

    with pytest.warns(UserWarning, match="returned (nan|-inf)"):
        multistart, state = arrived(with_holes, 0)
    assert np.isfinite(state.evaluations.log_densities).mean() < 0.9
    (mode,) = multistart.modes
    assert 0.5 * mode.x @ mode.x < 1.0
