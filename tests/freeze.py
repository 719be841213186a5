"""Draws and evaluations, kept to be compared bit by bit after a change that must not change them.

    python -m tests.freeze write before.json
    python -m tests.freeze check before.json    # names what differs; exit status 1 if anything does

Bits depend on the computer and on the versions of NumPy, Numba and PyMC: both runs are made in one
environment. Every step samples the models that it can; `learn` learns the last four.
"""

import argparse
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from tests.chains import ONE_CHAIN  # noqa: E402
from tests.models import constrained, noisy_gaussian  # noqa: E402
from tests.steps import GRADIENT_STEPS, STEPS  # noqa: E402

TUNE, DRAWS = 300, 150
TIMES = np.linspace(0.0, 4.0, 12)
COUNTS = np.random.default_rng(0).poisson(6.0 * np.exp(-0.7 * TIMES) + 0.4)


def correlated():
    """Five dimensions, with a gradient."""
    covariance = 0.8 ** np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(5), covariance)
    return model


def decay(rate, size, floor):
    return size * np.exp(-rate * TIMES) + floor


def outputs():
    """Counts around a curve of three parameters."""
    with pm.Model() as model:
        rate, size = pm.HalfNormal("rate", 1.0), pm.LogNormal("size", 1.0, 1.0)
        floor = pm.Exponential("floor", 1.0)
        options = {"shape": len(TIMES), "on_error": "reject"}  # KMCFinite proposes far places
        curve = kmc.BlackBox("curve", decay, rate, size, floor, **options)
        pm.Poisson("counts", curve, observed=COUNTS)
    return model


def number():
    """The same as a log likelihood."""

    def log_likelihood(rate, size, floor):
        curve = decay(rate, size, floor)
        return np.sum(COUNTS * np.log(curve) - curve)

    with pm.Model() as model:
        rate, size = pm.HalfNormal("rate", 1.0), pm.LogNormal("size", 1.0, 1.0)
        floor = pm.Exponential("floor", 1.0)
        fit = kmc.BlackBox("fit", log_likelihood, rate, size, floor, on_error="reject")
        pm.Potential("fit", fit)
    return model


def groups():
    """Two boxes under a hierarchy, and a discrete variable beside them."""
    with pm.Model() as model:
        mean, log_sd = pm.Normal("mean"), pm.Normal("log_sd", -1.0, 0.5)
        rates = pm.Normal("rates", mean, pm.math.exp(log_sd), shape=2)
        for j, observed in enumerate((0.3, -0.2)):
            level = kmc.BlackBox(f"level {j}", np.tanh, rates[j])
            pm.Normal(f"y {j}", level, 0.3, observed=observed)
    return model


def simulate(x, rng):
    return x + rng.standard_normal(4)


def abc():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 2.0)
        kmc.ABCPotential("abc", simulate, x, observed=np.full(4, 0.5), epsilon=1.0)
    return model


MODELS = {
    "correlated": correlated,
    "constrained": constrained,
    "abc": abc,
    "noisy": lambda: noisy_gaussian(0.5, companion=True),
    "outputs": outputs,
    "number": number,
    "groups": groups,
}
WITH_GRADIENT = ("correlated", "constrained")
LEARNED = ("noisy", "outputs", "number", "groups")


def digest(*arrays):
    """Return a hash of the bits of arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def sampled(model, step):
    """Return a hash of a chain's draws, tuning included."""
    idata = pm.sample(
        step=step,
        model=model,
        tune=TUNE,
        draws=DRAWS,
        random_seed=1,
        discard_tuned_samples=False,
        **ONE_CHAIN,
    )
    groups = idata.warmup_posterior, idata.posterior
    return digest(
        *[np.asarray(group[name]) for group in groups for name in sorted(group.data_vars)]
    )


def found():
    """Yield names and hashes."""
    for step, make in STEPS.items():
        for name, build in MODELS.items():
            if step in GRADIENT_STEPS and name not in WITH_GRADIENT:
                continue
            with build() as model:
                options = {"learn": False} if step == "KMC" else {}
                yield f"{step} {name}", sampled(model, make(**options))
    for name in LEARNED:
        learned = kmc.learn(MODELS[name](), random_seed=1, progressbar=False)
        known = learned.evaluations
        yield f"learn {name}", digest(known.X, known.log_densities, learned.positions)
        with MODELS[name]() as model:
            yield f"KMC(learned) {name}", sampled(model, kmc.KMC(learned))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    before = {} if arguments.what == "write" else json.loads(arguments.file.read_text())
    now = {}
    for name, value in found():
        now[name] = value
        same = "" if not before else ("same" if before.get(name) == value else "DIFFERS")
        print(name, value[:12], same, flush=True)
    if not before:
        arguments.file.write_text(json.dumps(now, indent=1))
    elif before != now:
        sys.exit(f"{sum(before.get(name) != value for name, value in now.items())} differ")


if __name__ == "__main__":
    main()
