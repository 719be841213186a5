"""Partial posteriors: are standard errors honest, and how does the cost grow with the data?

    python -m examples.benchmarks.partial_posteriors
    python -m examples.benchmarks.partial_posteriors --parts coverage --runs 200
    python -m examples.benchmarks.partial_posteriors --quick

coverage: the log-normal model of examples/partial_posteriors.py, 2^26 data. Independent runs of
`kmc.partial_posteriors` on one data set; how often their 90 % intervals have the posterior mean of
sigma given all data, how far off they are and what they cost.

This likelihood has sufficient statistics: a run reads every datum of its subset once, for the mean
and the variance of the logarithms, and its chains evaluate the likelihood from these two. Costs are
therefore one likelihood term a datum, beside N terms for the same on all data. A likelihood without
sufficient statistics costs both as many times more as there are iterations, and the shares stay.

cost: mean likelihood terms of one iteration of a replication for several N and alpha, from a
million truncation levels (a replication's cost is a function of its level) and exactly, and the
exponent of N, beside 1 - alpha.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
import xarray as xr  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402
from pymc_kmc.partial.schedule import Schedule  # noqa: E402

TRUE_SIGMA = np.sqrt(2.0)
CHAINS, TUNE, DRAWS = 2, 500, 1000
#: Truncation levels drawn for a mean cost.
N_LEVELS = 1_000_000


class LogNormalModel:
    """The log-normal model by its sufficient statistics; compiled once, for all subsets."""

    def __init__(self):
        with pm.Model() as self.model:
            n, mean, variance = (pm.Data(name, 1.0) for name in ("n", "mean", "variance"))
            mu, sigma = pm.Flat("mu"), pm.HalfFlat("sigma")
            square = (variance + (mean - mu) ** 2) / sigma**2
            pm.Potential("likelihood", -n * (pt.log(sigma) + 0.5 * square))
            self.step = kmc.AdaptiveMetropolis()

    def build(self, subset):
        """Return the model with a subset's statistics; `subset` are logarithms of the data."""
        pm.set_data(
            {"n": float(len(subset)), "mean": subset.mean(), "variance": subset.var()},
            model=self.model,
        )
        return self.model

    def sample(self, model, random_seed):
        """Return draws of two chains, without `pm.sample`, which would compile anew."""
        draws = np.empty((2, CHAINS, DRAWS))
        for chain in range(CHAINS):
            self.step.set_rng(np.random.default_rng([random_seed, chain]))
            point = model.initial_point()
            for _ in range(TUNE):
                point, _ = self.step.step(point)
            self.step.stop_tuning()
            for i in range(DRAWS):
                point, _ = self.step.step(point)
                draws[:, chain, i] = point["mu"], np.exp(point["sigma_log__"])
        variables = {
            name: (("chain", "draw"), values)
            for name, values in zip(("mu", "sigma"), draws, strict=True)
        }
        # Each datum is read once.
        return SimpleNamespace(posterior=xr.Dataset(variables, attrs={"n_evaluations": 1}))


def mean_sigma(result):
    return result.posterior["sigma"].values.mean()


def coverage(options):
    data = np.random.default_rng(options.seed).normal(0.0, TRUE_SIGMA, 2**options.log2_data)
    # The posterior mean given all data, to a part in N.
    truth = data.std()
    model = LogNormalModel()
    found = []
    for run in range(options.runs):
        result = kmc.partial_posteriors(
            model.build,
            data,
            mean_sigma,
            first_size=options.first_size,
            alpha=options.alpha,
            n_replications=options.replications,
            sample=model.sample,
            random_seed=[options.seed, run],
            progressbar=False,
        )
        low, high = result.interval(0.9)
        found.append(
            {
                "covered": low <= truth <= high,
                "error": result.estimate / truth - 1.0,
                "standard error": result.standard_error / truth,
                "cost": result.cost / len(data),
                "suspect": result.runs["suspect"].mean(),
            }
        )
        print(run, *(f"{name} {value:.3g}" for name, value in found[-1].items()), flush=True)
    columns = {name: np.array([one[name] for one in found]) for name in found[0]}
    errors, costs = np.abs(columns["error"]), columns["cost"]
    rows = [
        ["coverage of 90 % intervals", f"{columns['covered'].mean():.2f}", "0.82 - 0.97"],
        ["abs relative error, median (95 %)", pair(errors), "0.01"],
        ["runs within 1 %", f"{np.mean(errors < 0.01):.2f}", ""],
        ["relative standard error, median (95 %)", pair(columns["standard error"]), ""],
        ["likelihood terms / N, mean", f"{costs.mean():.3f}", "0.05"],
        ["likelihood terms / N, median (95 %)", pair(costs), ""],
        [
            "runs within 1 % at less than 5 %",
            f"{np.mean((errors < 0.01) & (costs < 0.05)):.2f}",
            "",
        ],
        ["suspect chains, share", f"{columns['suspect'].mean():.3f}", ""],
    ]
    settings = (
        f"{options.runs} runs, {options.replications} replications, first_size = "
        f"{options.first_size}, alpha = {options.alpha:g}, N = 2^{options.log2_data}"
    )
    print(f"\n{settings}\n\n{markdown(['', 'found', 'to reach'], rows)}\n", flush=True)
    return columns


def pair(values):
    return f"{np.median(values):.4f} ({np.quantile(values, 0.95):.4f})"


def mean_cost(schedule, rng, n):
    """Return the mean cost of `n` truncation levels and its standard error."""
    # T is the number of levels t > 0 with P(T >= t) above a uniform number, as in Schedule.draw.
    levels = np.searchsorted(-schedule.reach[1:], -rng.random(n))
    costs = np.cumsum(schedule.sizes)[levels]
    return costs.mean(), costs.std() / np.sqrt(n)


def cost(options):
    rng = np.random.default_rng(options.seed)
    log_sizes, rows, exponents = (14, 18, 22), [], {}
    for alpha in (0.3, 0.5, 0.7, 0.9):
        schedules = [Schedule(2**k, 16, alpha) for k in log_sizes]
        found = [mean_cost(schedule, rng, options.levels) for schedule in schedules]
        fits = [
            np.polyfit(log_sizes, np.log2(costs), 1)[0]
            for costs in ([mean for mean, _ in found], [one.mean_terms for one in schedules])
        ]
        exponents[alpha] = fits
        cells = [f"{mean:,.0f} ({error:,.0f})" for mean, error in found]
        rows.append([f"{alpha:g}", *cells, *(f"{fit:.3f}" for fit in fits), f"{1 - alpha:.1f}"])
    header = ["alpha", *(f"N = 2^{k}" for k in log_sizes), "exponent", "exact", "1 - alpha"]
    print(markdown(header, rows), flush=True)
    return exponents


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Partial posteriors: coverage of intervals, and cost against the data.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--parts", default="coverage,cost", help="comma-separated")
    parser.add_argument("--runs", type=int, default=50, help="of coverage")
    parser.add_argument("--replications", type=int, default=28, help="of a run")
    parser.add_argument("--first-size", type=int, default=4096)
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--log2-data", type=int, default=26)
    parser.add_argument("--levels", type=int, default=N_LEVELS, help="of cost")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="2 runs on 2^16 data, 1e4 levels")
    options = parser.parse_args(arguments)
    if options.quick:
        options.runs, options.replications, options.log2_data, options.levels = 2, 3, 16, 10_000
    return [
        {"coverage": coverage, "cost": cost}[part](options) for part in options.parts.split(",")
    ]


if __name__ == "__main__":
    main()
