"""What chains with partners make of an evaluation, beside one proposal at a time.

    python -m examples.benchmarks.sweeps                                   # some ten minutes
    python -m examples.benchmarks.sweeps --targets survival,schools --numbers 1,32,256
    python -m examples.benchmarks.sweeps --quick

Each target of :mod:`examples.benchmarks.learning` is learned once, from up to three times the
default's evaluations: where that doesn't converge, "(not converged)" stands beside the name. Then
four chains of ``kmc.KMC(learned, n_parallel=N)`` make 1024 draws. "ESS" is the smallest bulk
effective sample size over variables, of x and of (x - mean)^2, per 1000 evaluations; "batches" is
the number of iterations, of 1000 draws, that wait for evaluations. Cells are means over seeds.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402

import numpy as np  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.learning import MODELS, learn, sample, smallest_ess, unconstrained  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402

DRAWS, QUICK_DRAWS = 1024, 32
TUNE = 50
#: How many times as many evaluations learning goes on to, one after another.
FACTORS = 2, 1.5


def figures(model, learned, n_parallel, n_draws, seed):
    """Return effective draws per 1000 evaluations, and batches per 1000 draws of a chain."""
    with model:
        step = kmc.KMC(learned, n_parallel=n_parallel)
        idata = sample(step, n_draws, seed, tune=TUNE)
    n_evaluations = idata.sample_stats["kmc_n_evaluations"].values
    ess = smallest_ess(unconstrained(model, idata.posterior))
    return 1000 * ess / n_evaluations.sum(), 1000 * (n_evaluations > 0).mean()


def learn_until_converged(model, seed):
    """Return what is learned by default, or from more evaluations where that isn't enough."""
    learned, _ = learn(model, seed)
    for factor in FACTORS:
        if learned.has_converged:
            break
        most = int(factor * len(learned.evaluations))
        learned = kmc.learn(
            model, evaluations=learned, max_evaluations=most, random_seed=seed, progressbar=False
        )
    return learned


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default="time-series,survival,noisy-time-series,schools")
    parser.add_argument("--numbers", default="1,32", help="of places that are evaluated at once")
    parser.add_argument("--seeds", type=int, default=2, help="number of runs a target")
    parser.add_argument("--learned", type=int, default=0, help="seed that learning begins with")
    parser.add_argument("--quick", action="store_true", help="one small target, one seed")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = ["dose-response"] if options.quick else options.targets.split(",")
    n_seeds, n_draws = (1, QUICK_DRAWS) if options.quick else (options.seeds, DRAWS)
    numbers, rows = [int(n) for n in options.numbers.split(",")], []
    for name in names:
        model = MODELS[name]()
        learned = learn_until_converged(model, options.learned)
        label = name if learned.has_converged else f"{name} (not converged)"
        for n_parallel in numbers:
            seeds = range(n_seeds)
            found = [figures(model, learned, n_parallel, n_draws, seed) for seed in seeds]
            ess, batches = np.mean(found, axis=0)
            rows.append([label, f"{n_parallel}", f"{ess:.0f}", f"{batches:.0f}"])
            print(*rows[-1], flush=True)
    print(markdown(["target", "at once", "ESS", "batches"], rows))


if __name__ == "__main__":
    main()
