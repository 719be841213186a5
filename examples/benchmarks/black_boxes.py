"""`pm.sample(step=kmc.KMC())`, nothing else, on log likelihoods that are opaque or estimated.

"groups" has a black box for each of twelve patients instead; its evaluations are of all of them.

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
surrogate, of NUTS for "groups", or of :mod:`examples.benchmarks.targets` where these know the
posterior. Data are simulated from fixed seeds, priors are normal, and parameters of scale are
logarithms.
"""

import argparse
import logging
import time
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_kmc as kmc
from examples.benchmarks import learning
from examples.benchmarks.targets import TARGETS, markdown

DRAWS, QUICK_DRAWS = 1000, 50
REFERENCE_TUNE, REFERENCE_DRAWS = 5000, 40_000
#: Columns and their digits.
DIGITS = {"learning": 0, "tuning": 0, "seconds": 0, "mean": 2, "sd": 2, "R-hat": 3}


def opaque(log_likelihood, means, sds):
    """A model with normal priors and a log likelihood of the whole vector."""
    with pm.Model() as model:
        x = pm.Normal("x", means, sds, shape=len(means))
        pm.Potential("y", kmc.BlackBox("log likelihood", log_likelihood, x))
    return model


def regression(n_coefficients):
    """Linear regression with correlated covariates; the last parameter is the log noise."""
    rng = np.random.default_rng(n_coefficients)
    n = 60
    common = rng.standard_normal((n, 1))
    X = np.column_stack([np.ones(n), common + 0.5 * rng.standard_normal((n, n_coefficients - 2))])
    y = X @ rng.normal(0, 1, n_coefficients - 1) + 0.8 * rng.standard_normal(n)

    def log_likelihood(x):
        error = (y - X @ x[:-1]) * np.exp(-x[-1])
        return -0.5 * np.sum(error**2) - n * x[-1]

    return opaque(log_likelihood, np.zeros(n_coefficients), np.full(n_coefficients, 2.0))


def hidden_markov():
    """Three Gaussian states, 300 observations: first mean, log gaps, log sd, logits of staying."""

    def parameters(x):
        means = x[0] + np.append(0.0, np.cumsum(np.exp(x[1:3])))
        p, q = 1 / (1 + np.exp(-x[4:]))
        P = [[p, (1 - p) / 2, (1 - p) / 2], [(1 - q) / 2, q, (1 - q) / 2]]
        return means, np.exp(x[3]), np.array([*P, [(1 - p) / 2, (1 - p) / 2, p]])

    rng, n = np.random.default_rng(0), 300
    means, sd, P = parameters(np.array([-2.0, 0.7, 1.1, -0.35, 2.2, 1.4]))
    states = [0]
    for _ in range(n - 1):
        states.append(rng.choice(3, p=P[states[-1]]))
    y = means[states] + sd * rng.standard_normal(n)

    def log_likelihood(x):
        with np.errstate(all="ignore"):
            means, sd, P = parameters(x)
            logs = -0.5 * ((y[:, None] - means) / sd) ** 2 - np.log(sd)
            largest = logs.max(axis=1)
            likely, total, forward = (
                np.exp(logs - largest[:, None]),
                largest.sum(),
                np.full(3, 1 / 3),
            )
            for each in likely:
                forward = (forward @ P) * each
                total += np.log(forward.sum())
                forward /= forward.sum()
        return float(np.nan_to_num(total, nan=-np.inf))

    return opaque(log_likelihood, [0, 0, 0, 0, 0, 0], [3, 1, 1, 1, 1.5, 1.5])


def arma():
    """ARMA(1, 1) of 200 values: mean, arctanh of both coefficients, log noise."""
    rng, n = np.random.default_rng(2), 200
    noise, y = 0.7 * rng.standard_normal(n + 1), np.zeros(n + 1)
    for t in range(1, n + 1):
        y[t] = 0.3 + 0.8 * y[t - 1] + noise[t] + 0.4 * noise[t - 1]
    y = y[1:]

    def log_likelihood(x):
        mean, phi, theta = x[0], np.tanh(x[1]), np.tanh(x[2])
        error, total = 0.0, 0.0
        for t in range(1, n):
            error = y[t] - mean - phi * (y[t - 1] - mean) - theta * error
            total += error * error
        return -0.5 * total * np.exp(-2 * x[3]) - (n - 1) * x[3]

    return opaque(log_likelihood, [0, 0, 0, 0], [3, 1, 1, 1])


def garch():
    """GARCH(1, 1) of 400 returns: mean, log of the constant, logits of persistence and share."""
    rng, n = np.random.default_rng(5), 400
    variance, y = 0.5, np.zeros(n)
    for t in range(n):
        y[t] = 0.1 + np.sqrt(variance) * rng.standard_normal()
        variance = 0.05 + 0.15 * (y[t] - 0.1) ** 2 + 0.75 * variance

    def log_likelihood(x):
        persistence, share = 1 / (1 + np.exp(-x[2:]))
        constant, alpha = np.exp(x[1]), persistence * share
        beta, variance, total = persistence - alpha, y.var(), 0.0
        for value in y:
            square = (value - x[0]) ** 2
            total += np.log(variance) + square / variance
            variance = constant + alpha * square + beta * variance
        return -0.5 * total

    return opaque(log_likelihood, [0, -2, 1, -1], [1, 1.5, 1.5, 1])


def pharmacokinetics():
    """One compartment, oral dose, concentrations of one subject: log rates, log volume, log noise.

    Few late values leave a heavy right tail of the absorption's rate.
    """
    times = np.array([0.25, 0.5, 1, 2, 4, 6, 9, 12, 24.0])

    def concentration(x):
        absorption, elimination, volume = np.exp(x[:3])
        gap = absorption - elimination
        gap = gap if abs(gap) > 1e-6 else 1e-6
        decays = np.exp(-elimination * times) - np.exp(-absorption * times)
        return 100 * absorption / (volume * gap) * decays

    rng = np.random.default_rng(3)
    y = np.log(concentration(np.log([2.5, 0.15, 20]))) + 0.25 * rng.standard_normal(len(times))

    def log_likelihood(x):
        with np.errstate(all="ignore"):
            error = (y - np.log(concentration(x))) * np.exp(-x[3])
            value = -0.5 * np.sum(error**2) - len(y) * x[3]
        return float(value) if np.isfinite(value) else -np.inf

    return opaque(log_likelihood, [0, -2, 3, -1], [1.5, 1, 1, 1])


def groups(is_opaque=True):
    """Twelve patients with a box of two inputs each under a hierarchy, 29 values, not centred."""
    n, times, dose, absorption = 12, np.array([0.5, 1, 2, 4, 8, 12.0]), 100.0, 1.2

    def concentration(clearance, volume):
        rate = clearance / volume
        decays = np.exp(-rate * times) - np.exp(-absorption * times)
        return dose * absorption / (volume * (absorption - rate)) * decays

    rng = np.random.default_rng(13)
    sizes = np.exp([np.log(4) + 0.5 * rng.normal(size=n), np.log(25) + 0.3 * rng.normal(size=n)])
    y = concentration(*sizes[..., None]) * np.exp(0.25 * rng.normal(size=(n, len(times))))
    with pm.Model() as model:
        means = pm.Normal("means", np.log([5, 20]), 1, shape=2)
        sds, sigma = pm.HalfNormal("sds", 0.5, shape=2), pm.HalfNormal("sigma", 0.5)
        rates = pt.exp(means[:, None] + sds[:, None] * pm.Normal("z", shape=(2, n)))
        clearance, volume = rates[0], rates[1]
        if is_opaque:
            boxes = [
                kmc.BlackBox(f"patient {i}", concentration, clearance[i], volume[i], shape=6)
                for i in range(n)
            ]
            mean = pt.stack(boxes)
        else:
            mean = concentration(clearance[:, None], volume[:, None])
        pm.LogNormal("y", pt.log(mean), sigma, observed=y)
    return model


MODELS = {
    "groups": groups,
    "regression-7": lambda: regression(7),
    "regression-10": lambda: regression(10),
    "hidden-markov": hidden_markov,
    "arma": arma,
    "garch": garch,
    "pharmacokinetics": pharmacokinetics,
} | {name: learning.MODELS[name] for name in ("schools", "mixture", "survival", "scalar")}
#: The same posteriors, their log likelihoods estimates with noise of standard deviation 1.
EXACT = {"noisy-time-series": "time-series", "noisy-scalar": "scalar"}
MODELS |= {name: learning.MODELS[name] for name in EXACT}


def reference(name):
    """Means and standard deviations of a model's unconstrained variables."""
    if name in learning.KNOWN:
        target = TARGETS[learning.KNOWN[name]]()
        return target.mean, target.sd
    if name == "groups":
        with groups(is_opaque=False) as model:
            idata = learning.sample(pm.NUTS(target_accept=0.9), 5 * DRAWS, 0, DRAWS)
        draws = learning.unconstrained(model, idata.posterior)
        return draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    with learning.MODELS[EXACT[name]]() if name in EXACT else MODELS[name]() as model:
        idata = learning.sample(kmc.AdaptiveMetropolis(), REFERENCE_DRAWS, 1000, REFERENCE_TUNE)
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
        idata = learning.sample(step, n_draws, seed, step.default_tune_steps)
    return figures(step, idata, learning.unconstrained(model, idata.posterior), seconds, moments)


def figures(step, idata, draws, seconds, moments=None):
    """Return the figures of a run whose draws are (chains, n, k), by name."""
    tuning, drawing = (
        int(group["kmc_n_evaluations"].sum())
        for group in (idata.warmup_sample_stats, idata.sample_stats)
    )
    found = {
        "trusted": step.posterior is not None,
        "learning": step.n_learning_evaluations,
        "tuning": tuning,
        "seconds": seconds,
        "ESS": 1000 * learning.smallest_ess(draws) / drawing,
        "R-hat": max(float(az.rhat(draws[..., j])) for j in range(draws.shape[-1])),
    }
    if moments is not None:
        found["mean"], found["sd"] = map(float, learning.errors(draws, moments))
    return found


def table(runs):
    """Print rows as they are made, and a table of all; `runs` has names and lists of figures."""
    rows = []
    for name, found in runs:
        rows.append([name, f"{sum(one['trusted'] for one in found)} of {len(found)}"])
        for key, n in DIGITS.items():
            values = [one[key] for one in found if key in one]
            rows[-1].append(learning.cell(values, digits=n) if values else "-")
        rows[-1].append(learning.cell([one["ESS"] for one in found], min))
        print(*rows[-1], flush=True)
    print("\n" + markdown(["target", "trusted", *DIGITS, "ESS / 1000"], rows))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(MODELS), help="some of: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs a target")
    parser.add_argument("--quick", action="store_true", help="one target, one seed, no reference")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = ["pharmacokinetics"] if options.quick else options.targets.split(",")
    n_seeds, n_draws = (1, QUICK_DRAWS) if options.quick else (options.seeds, DRAWS)

    def runs():
        for name in names:
            moments = None if options.quick else reference(name)
            yield name, [run(name, seed, n_draws, moments) for seed in range(n_seeds)]

    table(runs())


if __name__ == "__main__":
    main()
