"""`pm.sample(step=kmc.KMC())`, nothing else, on log likelihoods that are one opaque number.

    python -m examples.benchmarks.black_boxes                                # some hours
    python -m examples.benchmarks.black_boxes --targets arma,garch --seeds 2
    python -m examples.benchmarks.black_boxes --quick

Four chains of 1000 draws, from PyMC's own starts, with the tuning that the step asks for. Cells are
"median (worst)" over seeds.

trusted        runs whose chains began from what the step had learned
learning       evaluations before the chains
tuning         evaluations of the four chains while tuning
seconds        of processor time until the step was made
mean, sd       largest error of a mean, in standard deviations, and of a log standard deviation
ESS            smallest bulk effective sample size over parameters, of x and of (x - mean)^2, per
               1000 evaluations while drawing
R-hat          the largest

Reference moments are those of 4 x 40,000 draws of `kmc.AdaptiveMetropolis`, which learns no
surrogate, or of :mod:`examples.benchmarks.targets` where these know the posterior.
"""

import argparse
import logging
import time
import warnings

import arviz as az
import pymc as pm

import pymc_kmc as kmc
from examples.benchmarks import learning, log_likelihoods
from examples.benchmarks.targets import TARGETS, markdown

MODELS = log_likelihoods.MODELS | {
    name: learning.MODELS[name] for name in ("schools", "mixture", "survival", "scalar")
}
CHAINS, DRAWS, QUICK_DRAWS = 4, 1000, 50
REFERENCE_TUNE, REFERENCE_DRAWS = 5000, 40_000


def sample(step, draws, tune, seed):
    return pm.sample(
        step=step,
        draws=draws,
        tune=tune,
        chains=CHAINS,
        cores=1,
        random_seed=seed,
        progressbar=False,
        discard_tuned_samples=False,
        compute_convergence_checks=False,
    )


def reference(name):
    """Means and standard deviations of a model's unconstrained variables."""
    if name in learning.KNOWN:
        target = TARGETS[learning.KNOWN[name]]()
        return target.mean, target.sd
    with MODELS[name]() as model:
        idata = sample(kmc.AdaptiveMetropolis(), REFERENCE_DRAWS, REFERENCE_TUNE, seed=1000)
    draws = learning.unconstrained(model, idata.posterior)
    flat = draws.reshape(-1, draws.shape[-1])
    return flat.mean(axis=0), flat.std(axis=0)


def run(name, seed, n_draws, moments=None):
    """Return the figures of one run, by name."""
    begin = time.process_time()
    with MODELS[name]() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = kmc.KMC(rng=seed)
        seconds = time.process_time() - begin
        idata = sample(step, n_draws, step.default_tune_steps, seed)
    draws = learning.unconstrained(model, idata.posterior)
    tuning, drawing = (
        int(group["kmc_n_evaluations"].sum())
        for group in (idata.warmup_sample_stats, idata.sample_stats)
    )
    figures = {
        "trusted": step.posterior is not None,
        "learning": step.n_learning_evaluations,
        "tuning": tuning,
        "seconds": seconds,
        "ESS": 1000 * learning.smallest_ess(draws) / drawing,
        "R-hat": max(float(az.rhat(draws[..., j])) for j in range(draws.shape[-1])),
    }
    if moments is not None:
        figures["mean"], figures["sd"] = map(float, learning.errors(draws, moments))
    return figures


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(MODELS), help="some of: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs a target")
    parser.add_argument("--quick", action="store_true", help="one target, one seed, no reference")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = ["pharmacokinetics"] if options.quick else options.targets.split(",")
    n_seeds, n_draws = (1, QUICK_DRAWS) if options.quick else (options.seeds, DRAWS)
    digits = {"learning": 0, "tuning": 0, "seconds": 0, "mean": 2, "sd": 2, "R-hat": 3}
    rows = []
    for name in names:
        moments = None if options.quick else reference(name)
        found = [run(name, seed, n_draws, moments) for seed in range(n_seeds)]
        rows.append([name, f"{sum(one['trusted'] for one in found)} of {n_seeds}"])
        for key, n in digits.items():
            values = [one[key] for one in found if key in one]
            rows[-1].append(learning.cell(values, digits=n) if values else "-")
        rows[-1].append(learning.cell([one["ESS"] for one in found], min))
        print(*rows[-1], flush=True)
    print("\n" + markdown(["target", "trusted", *digits, "ESS / 1000"], rows))


if __name__ == "__main__":
    main()
