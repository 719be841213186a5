"""Vectorising exponential, sine and cosine against NumPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_kmc.numerics.elementary import (
    cos_in_place,
    exp_in_place,
    gaussian_of,
    sin_in_place,
)


def exponential(x):
    values = np.array(x, dtype=float)
    exp_in_place(values, np.empty_like(values), len(values))
    return values


def sine(x):
    values = np.array(x, dtype=float)
    sin_in_place(values, len(values))
    return values


def cosine(x):
    values = np.array(x, dtype=float)
    cos_in_place(values, len(values))
    return values


@pytest.mark.parametrize("low, high", [(-708.0, 709.7), (-1.0, 1.0), (-1e-8, 1e-8)])
def test_exponential(low, high):
    x = np.linspace(low, high, 100_001)
    assert np.abs(exponential(x) / np.exp(x) - 1.0).max() < 1e-15


def test_exponential_at_the_ends():
    x = np.array(
        [0.0, -0.0, -745.1, -744.0, -720.0, -800.0, -1e300, -np.inf, 709.78, 710.0, np.inf]
    )
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(exponential(x), np.exp(x), rtol=1e-15, atol=5e-324)
    assert np.isnan(exponential([np.nan, 0.0])[0])


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.floats(-2000, 2000), min_size=1, max_size=40))
def test_exponential_of_anything(x):
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_allclose(exponential(x), np.exp(x), rtol=2e-15, atol=1e-323)


@pytest.mark.parametrize("ours, numpys", [(sine, np.sin), (cosine, np.cos)])
@pytest.mark.parametrize(
    "x",
    [
        np.linspace(-10, 10, 100_001),
        np.linspace(-1.6e7, 1.6e7, 100_001),
        np.pi / 2 * np.arange(-100_000, 100_000),
        np.array([0.0, -0.0, 1e-300, 1e-10, 2.0**24, 1e15, 1e22, 1e300]),
    ],
    ids=["small", "large", "multiples of pi/2", "special"],
)
def test_sine_and_cosine(ours, numpys, x):
    assert np.abs(ours(x) - numpys(x)).max() < 3e-16
    np.testing.assert_allclose(ours(x), numpys(x), rtol=1e-15)


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40))
def test_sine_and_cosine_of_anything(x):
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(sine(x), np.sin(x), rtol=1e-15, atol=3e-16)
        np.testing.assert_allclose(cosine(x), np.cos(x), rtol=1e-15, atol=3e-16)


def test_one_bad_entry_leaves_the_others():
    np.testing.assert_allclose(sine([np.nan, 1.0, np.inf])[1], np.sin(1.0), rtol=1e-15)


def test_gaussian():
    x = np.linspace(-9.0, 9.0, 10_001)
    expected = np.maximum(np.exp(-0.5 * x**2), np.exp(-32.0))
    np.testing.assert_allclose([gaussian_of(at) for at in x], expected, rtol=1e-13)
    assert np.isnan(gaussian_of(np.nan))
    assert gaussian_of(np.inf) == gaussian_of(1e200) == gaussian_of(8.0)
