"""Code that users read, run in its quick form: few iterations, one core, no pictures."""

import re
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import pymc as pm
import pytest

ROOT = Path(__file__).parents[1]
# Noise is measured for the first time after a hundred iterations.
MOST_TUNING, MOST_DRAWS, MOST_CHAINS = 110, 30, 2


@contextmanager
def quickly():
    """Let `pm.sample` and `pm.sample_smc` do little, and `plt.show` close what it would show."""
    sample, sample_smc = pm.sample, pm.sample_smc
    quiet = {"cores": 1, "progressbar": False}

    def sample_little(draws=MOST_DRAWS, **options):
        options["tune"] = min(options.get("tune", MOST_TUNING), MOST_TUNING)
        options["chains"] = min(options.get("chains", MOST_CHAINS), MOST_CHAINS)
        return sample(draws=min(draws, MOST_DRAWS), **options | quiet)

    def sample_smc_little(draws=MOST_DRAWS, **options):
        return sample_smc(min(draws, MOST_DRAWS), **options | quiet)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pm, "sample", sample_little)
        patch.setattr(pm, "sample_smc", sample_smc_little)
        patch.setattr(plt, "show", lambda: plt.close("all"))
        with plt.rc_context({"backend": "Agg"}):
            yield


def python_blocks(path):
    """Return the Python code blocks of a Markdown page, in order."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), flags=re.DOTALL | re.M)


def run_quickly(blocks, name, quicker=(), **namespace):
    """Run blocks of code one after another in one namespace, in their quick form.

    Parameters
    ----------
    blocks : iterable of str
    name : str
        Name of the page or notebook, for tracebacks.
    quicker : iterable of (str, str)
        Code that takes long, and what runs in its place.
    **namespace
        What is defined before.

    Returns
    -------
    dict
        What is defined afterwards.
    """
    blocks = list(blocks)
    for long, short in quicker:
        assert any(long in block for block in blocks), f"{long} isn't in {name} any more"
        blocks = [block.replace(long, short) for block in blocks]
    namespace["__name__"] = "__main__"
    with quickly():
        for i, block in enumerate(blocks):
            exec(compile(block, f"{name}[{i}]", "exec"), namespace)
    return namespace
