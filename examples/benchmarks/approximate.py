"""`kmc.learn` beside PyVBMC: errors of means and standard deviations at equal costs.

    pip install pyvbmc
    python -m examples.benchmarks.approximate --targets dose-response,time-series --seeds 3

Both stop by themselves, or at the budget: 100, 250, 500 or 1000 evaluations. PyVBMC sees the log
density on the unconstrained scale. It begins at PyMC's jittered initial point, and its plausible
box is from the 16 % to the 84 % quantile of the prior. `learn` sees the model, of which the black
box alone is opaque; its starts and prior draws count. Cells are the largest error of a mean, in
standard deviations, and of a log standard deviation, of the model's variables on their natural
scale, medians over seeds, and the evaluations used. No chain was run: `learn`'s are those of
`LearnedPosterior.summary()`. References are those of 4 x 5000 exact draws.

Acerbi, L. (2020). Variational Bayesian Monte Carlo with noisy likelihoods. *NeurIPS* 33.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402
import warnings  # noqa: E402

import numpy as np  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.learning import MODELS, REFERENCE_DRAWS, sample  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402
from pymc_kmc.learning.multistart import jittered_points, prior_points  # noqa: E402
from pymc_kmc.model.opaque import OpaqueModel  # noqa: E402

BUDGETS = 100, 250, 500, 1000
#: Quantiles of the prior between which PyVBMC expects the posterior, its documentation's advice.
PLAUSIBLE = 0.16, 0.84
#: Draws of the prior that tell them, and of PyVBMC's posterior.
N_PRIOR, N_DRAWS = 1000, 20_000
#: Log density, in nats, that PyVBMC is told where it is -inf, which it doesn't take.
LOWEST = -1e5


def by_learning(model, budget, seed):
    """Means and standard deviations of all variables, and the number of evaluations."""
    learned = kmc.learn(model, max_evaluations=budget, random_seed=seed, progressbar=False)
    summary = learned.summary()
    return summary["mean"].to_numpy(), summary["sd"].to_numpy(), learned.n_evaluations


def by_vbmc(model, budget, seed):
    """Means and standard deviations of all variables, and the number of evaluations."""
    from pyvbmc import VBMC

    rng = np.random.default_rng(seed)
    opaque = OpaqueModel(model.continuous_value_vars, model, rng)
    start = jittered_points(opaque, 1, rng)[0]
    low, high = np.quantile(prior_points(opaque, N_PRIOR, rng), PLAUSIBLE, axis=0)
    n_evaluations = 0

    def log_density(x):
        nonlocal n_evaluations
        n_evaluations += 1
        x = np.ravel(x)[None]
        return max(float(opaque.log_density(x, opaque.evaluate(x).outputs)[0][0]), LOWEST)

    options = {"max_fun_evals": budget, "display": "off"}
    np.random.seed(seed)  # noqa: NPY002  PyVBMC draws from NumPy's global generator.
    solver = VBMC(
        log_density,
        np.clip(start, low, high)[None],
        plausible_lower_bounds=low[None],
        plausible_upper_bounds=high[None],
        options=options,
    )
    posterior, _ = solver.optimize()
    draws, _ = posterior.sample(N_DRAWS)
    return *moments(opaque.natural(draws)), n_evaluations


def moments(variables):
    """Means and standard deviations of all values of variables, arrays (n, ...) by name."""
    draws = np.column_stack([np.reshape(draws, (len(draws), -1)) for draws in variables.values()])
    return draws.mean(axis=0), draws.std(axis=0)


def reference(name):
    """Means and standard deviations of exact draws."""
    model = MODELS[SAME.get(name, name)]()
    learned = kmc.learn(model, progressbar=False)
    with model:
        posterior = sample(kmc.KMC(learned), REFERENCE_DRAWS, seed=1000).posterior
    free = [variable.name for variable in model.free_RVs]
    return moments({name: np.concatenate(posterior[name].values) for name in free})


#: The model that has the same posterior and is learned more safely.
SAME = {"scalar": "outputs"}
WAYS = {"learn": by_learning, "PyVBMC": by_vbmc}


def cell(found):
    """Text of the medians of (error of means, of log sds, evaluations)."""
    mean, sd, n = np.median(found, axis=0)
    return f"{mean:.2f}, {sd:.2f} ({n:.0f})"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default="outputs,scalar,schools,time-series,dose-response")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    budgets, rows = [int(budget) for budget in options.budgets.split(",")], []
    for name in options.targets.split(","):
        model = MODELS[name]()
        mean, sd = reference(name)
        for way in options.ways.split(","):
            cells = []
            for budget in budgets:
                found = []
                for seed in range(options.seeds):
                    means, sds, n = WAYS[way](model, budget, seed)
                    error = np.abs(means - mean) / sd, np.abs(np.log(sds / sd))
                    found.append((error[0].max(), error[1].max(), n))
                    print(name, way, budget, seed, np.round(found[-1], 2).tolist(), flush=True)
                cells.append(cell(found))
            rows.append([name, way, *cells])
    print()
    print(markdown(["target", "", *(f"{budget} evaluations" for budget in budgets)], rows))


if __name__ == "__main__":
    main()
