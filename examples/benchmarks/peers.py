"""`kmc.learn` and `KMC` beside samplers that need no gradient, and NUTS, on the same densities.

    pip install "pymc-kmc[peers]"
    python -m examples.benchmarks.peers                                   # some hours
    python -m examples.benchmarks.peers --targets schools --peers learn,PyVBMC --seeds 3
    python -m examples.benchmarks.peers --noise 1
    python -m examples.benchmarks.peers --quick

Targets are models of :mod:`examples.benchmarks.learning`, whose moments and density many are of
:mod:`examples.benchmarks.targets`. The black box counts its calls, whoever makes them. `learn`,
`KMC` and PyMC's samplers see the model, the others its log density on the unconstrained scale. All
begin at PyMC's jittered initial points. Those that ask for a box or a prior are told the 16 % and
the 84 % quantile of the prior. Flat priors have none: three standard deviations of the posterior
stand for them, and flatter whoever asks.

Each peer has its own defaults, ends by itself, or at `--budget` evaluations. What it knows is
compared with the reference at `CHECKPOINTS`, or at its own iterations; of chains the later half.
The table of evaluations has those from which on MMTV is below .2 and GsKL below 1/8, and those from
which on the largest errors of a mean, in standard deviations, and of a log standard deviation are
below .2 and below .1, medians over seeds; "-" is never. The table of seconds has a row a run: where
it ended, its log evidence, and the seconds until .1 with evaluations of so many milliseconds: its
own, of the processor, and theirs.

Every run is kept in a CSV and not made again. With noise the log likelihood is estimated: a normal
number of standard deviation `--noise` is added, anew at each evaluation. "outputs" has no number to
add it to, and fails.

pocoMC needs PyTorch, and goes on to its own end whatever the budget. So does NUTS, where a gradient
of the same density is known: a gradient counts as an evaluation. Left out: tinyDA, which needs a
NumPy before 2, and nutpie, which needs NUTS's gradients and their number.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import contextlib  # noqa: E402
import functools  # noqa: E402
import importlib.util  # noqa: E402
import itertools  # noqa: E402
import logging  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NamedTuple  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks import learning  # noqa: E402
from examples.benchmarks.metrics import gskl, mmtv  # noqa: E402
from examples.benchmarks.peer_samplers import (  # noqa: E402
    BUDGET,
    PEERS,
    QUICK_BUDGET,
    Problem,
    exact_moments,
)
from examples.benchmarks.targets import TARGETS, markdown  # noqa: E402
from examples.paper.frame import Experiment, execute  # noqa: E402

RESULTS = Path(__file__).parent / "results"
#: Errors, in standard deviations, and milliseconds of an evaluation, that the tables are about.
CLOSE, COSTS = (0.2, 0.1), (0.1, 1.0, 10.0, 100.0)
#: MMTV and GsKL that papers of this field ask for (Acerbi 2020; Li et al. 2025).
GOOD = {"mmtv": 0.2, "gskl": 1.0 / 8.0}
#: Draws that stand for a posterior.
N_REFERENCE = 20_000
#: R-hat of a reference's chains, at most.
MIXED = 1.01
#: Targets of the command by default: twelve.
TARGET_NAMES = ("dose-response", "time-series", "survival", "mixture", "sine", "schools", "outputs")
TARGET_NAMES += ("scalar", "banana", "two-modes", "student-t", "gaussian-20")


class Reference(NamedTuple):
    """Means and standard deviations (d,) of a posterior, exact where known, and its draws."""

    mean: np.ndarray
    sd: np.ndarray
    draws: np.ndarray


@functools.cache
def reference(name):
    """The Reference of a target on the unconstrained scale; see `learning.reference`.

    What isn't known is learned, by the first seed that converges, and drawn from; moments are those
    of `kmc.summary`. A RuntimeError is raised if these chains disagree.
    """
    target = TARGETS[learning.KNOWN[name]]() if name in learning.KNOWN else None
    if target is not None and target.sample is not None:
        return Reference(
            target.mean, target.sd, target.sample(N_REFERENCE, np.random.default_rng())
        )
    model = learning.MODELS[name]()
    with model:
        seeds = (kmc.learn(random_seed=seed, progressbar=False) for seed in itertools.count())
        learned = next(found for found in seeds if found.has_converged)
        idata = learning.sample(kmc.KMC(learned), learning.REFERENCE_DRAWS, seed=1000)
    draws = learning.unconstrained(model, idata.posterior)
    r_hat = max(float(az.rhat(column)) for column in np.moveaxis(draws, -1, 0))
    if r_hat > MIXED:
        raise RuntimeError(f"{name} has no reference: its chains have an R-hat of {r_hat:.2f}")
    if target is None:
        known = exact_moments(idata, learned, model, learning.REFERENCE_DRAWS)
    else:
        known = target.mean, target.sd
    return Reference(*known, draws.reshape(-1, draws.shape[-1]))


def moments(snapshot):
    """Means and standard deviations (d,), weighted ones of draws where not given."""
    if snapshot.moments is not None:
        return snapshot.moments
    mean = np.average(snapshot.draws, axis=0, weights=snapshot.weights)
    square = np.average((snapshot.draws - mean) ** 2, axis=0, weights=snapshot.weights)
    return mean, np.sqrt(square)


def unweighted(snapshot):
    """Draws of a snapshot, those with weights drawn again by these."""
    draws, weights = snapshot.draws, snapshot.weights
    if weights is None:
        return draws
    rng = np.random.default_rng(0)
    return draws[rng.choice(len(draws), N_REFERENCE, p=weights / weights.sum())]


def row(snapshot, known):
    """What a run's snapshot is worth, given the Reference."""
    mean, sd = moments(snapshot)
    with np.errstate(all="ignore"):
        found = {
            "evaluations": snapshot.evaluations,
            "seconds": snapshot.seconds,
            "mean": np.max(np.abs(mean - known.mean) / known.sd),
            "sd": np.max(np.abs(np.log(sd / known.sd))),
            "mmtv": np.inf,
            "gskl": np.inf,
            "log_evidence": snapshot.log_evidence,
            "failed": "",
        }
    # A chain that has hardly moved has no covariance, and no distance.
    with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError, ValueError):
        draws = unweighted(snapshot)
        found |= {"mmtv": mmtv(draws, known.draws), "gskl": gskl(draws, known.draws)}
    return found


def run(target, peer, noise, budget, seed):
    """Rows of one run; one that says why where the peer failed."""
    known, problem, rows = reference(target), Problem(target, noise, seed), []
    problem.begin()
    try:
        rows += [row(each, known) for each in PEERS[peer].run(problem, budget)]
    except Exception as error:  # noqa: BLE001  whatever a peer raises is its result
        failed = f"{type(error).__name__}: {error}".splitlines()[0]
        rows.append(
            {
                "evaluations": problem.n_calls,
                "seconds": problem.seconds,
                "mean": np.inf,
                "sd": np.inf,
                "mmtv": np.inf,
                "gskl": np.inf,
                "log_evidence": np.nan,
                "failed": failed,
            }
        )
    return rows


def is_below(limit):
    """Say of rows whether both errors are below a limit."""
    return lambda found: found[["mean", "sd"]].max(axis=1, skipna=False) <= limit


def is_good(found):
    """Say of rows whether they are as good as papers of this field ask for."""
    return (found["mmtv"] <= GOOD["mmtv"]) & (found["gskl"] <= GOOD["gskl"])


def until(found, condition):
    """First row of a run from which on a condition holds; None where there is none."""
    found = found.sort_values("evaluations", kind="stable")
    is_close = condition(found).to_numpy()
    n = 0 if is_close.all() else len(found) - np.argmin(is_close[::-1])
    return None if n == len(found) else found.iloc[n]


def evaluations(results):
    """Evaluations until good / .2 / .1, a row a target, a column a peer, medians over seeds.

    "?" where a run has been kept without what "good" needs.
    """
    cells = {}
    for (target, peer), group in results.groupby(["target", "peer"], sort=False):
        runs = [one for _, one in group.groupby("seed")]
        middles = []
        for condition in (is_good, *map(is_below, CLOSE)):
            first = [until(one, condition) for one in runs]
            n = np.median([np.inf if each is None else each["evaluations"] for each in first])
            middles.append(f"{n:.0f}" if np.isfinite(n) else "-")
        if group["mmtv"].isna().any():
            middles[0] = "?"
        cells.setdefault(target, {})[peer] = " / ".join(middles)
    table = pd.DataFrame.from_dict(cells, orient="index").fillna("")
    return table.rename_axis("target").reset_index()


def seconds(results):
    """A row a run: its end, its log evidence, and seconds until .1 by what an evaluation takes."""
    rows = []
    for key, group in results.groupby(["target", "peer", "seed"], sort=False):
        last, close = (
            group.sort_values("evaluations", kind="stable").iloc[-1],
            until(group, is_below(CLOSE[1])),
        )
        evidence = f"{last['log_evidence']:.2f}" if np.isfinite(last["log_evidence"]) else ""
        cells = [f"{last['evaluations']:.0f}", f"{last['mean']:.2f}, {last['sd']:.2f}", evidence]
        cells.append(f"{last['seconds']:.1f}")
        for cost in COSTS:
            spent = None if close is None else close["seconds"] + 1e-3 * cost * close["evaluations"]
            cells.append("-" if close is None else f"{spent:.1f}")
        rows.append([*key, *cells])
    header = ["target", "peer", "seed", "ends at", "mean, sd", "log evidence", "own s"]
    return pd.DataFrame(rows, columns=[*header, *(f"{cost:g} ms" for cost in COSTS)])


def draw(results, figure):
    """The larger error, MMTV and GsKL against evaluations: a row a target and a line a peer."""
    results = results.assign(error=results[["mean", "sd"]].max(axis=1))
    targets, known = list(dict.fromkeys(results["target"])), set(results["peer"])
    looks = {peer: f"C{i % 10}" + "--"[: 1 + i // 10] for i, peer in enumerate(PEERS)}
    looks = {peer: look for peer, look in looks.items() if peer in known}
    limits = {"error": CLOSE[1]} | GOOD
    grid = figure.subplots(len(targets), len(limits), squeeze=False)
    for target, panels in zip(targets, grid, strict=True):
        for (measure, limit), axes in zip(limits.items(), panels, strict=True):
            for peer, look in looks.items():
                found = results[(results["target"] == target) & (results["peer"] == peer)]
                middle = found.groupby("evaluations")[measure].median().clip(1e-3, 1e2)
                axes.plot(middle.index, middle, look, marker=".", label=peer)
            axes.set(xscale="log", yscale="log", title=target, xlabel="evaluations", ylabel=measure)
            axes.axhline(limit, color="grey", linewidth=0.5)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right upper")


def installed(names):
    """Those of the peers that can be run; the others have a line each."""
    missing = [name for name in names if not importlib.util.find_spec(PEERS[name].needs)]
    for name in missing:
        print(f"{name} is left out: {PEERS[name].needs} is not installed.")
    return [name for name in names if name not in missing]


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(TARGET_NAMES), help="default: %(default)s")
    # A run of GPry takes a minute of a processor in three dimensions, above seven in four.
    usual = ",".join(name for name in PEERS if name != "GPry")
    parser.add_argument("--peers", default=usual, help="default: %(default)s; also GPry")
    parser.add_argument("--seeds", type=int, default=1, help="number of runs, default 1")
    parser.add_argument("--noise", type=int, default=0, help="sd of the log likelihood's noise")
    parser.add_argument("--budget", type=int, default=BUDGET, help="default: %(default)s")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="for peers.csv and peers.png")
    parser.add_argument("--quick", action="store_true", help="one small target, few evaluations")
    options = parser.parse_args(arguments)
    options.targets, options.peers = options.targets.split(","), options.peers.split(",")
    if options.quick:
        options.targets, options.budget = options.targets[:1], QUICK_BUDGET
        options.folder = options.folder / "quick"
    return options


def main(arguments=None):
    options = parsed(arguments)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    keys = "target", "peer", "noise", "budget", "seed"
    asked = options.targets, installed(options.peers), [options.noise], [options.budget]
    settings = [
        dict(zip(keys, values, strict=True))
        for values in itertools.product(*asked, range(options.seeds))
    ]
    printed = []

    def tables(results):
        printed.append(seconds(results))
        return evaluations(results)

    about, size = "peers beside learn and KMC", (14.0, 3.5 * len(options.targets))
    experiment = Experiment(
        "peers", about, lambda *_: settings, run, tables, draw, options.seeds, size
    )
    execute(experiment, options.folder)
    (table,) = printed
    print("\n" + markdown(list(table.columns), table.astype(str).to_numpy().tolist()))


if __name__ == "__main__":
    main()
