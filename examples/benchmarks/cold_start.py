"""From a cold start: nothing is known but a starting point far out, drawn from N(0, 9 I).

    python -m examples.benchmarks.cold_start
    python -m examples.benchmarks.cold_start --targets banana --seeds 3 --steps KMC,DEMetropolisZ
    python -m examples.benchmarks.cold_start --targets banana --seeds 10 --steps KAMH,Metropolis
    python -m examples.benchmarks.cold_start --quick

Steps are looked up in `pymc_kmc`, then in `pymc`, and run with their defaults through
`pymc.sample`, one chain a seed, side by side on the same starting points. Read the table from the
left: a chain that is confined to a part of the posterior has a *high* effective sample size, so the
spread comes first.

sd of x_1 within 20 %    seeds whose draws have 0.8 to 1.2 times the true sd
abs log(sd / true)       the largest over coordinates; median and worst seed
ESS                      smallest bulk effective sample size over coordinates, of x and of
                         (x - mean)^2, per 1000 evaluations of the density while sampling; median
                         and worst seed
ESS of x                 the same without the squares
ratio                    median ESS, in units of DEMetropolisZ's

PyMC's samplers are counted one evaluation an iteration (they make two); `pymc.Metropolis`, which
moves one coordinate after another, one a coordinate.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.targets import TARGETS, markdown  # noqa: E402

#: The yardstick of the last column but one.
REFERENCE = "DEMetropolisZ"
#: Starting points are this far out, in every coordinate.
START_SD = 3.0
#: Figures to reach.
WITHIN, SEEDS_WITHIN, RATIO = 0.2, 0.9, 4.0


def effective_sizes(draws):
    """Smallest bulk ESS over the columns of draws (n, d): of x; of x and (x - mean)^2."""
    squares = (draws - draws.mean(axis=0)) ** 2
    smallest = [
        min(float(az.ess(column[None, :], method="bulk")) for column in values.T)
        for values in (draws, squares)
    ]
    return smallest[0], min(smallest)


def run(step_name, target, model, seed, tune, draws):
    """One chain's line of figures: spread, the two ESS per 1000 evaluations, seconds."""
    step_class = getattr(kmc, step_name, None) or getattr(pm, step_name)
    start = START_SD * np.random.default_rng(seed).standard_normal(target.dimension)
    with model:
        step = step_class()
        begin = time.perf_counter()
        idata = pm.sample(
            step=step,
            tune=tune,
            draws=draws,
            chains=1,
            cores=1,
            initvals={"x": start},
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
        seconds = time.perf_counter() - begin
    x = np.asarray(idata.posterior["x"])[0]
    n_evaluations = draws * (target.dimension if getattr(step, "elemwise_update", False) else 1)
    if "kmc_n_evaluations" in idata.sample_stats:
        n_evaluations = int(idata.sample_stats["kmc_n_evaluations"].sum())
    with np.errstate(divide="ignore"):
        spread = np.abs(np.log(x.std(axis=0, ddof=1) / target.sd))
    of_x, of_both = (1000.0 * size / n_evaluations for size in effective_sizes(x))
    ratio = x[:, 0].std(ddof=1) / target.sd[0]
    return {
        "within": abs(ratio - 1.0) <= WITHIN,
        "spread": spread.max(),
        "ess": of_both,
        "ess_of_x": of_x,
        "seconds": seconds,
    }


def row(step_name, results, reference):
    """A line of the table."""

    def column(key):
        return np.array([result[key] for result in results])

    spread, ess, of_x = column("spread"), column("ess"), column("ess_of_x")
    ratio = f"{np.median(ess) / reference:.1f}" if reference else ""
    return [
        step_name,
        f"{column('within').sum()} of {len(results)}",
        f"{np.median(spread):.2f} / {spread.max():.2f}",
        f"{np.median(ess):.1f} / {ess.min():.1f}",
        f"{np.median(of_x):.1f} / {of_x.min():.1f}",
        ratio,
        f"{np.median(column('seconds')):.1f}",
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Spread and effective sample size of each step from a cold start.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--targets", default="banana,gaussian", help="comma-separated, of " + ", ".join(TARGETS)
    )
    parser.add_argument(
        "--steps",
        default="KMCLite,KMCFinite,AdaptiveMetropolis,DEMetropolisZ",
        help="comma-separated classes",
    )
    parser.add_argument("--seeds", type=int, default=20, help="chains of each step")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--tune", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--each", action="store_true", help="print a line for every chain too")
    parser.add_argument("--quick", action="store_true", help="2 seeds, tune 500, draws 1000")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.tune, options.draws = 2, 500, 1000
    logging.getLogger("pymc").setLevel(logging.ERROR)
    # A chain that is stuck, or whose bandwidth is at an edge, is in the table.
    warnings.simplefilter("ignore")

    header = ["step", "sd of x_1 within 20 %", "abs log(sd / true)", "ESS", "ESS of x", "ratio"]
    header.append("seconds a chain")
    wanted = f">= {SEEDS_WITHIN:.0%} of seeds"
    to_reach = ["*to reach, KMC*", wanted, "", "", "", f">= {RATIO:g}", ""]
    print(f"Tune {options.tune}, draws {options.draws}; median / worst of {options.seeds} seeds.")
    steps = [name for name in options.steps.split(",") if name]
    for target_name in options.targets.split(","):
        target = TARGETS[target_name]()
        model = target.model()
        results = {name: [] for name in steps}
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for name in steps:
                result = run(name, target, model, seed, options.tune, options.draws)
                results[name].append(result)
                if options.each:
                    shown = ", ".join(f"{key} {float(value):.3g}" for key, value in result.items())
                    print(f"{target_name}, seed {seed}, {name}: {shown}", flush=True)
        reference = None
        if REFERENCE in results:
            reference = np.median([result["ess"] for result in results[REFERENCE]])
        rows = [row(name, results[name], reference) for name in steps]
        print(f"\n### {target.name}\n")
        print(markdown(header, [to_reach, *rows]), flush=True)


if __name__ == "__main__":
    main()
