"""Partial posteriors of the log-normal model: paths and their debiased mean (Strathmann et al.).

The model, the setting and 2^26 data are the paper's; a subset's likelihood is that of its
sufficient statistics (`examples.benchmarks.partial_posteriors`).
"""

import numpy as np

import pymc_kmc as kmc
from examples.benchmarks.partial_posteriors import TRUE_SIGMA, LogNormalModel, mean_sigma
from examples.paper.frame import Experiment, averages
from examples.partial_posteriors import LOG2_DATA, LOGNORMAL

FIGURES = {"estimate": ".4f", "standard_error": ".4f", "all_data": ".4f", "terms": ".3f"}


def settings(quick, seeds):
    log2_data, n = (14, 2) if quick else (LOG2_DATA, LOGNORMAL.n_replications)
    return [{"log2_data": log2_data, "replications": n, "seed": seed} for seed in range(seeds)]


def run(log2_data, replications, seed):
    """The posterior mean at each level of each path, with the debiased estimate."""
    data = np.random.default_rng(seed).normal(0.0, TRUE_SIGMA, 2**log2_data)
    model = LogNormalModel()
    result = kmc.partial_posteriors(
        model.build,
        data,
        mean_sigma,
        **(LOGNORMAL._asdict() | {"n_replications": replications}),
        sample=model.sample,
        random_seed=seed,
        progressbar=False,
    )
    figures = (result.estimate, result.standard_error, data.std(), result.cost / len(data))
    return [
        dict(zip(FIGURES, map(float, figures), strict=True))
        | {"path": i, "size": int(result.schedule.sizes[level]), "mean": float(mean)}
        for i, path in enumerate(result.paths)
        for level, mean in enumerate(path)
    ]


def table(results):
    first = results[(results.path == 0) & (results["size"] == results["size"].min())]
    return averages(first, ["seed"], FIGURES).rename(columns={"terms": "likelihood terms / N"})


def draw(results, figure):
    axes = figure.subplots()
    results = results[results.seed == results.seed.min()]
    for _, path in results.groupby("path"):
        axes.plot(path["size"], path["mean"], ".-", color="C0", alpha=0.4)
    axes.axhline(results.all_data.iloc[0], color="k", linestyle=":", label="given all data")
    error = results.standard_error.iloc[0]
    axes.errorbar(
        2.0 ** results.log2_data.iloc[0],
        results.estimate.iloc[0],
        error,
        fmt="o",
        color="C1",
        label="debiased",
    )
    axes.set(xscale="log", xlabel="data", ylabel=r"posterior mean of $\sigma$")
    axes.legend(frameon=False)


EXPERIMENTS = (
    Experiment(
        "partial-figure",
        "partial posteriors of a log-normal scale, and the debiased estimate",
        settings,
        run,
        table,
        draw,
        seeds=1,
        size=(6.5, 4.0),
    ),
)
