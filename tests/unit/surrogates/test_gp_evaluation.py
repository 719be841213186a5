"""Evaluation of LogDensityGP: derivatives, compiled twins, the wall, code from the cache."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pymc_kmc.dynamics import transitions
from pymc_kmc.surrogates import LogDensityGP, gp_parts, gradient_at, log_density_at
from pymc_kmc.surrogates.kernels import KERNELS, squared_distances
from tests.log_densities import Gaussian, distances, fitted


def trend_alone():
    problem = Gaussian(3)
    X = problem.draws(100, 1)
    return LogDensityGP(rng=0).fit(X, problem.log_density(X))


def radial_surrogate():
    """A Student t's, without a kernel part."""
    X = np.random.default_rng(5).standard_normal((200, 2)) * [1.0, 3.0]
    X = np.vstack([X, -X])
    values = -3.0 * np.log1p((X**2 / [1.0, 9.0]).sum(axis=1) / 8.0)
    return LogDensityGP(rng=0).fit(X, values, reference=X, whitening=np.diag([1.0, 1 / 3]))


def without_additive_part():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gp_parts, "FEWEST_COORDINATES", 6)
        return fitted(5, "gaussian", n=500)


CASES = {
    "gaussian": lambda: fitted(3, "gaussian"),
    "rational_quadratic": lambda: fitted(3, "rational_quadratic"),
    "one dimension": lambda: fitted(1, "rational_quadratic", n=60),
    "more landmarks than a block": without_additive_part,
    "additive part": lambda: fitted(4, "gaussian", n=500),
    "trend alone": trend_alone,
    "radial terms": radial_surrogate,
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    surrogate = CASES[request.param]()
    kernel_is_expected = request.param not in ("trend alone", "radial terms")
    assert (surrogate.kernel_ is not None) == kernel_is_expected
    if request.param == "more landmarks than a block":
        assert len(surrogate.parameters_.coefficients) > 256
    if request.param == "additive part":
        assert surrogate.additive_variance_ > 0
    return surrogate


def everywhere(surrogate):
    """Points in the middle, on both sides of the wall, and far beyond it."""
    p, rng = surrogate.parameters_, np.random.default_rng(6)
    directions = rng.standard_normal((24, surrogate.n_features_in_))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    radii = p.radius * np.repeat([0.01, 0.3, 0.8, 0.999, 1.001, 1.2, 3.0, 20.0], 3)
    return p.centre + (radii[:, None] * directions) @ np.linalg.inv(p.whitening).T


def test_gradient_is_the_derivative(case):
    X = everywhere(case)
    gradients = case.gradient(X)
    inverse = np.linalg.inv(case.parameters_.whitening)
    for x, gradient in zip(X, gradients, strict=True):
        step = 1e-5 * max(1.0, distances(case, x)[0])
        for direction in inverse.T:  # a unit of the surrogate's coordinates
            ahead = case.log_density(x + step * direction)
            behind = case.log_density(x - step * direction)
            slope = (ahead - behind) / (2 * step)
            assert slope == pytest.approx(gradient @ direction, rel=1e-3, abs=1e-3)


def log_densities(p, X):
    """The formula of LogDensityGPParameters in NumPy."""
    Z = (X - p.centre) @ p.whitening.T
    squares = np.sum(Z**2, axis=1)
    values = Z @ p.linear - 0.5 * np.sum(Z @ p.precision * Z, axis=1)
    values += np.log1p(squares[:, None] / p.radial_scales) @ p.radial_coefficients
    values -= 0.5 * p.stiffness * np.maximum(np.sqrt(squares) - p.radius, 0.0) ** 2
    if len(p.coefficients):
        squares = squared_distances(Z @ p.projection.T, p.landmarks.T)
        (kernel,) = [kernel for kernel in KERNELS.values() if kernel.tag == p.kernel]
        values += kernel.values(squares) @ p.coefficients
    grid = p.spacing * np.arange(p.additive_coefficients.shape[1])
    away = (Z @ p.axes.T - p.origin)[:, :, None] - grid
    return values + np.sum(np.exp(-0.5 * away**2) * p.additive_coefficients, axis=(1, 2))


def test_compiled_evaluation_is_that_of_numpy(case):
    X = everywhere(case)
    values, gradients = log_densities(case.parameters_, X), case.gradient(X)
    np.testing.assert_allclose(case.log_density(X), values, rtol=1e-9, atol=1e-7)
    out = np.empty(X.shape[1])
    # Two copies of one compiled function round sums with large coefficients differently.
    rounding = {"rtol": 1e-12, "atol": 1e-15 * np.abs(case.parameters_.coefficients).sum()}
    for x, value, gradient in zip(X, values, gradients, strict=True):
        assert log_density_at(case.parameters_, x) == pytest.approx(value, rel=1e-9, abs=1e-7)
        assert case.log_density(x) == pytest.approx(value, rel=1e-9, abs=1e-7)
        gradient_at(case.parameters_, x, out)
        np.testing.assert_allclose(out, gradient, **rounding)
        np.testing.assert_allclose(case.gradient(x), gradient, rtol=1e-12)


def test_transitions_follow_the_surrogate_that_is_there(case):
    """Against the methods. Where this fails after an edit, numba's cache is stale.

    What a compiled caller inlines is not among what numba compares a cached function with: delete
    the .nbi files.
    """
    p, step_size, n_steps = case.parameters_, 0.1, 4
    x = p.centre + np.linalg.inv(p.whitening) @ np.full(case.n_features_in_, 0.2)
    momentum = np.full(case.n_features_in_, 0.3)
    end, change, _ = transitions(
        p,
        0.7,
        x,
        momentum[None],
        None,
        np.array([step_size]),
        np.array([n_steps]),
        np.zeros(1),
    )
    position = x
    for _ in range(n_steps):
        momentum = momentum + 0.5 * step_size * 0.7 * case.gradient(position)
        position = position + step_size * momentum
        momentum = momentum + 0.5 * step_size * 0.7 * case.gradient(position)
    np.testing.assert_allclose(end, position, rtol=1e-8, atol=1e-8)
    expected = case.log_density(position) - case.log_density(x)
    assert change == pytest.approx(expected, rel=1e-7, abs=1e-6)


def test_falls_beyond_the_wall(case):
    """At least quadratically: integrable whatever the data say."""
    p = case.parameters_
    directions = np.random.default_rng(7).standard_normal((50, case.n_features_in_))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    far = p.radius * np.array([4.0, 8.0, 16.0])
    inverse = np.linalg.inv(p.whitening)
    values = [case.log_density(p.centre + r * directions @ inverse.T) for r in far]
    assert np.all(values[0] - values[1] > 0)
    assert np.all(values[1] - values[2] > 2.0 * (values[0] - values[1]))


def test_numbers_that_are_not_finite_are_passed_on(case):
    x = np.full(case.n_features_in_, np.nan)
    assert np.isnan(case.log_density(x)) and np.isnan(case.gradient(x)).all()
    assert np.isnan(log_density_at(case.parameters_, x))


# Compiled code from the cache

FUNCTIONS = ("gradient", "log_density", "path", "transitions")

EVALUATE = """
import sys
import numpy as np
from pymc_kmc.dynamics import leapfrog_path, transitions
from pymc_kmc.surrogates import LogDensityGP, gradient_at, log_density_at

def evaluate(function, parameters, rng):
    d = len(parameters.centre)
    x = rng.standard_normal((2, d))
    if function == "gradient":
        out = np.empty(d)
        gradient_at(parameters, x[0], out)
        return [out]
    if function == "log_density":
        return [log_density_at(parameters, x[0])]
    if function == "path":
        return leapfrog_path(parameters, x[0], x[1], np.eye(d), 0.05, 40)
    k = 30
    momenta, step_sizes = rng.standard_normal((k, d)), rng.uniform(0.05, 0.3, k)
    n_steps = rng.integers(1, 12, k)
    uniforms = rng.uniform(size=k)
    return transitions(parameters, 0.7, x[0], momenta, None, step_sizes, n_steps, uniforms)

for d in (1, 2, 3, 4, 7):
    X = np.random.default_rng(0).standard_normal((250, d))
    values = np.sin(X * (1.0 + 0.3 * np.arange(d))).sum(axis=1) - 0.5 * (X**2).sum(axis=1)
    for kernel in ("gaussian", "rational_quadratic"):
        surrogate = LogDensityGP(70, kernels=(kernel,), rng=0).fit(X, values, reference=X)
        assert surrogate.kernel_ == kernel
        results = {"fit": surrogate.parameters_}
        for function in sys.argv[1].split(","):
            rng = np.random.default_rng(1)
            results[function] = evaluate(function, surrogate.parameters_, rng)
        for name, values_ in results.items():
            bits = b"".join(np.asarray(value).tobytes() for value in values_)
            print(d, kernel, name, bits.hex())
"""


@pytest.mark.exactness
def test_results_are_those_of_code_from_the_cache_bit_by_bit(tmp_path):
    """In a process that compiles everything and in one that loads it, in reverse order.

    Callees compiled with fast-math flags have copies in the machine code of every caller, which
    round differently; a process uses the copy that it met first unless all are inlined.
    """
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def results(functions):
        command = [sys.executable, "-W", "ignore", "-c", EVALUATE, ",".join(functions)]
        root = Path(__file__).parents[3]
        output = subprocess.run(
            command, env=environment, cwd=root, check=True, capture_output=True, text=True
        ).stdout
        return dict(line.rsplit(" ", 1) for line in output.splitlines())

    compiled = results(FUNCTIONS)
    assert len(compiled) == 5 * 2 * (len(FUNCTIONS) + 1)
    loaded = results(FUNCTIONS[::-1])
    assert not [key for key, bits in loaded.items() if bits != compiled[key]]
