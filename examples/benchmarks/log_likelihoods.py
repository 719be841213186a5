"""Models whose log likelihood is one opaque number, of three to ten parameters.

Data are simulated from fixed seeds. Parameters of scale are logarithms, and priors are normal, so
that draws and moments need no transform.
"""

import numpy as np
import pymc as pm

import pymc_kmc as kmc


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


MODELS = {
    "regression-7": lambda: regression(7),
    "regression-10": lambda: regression(10),
    "hidden-markov": hidden_markov,
    "arma": arma,
    "garch": garch,
    "pharmacokinetics": pharmacokinetics,
}
