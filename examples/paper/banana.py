"""Kernel HMC on the 8-d banana B(.03, 100) from exact draws (KMC, Figure 3).

Every chain starts at an exact draw. "KMC lite" and "KMC finite" follow surrogates of n exact draws,
as in the paper; "KAMH" and "KMC" (this package's default) know nothing but what n iterations of
tuning taught them. HMC and kernel HMC have one policy, that of `examples.benchmarks.oracle`.

The paper's runs are of 100 iterations. Here are longer ones, per 100 iterations: "norm of mean" is
the mean over blocks of 100 iterations, and ESS, the smallest over coordinates, is scaled to 100.
"""

import numpy as np

import pymc_kmc as kmc
from examples.benchmarks import oracle
from examples.benchmarks.targets import banana
from examples.paper.frame import Experiment, averages, lines, with_published

SAMPLERS = ("HMC", "random walk", "KAMH", "KMC lite", "KMC finite", "KMC")
KERNEL_HMC = {"KMC lite": ("lite", kmc.KMCLite), "KMC finite": ("finite", kmc.KMCFinite)}
FIGURES = {"acceptance": ".2f", "norm_of_mean": ".2f", "ess_of_x": ".1f", "ess": ".1f"}
#: Acceptance and smallest ESS per 100 iterations with n exact draws, of the authors' programs.
PUBLISHED = {
    ("KMC finite", 500): ".57; 20.8",
    ("KMC finite", 1000): ".64; 22.6",
    ("KMC finite", 2000): ".71; 28.2",
    ("KMC lite", 500): "ESS 22",
    ("KMC lite", 1000): "ESS 25",
    ("KMC lite", 2000): "ESS 26",
    ("HMC", 2000): ".77; 25.6",
    ("KAMH", 2000): "ESS 2.9 - 3.9",
    ("random walk", 2000): "ESS 2.8",
}


def settings(quick, seeds):
    sizes, iterations = ((100,), 100) if quick else ((500, 1000, 2000), 2000)
    return [
        {"sampler": sampler, "n": n, "iterations": iterations, "seed": seed}
        for seed in range(seeds)
        for n in sizes
        for sampler in SAMPLERS
    ]


def run(sampler, n, iterations, seed):
    """Acceptance, norm of the mean and effective sample sizes of a chain."""
    target, rng = banana(), np.random.default_rng([1, seed, n])
    start = target.sample(1, rng)[0]
    if sampler == "HMC":
        policy = (oracle.STEP_SIZE, oracle.N_LEAPFROG)
        draws, acceptance = oracle.hmc(target, start, iterations, *policy, rng)
    elif sampler == "random walk":
        draws, acceptance = oracle.random_walk(target, start, iterations, rng)
    else:
        tune = 0 if sampler in KERNEL_HMC else n
        step = make_step(sampler, target, n, seed, rng)
        draws, acceptance, _ = oracle.chain(step, target.model(), start, iterations, seed, tune)
    blocks = draws.reshape(-1, 100, target.dimension)
    result = oracle.result_of(draws, acceptance)
    norm = np.linalg.norm(blocks.mean(axis=1), axis=1).mean()
    return [{name: (result | {"norm_of_mean": norm})[name] for name in FIGURES}]


def make_step(sampler, target, n, seed, rng):
    """A function that makes the sampler's step."""
    if sampler not in KERNEL_HMC:
        return {"KAMH": kmc.KAMH, "KMC": lambda: kmc.KMC(learn=False)}[sampler]
    kind, step_class = KERNEL_HMC[sampler]
    surrogate = oracle.surrogate_for(kind, None, n, target.sample(n, rng), seed)
    return lambda: step_class(
        surrogate=surrogate,
        step_size=oracle.STEP_SIZE,
        n_leapfrog=oracle.N_LEAPFROG,
        random_walk_probability=0.0,
        tune=False,
    )


def table(results):
    found = averages(results, ["sampler", "n"], FIGURES)
    return with_published(found, ["sampler", "n"], PUBLISHED)


def draw(results, figure):
    panels = figure.subplots(1, 3)
    for axes, name in zip(panels, ("acceptance", "norm_of_mean", "ess"), strict=True):
        lines(axes, results, "n", name, "sampler")
        axes.set_ylim(bottom=0)
    panels[1].set_ylabel("norm of the mean of 100 draws")
    panels[2].set_ylabel("ESS per 100 iterations, of x and (x - mean)$^2$")
    panels[0].legend(frameon=False, fontsize="small")


EXPERIMENTS = (
    Experiment(
        "kmc-figure-3",
        "8-d banana with exact draws: acceptance, mean, ESS beside HMC, KAMH, random walk",
        settings,
        run,
        table,
        draw,
        seeds=3,
        size=(11.0, 3.8),
    ),
)
