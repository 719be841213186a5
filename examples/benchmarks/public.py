"""Public problems of this field: `kmc.learn` and `KMC` beside the figures of papers.

    python -m examples.benchmarks.public                                  # some hours
    python -m examples.benchmarks.public --targets rosenbrock,lumpy --seeds 3
    python -m examples.benchmarks.public --targets timing --noise 1
    python -m examples.benchmarks.public --quick

Targets are in :mod:`examples.benchmarks.public_problems`, measures in
:mod:`examples.benchmarks.metrics`. "learn" are the draws of what was learned, "learn+KMC" those of
four chains from there, within the target's budget in all: a tenth of the paper's evaluations, or
more where it had few. What is evaluated counts its calls; with sbibm's tasks these are simulations.
Medians (worst) over seeds.

mmtv, gskl     distances of the draws from the posterior, 0 at best
c2st           accuracy of a classifier that tells them, .5 at best
theirs; floor  what the paper has; the same of as many independent draws of the posterior
log Z          error of the log evidence, in nats, where it is known

Every run is kept in a CSV and not made again. References without exact draws are those of a long
chain, made once and kept beside it. Models of posteriordb are in `posteriordb`.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import functools  # noqa: E402
import logging  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks import learning  # noqa: E402
from examples.benchmarks.metrics import c2st, gskl, mmtv  # noqa: E402
from examples.benchmarks.public_problems import PROBLEMS  # noqa: E402
from examples.paper.frame import Experiment, execute  # noqa: E402

RESULTS = Path(__file__).parent / "results"
#: Draws of the references, and of each of four chains where these are chains.
N_REFERENCE, N_CHAIN = 20_000, 2500
#: Distances of draws from those of a reference.
MEASURES = {
    "mmtv": lambda draws, true, rng: mmtv(draws, true),
    "gskl": lambda draws, true, rng: gskl(draws, true),
    "c2st": c2st,
}
#: Iterations of tuning: few, for they are in the budget, and what was learned needs none.
TUNE, QUICK_TUNE = 50, 10
#: Draws a chain below which chains aren't worth their tuning.
FEWEST_DRAWS = 50
#: Most evaluations of `learn` with `--quick`, and of all.
QUICK_MOST, QUICK_BUDGET = 60, 360


class Count:
    """Wraps functions, and counts their calls."""

    def __init__(self):
        self.n = 0

    def __call__(self, function):
        @functools.wraps(function)
        def counted(*values, **others):
            self.n += 1
            return function(*values, **others)

        return counted


def natural(draws):
    """Draws of a posterior as an array (n, d), variables in the model's order."""
    columns = [np.asarray(values) for values in draws.data_vars.values()]
    return np.concatenate([x.reshape(x.shape[0] * x.shape[1], -1) for x in columns], axis=1)


@functools.cache
def reference(name, folder):
    """Draws of the posterior, (n, d): exact, or of a chain, which is made once."""
    problem, path = PROBLEMS[name], folder / f"public-{name}.npz"
    if path.exists():
        with np.load(path) as kept:
            return kept["draws"]
    if problem.reference is not None:
        draws = problem.reference(N_REFERENCE, np.random.default_rng(1000))
    else:
        model = problem.build(Count(), 0)
        learned = kmc.learn(model, random_seed=1000, progressbar=False)
        with model:
            idata = learning.sample(kmc.KMC(learned), N_CHAIN, seed=1000)
        draws = natural(idata.posterior[[variable.name for variable in model.free_RVs]])
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, draws=draws.astype(np.float32))
    return draws


def row(method, evaluations, draws, true, rng, log_evidence_error=np.nan):
    """What draws are worth, and as many true ones beside the other true ones."""
    order = rng.permutation(len(true))
    some, others = true[order[: len(draws)]], true[order[len(draws) :]]
    found = {"method": method, "evaluations": evaluations, "draws": len(draws)}
    for name, measure in MEASURES.items():
        found |= {name: measure(draws, true, rng), f"floor_{name}": measure(some, others, rng)}
    return found | {"log_z": log_evidence_error}


def run(target, noise, budget, most, seed, folder=RESULTS, tune=TUNE):
    """Rows of `learn` and of the chains that go on from it, if the budget has room for them."""
    problem, true, rng = PROBLEMS[target], reference(target, folder), np.random.default_rng(seed)
    count = Count()
    model = problem.build(count, noise)
    names, each = [variable.name for variable in model.free_RVs], problem.simulations
    count.n = 0
    learned = kmc.learn(model, max_evaluations=most or None, random_seed=seed, progressbar=False)
    log_z = abs(learned.log_evidence.value - problem.log_evidence)
    draws = natural(learned.draws(len(learned.positions), random_seed=rng)[names])
    yield row("learn", each * count.n, draws, true, rng, log_z)
    n = (budget - count.n) // learning.CHAINS - tune
    if n < FEWEST_DRAWS:
        return
    with model:
        idata = learning.sample(kmc.KMC(learned), n, seed, tune)
    yield row("learn+KMC", each * count.n, natural(idata.posterior[names]), true, rng)


def cell(values):
    return "" if np.isnan(values).all() else f"{values.median():.2g} ({values.max():.2g})"


def table(results):
    """A row a target and method, medians (worst) over seeds beside what the paper has."""
    rows = []
    for key, group in results.groupby(["target", "noise", "method"], sort=False):
        target, noise, method = key
        published, floors = PROBLEMS[target].published, group.median(numeric_only=True)
        rows.append([f"{target}, noise {noise}" if noise else target, method])
        rows[-1] += [f"{floors['evaluations']:.0f}", str(published.evaluations)]
        for measure, theirs in zip(MEASURES, published[2:], strict=True):
            rows[-1] += [cell(group[measure]), f"{theirs or '-'}; {floors['floor_' + measure]:.2g}"]
        rows[-1] += [cell(group["log_z"]), published.paper]
    header = ["target", "draws of", "evaluations", "theirs"]
    header += [name for each in MEASURES for name in (each, f"theirs; floor of {each}")]
    return pd.DataFrame(rows, columns=[*header, "log Z", "paper"])


def draw(results, figure):
    """MMTV against evaluations, a colour a target; crosses are the papers', lines the floor."""
    axes = figure.subplots()
    for i, (target, group) in enumerate(results.groupby("target", sort=False)):
        published = PROBLEMS[target].published
        for method, found in group.groupby("method", sort=False):
            marker = "o" if method == "learn" else "s"
            label = target if method == "learn" else None
            axes.plot(found["evaluations"], found["mmtv"], f"C{i}{marker}", label=label)
        axes.axhline(group["floor_mmtv"].median(), color=f"C{i}", linewidth=0.5)
        if published.mmtv:
            axes.plot(published.evaluations, float(published.mmtv.lstrip("<")), f"C{i}x")
    axes.set(xscale="log", yscale="log", xlabel="evaluations", ylabel="MMTV")
    figure.legend(loc="outside right upper")


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(PROBLEMS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs, default 3")
    parser.add_argument("--noise", type=int, help="sd of the log likelihood's noise")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="for public.csv and .png")
    parser.add_argument("--quick", action="store_true", help="one target, few evaluations")
    options = parser.parse_args(arguments)
    options.targets = options.targets.split(",")
    if options.quick:
        options.targets, options.seeds = options.targets[:1], 1
        options.folder = options.folder / "quick"
    return options


def settings(options):
    found = []
    for target in options.targets:
        problem = PROBLEMS[target]
        noise = problem.noise if options.noise is None else options.noise
        budget, most = problem.budget, problem.most or 0
        if options.quick:
            budget, most = QUICK_BUDGET, QUICK_MOST
        found += [
            {"target": target, "noise": noise, "budget": budget, "most": most, "seed": seed}
            for seed in range(options.seeds)
        ]
    return found


def main(arguments=None):
    options = parsed(arguments)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    tune = QUICK_TUNE if options.quick else TUNE
    one = functools.partial(run, folder=options.folder, tune=tune)
    experiment = Experiment(
        "public",
        "public problems of this field",
        lambda *_: settings(options),
        one,
        table,
        draw,
        options.seeds,
    )
    execute(experiment, options.folder)


if __name__ == "__main__":
    main()
