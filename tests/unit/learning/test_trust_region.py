"""Searches for a maximum by numbers alone."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning.composite import Composite
from pymc_kmc.learning.emulator import NodeEmulator
from pymc_kmc.learning.modes import Mode, explains
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.learning.trust_region import (
    CHECK_DISTANCE,
    FIRST_RADIUS,
    N_IN_A_ROW,
    Repelled,
    Repulsion,
    Rise,
    TrustRegion,
)
from tests.learned import scalar
from tests.opaque_numbers import PRIOR_SD, number, opaque, prior, search_from, stepped

COVARIANCE = np.array(
    [[1.0, 0.8, 0.0, 0.2], [0.8, 1.0, 0.3, 0.0], [0.0, 0.3, 0.5, 0.0], [0.2, 0.0, 0.0, 2.0]]
)
MEAN = np.array([4.0, 6.0, -3.0, 5.0])


def gaussian(x):
    return -0.5 * (x - MEAN) @ np.linalg.solve(COVARIANCE, x - MEAN)


def banana(x):
    return -0.5 * x[0] ** 2 / 4.0 - 0.5 * (x[1] - 0.5 * x[0] ** 2 + 3.0) ** 2 / 0.1


@pytest.fixture(scope="module")
def found():
    """A search for the Gaussian's maximum, and all evaluations."""
    return search_from(np.zeros(4), opaque(number(gaussian, 4)), 100)


def test_a_gaussian_far_away_is_found(found):
    region, evaluations = found
    assert region.has_ended
    assert region.n_evaluations == len(evaluations) - 1 < 100
    assert evaluations.log_densities[0] - region.log_density < -20.0
    assert region.log_density == evaluations.log_densities.max()
    # Nothing is to be gained: half a nat is not looked for, a curvature is known in two digits.
    assert gaussian(region.x) > -1.0
    mode = region.mode
    assert mode.log_mass == pytest.approx(Mode(MEAN, prior(MEAN), COVARIANCE).log_mass, abs=1.5)


def test_the_same_seed_makes_the_same_evaluations(found):
    _, evaluations = found
    _, again = search_from(np.zeros(4), opaque(number(gaussian, 4)), 15)
    np.testing.assert_array_equal(again.X, evaluations.X[:16])
    _, other = search_from(np.zeros(4), opaque(number(gaussian, 4)), 3, seed=2)
    assert not np.array_equal(other.X, evaluations.X[:4])


def test_a_banana_is_climbed():
    region, _ = search_from([5.0, -5.0], opaque(number(banana)), 60)
    assert region.has_ended
    assert banana(region.x) > -1.0


@pytest.mark.filterwarnings("ignore:The black box:UserWarning")
def test_holes_are_survived():
    def with_holes(x):
        if x[0] > 5.0:
            return np.nan
        return -np.inf if x[1] > 7.0 else gaussian(x)

    region, evaluations = search_from(np.zeros(4), opaque(number(with_holes, 4)), 100)
    assert not np.isfinite(evaluations.log_densities).all()
    assert region.has_ended
    assert gaussian(region.x) > -1.0


@pytest.mark.filterwarnings("ignore:The black box:UserWarning")
@pytest.mark.parametrize("centre", [-0.5, 0.0, 0.3])
def test_a_maximum_at_an_edge_ends_a_search(centre):
    """One place that failed was chosen up to sixty times, until evaluations ran out."""

    def half(x):
        return -2.0 * (x[0] - centre) ** 2 if x[0] >= 0.0 else -np.inf

    region, evaluations = search_from([1.0], opaque(number(half, 1)), 60)
    assert region.has_ended
    assert abs(region.x[0] - max(centre, 0.0)) < 0.5
    failed = evaluations.X[~np.isfinite(evaluations.log_densities)]
    _, counts = np.unique(failed, return_counts=True)
    assert counts.max(initial=0) <= N_IN_A_ROW


def test_a_check_that_fails_restarts_the_search():
    lowered = [0.0]
    model = opaque(number(lambda x: -0.5 * x @ x - lowered[0]))
    region, evaluations = search_from([1.0, -2.0], model, 60)
    assert region.n_passed == N_IN_A_ROW
    x, value = region.x, region.log_density
    lowered[0] = 6.0
    stepped(region, evaluations)
    assert not region.has_ended
    assert region.n_passed == 0
    assert region.radius == FIRST_RADIUS
    np.testing.assert_array_equal(region.x, x)
    assert region.log_density == value


def test_a_check_is_where_the_emulator_knows_least():
    """Curvature that nothing has told is what the search began with, 1: it was taken for known."""
    rng = np.random.default_rng(0)
    model = opaque(number(gaussian, 4))
    region = TrustRegion(model, Mode(MEAN, 0.0, np.eye(4)), rng)
    region.covariance = COVARIANCE
    factor = np.linalg.cholesky(COVARIANCE)
    untold = np.array([0.6, 0.0, 0.0, -0.8])
    known = 2.0 * rng.standard_normal((60, 4))
    known -= np.outer(known @ untold, untold)
    evaluations = model.evaluate(np.vstack([MEAN, MEAN + known @ factor.T]))
    (place,) = region._least_known(region._fit(evaluations), np.zeros((0, 4)), 1)
    z = np.linalg.solve(factor, place - MEAN)
    assert np.linalg.norm(z) == pytest.approx(CHECK_DISTANCE)
    assert abs(z @ untold) > 0.8 * CHECK_DISTANCE


def test_the_first_of_more_checks_is_ahead_on_the_way():
    model = opaque(number(gaussian, 4))
    X = np.vstack([MEAN, MEAN + np.random.default_rng(0).standard_normal((30, 4))])
    evaluations = model.evaluate(X)
    place = Mode(MEAN, evaluations.log_densities[0], COVARIANCE)
    for n_checks in (N_IN_A_ROW, N_IN_A_ROW + 1):
        region = TrustRegion(model, place, np.random.default_rng(0), n_checks)
        region.path = 9 * [MEAN - (way := np.array([0.1, 0.0, 0.2, 0.0]))]
        step = region.next(evaluations)
        assert step.is_flat
        away = step.X[-1] - MEAN
        is_ahead = np.allclose(away / np.linalg.norm(away), way / np.linalg.norm(way))
        assert is_ahead == (n_checks > N_IN_A_ROW)
        assert away @ np.linalg.solve(region.covariance, away) == pytest.approx(CHECK_DISTANCE**2)
    # Nor is there one where the search has not moved, or after one that was passed.
    region.path = [MEAN]
    assert region._ahead() == []


def test_a_check_that_rises_is_where_a_search_goes_on():
    model = opaque(number(gaussian, 4))
    region = TrustRegion(model, Mode(MEAN, 0.0, COVARIANCE), np.random.default_rng(0))
    for value, radius in ((5.0, CHECK_DISTANCE), (-50.0, FIRST_RADIUS)):
        region._check(np.array([value]), np.array([-3.0]), np.zeros(1))
        assert region.radius == radius


def test_a_search_below_a_known_maximum_is_judged_by_its_own_height():
    """Errors of a tenth of the depth below all others ended searches on a plateau, 50 below."""
    lowered = [0.0]
    model = opaque(number(lambda x: -0.5 * x @ x - lowered[0]))
    region, evaluations = search_from([1.0, -2.0], model, 60)
    lowered[0] = 6.0
    values = evaluations.log_densities.copy()
    values[0] = 200.0
    stepped(region, replace(evaluations, log_densities=values))
    assert region.n_predicted == 0
    assert region.n_flat == 0


def test_a_rise_forgets_checks():
    region, evaluations = search_from([6.0, -4.0], opaque(number(lambda x: -0.5 * x @ x)), 0)
    before = np.inf
    while region.log_density < before + 1.0:
        before, region.n_passed = region.log_density, 1
        evaluations = stepped(region, evaluations)
    assert region.n_passed == 0


def test_a_rise_that_was_predicted_is_not_flat():
    predicted = 0
    for seed in range(3):
        model = opaque(number(lambda x: -0.5 * x @ x))
        region, evaluations = search_from([9.0, -7.0], model, 3, seed)
        for _ in range(12):
            before = region.log_density
            evaluations = stepped(region, evaluations)
            if region.log_density > before + 1.0:
                predicted += region.n_predicted > 0
                assert region.n_flat == 0
    assert predicted > 0


def test_a_search_that_begins_at_the_maximum_learns_its_covariance(found):
    _, evaluations = found
    best = int(np.argmax(evaluations.log_densities))
    x, value = evaluations.X[best], evaluations.log_densities[best]
    model = opaque(number(gaussian, 4))
    region = TrustRegion(model, Mode(x, value, PRIOR_SD**2 * np.eye(4)), np.random.default_rng(1))
    region._maximum = lambda composite, radius: Rise(x, 0.0, 0.0, radius)
    stepped(region, evaluations)  # a check at once
    assert region.n_evaluations == 1
    # By the curvature, not the scales that the search was given.
    assert np.linalg.slogdet(region.covariance)[1] < 8.0 * np.log(PRIOR_SD) - 5.0


@pytest.fixture(scope="module")
def noisy():
    """Model and evaluations about the maximum of a Gaussian, with a standard deviation of 2."""
    model = opaque(
        number(lambda x, rng: -0.5 * x @ x + rng.normal(0.0, 2.0), 2, kmc.PseudoMarginalPotential)
    )
    return model, model.evaluate(1.5 * np.random.default_rng(3).standard_normal((40, 2)))


def test_the_luckiest_estimate_is_not_believed(noisy):
    model, evaluations = noisy
    luckiest = int(np.argmax(evaluations.log_densities))
    x = evaluations.X[luckiest]
    truth = -0.5 * x @ x + prior(x)
    assert evaluations.log_densities[luckiest] > truth + 2.0
    value = evaluations.log_densities[luckiest]
    region = TrustRegion(model, Mode(x, value, np.eye(2)), np.random.default_rng(1))
    for _ in range(5):
        evaluations = stepped(region, evaluations)
        # Forty values with an error of 2 each: one of about .6 in their mean.
        assert region.log_density < -0.5 * region.x @ region.x + prior(region.x) + 1.5
        assert region.log_density not in evaluations.log_densities


def test_among_astronomically_deep_estimates_no_mean_is_above_the_luckiest(noisy):
    """A model of rates overflows: a maximum of 1e19 nats left `learn` without any mode."""
    model, evaluations = noisy
    rng = np.random.default_rng(0)
    values = -(10.0 ** rng.uniform(5.0, 19.0, len(evaluations)))
    values[0] = -90.0
    outputs = values[:, None]
    evaluations = replace(evaluations, log_densities=values, outputs=outputs)
    region = TrustRegion(model, Mode(evaluations.X[0], -90.0, 0.01 * np.eye(2)), rng)
    region._fit(evaluations)
    assert np.max(Composite(model, region.emulators)(evaluations.X).mean) > 1e6
    assert region.log_density <= -90.0


@pytest.mark.parametrize("kind", ["kept away", "alone", "sharing"])
def test_under_noise_a_search_for_other_modes_does_not_jump_back(noisy, kind):
    """A known maximum is near enough to be emulated: searches for others ended there at once."""
    model, evaluations = noisy
    start = np.array([[4.0, 4.0]])
    evaluations = evaluations.joined(model.evaluate(start))
    repulsion = Repulsion(np.zeros((1, 2)), np.ones(2), 20.0, 1.5) if kind == "kept away" else None
    value, n_shared = evaluations.log_densities[-1], 40 if kind == "alone" else None
    rng = np.random.default_rng(1)
    region = TrustRegion(
        model, Mode(start[0], value, np.eye(2)), rng, repulsion=repulsion, n_shared=n_shared
    )
    first = len(evaluations) - 1
    evaluations = stepped(region, evaluations)
    region.release()
    evaluations = stepped(region, evaluations)
    assert region.own == [first, first + 1, first + 2]
    region._fit(evaluations)
    is_own = (evaluations.X[region.own] == region.x).all(axis=1).any()
    assert is_own == (kind != "sharing")


def test_a_mode_has_the_mass_of_its_gaussian():
    covariance = np.array([[0.5, 0.2], [0.2, 0.3]])
    mode = Mode(np.array([1.0, -1.0]), -3.0, covariance)
    grid = np.linspace(-6.0, 6.0, 301)
    places = np.stack(np.meshgrid(grid, grid), axis=-1)
    depths = 0.5 * np.einsum(
        "...i,ij,...j", places, np.linalg.inv(covariance), places, optimize=True
    )
    mass = np.exp(-3.0 - depths).sum() * (grid[1] - grid[0]) ** 2
    assert mode.log_mass == pytest.approx(np.log(mass), abs=1e-8)


@pytest.mark.parametrize(
    ("x", "log_density", "explained"),
    [
        ([0.0, 0.0], 5.0, True),  # the maximum
        ([2.0, 0.0], 3.2, True),  # 2 nats deep, within an error of 1 and a quarter
        ([2.0, 0.0], 5.0, False),  # as high as the maximum, two standard deviations away
        ([0.0, 3.0], 4.0, True),  # half a nat
        ([0.0, 0.0], 9.0, False),  # much higher than the maximum
        ([4.0, 0.0], -3.0, True),  # 8 nats
        ([5.0, 0.0], -7.5, False),  # 12.5 nats: too deep to tell
        ([0.0, 0.0], -np.inf, False),
        ([0.0, 0.0], np.nan, False),
    ],
)
def test_a_mode_explains_what_its_gaussian_has(x, log_density, explained):
    mode = Mode(np.zeros(2), 5.0, np.diag([1.0, 9.0]))
    assert explains(mode, np.array(x), log_density, lambda x, to: x) == explained


def test_optimism_has_its_gradient():
    """Against differences; the number is a term, so that its variance has no slopes to vary."""
    model = opaque(scalar())
    rng = np.random.default_rng(1)
    evaluations = model.evaluate([1.0, -0.3] + 0.3 * rng.standard_normal((12, 2)))
    emulator = NodeEmulator(model.nodes[0])
    emulator.fit(evaluations, evaluations.X, evaluations.inputs)
    composite = Composite(model, [emulator])
    X = [1.0, -0.3] + 0.5 * rng.standard_normal((4, 2))
    for most in (None, 2.0):
        values = composite.optimistic(X, most)
        sd = np.sqrt(values.variance)
        assert np.all(sd > 1e-3)
        bonus = sd if most is None else most * np.tanh(sd / most)
        np.testing.assert_allclose(values.penalised, values.mean + bonus)
        for j, step in enumerate(1e-5 * np.eye(2)):
            ends = [composite.optimistic(X + sign * step, most).penalised for sign in (1, -1)]
            np.testing.assert_allclose(
                values.gradient[:, j], (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-4
            )


def test_what_is_far_below_a_known_mode_is_not_blurred():
    """Deep values count less; a search's own are deep beside those of a mode that it isn't at."""

    def two(x):
        return np.logaddexp(-0.5 * x @ x, np.sin(4.0 * x[0]) - 0.5 * (x - 12.0) @ (x - 12.0) - 60.0)

    model, rng = opaque(number(two)), np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    X[30:] += 12.0
    evaluations, draws = model.evaluate(X), 12.0 + rng.standard_normal((256, 2))
    errors = []
    for top in (None, 59):
        emulator = NodeEmulator(model.nodes[0]).fit(evaluations, draws, model.inputs(draws), top)
        outputs = emulator.predict(X[30:], model.inputs(X[30:])).outputs[:, 0]
        errors.append(np.abs(outputs - evaluations.outputs[30:, 0]).max())
    assert errors[0] > 0.2
    assert errors[1] < 0.05


def test_in_many_dimensions_a_search_ends_where_rounds_do_better():
    """Checks don't end it here: whether they would before depends on the processor's roundings."""
    d = 14
    precision = np.linspace(0.1, 10.0, d)

    def ill_conditioned(x):
        return -0.5 * np.sum(precision * x**2)

    model = opaque(number(ill_conditioned, d))
    region, evaluations = search_from(np.full(d, 2.0), model, 300, n_checks=300)
    assert region.has_stalled and region.has_ended
    assert region.n_evaluations == len(evaluations) - 1 < 200
    # From 141 nats to where draws of temperature 2 are.
    assert ill_conditioned(region.x) > -COMPRESSION_DEPTH * d
    few, _ = search_from(np.zeros(4), opaque(number(gaussian, 4)), 12)
    few.heights = few.heights[:1] * len(few.heights)
    assert not few.has_stalled


@pytest.mark.parametrize(
    ("height", "n_left", "is_hopeless"),
    [(100.0, 44, False), (100.0, 30, True), (19.9, 1, False), (-np.inf, 10, False)],
)
def test_a_search_that_would_not_come_to_a_known_maximum_is_hopeless(height, n_left, is_hopeless):
    """Two nats an evaluation, now at 14, which is not far below 20 in two dimensions."""
    model = opaque(number(lambda x: -0.5 * x @ x))
    region = TrustRegion(model, Mode(np.zeros(2), 14.0, np.eye(2)), np.random.default_rng(0))
    region.heights = [*(-1e3 * np.ones(20)), *(2.0 * np.arange(25.0) - 34.0)]
    region.n_evaluations = 25
    assert not region.is_hopeless(height, n_left)
    region.n_evaluations = 26
    assert region.is_hopeless(height, n_left) == is_hopeless
    region.heights[-25:] = 25 * [14.0]
    assert region.is_hopeless(height, n_left) == (height == 100.0)


def test_repulsion_has_its_gradient():
    repulsion = Repulsion(np.array([[0.0, 1.0], [2.0, -1.0]]), np.array([1.0, 3.0]), 40.0, 2.0)
    X = np.random.default_rng(1).standard_normal((4, 2))
    off, gradient = repulsion(X)
    assert off.shape == (4,) and np.all(off > 0)
    assert repulsion(repulsion.centres[:1])[0][0] > repulsion.height
    for j, step in enumerate(1e-6 * np.eye(2)):
        ends = repulsion(X + step)[0], repulsion(X - step)[0]
        np.testing.assert_allclose(gradient[:, j], (ends[0] - ends[1]) / 2e-6, rtol=1e-5)


def test_what_is_climbed_under_repulsion_has_its_gradient():
    model, rng = opaque(number(gaussian, 4)), np.random.default_rng(1)
    draws = rng.standard_normal((20, 4))
    evaluations = model.evaluate(draws)
    emulator = NodeEmulator(model.nodes[0]).fit(evaluations, draws, evaluations.inputs)
    density = Repelled(
        Composite(model, [emulator]), Repulsion(np.ones((1, 4)), np.ones(4), 30.0, 1.0)
    )
    X = rng.standard_normal((3, 4))
    for values in (density, density.optimistic):
        at = values(X)
        for j, step in enumerate(1e-5 * np.eye(4)):
            ends = [values(X + sign * step).penalised for sign in (1, -1)]
            slopes = (ends[0] - ends[1]) / 2e-5
            np.testing.assert_allclose(at.gradient[:, j], slopes, rtol=1e-3, atol=1e-3)


def test_a_search_is_kept_from_a_known_mode_and_goes_on_when_released():
    """From a start that belongs to one mode to another, whose hill begins behind the start."""

    def two(x):
        return np.logaddexp(-0.5 * x @ x, 10.0 - 0.5 * (x - 8.0) @ (x - 8.0))

    model = opaque(number(two))
    start = np.array([[2.0, 2.0]])
    repulsion = Repulsion(np.zeros((1, 2)), np.ones(2), 40.0, 4.0)
    ends = []
    for keeps in (None, repulsion):
        evaluations = model.evaluate(start)
        x, value = start[0], evaluations.log_densities[0]
        region = TrustRegion(
            model, Mode(x, value, np.eye(2)), np.random.default_rng(1), repulsion=keeps
        )
        while not region.has_ended and region.n_evaluations < 100:
            if region.n_evaluations == 8:
                region.release()
            evaluations = stepped(region, evaluations)
        # The value is the log density's, with nothing taken off.
        i = int(np.argmin(np.abs(evaluations.X - region.x).sum(axis=1)))
        assert region.log_density == evaluations.log_densities[i]
        assert region.repulsion is None
        ends.append(region.x)
    np.testing.assert_allclose(ends[0], 0.0, atol=1.0)
    np.testing.assert_allclose(ends[1], 8.0, atol=1.0)


def test_an_ascent_under_repulsion_leads_back_where_there_is_nothing_else():
    model = opaque(number(lambda x: -0.5 * x @ x))
    evaluations = model.evaluate(2.0 * np.random.default_rng(0).standard_normal((40, 2)))
    repulsion = Repulsion(np.zeros((1, 2)), np.ones(2), 40.0, 3.0)
    x, value = evaluations.X[0], evaluations.log_densities[0]
    region = TrustRegion(
        model, Mode(x, value, np.eye(2)), np.random.default_rng(1), repulsion=repulsion
    )
    region.n_predicted = N_IN_A_ROW
    place, height = region.ascent(evaluations)
    np.testing.assert_allclose(place, 0.0, atol=0.3)
    assert height == pytest.approx(prior(np.zeros(2)), abs=0.3)


def two_bumps(x):
    """Unit Gaussians at (-3, 0), and at (3, 0), which is higher by 20 nats."""
    left, right = (-0.5 * ((x[0] - c) ** 2 + x[1] ** 2) for c in (-3.0, 3.0))
    return np.logaddexp(left - 20.0, right)


@pytest.fixture(scope="module")
def two_searches():
    """All evaluations, of which another search's are about the right bump; own ones on the left."""
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((30, 2))
    X = np.vstack([8.0 * spread[:10], spread[10:] + [3.0, 0.0], [[-5.0, 2.0]]])
    return opaque(number(two_bumps)), opaque(number(two_bumps)).evaluate(X)


def test_a_search_that_climbs_alone_does_not_see_what_others_evaluated(two_searches):
    model, evaluations = two_searches
    x, value = evaluations.X[-1], evaluations.log_densities[-1]
    regions = [
        TrustRegion(model, Mode(x, value, np.eye(2)), np.random.default_rng(1), n_shared=n)
        for n in (None, 10)
    ]
    for region, is_everything in zip(regions, (True, False), strict=True):
        region.own.append(len(evaluations) - 1)
        assert region._climbs_by_all(evaluations) is is_everything
        region._fit(evaluations)
        n_seen = region.emulators[0].usable.size
        assert n_seen == (len(evaluations) if is_everything else 11)
    # Whether it is on the way to a known mode is told by all.
    regions[1]._fit_to_all(evaluations)
    assert regions[1].emulators_of_all[0].usable.size == len(evaluations)
    assert regions[1].emulators[0].usable.size == 11


class Wrong:
    """A composite of which all is off by 1000 nats."""

    def __init__(self, composite):
        self.composite = composite

    def __call__(self, X):
        values = self.composite(X)
        return values._replace(mean=values.mean + 1000.0)


def test_a_search_that_climbs_alone_counts_what_all_evaluations_predicted(two_searches):
    model, evaluations = two_searches
    # In the midst of another's evaluations; its own are a start alone.
    evaluations = evaluations.joined(model.evaluate(np.array([[2.6, -0.4]])))
    x, value = evaluations.X[-1], evaluations.log_densities[-1]
    region = TrustRegion(model, Mode(x, value, np.eye(2)), np.random.default_rng(1), n_shared=10)
    for _ in range(2):
        evaluations = stepped(region, evaluations)
    assert region.own == [31, 32, 33]
    assert region.n_predicted == 2
    misled = TrustRegion(model, Mode(x, value, np.eye(2)), np.random.default_rng(1), n_shared=10)
    fit = misled._fit_to_all
    misled._fit_to_all = lambda evaluations: Wrong(fit(evaluations))
    seen = evaluations
    for _ in range(2):
        seen = stepped(misled, seen)
    assert misled.n_predicted == 0
    place, height = region.ascent(evaluations)
    np.testing.assert_allclose(place, [3.0, 0.0], atol=0.3)
    assert height == pytest.approx(prior(np.array([3.0, 0.0])), abs=0.3)


@pytest.mark.parametrize("curvature", [np.nan, np.inf])
def test_without_a_finite_curvature_the_last_covariance_stays(curvature):
    rng = np.random.default_rng(1)
    region = TrustRegion(
        opaque(number(lambda x: -0.5 * x @ x)), Mode(np.zeros(2), 0.0, np.eye(2)), rng
    )
    before = region.covariance.copy()
    slopes = SimpleNamespace(gradient=np.full((2, 2), curvature))
    region._renew(lambda X, penalty: slopes)
    np.testing.assert_array_equal(region.covariance, before)
