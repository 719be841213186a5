"""Code that users read, run in its quick form: few iterations, one core, no pictures."""

from contextlib import contextmanager

import matplotlib.pyplot as plt
import pymc as pm
import pytest

MOST_TUNING, MOST_DRAWS = 100, 40


@contextmanager
def quickly(tune=MOST_TUNING, draws=MOST_DRAWS):
    """Let `pm.sample` and `pm.sample_smc` do little, and `plt.show` close what it would show."""
    sample, sample_smc = pm.sample, pm.sample_smc

    def sample_little(*args, **kwargs):
        kwargs["tune"] = min(kwargs.get("tune", tune), tune)
        if args:
            args = (min(args[0], draws), *args[1:])
        else:
            kwargs["draws"] = min(kwargs.get("draws", draws), draws)
        return sample(*args, **kwargs | {"cores": 1, "progressbar": False})

    def sample_smc_little(draws=draws, **kwargs):
        return sample_smc(min(draws, MOST_DRAWS), **kwargs | {"cores": 1, "progressbar": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pm, "sample", sample_little)
        patch.setattr(pm, "sample_smc", sample_smc_little)
        patch.setattr(plt, "show", lambda: plt.close("all"))
        with plt.rc_context({"backend": "Agg"}):
            yield


def run(code, name, namespace):
    """Execute code in a namespace; `name` stands in its tracebacks."""
    exec(compile(code, name, "exec"), namespace)
