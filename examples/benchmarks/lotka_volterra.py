r"""Lynx and hare: a Lotka-Volterra posterior behind an ODE solver, with the gradient if wanted.

Hares u and lynx v, in thousands of pelts a year that the Hudson's Bay Company traded, follow

    du/dt = (alpha - beta v) u,        dv/dt = (-gamma + delta u) v,

and what was counted in the years 1900 to 1920 is log-normal about them: log y_t ~ N(log u_t,
sigma_1^2) for hares, log N(log v_t, sigma_2^2) for lynx. Priors:

    alpha, gamma ~ N(1, .5^2) > 0,     beta, delta ~ N(.05, .05^2) > 0,
    log u_0, log v_0 ~ N(log 10, 1),   log sigma_1, log sigma_2 ~ N(-1, 1).

This is Carpenter's (2018) model. All is on the log scale here:

    x = log (alpha, beta, gamma, delta, u_0, v_0, sigma_1, sigma_2).

The equations are solved for (log u, log v), which can't turn negative, by the classical Runge-Kutta
method with a fixed number of steps a year, so that the density is a smooth function of x. Its
gradient is exact: sensitivities follow the differentiated equations through the same method.

The moments in `data/lotka_volterra.npz` are of 4 x 20,000 draws of NUTS (R-hat at most 1.0003,
bulk ESS at least 22,000), made in some minutes by

    python -m examples.benchmarks.lotka_volterra

References
----------
Hewitt, C. G. (1921). *The Conservation of the Wild Life of Canada*. Scribner's.
Howard, P. (2009). Modeling basics. Lecture notes for Math 442, Texas A&M University (the figures).
Carpenter, B. (2018). Predator-prey population dynamics: the Lotka-Volterra model in Stan. *Stan
    Case Studies* 5.
"""

import argparse
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numba import njit
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from scipy.stats import truncnorm

from pymc_kmc._compat import expect_numba_fallback

REFERENCE = Path(__file__).parent / "data" / "lotka_volterra.npz"

#: Thousands of pelts, 1900 to 1920.
HARES = [30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1]
HARES += [40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]
LYNX = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4]
LYNX += [8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]
LOG_COUNTS = np.log(np.column_stack([HARES, LYNX]).astype(float))

#: Priors: of the four rates, normal and truncated at zero; of the logarithms of the other four.
RATE_MEANS, RATE_SDS = np.array([1.0, 0.05, 1.0, 0.05]), np.array([0.5, 0.05, 0.5, 0.05])
LOG_MEANS = np.array([np.log(10.0), np.log(10.0), -1.0, -1.0])

DIMENSION, N_DYNAMIC = 8, 6  # the first six are what the solution depends on
#: Near the mode the largest error of log u and log v is then 3e-6.
STEPS_A_YEAR = 10
#: Where to begin: not far from the mode, whose basin is not the only one.
NEAR_THE_MODE = np.log([0.55, 0.028, 0.8, 0.024, 33.0, 6.0, 0.25, 0.25])


@njit(cache=True)
def _slope(state, rates, out):
    """Time derivative of the state (2, 1 + k).

    Its first column is (log u, log v), the other k = 0 or 6 are derivatives of these by the first
    six coordinates of x.
    """
    eaten, fed = rates[1] * np.exp(state[1, 0]), rates[3] * np.exp(state[0, 0])
    out[0, 0] = rates[0] - eaten
    out[1, 0] = fed - rates[2]
    for j in range(1, state.shape[1]):
        out[0, j] = -eaten * state[1, j]
        out[1, j] = fed * state[0, j]
    if state.shape[1] > 1:
        out[0, 1] += rates[0]
        out[0, 2] -= eaten
        out[1, 3] -= rates[2]
        out[1, 4] += fed


@njit(cache=True)
def solve(x, n_sensitivities, n_years, steps_a_year):
    """States (n_years, 2, 1 + n_sensitivities) at the beginning of each year; see `_slope`."""
    rates = np.exp(x[:4])
    states = np.zeros((n_years, 2, 1 + n_sensitivities))
    state = states[0].copy()
    state[:, 0] = x[4:6]
    if n_sensitivities > 0:
        state[0, 5] = state[1, 6] = 1.0
    states[0] = state
    k1, k2 = np.empty_like(state), np.empty_like(state)
    k3, k4 = np.empty_like(state), np.empty_like(state)
    step = 1.0 / steps_a_year
    for year in range(1, n_years):
        for _ in range(steps_a_year):
            _slope(state, rates, k1)
            _slope(state + 0.5 * step * k1, rates, k2)
            _slope(state + 0.5 * step * k2, rates, k3)
            _slope(state + step * k3, rates, k4)
            state += step / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        states[year] = state
    return states


@njit(cache=True)
def _log_density(x):
    """Log density at one point x (8,); -inf where the solution leaves the numbers."""
    total = 0.0
    for i in range(4):
        total += x[i] - 0.5 * ((np.exp(x[i]) - RATE_MEANS[i]) / RATE_SDS[i]) ** 2
        total -= 0.5 * (x[4 + i] - LOG_MEANS[i]) ** 2
    states = solve(x, 0, len(LOG_COUNTS), STEPS_A_YEAR)
    for species in range(2):
        precision = np.exp(-2.0 * x[6 + species])
        residuals = LOG_COUNTS[:, species] - states[:, species, 0]
        total -= 0.5 * precision * np.sum(residuals**2) + len(residuals) * x[6 + species]
    return total if np.isfinite(total) else -np.inf


@njit(cache=True)
def _gradient(x):
    """Gradient of `_log_density` at one point; NaN where that is -inf."""
    out = np.empty(DIMENSION)
    for i in range(4):
        rate = np.exp(x[i])
        out[i] = 1.0 - rate * (rate - RATE_MEANS[i]) / RATE_SDS[i] ** 2
        out[4 + i] = LOG_MEANS[i] - x[4 + i]
    states = solve(x, N_DYNAMIC, len(LOG_COUNTS), STEPS_A_YEAR)
    for species in range(2):
        precision = np.exp(-2.0 * x[6 + species])
        residuals = LOG_COUNTS[:, species] - states[:, species, 0]
        for j in range(N_DYNAMIC):
            out[j] += precision * np.sum(residuals * states[:, species, 1 + j])
        out[6 + species] += precision * np.sum(residuals**2) - len(residuals)
    return out


def log_density(x):
    """Log density up to a constant, (..., 8) to (...)."""
    x = np.asarray(x, dtype=float)
    if x.ndim == 1:
        return _log_density(x)
    return np.apply_along_axis(_log_density, -1, x)


def gradient(x):
    """Gradient of the log density, (..., 8) to (..., 8)."""
    x = np.asarray(x, dtype=float)
    if x.ndim == 1:
        return _gradient(x)
    return np.apply_along_axis(_gradient, -1, x)


class Gradient(Op):
    """`gradient` of a PyTensor vector."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dvector()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = _gradient(inputs[0])


class LogDensity(Op):
    """`log_density` of a PyTensor vector."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.asarray(_log_density(inputs[0]))

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] * Gradient()(inputs[0])]

    L_op = pullback  # its name before PyTensor 3


expect_numba_fallback(Gradient)
expect_numba_fallback(LogDensity)


def build_model():
    """The posterior as a PyMC model of one variable, x."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=DIMENSION)
        pm.Potential("log_density", LogDensity()(x))
    return model


def prior_draw(rng):
    """A draw of x from the prior."""
    lowest = -RATE_MEANS / RATE_SDS
    rates = truncnorm.rvs(lowest, np.inf, RATE_MEANS, RATE_SDS, random_state=rng)
    return np.concatenate([np.log(rates), LOG_MEANS + rng.standard_normal(4)])


def load_reference():
    """Mean (8,) and covariance (8, 8) of the posterior."""
    with np.load(REFERENCE) as arrays:
        return arrays["mean"], arrays["covariance"]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Moments of the Lotka-Volterra posterior from a long NUTS run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--tune", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=20_000, help="of each chain")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=REFERENCE)
    options = parser.parse_args(arguments)
    with build_model():
        idata = pm.sample(
            tune=options.tune,
            draws=options.draws,
            chains=options.chains,
            cores=options.cores,
            initvals={"x": NEAR_THE_MODE},
            target_accept=0.9,
            random_seed=options.seed,
            nuts_sampler="pymc",
            compute_convergence_checks=False,
        )
    print(az.summary(idata, round_to="none").to_string())
    x = np.asarray(idata.posterior["x"]).reshape(-1, DIMENSION)
    np.savez(options.output, mean=x.mean(axis=0), covariance=np.cov(x, rowvar=False))


if __name__ == "__main__":
    main()
