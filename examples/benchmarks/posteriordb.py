"""`pm.sample(step=kmc.KMC())`, nothing else, on ten of posteriordb's models as black boxes.

    python -m examples.benchmarks.posteriordb
    python -m examples.benchmarks.posteriordb --targets one-compartment,gp --seeds 5
    python -m examples.benchmarks.posteriordb --quick

Each log likelihood is one opaque number, written from the definition of posteriordb's model, under
the same priors; flat ones are very wide here. `data/posteriordb.json` has the data, and means and
standard deviations of posteriordb's reference draws, positive parameters by their logarithms
(https://github.com/stan-dev/posteriordb, commit 28f8d3d, BSD license).

Four chains of 1000 draws, from PyMC's own starts, with the tuning that the step asks for. Columns
are those of :mod:`examples.benchmarks.black_boxes`; "mean" and "sd" have the Monte-Carlo error of
10,000 reference draws and of the run's own.

References
----------
Magnusson, M., Torgander, J., Buerkner, P.-C., Zhang, L., Carpenter, B. and Vehtari, A. (2025).
posteriordb: Testing, benchmarking and developing Bayesian inference algorithms. *AISTATS 2025*.
"""

import argparse
import json
import logging
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
from scipy.integrate import solve_ivp

import pymc_kmc as kmc
from examples.benchmarks import learning
from examples.benchmarks.black_boxes import DRAWS, QUICK_DRAWS, figures, table

PROBLEMS = json.loads((Path(__file__).parent / "data" / "posteriordb.json").read_text())
#: Standard deviation of a prior that is flat in posteriordb.
WIDE = 100.0


def data_of(name):
    return {key: np.asarray(value, dtype=float) for key, value in PROBLEMS[name]["data"].items()}


def opaque(log_likelihood, *parameters):
    """Add a log likelihood to the model, which is -inf where it can't be evaluated."""

    def finite(*values):
        with np.errstate(all="ignore"):
            value = log_likelihood(*values)
        return float(value) if np.isfinite(value) else -np.inf

    pm.Potential("y", kmc.BlackBox("log likelihood", finite, *parameters))


def normal(error, sd):
    return np.sum(-0.5 * (error / sd) ** 2 - np.log(sd) * np.ones_like(error))


def arma():
    y = data_of("arma")["y"]

    def log_likelihood(mu, phi, theta, sigma):
        error, errors = y[0] - mu - phi * mu, []
        for last, value in zip(y[:-1], y[1:], strict=True):
            errors.append(error)
            error = value - mu - phi * last - theta * error
        return normal(np.array([*errors, error]), sigma)

    mu, phi, theta = pm.Normal("mu", 0, 10), pm.Normal("phi", 0, 2), pm.Normal("theta", 0, 2)
    opaque(log_likelihood, mu, phi, theta, pm.HalfCauchy("sigma", 2.5))


def garch():
    """Uniform on 0 < alpha1, 0 < beta1, alpha1 + beta1 < 1, as a Dirichlet distribution."""
    y, first = data_of("garch").values()

    def log_likelihood(mu, alpha0, weights):
        sigma = [float(first)]
        for value in y[:-1]:
            variance = alpha0 + weights[0] * (value - mu) ** 2 + weights[1] * sigma[-1] ** 2
            sigma.append(np.sqrt(variance))
        return normal(y - mu, np.array(sigma))

    mu, alpha0 = pm.Normal("mu", 0, WIDE), pm.HalfNormal("alpha0", WIDE)
    weights = pm.Dirichlet("weights", np.ones(3))
    opaque(log_likelihood, mu, alpha0, weights)
    pm.Deterministic("alpha1", weights[0])
    pm.Deterministic("beta1", weights[1])


def kilpisjarvi():
    """A regression on years far from zero: correlation of -.99999."""
    x, y, *prior = data_of("kilpisjarvi").values()

    def log_likelihood(alpha, beta, sigma):
        return normal(y - alpha - beta * x, sigma)

    alpha, beta = pm.Normal("alpha", *prior[:2]), pm.Normal("beta", *prior[2:])
    opaque(log_likelihood, alpha, beta, pm.HalfNormal("sigma", WIDE))


def gp():
    x, y = data_of("gp").values()
    squares = (x[:, None] - x) ** 2

    def log_likelihood(rho, alpha, sigma):
        covariance = alpha**2 * np.exp(-0.5 * squares / rho**2) + sigma * np.eye(len(x))
        _, log_determinant = np.linalg.slogdet(covariance)
        return -0.5 * (y @ np.linalg.solve(covariance, y) + log_determinant)

    rho = pm.Gamma("rho", alpha=25, beta=4)
    opaque(log_likelihood, rho, pm.HalfNormal("alpha", 2), pm.HalfNormal("sigma", 1))


def one_compartment():
    """Michaelis-Menten elimination; K_m has heavy tails."""
    dose, volume, times, measured = data_of("one-compartment").values()

    def log_likelihood(k_a, K_m, V_m, sigma):
        def rate(t, C):
            return np.exp(-k_a * t) * dose * k_a / volume - V_m / volume * C / (K_m + C)

        span, settings = (0.0, times[-1]), {"rtol": 1e-6, "atol": 1e-8, "method": "LSODA"}
        found = solve_ivp(rate, span, [0.0], t_eval=times, **settings)
        if not found.success:
            return -np.inf
        return normal(np.log(measured) - np.log(found.y[0]), sigma)

    opaque(log_likelihood, *[pm.HalfCauchy(name, 1) for name in ("k_a", "K_m", "V_m", "sigma")])


def ar5():
    y = data_of("ar5")["y"]
    lagged = np.column_stack([y[5 - k : len(y) - k] for k in range(1, 6)])

    def log_likelihood(alpha, beta, sigma):
        return normal(y[5:] - alpha - lagged @ beta, sigma)

    alpha, beta = pm.Normal("alpha", 0, 10), pm.Normal("beta", 0, 10, shape=5)
    opaque(log_likelihood, alpha, beta, pm.HalfCauchy("sigma", 2.5))


def mesquite():
    data = data_of("mesquite")
    area, height = data["diam1"] * data["diam2"], data["canopy_height"]
    logs = [area * height, area, data["diam1"] / data["diam2"], data["total_height"]]
    X = np.column_stack([np.ones(len(area)), *map(np.log, logs), data["group"]])
    y = np.log(data["weight"])

    def log_likelihood(beta, sigma):
        return normal(y - X @ beta, sigma)

    beta = pm.Normal("beta", 0, WIDE, shape=6)
    opaque(log_likelihood, beta, pm.HalfNormal("sigma", WIDE))


def hmm():
    """Two states; the means' priors keep them apart."""
    y = data_of("hmm")["y"]

    def log_likelihood(theta1, theta2, mu):
        likely = np.exp(-0.5 * (y[:, None] - mu) ** 2) + 1e-300
        P, forward, total = np.vstack([theta1, theta2]), np.ones(2), 0.0
        for t, each in enumerate(likely):
            forward = (forward if t == 0 else forward @ P) * each
            total += np.log(forward.sum())
            forward = forward / forward.sum()
        return total

    theta1, theta2 = (pm.Dirichlet(name, np.ones(2)) for name in ("theta1", "theta2"))
    opaque(log_likelihood, theta1, theta2, pm.Normal("mu", [3.0, 10.0], 1.0, shape=2))


def lotka_volterra():
    ts, first, y = data_of("lotka-volterra").values()
    observed = np.log(np.vstack([first, y]))

    def log_likelihood(theta, z_init, sigma):
        def rates(t, z):
            u, v = z
            return [(theta[0] - theta[1] * v) * u, (theta[3] * u - theta[2]) * v]

        times, settings = np.append(0.0, ts), {"rtol": 1e-6, "atol": 1e-6, "method": "LSODA"}
        found = solve_ivp(rates, (0.0, ts[-1]), z_init, t_eval=times, **settings)
        if not found.success:
            return -np.inf
        return normal(observed - np.log(found.y.T), np.broadcast_to(sigma, observed.shape))

    means, sds = [1, 0.05, 1, 0.05], [0.5, 0.05, 0.5, 0.05]
    theta = pm.TruncatedNormal("theta", means, sds, lower=0, shape=4)
    z_init = pm.LogNormal("z_init", np.log(10), 1, shape=2)
    opaque(log_likelihood, theta, z_init, pm.LogNormal("sigma", -1, 1, shape=2))


def schools():
    """Eight schools, not centred."""
    y, errors = data_of("schools").values()
    effects = pm.Normal("effects", 0, 1, shape=8)
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    theta = pm.Deterministic("theta", mu + tau * effects)
    pm.Potential("y", kmc.BlackBox("log likelihood", lambda t: normal(y - t, errors), theta))


MODELS = {
    "arma": arma,
    "garch": garch,
    "kilpisjarvi": kilpisjarvi,
    "gp": gp,
    "one-compartment": one_compartment,
    "ar5": ar5,
    "mesquite": mesquite,
    "hmm": hmm,
    "lotka-volterra": lotka_volterra,
    "schools": schools,
}


def quantity(posterior, label):
    """Draws (chains, n) of a quantity of the reference: "beta[2]", "log sigma"."""
    name, _, index = label.removeprefix("log ").partition("[")
    values = np.asarray(posterior[name])
    values = values[..., int(index[:-1]) - 1] if index else values
    return np.log(values) if label.startswith("log ") else values


def run(name, seed, n_draws):
    """Return the figures of one run, by name."""
    begin = time.process_time()
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MODELS[name]()
        step = kmc.KMC(rng=seed)
        seconds = time.process_time() - begin
        idata = learning.sample(step, n_draws, seed, step.default_tune_steps)
    moments = PROBLEMS[name]["moments"]
    draws = np.stack([quantity(idata.posterior, label) for label in moments], axis=-1)
    return figures(step, idata, draws, seconds, np.transpose(list(moments.values())))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(MODELS), help="some of: %(default)s")
    parser.add_argument("--seeds", type=int, default=2, help="number of runs a target")
    parser.add_argument("--quick", action="store_true", help="one target, one seed, few draws")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = ["gp"] if options.quick else options.targets.split(",")
    n_seeds, n_draws = (1, QUICK_DRAWS) if options.quick else (options.seeds, DRAWS)
    table((name, [run(name, seed, n_draws) for seed in range(n_seeds)]) for name in names)


if __name__ == "__main__":
    main()
