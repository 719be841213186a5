"""Imports an installed package and samples with it; `make smoke` runs it without a source tree."""

from importlib import metadata
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_kmc as kmc
from pymc_kmc.datasets import load_glass

HERE = Path(__file__).resolve().parents[1]


def log_likelihood(x, rng):
    """Log of an unbiased estimate of exp(-2 (1 - x)^2)."""
    return -2.0 * (1.0 - x) ** 2 + 0.5 * rng.standard_normal() - 0.125


def main():
    package = Path(kmc.__file__).resolve().parent
    assert package.parent.name == "site-packages", f"{package} is not an installed package"
    assert not (HERE / "pymc_kmc").exists(), f"{HERE} has the source tree"
    assert metadata.version("pymc-kmc") == kmc.__version__
    assert load_glass().data.shape == (214, 9)

    with pm.Model():
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("likelihood", log_likelihood, x)
        idata = pm.sample(
            300, tune=300, chains=2, cores=1, step=kmc.KMC(), random_seed=1, progressbar=False
        )
    draws = np.asarray(idata.posterior["x"])
    print(kmc.diagnose(idata))
    # The posterior is N(.8, .2): the error is far above that of 30 independent draws.
    assert abs(draws.mean() - 0.8) < 0.3, draws.mean()
    print(
        f"pymc_kmc {kmc.__version__} with PyMC {pm.__version__}, installed in {package}: it samples"
    )


if __name__ == "__main__":
    main()
