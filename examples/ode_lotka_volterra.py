r"""Hares and lynx behind an ODE solver: learn the solver once, or pay for it at every proposal?

The pelts of snowshoe hares and Canadian lynx that the Hudson's Bay Company traded in the years 1900
to 1920 (Hewitt, 1921; figures of Howard, 2009), and the equations of Lotka and Volterra for hares u
and lynx v, in thousands of pelts,

    du/dt = (alpha - beta v) u,        dv/dt = (-gamma + delta u) v,

which PyMC's gallery fits in "ODE Lotka-Volterra with Bayesian inference in multiple ways". Priors
and likelihood are those of Carpenter (2018), natural scale throughout:

    alpha, gamma ~ N(1, .5^2) > 0,                 rates a year of hares' births and lynx' deaths
    beta, delta ~ N(.05, .05^2) > 0,               what one lynx eats, what one hare feeds
    hares_1900, lynx_1900 ~ LogNormal(log 10, 1)   the populations in 1900
    sigma ~ LogNormal(-1, 1), one for each         scatter of what was counted
    pelts_t ~ LogNormal(log (u_t, v_t), sigma)

The solver is SciPy's `odeint`: a Python function without a gradient, a millisecond or two a call.
`kmc.BlackBox` makes it a part of the model. It returns 42 numbers, the logarithms of both
populations in 21 years.

    python examples/ode_lotka_volterra.py                   # some minutes, or
    python examples/ode_lotka_volterra.py --quick           # few draws, to see it run
    python examples/ode_lotka_volterra.py --gallery         # also with the gallery's samplers

Three ways to draw from the posterior, from the same kind of starts, PyMC's:

- learned: `kmc.learn` emulates the 42 outputs; prior and likelihood around them stay exact.
  `kmc.KMC(learned)` moves on what was learned, and its accept step calls the solver, so that the
  draws are exact. What was learned is one for all chains.
  `kmc.KMC()` alone does both; here it is two calls because the picture shows what was learned.
- `kmc.KMC(learn=False)`: each chain learns for itself, from values of the log density, a number a
  call.
- `pm.DEMetropolisZ()`: a random walk with differences of its own past for proposals.

`--gallery` adds the other samplers of the notebook: `pm.Slice()`, `pm.DEMetropolis()` with a
population of 16 chains, and `pm.sample_smc()`.

A table has what each took, learning and tuning included, and what 400 effective draws take (bulk,
the worst of all parameters): what is spent before drawing, and drawing in proportion. Chains that
don't agree have no such figure: some of them are elsewhere, in one of the local maxima that
equations with cycles have, or still on their way.
"""

import argparse
from math import exp
from time import perf_counter
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from scipy.integrate import odeint

import pymc_kmc as kmc

YEARS = np.arange(1900, 1921)
# Thousands of pelts.
HARES = [30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1]
HARES += [40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]
LYNX = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4]
LYNX += [8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]
PELTS = np.column_stack([HARES, LYNX]).astype(float)

# Errors of the solution, of log populations: far below the scatter of the counts, .25.
TOLERANCE = 1e-6
# Effective draws that the table asks for: an error of the mean of a twentieth of the sd.
WANTED = 400
# Largest R-hat with which an effective sample size means anything.
LARGEST_RHAT = 1.1
# Draws that the bands are made of, and their probabilities.
N_BANDS, BAND = 200, (0.05, 0.5, 0.95)
# Points of a line of effective draws against evaluations.
N_POINTS = 12
PARAMETERS = ("alpha", "beta", "gamma", "delta", "hares_1900", "lynx_1900")


def log_populations(alpha, beta, gamma, delta, hares, lynx):
    """Logarithms of both populations at the beginning of each year, shape (21, 2).

    The equations are solved for them, which can't turn negative. Where the solver gives up it
    raises: at births of hundreds a year, where the prior has no mass to speak of.
    """

    def slope(logs, t):
        u, v = logs
        return alpha - beta * exp(v), delta * exp(u) - gamma

    start, times = np.log([hares, lynx]), YEARS - YEARS[0]
    options = {"rtol": TOLERANCE, "atol": TOLERANCE, "full_output": True}
    solution, report = odeint(slope, start, times, **options)
    if report["message"] != "Integration successful.":
        raise ArithmeticError(report["message"])
    return solution


def build_model():
    """The PyMC model of the module's docstring."""
    with pm.Model() as model:
        alpha = pm.TruncatedNormal("alpha", 1.0, 0.5, lower=0.0)
        beta = pm.TruncatedNormal("beta", 0.05, 0.05, lower=0.0)
        gamma = pm.TruncatedNormal("gamma", 1.0, 0.5, lower=0.0)
        delta = pm.TruncatedNormal("delta", 0.05, 0.05, lower=0.0)
        hares = pm.LogNormal("hares_1900", np.log(10.0), 1.0)
        lynx = pm.LogNormal("lynx_1900", np.log(10.0), 1.0)
        sigma = pm.LogNormal("sigma", -1.0, 1.0, shape=2)
        parameters = alpha, beta, gamma, delta, hares, lynx
        populations = kmc.BlackBox(
            "populations", log_populations, *parameters, shape=(21, 2), on_error="reject"
        )
        pm.LogNormal("pelts", populations, sigma, observed=PELTS)
    return model


class Length(NamedTuple):
    """Iterations of a chain."""

    tune: int
    draws: int


class Meter:
    """Counts evaluations and seconds while tuning, compilation included, and while drawing.

    Parameters
    ----------
    model : pymc.Model
        With one black box. Its chains run one after another in this process.

    Attributes
    ----------
    spent : dict of bool to ndarray, shape (2,)
        Evaluations and seconds, by whether the step was tuning.
    """

    def __init__(self, model):
        (self.box,) = kmc.black_boxes(model)
        self.spent = {True: np.zeros(2), False: np.zeros(2)}
        self.last = self.now()

    def now(self):
        return np.array([self.box.n_evaluations, perf_counter()])

    def __call__(self, trace=None, draw=None):
        """Called by `pm.sample` after each iteration."""
        now = self.now()
        self.spent[draw is None or draw.tuning] += now - self.last
        self.last = now

    def end(self, length):
        """Split what wasn't told, a population's or SMC's, by the number of iterations."""
        rest = self.now() - self.last
        if rest[0]:
            share = length.tune / (length.tune + length.draws)
            self.spent[True] += share * rest
            self.spent[False] += (1.0 - share) * rest


class Run(NamedTuple):
    """What a sampler drew, and what it spent.

    Attributes
    ----------
    name : str
    idata : xarray.DataTree or arviz.InferenceData
        Of `pm.sample`.
    before, drawing : ndarray, shape (2,)
        Evaluations and seconds: learning and tuning, and drawing.
    """

    name: str
    idata: object
    before: np.ndarray
    drawing: np.ndarray

    @property
    def draws(self):
        """Draws of all parameters, shape (8, chains, draws)."""
        posterior = self.idata.posterior
        sigma = posterior["sigma"].transpose(..., "chain", "draw").values
        one = [posterior[name].transpose("chain", "draw").values for name in PARAMETERS]
        return np.concatenate([one, sigma])

    def n_effective(self, n_draws=None):
        """Smallest bulk effective sample size of the first draws."""
        return min(float(az.ess(values[:, :n_draws])) for values in self.draws)

    @property
    def worst_rhat(self):
        return max(float(az.rhat(values)) for values in self.draws)

    @property
    def wanted(self):
        """Evaluations and seconds to the wanted number of effective draws."""
        return self.before + self.drawing * WANTED / self.n_effective()

    @property
    def curve(self):
        """Evaluations and effective draws, shape (N_POINTS, 2): from the end of tuning on."""
        n_draws = self.draws.shape[-1]
        points = []
        # Effective draws of less than a tenth of a run are hardly to be estimated.
        for n in np.linspace(0.1 * n_draws, n_draws, N_POINTS).astype(int):
            spent = self.before[0] + self.drawing[0] * n / n_draws
            points.append([spent, self.n_effective(n)])
        return np.array(points)


# A chain on what was learned evaluates 8 times while it tunes; without it a chain tunes as long as
# PyMC 6 lets it by default in eight dimensions; the random walk's are those that make it look well.
LEARNED, ALONE = "learned, KMC(learned)", "KMC(learn=False)"
RANDOM_WALK = "DEMetropolisZ()"
LENGTHS = {
    LEARNED: Length(50, 500),
    ALONE: Length(2640, 500),
    RANDOM_WALK: Length(10_000, 20_000),
}
# Those of the notebook: a sweep of Slice evaluates 50 times; a draw of SMC is a particle.
SLICE, POPULATION, SMC = "Slice()", "DEMetropolis()", "sample_smc()"
GALLERY_LENGTHS = {
    SLICE: Length(200, 500),
    POPULATION: Length(2500, 5000),
    SMC: Length(0, 1000),
}
# Chains of a population: twice as many as there are parameters.
N_POPULATION = 16
STEPS = {
    ALONE: lambda: kmc.KMC(learn=False),
    RANDOM_WALK: pm.DEMetropolisZ,
    SLICE: pm.Slice,
    POPULATION: pm.DEMetropolis,
}
# To see it run: chains that learn and the random walk don't arrive in so few.
QUICK_LENGTHS = {LEARNED: Length(50, 100), ALONE: Length(150, 100), RANDOM_WALK: Length(300, 300)}


def sample(name, options):
    """Sample in one of the three ways.

    Returns
    -------
    run : Run
    learned : LearnedPosterior or None
    """
    length, learned = options.lengths[name], None
    common = {
        "draws": length.draws,
        "chains": N_POPULATION if name == POPULATION else options.chains,
        "cores": 1,
        "random_seed": options.seed,
        "progressbar": options.progressbar,
        "compute_convergence_checks": False,
    }
    with build_model() as model:
        meter = Meter(model)
        if name == SMC:
            idata = pm.sample_smc(**common)
        else:
            if name == LEARNED:
                learned = kmc.learn(random_seed=options.seed, progressbar=options.progressbar)
            step = STEPS[name]() if learned is None else kmc.KMC(learned)
            idata = pm.sample(step=step, tune=length.tune, callback=meter, **common)
    meter.end(length)
    return Run(name, idata, meter.spent[True], meter.spent[False]), learned


def print_table(header, rows):
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def print_cost(runs):
    """What each run took, and what the wanted effective draws take."""
    rows = []
    for run in runs:
        (n_before, s_before), (n_drawing, s_drawing) = run.before, run.drawing
        agree = run.worst_rhat < LARGEST_RHAT
        wanted = [f"{value:,.0f}" for value in run.wanted] if agree else ["chains differ", ""]
        rows.append(
            [
                run.name,
                f"{n_before:,.0f} + {n_drawing:,.0f}",
                f"{s_before:.0f} + {s_drawing:.0f}",
                f"{run.n_effective():.0f}",
                f"{run.worst_rhat:.2f}",
                *wanted,
            ]
        )
    print(
        "\nEvaluations of the solver and seconds: before drawing (learning, compilation, tuning of"
    )
    print("all chains) + drawing. Effective draws of the worst parameter, and what it takes to")
    print(f"{WANTED} of these")
    print_table(
        ["", "evaluations", "seconds", "effective", "R-hat", "evaluations to", "seconds to"], rows
    )


def bands(draws, rng):
    """Quantiles of the pelts that the model predicts, shape (3, 21, 2).

    Parameters
    ----------
    draws : ndarray, shape (8, n)
        Of the parameters; as many as the bands need are chosen.
    rng : numpy.random.Generator
    """
    chosen = draws[:, rng.choice(draws.shape[1], N_BANDS)].T
    logs = np.array([log_populations(*row[:6]) for row in chosen])
    logs += chosen[:, None, 6:] * rng.standard_normal(logs.shape)
    return np.quantile(np.exp(logs), BAND, axis=0)


def approximate_draws(learned):
    """Draws of what was learned, before any chain, shape (8, n)."""
    data = learned.draws(1000, random_seed=0)
    sigma = data["sigma"].values[0].T
    return np.concatenate([[data[name].values[0] for name in PARAMETERS], sigma])


def plot(runs, learned, rng, path):
    """The data with what is predicted, and effective draws against evaluations."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    *species, right = figure.subplots(1, 3)
    exact = bands(runs[0].draws.reshape(8, -1), rng)
    approximate = bands(approximate_draws(learned), rng)
    for k, (ax, title) in enumerate(zip(species, ("Hares", "Lynx"), strict=True)):
        low, middle, high = exact[..., k]
        ax.fill_between(YEARS, low, high, color="C0", alpha=0.2, linewidth=0)
        ax.plot(YEARS, middle, color="C0", label="KMC(learned): median, 90 %")
        for i, quantile in enumerate(approximate[..., k]):
            label = f"learned alone, {learned.n_evaluations} evaluations" if i == 0 else None
            ax.plot(YEARS, quantile, color="black", linewidth=1, linestyle="--", label=label)
        ax.plot(YEARS, PELTS[:, k], ".", color="C3", markersize=7, label="pelts")
        ax.set(title=title, ylabel="thousands of pelts", xticks=YEARS[::5])
        ax.set_ylim(0, 1.3 * max(high.max(), PELTS[:, k].max()))
    species[0].legend(frameon=False, fontsize=8, loc="upper right")
    for run in runs:
        evaluations, n_effective = run.curve.T
        evaluations, n_effective = np.r_[run.before[0], evaluations], np.r_[0.0, n_effective]
        right.plot(evaluations, n_effective, label=f"{run.name}, R-hat {run.worst_rhat:.2f}")
    right.axhline(WANTED, color="0.7", linewidth=1)
    right.set(title="Effective draws, worst parameter", xlabel="evaluations of the solver")
    right.set_xscale("log")
    right.set_xlim(100)
    right.legend(frameon=False, fontsize=8)
    for ax in (*species, right):
        ax.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, dpi=130)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description="Fit Lotka-Volterra's equations to hares and lynx, with and without learning.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--chains", type=int, default=4, help="chains, one after another")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same draws")
    parser.add_argument("--quick", action="store_true", help="two short chains only")
    parser.add_argument("--gallery", action="store_true", help="all samplers of the gallery")
    parser.add_argument("--output", default="ode_lotka_volterra.png", help="the PNG to write")
    options = parser.parse_args(arguments)
    options.lengths, options.progressbar = LENGTHS, not options.quick
    if options.quick:
        options.lengths, options.chains = QUICK_LENGTHS, 2
    if options.gallery:
        options.lengths = options.lengths | GALLERY_LENGTHS
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    runs = []
    for name in options.lengths:
        run, what = sample(name, options)
        if what is not None:
            learned = what
            print(f"{learned}\n\n{az.summary(run.idata, var_names=[*PARAMETERS, 'sigma'])}")
        runs.append(run)
    print_cost(runs)
    plot(runs, learned, np.random.default_rng(options.seed), options.output)
    print(f"\nPelts, predictions and effective draws: {options.output}")
    return runs, learned


if __name__ == "__main__":
    main()
