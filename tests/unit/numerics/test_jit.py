"""Compilation: it is announced where it takes place, and works where nothing can be kept."""

import os
import subprocess
import sys
import textwrap

import pytest
from numba.core import caching

from pymc_kmc.numerics.jit import njit

# A read-only container, as numba sees it: there is no folder that it can write to.
NOWHERE = """
    import numba.core.caching as caching

    def refuse(self):
        raise OSError("read-only file system")

    for locator in caching.CacheImpl._locator_classes:
        locator.ensure_cache_path = refuse
"""


def run(code, before=NOWHERE, **environment):
    """Run code in a process; return what it printed, and its errors' stream."""
    source = textwrap.dedent(before) + textwrap.dedent(code)
    environment = os.environ | {"NUMBA_OPT": "0"} | environment  # compiles faster
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_package_samples_without_a_cache():
    output, errors = run("""
        import numpy as np
        import pymc as pm
        import pymc_kmc as kmc

        X = np.random.default_rng(0).normal(size=(60, 2))
        surrogate = kmc.surrogates.KernelExpLite(4.0, 0.01).fit(X)
        with pm.Model():
            pm.Normal("x", shape=2)
            step = kmc.KMCLite(surrogate=surrogate)
            draws = pm.sample(
                5, tune=5, step=step, chains=1, cores=1, random_seed=1, progressbar=False
            )
        print(draws.posterior["x"].shape)
    """)
    assert output.splitlines()[-1] == "(1, 5, 2)"
    assert errors.count("compiling (in every process") == 1


def test_compilation_is_announced_where_it_takes_place(tmp_path):
    """Once, by the first process, on PyMC's logger; a user's own functions aren't the package's."""
    code = """
        import numba
        import numpy as np
        import pymc
        from pymc_kmc.numerics.elementary import exp_in_place
        from pymc_kmc.surrogates.kernels import kernel_at

        numba.njit(lambda: 1)()
        exp_in_place(np.zeros(3), np.zeros(3), 3)
        kernel_at(0, 1.0)
    """
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)}
    errors = [run(code, "import logging", **folder)[1] for _ in range(2)]
    assert [text.count("compiling (once on this machine)") for text in errors] == [1, 0]


def test_other_errors_are_not_hidden(monkeypatch):
    def fail(self, *args):
        raise RuntimeError("something else")

    monkeypatch.setattr(caching.CacheImpl, "__init__", fail)
    with pytest.raises(RuntimeError, match="something else"):
        njit(lambda x: x)
