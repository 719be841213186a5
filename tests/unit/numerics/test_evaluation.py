"""Evaluation from other compiled functions, and of objects that aren't compiled."""

import os
import subprocess
import sys
import textwrap
from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

import pymc_kmc
from pymc_kmc.learning import emulated_density
from pymc_kmc.numerics.evaluation import (
    evaluable,
    gradient_in,
    is_compiled,
    log_density_in,
    workspace,
)
from pymc_kmc.surrogates import KernelExpLite, gradient_at, log_density_at

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
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite

X = np.random.default_rng(0).normal(size=(30, 2))
for surrogate in (
    KernelExpLite(4.0, 1.0),
    KernelExpLite(4.0, 1.0, base="gaussian"),
    KernelExpFinite(20, 4.0, 0.1, rng=0),
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
    assert counts == [["0", "2"], ["2", "0"]]


# Other objects


class Cauchy:
    """Somebody's own surrogate, which counts on being given points of its own."""

    n_features_in_ = 2

    def __init__(self):
        self.seen = []

    def log_density(self, X):
        self.seen.append(X)
        return -np.log1p(np.asarray(X) ** 2).sum(axis=-1)

    def gradient(self, X):
        self.seen.append(X)
        return -2.0 * X / (1.0 + X**2)


def test_the_surrogates_of_the_package_are_evaluated_by_their_parameters():
    X = np.random.default_rng(0).normal(size=(40, 2))
    surrogate = KernelExpLite(4.0, 1.0).fit(X)
    assert evaluable(surrogate) is surrogate.parameters_
    assert is_compiled(evaluable(surrogate))


def test_other_objects_are_evaluated_by_their_methods():
    surrogate = Cauchy()
    parameters = evaluable(surrogate)
    assert not is_compiled(parameters)
    x, out, space = np.array([0.5, -2.0]), np.empty(2), workspace(parameters)
    assert log_density_in(parameters, x, space) == log_density_at(parameters, x)
    assert log_density_at(parameters, x) == pytest.approx(-np.log1p(x**2).sum())
    gradient_in(parameters, x, out, space)
    np.testing.assert_allclose(out, -2.0 * x / (1.0 + x**2))
    gradient_at(parameters, x + 1.0, out)
    np.testing.assert_allclose(out, -2.0 * (x + 1.0) / (1.0 + (x + 1.0) ** 2))
    x[:] = 7.0  # as a trajectory does
    assert not any((seen == 7.0).any() for seen in surrogate.seen)


def test_foreign_parameters_are_no_obstacle():
    """Scikit-learn's habits may give anybody's class an attribute of that name."""
    surrogate = Cauchy()
    surrogate.parameters_ = {"scale": 1.0}
    assert not is_compiled(evaluable(surrogate))


def test_what_belongs_to_no_surrogate_is_an_error():
    with pytest.raises(TypeError, match="of type tuple belong to no registered surrogate"):
        log_density_at((1.0, 2.0), np.zeros(2))


def test_sums_in_any_order_are_inlined_where_they_are_called():
    """Else the process that compiles and those that load from disk round them differently.

    Outermost functions that nothing compiled calls have one copy. The Ops of emulators call two.
    """
    modules = [
        import_module(found.name)
        for found in walk_packages(pymc_kmc.__path__, "pymc_kmc.")
        if not found.name.endswith("__main__")
    ]
    compiled = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, CPUDispatcher) and value.py_func.__module__ == module.__name__
    ]
    called = {id(emulated_density.outputs_at), id(emulated_density.pulled_at)}
    for function in compiled:
        python = function.py_func
        called |= {id(python.__globals__.get(name)) for name in python.__code__.co_names}
    copied = [
        function.__name__
        for function in compiled
        if id(function) in called
        and "reassoc" in (function.targetoptions.get("fastmath") or ())
        and not function.targetoptions.get("forceinline")
    ]
    assert len(compiled) > 30 and not copied
