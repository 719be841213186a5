"""With oracle samples: how good Kernel HMC is when its surrogate is fitted to independent draws.

    python -m examples.benchmarks.oracle
    python -m examples.benchmarks.oracle --step-size 0.4 0.8 --n-leapfrog 20 40
    python -m examples.benchmarks.oracle --quick

The target is a banana. HMC with the true gradient, KMC lite on n points and KMC finite with m
features from n = m points make the same number of iterations under one policy: identity metric,
step size and number of leapfrog steps uniform within bounds, drawn for each trajectory. Bandwidth
and regularisation are those of `pymc_kmc.surrogates.select`. Every seed has its own draws, its own
surrogate, and a chain that starts at an exact draw. The random walk is isotropic, its scale tuned
to an acceptance of .234 for 2000 iterations.

acceptance   mean acceptance probability
ESS of x     smallest bulk effective sample size over coordinates, per 100 iterations; HMC's profits
             from antithetic draws, whose squares are not
ESS          smallest over coordinates of x and of (x - mean)^2: the one to judge by
/ HMC        in units of HMC's
divergence   relative Fisher divergence E|grad f - grad log p|^2 / E|grad log p|^2 of the surrogate

All figures are means over seeds, +- their standard error.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402
import warnings  # noqa: E402

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.cold_start import effective_sizes  # noqa: E402
from examples.benchmarks.targets import TARGETS, markdown  # noqa: E402
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, select  # noqa: E402

#: Figures to reach with the largest surrogate.
ACCEPTANCE, ESS, RATIO = 0.70, 25.0, 0.95
#: As wide as HMC itself accepts at a rate of .8, and up to a U-turn of the longest axis.
STEP_SIZE, N_LEAPFROG = (0.7, 1.1), (1, 30)
RANDOM_WALK_TUNING, RANDOM_WALK_ACCEPTANCE = 2000, 0.234
#: Most features and points in the cross-validation, whatever the surrogate's size.
SELECTION = {"lite": {"max_points": 500}, "finite": {"max_features": 500}}
TEST_DRAWS = 4000


def hmc(target, start, iterations, step_size, n_leapfrog, rng):
    """HMC with the true gradient: draws (iterations, d) and the mean acceptance probability."""
    x, log_density = start, target.log_density(start)
    draws, accepted = np.empty((iterations, target.dimension)), 0.0
    for i in range(iterations):
        epsilon = rng.uniform(*step_size)
        n_steps = rng.integers(*n_leapfrog, endpoint=True)
        momentum = rng.standard_normal(target.dimension)
        end, end_momentum = x, momentum + 0.5 * epsilon * target.gradient(x)
        for step in range(n_steps):
            end = end + epsilon * end_momentum
            last = step == n_steps - 1
            end_momentum = end_momentum + (0.5 if last else 1.0) * epsilon * target.gradient(end)
        end_log_density = target.log_density(end)
        change = end_log_density - log_density
        change += 0.5 * (momentum @ momentum - end_momentum @ end_momentum)
        acceptance = np.exp(min(0.0, change)) if np.isfinite(change) else 0.0
        accepted += acceptance
        if rng.uniform() < acceptance:
            x, log_density = end, end_log_density
        draws[i] = x
    return draws, accepted / iterations


def random_walk(target, start, iterations, rng):
    """An isotropic random walk: draws (iterations, d) and the mean acceptance probability."""
    x, log_density, log_scale = start, target.log_density(start), 0.0
    draws, accepted = np.empty((iterations, target.dimension)), 0.0
    for i in range(-RANDOM_WALK_TUNING, iterations):
        end = x + np.exp(log_scale) * rng.standard_normal(target.dimension)
        end_log_density = target.log_density(end)
        acceptance = np.exp(min(0.0, end_log_density - log_density))
        if rng.uniform() < acceptance:
            x, log_density = end, end_log_density
        if i < 0:
            gain = (RANDOM_WALK_TUNING + i + 1) ** -0.6
            log_scale += gain * (acceptance - RANDOM_WALK_ACCEPTANCE)
        else:
            accepted += acceptance
            draws[i] = x
    return draws, accepted / iterations


def chain(make_step, model, start, iterations, seed, tune=0, keep_tuning=False):
    """A chain of `pymc.sample`: draws, mean acceptance probability and share of trajectories.

    With `keep_tuning` the draws, not the other two, begin with those of tuning.
    """
    (variable,) = model.free_RVs
    with model:
        idata = pm.sample(
            step=make_step(),
            tune=tune,
            draws=iterations,
            chains=1,
            cores=1,
            initvals={variable.name: start},
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
            discard_tuned_samples=not keep_tuning,
        )
    statistics = idata.sample_stats
    acceptance = float(statistics["acceptance_rate"].mean())
    trajectories = float((statistics["n_steps"] > 0).mean()) if "n_steps" in statistics else 0.0
    parts = [idata.warmup_posterior] if keep_tuning else []
    draws = [np.asarray(part[variable.name])[0] for part in (*parts, idata.posterior)]
    return np.concatenate(draws), acceptance, trajectories


def surrogate_for(kind, base, size, X, seed):
    """A surrogate of `size` points or features fitted to X, cross-validated."""
    if kind == "lite":
        template = KernelExpLite(1.0, 1.0, penalty="rkhs", base=base)
    else:
        template = KernelExpFinite(size, 1.0, 1.0, base=base, rng=seed)
    return select(X, template, random_seed=seed, **SELECTION[kind]).estimator.fit(X)


def divergence(surrogate, target, rng):
    """Relative Fisher divergence of a surrogate, estimated with exact draws."""
    x = target.sample(TEST_DRAWS, rng)
    gradient = target.gradient(x)
    return np.sum((surrogate.gradient(x) - gradient) ** 2) / np.sum(gradient**2)


def result_of(draws, acceptance, trajectories=1.0):
    """Acceptance, share of trajectories, and the two effective sample sizes per 100 iterations."""
    of_x, of_both = effective_sizes(draws)
    return {
        "acceptance": acceptance,
        "trajectories": trajectories,
        "ess_of_x": 100.0 * of_x / len(draws),
        "ess": 100.0 * of_both / len(draws),
    }


def row(name, results, reference):
    """A line of the table."""

    def cell(key, digits):
        values = np.array([result[key] for result in results])
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        return f"{values.mean():.{digits}f} +- {error:.{digits}f}", values.mean()

    cells = [name, cell("acceptance", 2)[0]]
    for key in ("ess_of_x", "ess"):
        text, value = cell(key, 1)
        standard = np.mean([result[key] for result in reference])
        cells += [text, f"{value / standard:.2f}"]
    trajectories = np.mean([result["trajectories"] for result in results])
    if trajectories < 1.0:  # a step that was asked for trajectories alone did something else
        cells[0] += f" ({1.0 - trajectories:.0%} random walk)"
    if "divergence" in results[0]:
        sigma = np.median([result["sigma"] for result in results])
        cells += [f"{cell('divergence', 3)[1]:.3f}", f"{sigma:.0f}"]
    else:
        cells += ["", ""]
    return cells


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Kernel HMC on oracle surrogates beside HMC with true gradients.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--target", default="banana", choices=TARGETS)
    parser.add_argument("--sizes", default="500,1000,2000", help="m = n, comma-separated")
    parser.add_argument("--kinds", default="lite,finite", help="comma-separated")
    parser.add_argument("--bases", default="none,gaussian", help="base densities, comma-separated")
    parser.add_argument("--step-size", type=float, nargs=2, default=STEP_SIZE)
    parser.add_argument("--n-leapfrog", type=int, nargs=2, default=N_LEAPFROG)
    parser.add_argument(
        "--random-walks", type=float, default=0.0, help="probability where the surrogate is right"
    )
    parser.add_argument("--iterations", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="2 seeds, 500 iterations, size 500")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.iterations, options.sizes = 2, 500, "500"
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    target = TARGETS[options.target]()
    model = target.model()
    step_size, n_leapfrog = tuple(options.step_size), tuple(options.n_leapfrog)
    seeds = range(options.seeds)
    starts = [target.sample(1, np.random.default_rng([0, seed]))[0] for seed in seeds]

    print(
        f"{target.name}, {options.iterations} iterations, {options.seeds} seeds, step size "
        f"{step_size[0]:g}-{step_size[1]:g}, {n_leapfrog[0]}-{n_leapfrog[1]} leapfrog steps\n"
    )
    header = ["sampler", "acceptance", "ESS of x", "/ HMC", "ESS", "/ HMC", "divergence", "sigma"]
    wanted = 2 * [f">= {ESS:g}", f">= {RATIO:.2f}"]
    wanted = ["*to reach at 2000*", f">= {ACCEPTANCE:.2f}", *wanted, "", ""]
    print(markdown(header, [wanted]), flush=True)

    def show(name, results):
        print("| " + " | ".join(row(name, results, reference)) + " |", flush=True)

    reference = []
    for seed in seeds:
        rng = np.random.default_rng([1, seed])
        reference.append(
            result_of(*hmc(target, starts[seed], options.iterations, step_size, n_leapfrog, rng))
        )
    show("HMC, true gradient", reference)

    walks = []
    for seed in seeds:
        rng = np.random.default_rng([3, seed])
        walks.append(result_of(*random_walk(target, starts[seed], options.iterations, rng)))
    show("random walk", walks)

    for kind in options.kinds.split(","):
        step_class = {"lite": kmc.KMCLite, "finite": kmc.KMCFinite}[kind]
        for base in options.bases.split(","):
            for size in map(int, options.sizes.split(",")):
                results = []
                for seed in seeds:
                    rng = np.random.default_rng([2, seed, size])
                    X = target.sample(size, rng)
                    surrogate = surrogate_for(kind, None if base == "none" else base, size, X, seed)

                    def make_step(surrogate=surrogate, step_class=step_class):
                        return step_class(
                            surrogate=surrogate,
                            step_size=step_size,
                            n_leapfrog=n_leapfrog,
                            random_walk_probability=options.random_walks,
                            tune=False,
                        )

                    result = result_of(
                        *chain(make_step, model, starts[seed], options.iterations, seed)
                    )
                    result["divergence"] = divergence(surrogate, target, rng)
                    result["sigma"] = surrogate.sigma
                    results.append(result)
                show(f"KMC {kind}, base {base}, {size}", results)


if __name__ == "__main__":
    main()
