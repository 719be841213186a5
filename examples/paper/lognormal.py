"""The bias of a Gaussian synthetic likelihood on a log-normal toy (KMC, Figure 6).

The problem is that of `examples/lognormal_abc.py`: the paper's text and programs lack its
constants. Means and standard deviations by quadrature, and of chains of `KMC`.
"""

from types import SimpleNamespace

import numpy as np

from examples import lognormal_abc as problem
from examples.paper.frame import Experiment, averages

BINS = np.linspace(-1.5, 2.0, 71)
KINDS = ("ABC", "synthetic")


def settings(quick, seeds):
    kinds, draws = (KINDS[:1], 100) if quick else (KINDS, 5000)
    return [{"kind": kind, "draws": draws, "seed": seed} for seed in range(seeds) for kind in kinds]


def run(kind, draws, seed):
    """Mean and sd, and the density in bins."""
    theta = problem.sample(kind, SimpleNamespace(tune=min(draws, 1000), draws=draws, seed=seed))
    density, _ = np.histogram(theta, BINS, density=True)
    moments = {"mean": theta.mean(), "sd": theta.std()}
    return [
        moments | {"x": x, "density": value}
        for x, value in zip(0.5 * (BINS[1:] + BINS[:-1]), density, strict=True)
    ]


def table(results):
    """Found by chains, beside the exact values and those given the summary itself."""
    found = averages(results[results.x == results.x.min()], ["kind"], {"mean": ".3f", "sd": ".3f"})
    exact = {name: problem.moments(density) for name, density in problem.exact_posteriors().items()}
    for i, name in enumerate(("mean", "sd")):
        found[f"{name}, exact"] = [f"{exact[kind][i]:.3f}" for kind in found.kind]
        found[f"{name}, given the average"] = f"{exact['average'][i]:.3f}"
    return found


def draw(results, figure):
    axes = figure.subplots()
    for name, density in problem.exact_posteriors().items():
        axes.plot(problem.GRID, density, label=f"{name}, exact")
    for kind, group in results.groupby("kind", sort=False):
        mean = group.groupby("x").density.mean()
        axes.plot(mean.index, mean, ".", label=f"{kind}, KMC")
    axes.set(xlim=(BINS[0], BINS[-1]), xlabel=r"$\theta$", ylabel="density")
    axes.legend(frameon=False, fontsize="small")


EXPERIMENTS = (
    Experiment(
        "kmc-figure-6",
        "log-normal toy: the true, the ABC and the synthetic-likelihood posterior",
        settings,
        run,
        table,
        draw,
        seeds=1,
        size=(6.5, 4.0),
    ),
)
