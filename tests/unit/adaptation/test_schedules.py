"""When to learn, and how much; scales and step sizes find the one with the wanted acceptance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pymc_kmc.adaptation.schedules import (
    DualAveraging,
    GeometricSchedule,
    RobbinsMonroScale,
    vanishing_weight,
)


def test_weights_vanish_and_their_sum_does_not():
    assert vanishing_weight(10**12) < 1e-5
    sums = np.cumsum([vanishing_weight(t) for t in range(10_000)])
    assert sums[-1] == pytest.approx(2 * np.sqrt(10_000), rel=0.01)


@given(first=st.integers(1, 100), factor=st.floats(1.01, 3.0))
@settings(deadline=None, derandomize=True)
def test_due_times_grow_by_the_factor(first, factor):
    schedule = GeometricSchedule(first, factor)
    due = [t for t in range(1, 3000) if schedule.is_due(t)]
    assert due[0] == first
    assert all(later >= earlier * factor for earlier, later in zip(due, due[1:], strict=False))
    assert all(
        later <= max(earlier + 1, np.ceil(earlier * factor))
        for earlier, later in zip(due, due[1:], strict=False)
    )


def test_a_time_is_due_once():
    schedule = GeometricSchedule(10, 1.5)
    assert not schedule.is_due(9)
    assert schedule.is_due(10)
    assert not schedule.is_due(10)


def test_due_times_that_were_passed_over_are_made_up_for_once():
    schedule = GeometricSchedule(10, 2.0)
    assert schedule.is_due(500)
    assert not schedule.is_due(999)
    assert schedule.is_due(1000)


def test_their_number_grows_with_the_logarithm_of_time():
    schedule = GeometricSchedule(20, 1.2)
    n_due = sum(schedule.is_due(t) for t in range(100_000))
    assert n_due == pytest.approx(np.log(100_000 / 20) / np.log(1.2), abs=4)


def random_walk_acceptance(scale):
    """Acceptance rate of a random walk in many dimensions (Roberts, Gelman and Gilks, 1997)."""
    return 2 * norm.cdf(-2.38 * scale / 2)


def leapfrog_acceptance(step_size):
    """Of a trajectory whose energy error grows with the square of the step size."""
    return np.exp(-(step_size**2))


@pytest.mark.parametrize("first", [0.01, 1.0, 100.0])
def test_robbins_monro_reaches_its_target(first):
    """A rate of .234 belongs to a scale of 1, from acceptance probabilities of single proposals."""
    rng = np.random.default_rng(1)
    adaptation = RobbinsMonroScale(0.234, first)
    scales = []
    for _ in range(20_000):
        rate = random_walk_acceptance(adaptation.scale)
        adaptation.update(rng.beta(rate + 1e-9, 1 - rate + 1e-9))
        scales.append(adaptation.scale)
    assert np.mean(random_walk_acceptance(np.array(scales[-5000:]))) == pytest.approx(
        0.234, abs=0.01
    )
    assert np.mean(np.log(scales[-5000:])) == pytest.approx(0.0, abs=0.05)


def test_robbins_monro_is_quick_where_it_is_far_off():
    adaptation = RobbinsMonroScale(0.234, 100.0)
    for _ in range(60):
        adaptation.update(random_walk_acceptance(adaptation.scale))
    assert 0.2 < adaptation.scale < 5


def test_robbins_monro_steps_die_out():
    adaptation = RobbinsMonroScale(0.234)
    changes = []
    for _ in range(100_000):
        before = adaptation.scale
        adaptation.update(0.234 + 0.1)
        changes.append(np.log(adaptation.scale / before))
        adaptation.scale = 1.0
    assert changes[-1] < 1e-2 * changes[0]
    assert np.all(np.diff(changes) <= 1e-15)


@pytest.mark.parametrize("target", [0.6, 0.8])
@pytest.mark.parametrize("first", [0.05, 0.5, 5.0])
def test_dual_averaging_finds_the_step_size(first, target):
    rng = np.random.default_rng(2)
    adaptation = DualAveraging(target, first)
    for _ in range(3000):
        rate = leapfrog_acceptance(adaptation.step_size)
        adaptation.update(rng.beta(10 * rate + 1e-9, 10 * (1 - rate) + 1e-9))
    exact = np.sqrt(-np.log(target))
    assert adaptation.averaged_step_size == pytest.approx(exact, rel=0.05)


def test_dual_averaging_without_noise():
    adaptation = DualAveraging(0.7, 0.1)
    for _ in range(2000):
        adaptation.update(leapfrog_acceptance(adaptation.step_size))
    assert adaptation.step_size == pytest.approx(np.sqrt(-np.log(0.7)), rel=0.01)
    assert adaptation.averaged_step_size == pytest.approx(np.sqrt(-np.log(0.7)), rel=0.01)


def test_dual_averaging_keeps_its_bounds():
    for rate, bound in ((1.0, 2.0), (0.0, 0.1)):
        adaptation = DualAveraging(0.7, 0.5, bounds=(0.1, 2.0))
        for _ in range(500):
            adaptation.update(rate)
            assert 0.1 <= adaptation.step_size <= 2.0 * (1 + 1e-12)
        assert adaptation.step_size == pytest.approx(bound)
    assert DualAveraging(0.7, 9.0, bounds=(0.1, 2.0)).step_size == 2.0
