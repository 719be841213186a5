"""When to learn, and how much."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_kmc.adaptation.schedules import GeometricSchedule, vanishing_weight


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
