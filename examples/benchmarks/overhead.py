"""What a step costs besides the likelihood, in microseconds an iteration, and what it keeps.

    python -m examples.benchmarks.overhead
    python -m examples.benchmarks.overhead --quick
    python -m examples.benchmarks.overhead --memory

`step.step` is called in a loop; the cost of the compiled log density, measured alone, is taken off.
KMCLite and KMCFinite run on an oracle surrogate of m points or features, with L leapfrog steps an
iteration; KAMH has a sub-sample of m exact draws; KMC has tuned, and makes as many moves on its
surrogate as it thinks right. KAMH's proposal is the compiled part alone, for 1000 points: two
covariances and the Hastings ratio. The last row is `pymc.sample`'s own loop around a step that does
nothing: what nobody can save.

`--memory` measures KMC's surrogate instead: what it keeps and what a fit takes at most, with as
many values as KMC's tuning makes by default on PyMC 6.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402
import time  # noqa: E402
import tracemalloc  # noqa: E402
import warnings  # noqa: E402

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from pymc.step_methods.compound import BlockedStep  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.targets import banana, markdown  # noqa: E402
from pymc_kmc.moves.local import LocalDistribution  # noqa: E402
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, LogDensityGP  # noqa: E402

#: Own costs to reach, for L = 10, m = 500, d = 8.
TO_REACH = {"KMC": 300, "KMCLite": 150, "KMCFinite": 150, "KAMH's proposal": 100}
STEP_SIZE = (0.2, 0.6)
#: Near what cross-validation chooses for the banana.
SIGMA, REGULARISATION = 1000.0, {"lite": 50.0, "finite": 1e-7}


class IdleStep(BlockedStep):
    """A step that does nothing."""

    name = "idle"
    default_blocked = True
    stats_dtypes_shapes = {"acceptance_rate": (np.float64, [])}  # noqa: RUF012

    def __init__(self, vars, model):
        self.vars = [model.rvs_to_values[variable] for variable in vars]

    def step(self, point):
        return point, [{"acceptance_rate": 1.0}]


def microseconds(function, calls, repeats):
    """Median and best, over repeats, of the mean time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append(1e6 * (time.perf_counter() - start) / calls)
    return np.median(times), min(times)


def loop(step, start):
    """A function without arguments that does one iteration."""
    state = {"point": {name: np.array(value) for name, value in start.items()}}

    def iterate():
        state["point"], _ = step.step(state["point"])

    return iterate


def make_steps(target, model, size, n_leapfrog, n_tune, rng):
    """(name, step, whether it is still tuning) for every row."""
    X = target.sample(size, rng)
    lite = KernelExpLite(SIGMA, REGULARISATION["lite"], penalty="rkhs").fit(X)
    finite = KernelExpFinite(size, SIGMA, REGULARISATION["finite"], rng=1).fit(X)
    fixed = {
        "step_size": STEP_SIZE,
        "n_leapfrog": (n_leapfrog, n_leapfrog),
        "random_walk_probability": 0.0,
        "tune": False,
    }
    with model:
        local = kmc.KAMH(rng=1)
        local.adapted.local.distribution = LocalDistribution(X, "gaussian", local.gamma, rng)
        default = kmc.KMC(rng=1)
        rows = [
            ("AdaptiveMetropolis, tuning", kmc.AdaptiveMetropolis(rng=1), True),
            ("AdaptiveMetropolis", kmc.AdaptiveMetropolis(rng=1), False),
            ("KAMH", local, False),
            ("KMC", default, False),
            ("KMCLite", kmc.KMCLite(surrogate=lite, rng=1, **fixed), False),
            ("KMCFinite", kmc.KMCFinite(surrogate=finite, rng=1, **fixed), False),
        ]
    iterate = loop(default, {"x": X[0]})
    for _ in range(n_tune):
        iterate()
    return rows


def kamh_proposal(target, size, calls, repeats, rng):
    """Median and best time of KAMH's compiled part."""
    X = target.sample(size, rng)
    proposal = LocalDistribution(X, "gaussian", 0.5, rng)
    return microseconds(lambda: proposal.propose(X[0], 1.0, rng), calls, repeats)


def sample_loop(model, draws, repeats):
    """Median and best time an iteration of pymc.sample with an idle step, set-up taken off."""

    def seconds(n):
        with model:
            step = IdleStep(model.free_RVs, model)
            start = time.perf_counter()
            pm.sample(
                step=step,
                tune=0,
                draws=n,
                chains=1,
                cores=1,
                random_seed=1,
                progressbar=False,
                compute_convergence_checks=False,
            )
            return time.perf_counter() - start

    seconds(10)
    differences = [seconds(draws) - seconds(draws // 10) for _ in range(repeats)]
    times = 1e6 * np.array(differences) / (draws - draws // 10)
    return np.median(times), min(times)


def fit_memory(dimension, n_values, rng):
    """Megabytes that a surrogate of KMC keeps, and the most while it is fitted."""
    target = banana(dimension=dimension)
    X = target.sample(n_values, rng)
    values = target.log_density(X)
    LogDensityGP(rng=1).fit(X[:100], values[:100])  # compiles
    tracemalloc.start()
    surrogate = LogDensityGP(rng=1).fit(X, values)
    kept, most = (size / 1e6 for size in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    del surrogate
    return kept, most


def wanted(name):
    return f"<= {TO_REACH[name]}" if name in TO_REACH else ""


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="A step's own cost an iteration.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--dimension", type=int, default=8)
    parser.add_argument("--size", type=int, default=500, help="points (lite), features (finite)")
    parser.add_argument("--leapfrog", type=int, default=10, help="leapfrog steps an iteration")
    parser.add_argument("--calls", type=int, default=1000, help="iterations in a repeat")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--tune", type=int, default=2500, help="KMC's iterations of tuning")
    parser.add_argument("--quick", action="store_true", help="200 calls, 3 repeats, tune 300")
    parser.add_argument(
        "--memory", action="store_true", help="the surrogate's memory in place of times"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.calls, options.repeats, options.tune = 200, 3, 300
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    rng = np.random.default_rng(0)
    if options.memory:
        rows = []
        for dimension in (5, 10) if options.quick else (5, 10, 20, 50):
            n_values = 2000 + 80 * dimension
            kept, most = fit_memory(dimension, n_values, rng)
            rows.append([str(dimension), str(n_values), f"{kept:.0f}", f"{most:.0f}"])
        print(markdown(["dimensions", "values", "kept, MB", "at most, MB"], rows))
        return

    target = banana(dimension=options.dimension)
    model = target.model()
    start = {"x": target.sample(1, rng)[0]}
    steps = make_steps(target, model, options.size, options.leapfrog, options.tune, rng)

    density = steps[0][1].target
    density_cost = microseconds(
        lambda: density.propose(start["x"], rng), options.calls, options.repeats
    )
    rows = []
    for name, step, tuning in steps:
        iterate = loop(step, start)
        iterate()  # checks the start, compiles
        if not tuning:
            step.stop_tuning()
        whole = microseconds(iterate, options.calls, options.repeats)
        own = [value - density_cost[1] for value in whole]
        rows.append([name, f"{own[0]:.0f}", f"{own[1]:.0f}", wanted(name)])
    alone = kamh_proposal(target, 1000, options.calls, options.repeats, rng)
    name = "KAMH's proposal"
    rows.append([f"{name}, 1000 points", *(f"{value:.0f}" for value in alone), wanted(name)])
    rows.append(["log density alone", *(f"{value:.1f}" for value in density_cost), ""])
    empty = sample_loop(model, 10 * options.calls, 3)
    rows.append(["pm.sample, idle step", *(f"{value:.1f}" for value in empty), ""])

    print(f"d = {options.dimension}, m = {options.size}, L = {options.leapfrog}, one thread\n")
    print(markdown(["", "median, us", "best, us", "to reach"], rows))


if __name__ == "__main__":
    main()
