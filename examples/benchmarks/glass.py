"""Glass: what an estimate costs, and how well each sampler covers the posterior.

    python -m examples.benchmarks.glass
    python -m examples.benchmarks.glass --steps KMC,AdaptiveMetropolis,DEMetropolisZ --draws 4000

Steps are looked up in `pymc_kmc`, then in `pymc`. Two Markdown tables are printed. Read the second
from the left: a chain that is confined to a part of the posterior has a *high* effective sample
size, so spread and MMD come first.

sd / truth   of the pooled draws, a column for each coordinate; 1 is right
MMD^2        squared maximum mean discrepancy from the reference draws (`kmc.mmd`), for the kernel
             (1 + x'y)^3; unbiased: about 0 for independent draws
min ESS      smallest bulk effective sample size over the coordinates and their squared deviations

The reference, `data/glass_posterior.npz`, was made from 4 chains of 60,000 iterations with the same
likelihood estimate (R-hat at most 1.002, bulk ESS 2200-3500): moments up to the third, quantiles,
Monte Carlo errors and 200 thinned draws.
"""

import argparse
import time
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from threadpoolctl import threadpool_limits

import pymc_kmc as kmc
from examples.glass_gp_classification import build_model, glass_classifier

REFERENCE = Path(__file__).parent / "data" / "glass_posterior.npz"


def load_reference():
    """Moments, quantiles and a few draws of the posterior, by name."""
    with np.load(REFERENCE) as arrays:
        return dict(arrays)


def squared_mmd(draws, reference):
    """Squared MMD of draws (n, d) from the reference's moments up to the third."""
    return kmc.mmd(draws, [reference[f"moment_{order}"] for order in (1, 2, 3)]).estimate


def estimate_cost(n_samples, reference, n_repeats=10):
    """Median and smallest mean time (ms) at points of the posterior; variance of the estimate."""
    estimate = glass_classifier(n_samples).log_likelihood_estimate
    rng = np.random.default_rng(0)
    points = reference["draws"].astype(float)
    times, values = [], []
    for _ in range(n_repeats):
        start = time.perf_counter()
        values.append([estimate(theta, rng) for theta in points])
        times.append(1e3 * (time.perf_counter() - start) / len(points))
    return np.median(times), min(times), np.mean(np.var(values, axis=0, ddof=1))


def run(step_name, options, reference):
    """One row of the table of samplers."""
    step_class = getattr(kmc, step_name, None) or getattr(pm, step_name)
    starts = np.random.default_rng(options.seed).standard_normal((options.chains, 9))
    with build_model(options.samples):
        start = time.perf_counter()
        idata = pm.sample(
            step=step_class(),
            tune=options.tune,
            draws=options.draws,
            chains=options.chains,
            cores=options.cores,
            initvals=[{"theta": start} for start in starts],
            random_seed=options.seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
        elapsed = time.perf_counter() - start
    theta = idata.posterior["theta"]
    draws = theta.values.reshape(-1, theta.shape[-1])
    squares = (theta - theta.mean(("chain", "draw"))) ** 2
    summaries = [_summary(values) for values in (theta, squares)]
    statistics = idata.sample_stats
    name = next(n for n in ("acceptance_rate", "accept", "accepted") if n in statistics)
    acceptance = float(np.minimum(statistics[name], 1).mean())
    return [
        step_name,
        *(f"{ratio:.2f}" for ratio in draws.std(axis=0, ddof=1) / reference["sd"]),
        f"{np.max(np.abs(draws.mean(axis=0) - reference['mean']) / reference['sd']):.2f}",
        f"{squared_mmd(draws, reference):.0f}",
        f"{summaries[0]['r_hat'].astype(float).max():.3f}",
        f"{min(summary['ess_bulk'].astype(float).min() for summary in summaries):.0f}",
        f"{acceptance:.2f}",
        f"{elapsed:.0f}",
    ]


def _summary(values):
    return az.summary(xr.Dataset({"x": values}), kind="diagnostics", round_to="none")


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Cost of a likelihood estimate and coverage of the Glass posterior.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", default="KMC,AdaptiveMetropolis", help="comma-separated classes")
    parser.add_argument("--tune", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--samples", type=int, default=100, help="importance samples an estimate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    reference = load_reference()

    with threadpool_limits(1):
        rows = [
            [str(n), *(f"{value:.3g}" for value in estimate_cost(n, reference))]
            for n in (1, 10, 100, 200)
        ]
        header = ["samples", "ms an estimate (median)", "ms (best)", "variance of its log"]
        print(markdown(header, rows), flush=True)

        rows = [run(name, options, reference) for name in options.steps.split(",") if name]
    if rows:
        features = kmc.datasets.load_glass().feature_names
        header = ["step", *(f"sd / truth: {name}" for name in features), "mean error / sd"]
        header += ["MMD^2", "max R-hat", "min ESS", "acceptance", "seconds"]
        print(f"\n{options.chains} chains, tune {options.tune}, draws {options.draws}\n")
        print(markdown(header, rows))


if __name__ == "__main__":
    main()
