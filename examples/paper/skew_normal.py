"""ABC on the 10-d skew-normal (KMC, Figure 4 middle and right, Figure 7).

The problem and its exact posterior are those of `examples/hamiltonian_abc.py`. A likelihood
estimate has 10 simulated data sets, as in the paper.

- "random walk": the exact posterior covariance, estimates kept.
- "random walk, drawn anew": PyMC's Metropolis, which draws the current point's estimate again at
  every look, as the original scripts did.
- "Hamiltonian ABC" with the step size that the paper's accuracy suggests, and with friction 0: that
  one gains speed from its gradients' noise until nothing is finite, and has 200 draws.
- "KMC": this package's default; its simulations are those of drawing.
"""

from types import SimpleNamespace

import arviz as az
import numpy as np

from examples import hamiltonian_abc as problem
from examples.benchmarks import abc
from examples.benchmarks.default import smallest_ess
from examples.paper.frame import Experiment, averages, lines

N_SIMULATIONS, STEP_SIZE, SCALE, MAX_LAG = 10, 0.05, 1.0, 100
#: Edges of the bins of theta_1's marginal.
BINS = np.linspace(7.0, 13.0, 61)
SAMPLERS = {
    "random walk": (abc.RANDOM_WALK, SCALE),
    "random walk, drawn anew": ("Metropolis", None),
    "Hamiltonian ABC": (0.1, STEP_SIZE),
    "Hamiltonian ABC, no friction": (0.0, STEP_SIZE),
    "KMC": ("KMC", None),
}


def settings(quick, seeds):
    samplers = ("Hamiltonian ABC",) if quick else SAMPLERS
    return [
        {
            "sampler": sampler,
            "draws": 200 if quick or sampler.endswith("no friction") else 6000,
            "seed": seed,
        }
        for seed in range(seeds)
        for sampler in samplers
    ]


def draws_of(sampler, n, seed):
    """Draws (n, d) and simulated data sets."""
    name, setting = SAMPLERS[sampler]
    if sampler.startswith(abc.HAMILTONIAN):
        hmc = problem.HamiltonianABC(N_SIMULATIONS, step_size=setting, friction=name)
        draws = hmc.sample(problem.THETA, n, np.random.default_rng(seed))
        return draws, n * hmc.simulations_an_iteration
    options = SimpleNamespace(tune=2000, draws=n)
    return abc.run(name, setting, N_SIMULATIONS, options, seed)


def run(sampler, draws, seed):
    """Figures, autocorrelations of theta_1 and its marginal, one value a row."""
    theta, n_simulations = draws_of(sampler, draws, seed)
    exact, first = problem.exact_posterior(), theta[:, 0]
    figures = {
        "sd / exact": np.mean(theta.std(axis=0) / exact.sd),
        "error of mean / sd": np.max(np.abs(theta.mean(axis=0) - exact.mean) / exact.sd),
        "simulations an iteration": n_simulations / draws,
        "simulations an effective draw": n_simulations / smallest_ess(theta),
    }
    rows = [{"what": name, "x": 0, "value": value} for name, value in figures.items()]
    density = np.histogram(first, BINS)[0] / (len(first) * np.diff(BINS))
    curves = {
        "autocorrelation": enumerate(az.autocorr(first)[: MAX_LAG + 1]),
        "density": zip(0.5 * (BINS[1:] + BINS[:-1]), density, strict=True),
    }
    for name, curve in curves.items():
        rows += [{"what": name, "x": x, "value": value} for x, value in curve]
    return rows


def table(results):
    figures = results[results.what.str.contains("/|simulations")]
    columns = list(dict.fromkeys(figures.what))
    wide = figures.pivot(index=["sampler", "seed"], columns="what", values="value").reset_index()
    return averages(wide, ["sampler"], dict.fromkeys(columns, ".3g"))


def draw_panels(results, figure):
    left, right = figure.subplots(1, 2)
    lines(left, results[results.what == "autocorrelation"], "x", "value", "sampler")
    left.set(xlabel="lag", ylabel="autocorrelation of $\\theta_1$")
    draw_marginal(right, results)


def draw_marginal(axes, results):
    lines(axes, results[results.what == "density"], "x", "value", "sampler")
    exact = problem.exact_posterior()
    x = 0.5 * (BINS[1:] + BINS[:-1])
    z = (x - exact.mean[0]) / exact.sd[0]
    density = np.exp(-0.5 * z**2) / (exact.sd[0] * np.sqrt(2 * np.pi))
    axes.plot(x, density, "k:", label="Gaussian of the exact moments")
    axes.set(xlabel="$\\theta_1$", ylabel="density")
    axes.set_ylim(top=1.6 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def draw_marginals(results, figure):
    """The marginal, and what an effective draw costs."""
    left, right = figure.subplots(1, 2)
    draw_marginal(left, results)
    costs = results[results.what == "simulations an effective draw"]
    costs = costs.groupby("sampler", sort=False).value.mean()
    right.barh(costs.index, costs)
    right.set(xlabel="simulated data sets an effective draw")


EXPERIMENTS = (
    Experiment(
        "kmc-figure-4-right",
        "skew-normal ABC: autocorrelation and marginal beside Hamiltonian ABC and random walks",
        settings,
        run,
        table,
        draw_panels,
        seeds=2,
        runs="skew-normal",
    ),
    Experiment(
        "kmc-figure-7",
        "skew-normal ABC: the marginal, and simulations for an effective draw",
        settings,
        run,
        table,
        draw_marginals,
        seeds=2,
        runs="skew-normal",
        size=(10.0, 4.0),
    ),
)
