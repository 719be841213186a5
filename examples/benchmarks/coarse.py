"""What a coarse version of a black box saves, and what a bad one costs.

    python -m examples.benchmarks.coarse                      # some minutes
    python -m examples.benchmarks.coarse --targets rod --seeds 3
    python -m examples.benchmarks.coarse --quick

Each model is learned without a coarse version, with one that is about 5 % off, and with a bad one.
Cells are "median (worst)" over seeds.

fine, coarse   evaluations of either until it was learned
share          fine evaluations beside those without a coarse version, medians
mean, sd       the largest error of a mean of what was learned, in standard deviations, and of a log
               standard deviation, beside 4 x 2000 exact draws
own seconds    of processor time, evaluations included

lotka-volterra one Runge-Kutta step a year for ten, rates 1 % off; bad: the rate of growth halved
rod            heat in a rod with a source, five cells for forty, 2 to 30 % off; bad: no source
time-series    a log likelihood; at parameters 5 % off; bad: of the series backwards
dose-response  a log likelihood, likewise; bad: of other deaths
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks import lotka_volterra as lynx_and_hare  # noqa: E402
from examples.benchmarks.learning import (  # noqa: E402
    cell,
    errors,
    learn,
    outputs,
    populations,
    sample,
    unconstrained,
)
from examples.benchmarks.targets import markdown  # noqa: E402

KINDS = ("none", "5 % off", "bad")
REFERENCE_DRAWS, QUICK_DRAWS, QUICK_SEEDS = 2000, 200, 3
SENSORS = np.linspace(0.1, 0.9, 9)


def in_steps_of_a_year(rates, first):
    x = np.concatenate([np.log(1.01 * rates), np.log(first), np.zeros(2)])
    states = lynx_and_hare.solve(x, 0, len(lynx_and_hare.LOG_COUNTS), 1)[:, :, 0]
    return np.exp(np.clip(np.nan_to_num(states), -300.0, 300.0))


def with_half_the_growth(rates, first):
    return populations(rates * [0.5, 1.0, 1.0, 1.0], first)


def lotka_volterra(kind):
    coarse = {"none": None, "5 % off": in_steps_of_a_year, "bad": with_half_the_growth}
    return outputs(coarse=coarse[kind])


def temperatures(conductivity, loss, source, n=40):
    """Temperatures at nine sensors of a rod between walls at 0 and 1, by n finite volumes."""
    x = (np.arange(n) + 0.5) / n
    k = conductivity * (1.0 + 0.5 * x) * n**2
    A = np.diag(loss + 2.0 * k) - np.diag(k[1:], 1) - np.diag(k[:-1], -1)
    right = source * np.exp(-((x - 0.3) ** 2) / 0.02)
    right[-1] += k[-1]
    return np.interp(SENSORS, x, np.linalg.solve(A, right))


def rod(kind):
    """A rod's conductivity, loss of heat and source, 4-d with the sensors' error."""
    coarse = {
        "none": None,
        "5 % off": lambda *parameters: temperatures(*parameters, n=5),
        "bad": lambda conductivity, loss, source: temperatures(conductivity, loss, 0.0),
    }
    rng = np.random.default_rng(0)
    observed = temperatures(0.3, 3.0, 4.0) + 0.03 * rng.standard_normal(len(SENSORS))
    with pm.Model() as model:
        parameters = [pm.LogNormal(name, 0, 1) for name in ("conductivity", "loss", "source")]
        sigma = pm.HalfNormal("sigma", 0.1)
        mean = kmc.BlackBox("rod", temperatures, *parameters, shape=9, coarse=coarse[kind])
        pm.Normal("y", mean, sigma, observed=observed)
    return model


def time_series_of(y):
    trend = np.linspace(0, 1, len(y) - 1)

    def log_likelihood(mu, a, log_sigma, slope):
        ahead = mu + slope * trend + np.tanh(a) * (y[:-1] - mu)
        residuals = (y[1:] - ahead) * np.exp(-log_sigma)
        return -0.5 * np.sum(residuals**2) - len(residuals) * log_sigma

    return log_likelihood


def time_series(kind):
    """An autoregression with a trend, 4-d."""
    rng, y = np.random.default_rng(1), np.zeros(100)
    for i in range(1, len(y)):
        y[i] = 0.5 + 0.7 * (y[i - 1] - 0.5) + 0.3 * rng.standard_normal()
    exact = time_series_of(y)
    coarse = {
        "none": None,
        "5 % off": lambda *parameters: exact(*[1.05 * p + 0.02 for p in parameters]),
        "bad": time_series_of(2.0 * np.sin(y[::-1])),
    }
    with pm.Model() as model:
        priors = pm.Normal("mu", 0, 2), *(pm.Normal(name, 0, 1) for name in ("a", "s", "slope"))
        pm.Potential("y", kmc.BlackBox("log likelihood", exact, *priors, coarse=coarse[kind]))
    return model


def dose_response(kind):
    """Bioassay with an extra parameter, 3-d."""
    dose, n = np.array([-0.86, -0.3, -0.05, 0.73]), 5

    def of(deaths):
        def log_likelihood(a, b, curvature):
            logit = a + b * dose + curvature * dose**2
            return np.sum(deaths * logit - n * np.logaddexp(0, logit))

        return log_likelihood

    exact = of(np.array([0, 1, 3, 5]))
    coarse = {
        "none": None,
        "5 % off": lambda *parameters: exact(*[1.05 * p + 0.02 for p in parameters]),
        "bad": of(np.array([5, 2, 2, 0])),
    }
    with pm.Model() as model:
        priors = pm.Normal("a", 0, 5), pm.Normal("b", 5, 5), pm.Normal("curvature", 0, 1)
        pm.Potential("y", kmc.BlackBox("log likelihood", exact, *priors, coarse=coarse[kind]))
    return model


MODELS = {
    "lotka-volterra": lotka_volterra,
    "rod": rod,
    "time-series": time_series,
    "dose-response": dose_response,
}


def reference(build, n_draws):
    model = build("none")
    learned, _ = learn(model, 1000)
    with model:
        idata = sample(kmc.KMC(learned), n_draws, 1000)
    draws = unconstrained(model, idata.posterior)
    flat = draws.reshape(-1, draws.shape[-1])
    return flat.mean(axis=0), flat.std(axis=0)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(MODELS), help="some of: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs a model")
    parser.add_argument("--quick", action="store_true", help="one small model, three seeds")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = ["dose-response"] if options.quick else options.targets.split(",")
    n_seeds, n_draws = (
        (QUICK_SEEDS, QUICK_DRAWS) if options.quick else (options.seeds, REFERENCE_DRAWS)
    )
    rows = []
    for name in names:
        moments, usual = reference(MODELS[name], n_draws), None
        for kind in KINDS:
            model, found = MODELS[name](kind), []
            for seed in range(n_seeds):
                learned, seconds = learn(model, seed)
                of_learned = errors(learned.positions[None], moments)
                n = learned.n_evaluations, learned.n_coarse_evaluations
                found.append((*n, *of_learned, seconds))
                print(name, kind, seed, *[f"{value:.3g}" for value in found[-1]], flush=True)
            columns = np.transpose(found)
            usual = usual or np.median(columns[0])
            cells = [cell(v, digits=k) for v, k in zip(columns, (0, 0, 2, 2, 0), strict=True)]
            rows.append([name, kind, *cells, f"{np.median(columns[0]) / usual:.2f}"])
    header = ["model", "coarse version", "fine", "coarse", "mean", "sd", "own s", "share"]
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
