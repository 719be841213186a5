"""Compilation where nothing can be kept on disk."""

import os
import subprocess
import sys
import textwrap

# A read-only container, as numba sees it: there is no folder that it can write to.
NOWHERE = """
    import numba.core.caching as caching

    def refuse(self):
        raise OSError("read-only file system")

    for locator in caching.CacheImpl._locator_classes:
        locator.ensure_cache_path = refuse
"""


def run(code):
    source = textwrap.dedent(NOWHERE) + textwrap.dedent(code)
    environment = os.environ | {"NUMBA_OPT": "0"}  # compiles faster
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_samples_without_a_cache():
    output = run("""
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


def test_other_errors_are_not_hidden():
    run("""
        import pytest
        from pymc_kmc.numerics.jit import njit

        def fail(self, *args):
            raise RuntimeError("something else")

        caching.CacheImpl.__init__ = fail
        with pytest.raises(RuntimeError, match="something else"):
            njit(lambda x: x)
    """)
