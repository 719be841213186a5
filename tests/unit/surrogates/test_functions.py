"""Vectorising exponential, sine and cosine; kernels; random features; compiled callers."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kmc.surrogates.features import cos_in_place, features, random_basis, sin_in_place
from pymc_kmc.surrogates.kernels import exp_in_place, gaussian_kernel, squared_distances


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


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40))
def test_sine_and_cosine_of_anything(x):
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(sine(x), np.sin(x), rtol=1e-15, atol=3e-16)
        np.testing.assert_allclose(cosine(x), np.cos(x), rtol=1e-15, atol=3e-16)


def test_one_bad_entry_leaves_the_others():
    np.testing.assert_allclose(sine([np.nan, 1.0, np.inf])[1], np.sin(1.0), rtol=1e-15)


def test_squared_distances_far_from_the_origin():
    X = np.random.default_rng(0).normal(size=(10, 3))
    direct = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(X + 1e7, X + 1e7), direct, atol=1e-7)
    np.testing.assert_allclose(gaussian_kernel(X, X, 2.0), np.exp(-direct / 2.0), rtol=1e-13)


@pytest.mark.parametrize(
    "kernel, value",
    [
        ("gaussian", lambda square: np.exp(-square / 3.0)),
        ("rational_quadratic", lambda square: 1.0 / (1.0 + square / 3.0)),
    ],
)
def test_random_features_have_the_kernel(kernel, value):
    omega, phase = random_basis(200_000, 2, 3.0, kernel, np.random.default_rng(0))
    x = np.array([0.3, -0.2])
    for y in (x, np.array([1.0, 1.0]), np.array([-2.0, 0.5])):
        product = features(x, omega, phase) @ features(y, omega, phase)
        assert product == pytest.approx(value(((x - y) ** 2).sum()), abs=0.01)


CALLER = """
import numba, numpy as np
from pymc_kmc.surrogates import gradient_at, log_density_at

@numba.njit(cache=True)
def climb(parameters, x):
    gradient = np.empty_like(x)
    for _ in range(3):
        gradient_at(parameters, x, gradient)
        x += 0.1 * gradient
    return log_density_at(parameters, x)
"""
RUN = """
import numpy as np
import caller
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, KernelExpNystrom

X = np.random.default_rng(0).normal(size=(30, 2))
for surrogate in (
    KernelExpLite(4.0, 1.0),
    KernelExpLite(4.0, 1.0, base="gaussian"),
    KernelExpFinite(20, 4.0, 0.1, rng=0),
    KernelExpNystrom(4.0, 0.1, 5, rng=0),
):
    assert np.isfinite(caller.climb(surrogate.fit(X).parameters_, X[0].copy()))
stats = caller.climb.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_callers_are_cached_on_disk(tmp_path):
    """A caller in another module is compiled once per surrogate class, by the first process."""
    (tmp_path / "caller.py").write_text(textwrap.dedent(CALLER))
    path = os.pathsep.join([str(tmp_path), os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    counts = [
        subprocess.run(
            [sys.executable, "-c", RUN], env=environment, check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert counts == [["0", "3"], ["3", "0"]]
