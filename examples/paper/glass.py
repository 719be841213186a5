"""Glass: squared MMD from the posterior against iterations (KMC, Figure 4 left; KAMH's Glass).

All chains start at 0 and keep everything, tuning included, as in the papers; they adapt during the
first third. Every iteration is one evaluation, an estimate from 100 importance samples.

- "KMC lite, exact draws": on a surrogate of 200 draws of the posterior, which no user has; the
  published scripts fitted theirs so.
- "KMC lite, paper": kernels and penalty of the paper, no base density, states alone, learned from
  the chain's own history on its schedule.
- "KMC": this package's default step, learning in the chain alone.

The reference is that of `examples.benchmarks.glass`.
"""

import numpy as np

import pymc_kmc as kmc
from examples.benchmarks.glass import load_reference
from examples.benchmarks.oracle import chain, effective_sizes
from examples.glass_gp_classification import build_model
from examples.paper.frame import Experiment, averages, lines
from pymc_kmc.surrogates import KernelExpLite

CHECKPOINTS = (500, 1000, 2000, 3000, 4000, 5000, 6000)
#: Of the surrogate on exact draws, and the random walk's scale for an acceptance near .25.
SIGMA, REGULARISATION, STEP_SIZE, N_LEAPFROG, SCALE = 16.0, 1.0, (0.1, 0.4), (1, 20), 0.7


def exact_draws():
    surrogate = KernelExpLite(SIGMA, REGULARISATION, penalty="coefficients")
    return kmc.KMCLite(
        surrogate=surrogate.fit(load_reference()["draws"].astype(float)),
        step_size=STEP_SIZE,
        n_leapfrog=N_LEAPFROG,
        random_walk_probability=0.0,
    )


STEPS = {
    "random walk": lambda: kmc.AdaptiveMetropolis(covariance=np.eye(9), scale=SCALE, tune=False),
    "adaptive Metropolis": kmc.AdaptiveMetropolis,
    "KAMH": kmc.KAMH,
    "KMC lite, paper": lambda: kmc.KMCLite(
        base=None, penalty="coefficients", schedule="online", random_walk_probability=0.0
    ),
    "KMC lite, exact draws": exact_draws,
    "KMC lite": kmc.KMCLite,
    "KMC": lambda: kmc.KMC(learn=False),
}


def settings(quick, seeds):
    samplers, iterations = (("KAMH",), 150) if quick else (STEPS, 6000)
    return [
        {"sampler": sampler, "iterations": iterations, "seed": seed}
        for seed in range(seeds)
        for sampler in samplers
    ]


def run(sampler, iterations, seed):
    """MMD at the checkpoints, with acceptance, spread and smallest ESS of the whole chain."""
    reference, tune = load_reference(), iterations // 3
    draws, acceptance, _ = chain(
        STEPS[sampler], build_model(), np.zeros(9), iterations - tune, seed, tune, keep_tuning=True
    )
    at = [n for n in CHECKPOINTS if n < iterations] + [iterations]
    moments = [reference[f"moment_{order}"] for order in (1, 2, 3)]
    spread = float(np.mean(draws.std(axis=0) / reference["sd"]))
    whole = {"acceptance": acceptance, "sd": spread, "ess": effective_sizes(draws)[1]}
    estimates = kmc.mmd(draws, moments, at=at).estimate
    return [whole | {"n": n, "mmd": mmd} for n, mmd in zip(at, estimates, strict=True)]


def table(results):
    last = results[results.n == results.n.max()]
    formats = {"acceptance": ".2f", "sd": ".2f", "ess": ".0f", "mmd": ".0f"}
    return averages(last, ["sampler"], formats).rename(
        columns={"sd": "sd / truth", "mmd": f"MMD^2 after {results.n.max()}"}
    )


def draw(results, figure):
    axes = figure.subplots()
    lines(axes, results, "n", "mmd", "sampler")
    axes.set_yscale("symlog", linthresh=100)  # an unbiased estimate may be below zero
    axes.set(xlabel="iterations", ylabel="MMD$^2$", ylim=(0, None))
    axes.legend(frameon=False, fontsize="small")


EXPERIMENTS = (
    Experiment(
        "kmc-figure-4-left",
        "Glass: squared MMD against iterations, KMC beside KAMH and random walks",
        settings,
        run,
        table,
        draw,
        seeds=2,
        size=(6.5, 4.2),
    ),
)
