"""When learning is right: limits of errors, and what a round's predictions say."""

import numpy as np
import pytest

from pymc_kmc.learning.convergence import (
    Limits,
    RoundPlan,
    errors_in_reach,
    judge,
    largest_variance,
)
from pymc_kmc.learning.outputs import Compression

LIMITS = Limits(0.3, 0.0)
COMPRESSION = Compression(0.0, 50.0)
HEIGHTS = -np.linspace(0.0, 10.0, 101)  # of draws; mass ends some 17 nats below the best
#: Two fresh draws, a distant place, and an uncertain one.
VALUES = np.array([-1.0, -2.0, -3.0, -4.0])


def judgement(errors, n_distant=1, is_sure=True, n_gaps=0, last_errors=(), limits=LIMITS):
    """Judge a round whose predictions were off by these errors (4,)."""
    plan = RoundPlan(np.zeros((4, 1)), 2, n_distant, is_sure, n_gaps, np.zeros((0, 1)))
    return judge(limits, plan, VALUES, VALUES - errors, HEIGHTS, COMPRESSION, last_errors)


def verdict(errors, **kwargs):
    judged = judgement(np.array(errors), **kwargs)
    return bool(judged.is_right), bool(judged.is_confirmed)


@pytest.mark.parametrize(
    ("errors", "settings", "expected"),
    [
        ([0.2, -0.2, 0.0, 0.5], {}, (True, True)),
        ([0.6, -0.6, 0.0, 0.5], {}, (False, True)),
        ([0.2, -0.2, 0.0, 0.5], {"is_sure": False}, (False, True)),
        ([0.2, -0.2, 0.0, 0.5], {"n_gaps": 1}, (True, False)),
        # Nobody expected to know the distant place; that there is mass must be known all the same.
        ([0.2, -0.2, 1.2, 0.0], {}, (True, True)),
        ([0.2, -0.2, 1.2, 0.0], {"n_distant": 0}, (True, True)),
        ([0.2, -0.2, 9.0, 0.0], {}, (False, True)),
        ([0.2, -0.2, 0.0, 2.0], {}, (False, False)),
        # A higher prediction than 17 nats below the best, where nothing is.
        ([0.2, -0.2, 0.0, -2.0], {}, (False, False)),
    ],
)
def test_a_round_is_judged(errors, settings, expected):
    assert verdict(errors, **settings) == expected


def test_where_all_other_places_are_distant_they_count():
    assert verdict([0.2, -0.2, 1.5, 1.5], n_distant=2) == (False, False)
    assert np.isfinite(judgement(np.zeros(4), n_distant=2).uncertain_error)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        ([], (True, True)),
        ([0], (True, True)),  # one of two draws may fail by chance
        ([0, 1], (False, True)),
        ([2, 3], (True, True)),
        ([0, 1, 2, 3], (False, False)),
    ],
)
def test_a_log_density_that_is_not_finite_is_no_error(failed, expected):
    values = VALUES.copy()
    values[failed] = -np.inf
    plan = RoundPlan(np.zeros((4, 1)), 2, 1, True, 0, np.zeros((0, 1)))
    judged = judge(LIMITS, plan, values, VALUES, HEIGHTS, COMPRESSION, ())
    assert (judged.is_right, judged.is_confirmed) == expected
    assert len(judged.errors) == 2 - len({0, 1} & set(failed))


@pytest.mark.parametrize(("last", "is_right"), [([0.1, -0.1], True), ([0.9, -0.9], False)])
def test_estimates_that_all_fail_by_chance_leave_the_last_errors(last, is_right):
    """They were an infinite error, after which learning began again: it never ended."""
    values = np.array([-np.inf, -np.inf, -3.0, -4.0])
    plan = RoundPlan(np.zeros((4, 1)), 2, 1, True, 0, np.zeros((0, 1)))
    known, by_chance = (HEIGHTS, COMPRESSION), np.full(4, 0.8)
    judged = judge(LIMITS, plan, values, VALUES, *known, [np.array(last)], by_chance)
    assert judged.error == pytest.approx(last[0])
    assert (judged.is_right, judged.is_confirmed) == (is_right, False)
    assert np.isinf(judge(LIMITS, plan, values, VALUES, *known, (), by_chance).error)
    # So many weren't expected to fail.
    few = judge(LIMITS, plan, values, VALUES, *known, [np.array(last)], np.full(4, 0.1))
    assert not few.is_right


def test_an_offset_of_all_draws_is_no_error():
    judged = judgement(np.array([5.1, 4.9, 5.0, 5.0]), last_errors=[np.array([5.0, 5.0])])
    assert judged.error == pytest.approx(0.1)
    np.testing.assert_allclose(judged.errors, [5.1, 4.9])


def test_noise_is_not_taken_for_an_error():
    limits = Limits(0.3, 1.5)
    assert (limits.error, limits.uncertain_error, limits.own) == (0.5, 1.5, 1.0)
    assert limits.excess(1.5, 8) == 0.0
    assert limits.excess(6.0, 8) == pytest.approx(np.sqrt(36.0 - 2.25 * 2.0))
    assert LIMITS.excess(0.7, 8) == 0.7
    assert verdict([1.5, -1.5, 0.0, 2.0], limits=limits) == (True, True)


def test_how_deep_a_place_is_does_not_count_far_below_the_draws():
    heights = -np.linspace(0.0, 10.0, 101)  # one in a hundred is deeper than 9.9
    values = np.array([-1.0, -100.0, -np.inf, -5.0, -40.0])
    predicted = np.array([-2.0, -30.0, np.nan, -60.0, -5.0])
    off = 1.7 * 9.9 - 5.0
    errors, missed = errors_in_reach(values, predicted, heights)
    np.testing.assert_allclose(errors, [1.0, 0.0, 0.0, off, -off])
    # The last place has no mass, whatever it was thought to have.
    np.testing.assert_allclose(missed, [1.0, 0.0, 0.0, off, 0.0])


def test_few_squares_bound_a_variance_loosely():
    """In one of 44 samples of a Gaussian the limit is below the variance."""
    rng = np.random.default_rng(0)
    limits = np.array([largest_variance(rng.standard_normal(8) ** 2) for _ in range(4000)])
    assert 1 / 70 < np.mean(limits < 1.0) < 1 / 30  # 3.6 standard errors at least
    assert largest_variance(np.zeros(0)) == np.inf
    assert largest_variance(np.ones(1000)) < 1.1


def test_two_estimates_have_a_variance_if_both_are_finite():
    plan = RoundPlan(np.zeros((7, 1)), 2, 0, True, 0, np.zeros((0, 1)), n_twins=3)
    values = np.array([1.0, 2.0, -np.inf, 9.0, 3.0, 2.5, -np.inf])
    np.testing.assert_allclose(plan.variances(values), [2.0, 0.125])
    assert len(plan._replace(n_twins=0).variances(values)) == 0
