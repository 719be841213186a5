"""Simulations for an effective draw of an ABC posterior, and whether it is the right posterior.

    python -m examples.benchmarks.abc
    python -m examples.benchmarks.abc --samplers KMC,AdaptiveMetropolis --simulations 3,10,100
    python -m examples.benchmarks.abc --quick

The ten-dimensional skew-normal of `examples/hamiltonian_abc.py`, whose ABC posterior quadrature
gives. "Sd" is the mean over coordinates of sd / exact sd. "Error" is the larger of two, in Monte
Carlo standard errors: of the mean along the skewed axis, and of the squared Mahalanobis distance
from the exact mean, which is 10 on average. Effective sample size is the smallest over coordinates
of x and (x - mean)^2; simulations are those while drawing, for all chains.

- Our steps, with a `pymc_kmc.ABCPotential`.
- "random walk": a Metropolis random walk with the exact posterior covariance and the best of the
  scales tried, that keeps its estimates: what adaptive Metropolis would be if it knew everything.
- PyMC's own steps, with the same estimate in an ordinary Op, which draws it anew at every look.
- Hamiltonian ABC at several step sizes.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402
import warnings  # noqa: E402
from typing import NamedTuple  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from scipy.special import logsumexp  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples import hamiltonian_abc as problem  # noqa: E402
from examples.benchmarks.default import RedrawnEstimate, smallest_ess  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402

OURS = ("KMC", "KMCLite", "KMCFinite", "KAMH", "AdaptiveMetropolis")
REDRAWN = ("Metropolis", "DEMetropolisZ")
RANDOM_WALK, HAMILTONIAN = "random walk", "Hamiltonian ABC"
#: Scales of the random walk, as factors on 2.38 / sqrt(d).
SCALES = (0.6, 0.8, 1.0)
#: More standard errors than this are marked.
SUSPICIOUS = 4.0
#: KMC's simulations for an effective draw are to be so many times fewer.
GOALS = {RANDOM_WALK: 5.0, HAMILTONIAN: 20.0}
#: Hamiltonian ABC counts for the goal where its sds are right to so much.
RIGHT_SD = 0.05
HEADER = [
    "sampler",
    "simulations an estimate",
    "sd",
    "error",
    "ESS a 1000 iterations",
    "simulations an effective draw",
    "/ KMC",
]


class Chain(NamedTuple):
    """Draws, shape (n, d), and how many data sets were simulated meanwhile."""

    draws: np.ndarray
    n_simulations: int


class Counter:
    """A simulator that counts its data sets."""

    def __init__(self):
        self.n = 0

    def __call__(self, theta, rng, size):
        self.n += size
        return problem.simulator(theta, rng, size)


def redrawn_model(simulator, n_simulations, seed):
    """The problem with the estimate in an Op with a generator of its own."""
    observed = problem.observed_data().mean(axis=0)

    def estimator(theta, rng):
        summaries = problem.summary(simulator(theta, rng, n_simulations))
        squares = np.sum((summaries - observed) ** 2, axis=1)
        return logsumexp(-0.5 * squares / problem.EPSILON**2) - np.log(n_simulations)

    with pm.Model() as model:
        theta = pm.Normal("theta", 0, problem.PRIOR_SD, shape=problem.N_DIMENSIONS)
        pm.Potential("likelihood", RedrawnEstimate(estimator, seed)(theta))
    return model


def through_pymc(make_step, model, simulator, options, seed):
    """A chain of `pymc.sample`, with the simulations of its draws."""
    while_tuning = [0]

    def count(trace, draw):
        if draw.tuning:
            while_tuning[0] = simulator.n

    with model:
        simulator.n = 0
        idata = pm.sample(
            step=make_step(),
            tune=options.tune,
            draws=options.draws,
            chains=1,
            cores=1,
            random_seed=seed,
            initvals={"theta": problem.THETA},
            progressbar=False,
            compute_convergence_checks=False,
            callback=count,
        )
    return Chain(np.asarray(idata.posterior["theta"])[0], simulator.n - while_tuning[0])


def run(sampler, setting, n_simulations, options, seed):
    """One chain; `setting` is a random walk's scale or Hamiltonian ABC's step size."""
    if sampler == HAMILTONIAN:
        hmc = problem.HamiltonianABC(n_simulations, step_size=setting)
        n = int(options.draws * options.hamiltonian_share)
        draws = hmc.sample(problem.THETA, n + n // 10, np.random.default_rng(seed))[-n:]
        return Chain(draws, n * hmc.simulations_an_iteration)
    simulator = Counter()
    if sampler in REDRAWN:
        model = redrawn_model(simulator, n_simulations, seed)
        return through_pymc(getattr(pm, sampler), model, simulator, options, seed)
    model = problem.build_model(n_simulations, simulator)
    if sampler == RANDOM_WALK:
        covariance = problem.exact_posterior().covariance

        def make_step():
            return kmc.AdaptiveMetropolis(covariance=covariance, scale=setting, tune=False)
    else:
        make_step = getattr(kmc, sampler)
    return through_pymc(make_step, model, simulator, options, seed)


class Figures(NamedTuple):
    """A row of the table."""

    sampler: str
    n_simulations: int
    sd: float
    error: float
    ess: float
    cost: float

    @property
    def is_right(self):
        return abs(self.sd - 1.0) < RIGHT_SD


def figures(name, n_simulations, chains, exact):
    """Figures of a sampler's chains of one length."""
    draws = np.stack([chain.draws for chain in chains])
    deviations = draws - exact.mean
    along = deviations @ problem.AXIS
    scaled = np.einsum("cni,ij,cnj->cn", deviations, np.linalg.inv(exact.covariance), deviations)
    scores = [standard_errors(along, 0.0), standard_errors(scaled, problem.N_DIMENSIONS)]
    ess = sum(smallest_ess(chain.draws) for chain in chains)
    n = draws.shape[0] * draws.shape[1]
    cost = sum(chain.n_simulations for chain in chains) / ess if ess else np.inf
    sd = draws.reshape(n, -1).std(axis=0)
    return Figures(
        name, n_simulations, float((sd / exact.sd).mean()), max(scores), 1000 * ess / n, cost
    )


def standard_errors(values, expected):
    """How far off the mean of values (chains, n) is, in its standard errors."""
    effective = float(az.ess(values, method="mean"))
    return float(abs(values.mean() - expected) / (values.std() / np.sqrt(effective)))


def cells(row, reference):
    """A row's cells; costs are relative to KMC's best, `reference`."""
    mark = "**" if row.error > SUSPICIOUS else ""
    return [
        row.sampler,
        str(row.n_simulations),
        f"{mark}{row.sd:.2f}{mark}",
        f"{mark}{row.error:.1f}{mark}",
        f"{row.ess:.1f}",
        f"{row.cost:.0f}",
        "" if reference is None else f"{row.cost / reference.cost:.1f}",
    ]


def goals(rows, reference):
    """Lines that say which goals are reached, with the cheapest setting of each rival."""
    lines = []
    for rival, goal in GOALS.items():
        of_rival = [row for row in rows if row.sampler.startswith(rival) and row.is_right]
        if reference is None or not of_rival:
            continue
        ratio = min(row.cost for row in of_rival) / reference.cost
        reached = "reached" if ratio >= goal else "not reached"
        lines.append(f"KMC against {rival}: {ratio:.1f} times fewer; {goal:g} {reached}.")
    return lines


def settings(sampler, options):
    """Settings to try, with the names of their rows."""
    if sampler == RANDOM_WALK:
        return {f"{sampler}, scale {scale:g}": scale for scale in SCALES}
    if sampler == HAMILTONIAN:
        return {f"{sampler}, step {size:g}": size for size in options.step_sizes}
    return {f"pm.{sampler}, drawn anew" if sampler in REDRAWN else sampler: None}


def parse(arguments=None):
    known = (*OURS, RANDOM_WALK, *REDRAWN, HAMILTONIAN)
    parser = argparse.ArgumentParser(
        description="Simulations for an effective draw of an ABC posterior.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--samplers",
        default=",".join(("KMC", "KMCLite", "AdaptiveMetropolis", *known[len(OURS) :])),
        help=f"comma-separated, of {', '.join(known)}",
    )
    parser.add_argument("--simulations", default="10", help="data sets an estimate, with commas")
    parser.add_argument("--step-sizes", default="0.05,0.02", help="of Hamiltonian ABC")
    parser.add_argument("--tune", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument(
        "--hamiltonian-share", type=float, default=2.0, help="Hamiltonian ABC's draws, relatively"
    )
    parser.add_argument("--seeds", type=int, default=2, help="chains, one a seed")
    parser.add_argument("--quick", action="store_true", help="tune 300, draws 300, one seed")
    options = parser.parse_args(arguments)
    options.samplers = options.samplers.split(",")
    unknown = set(options.samplers) - set(known)
    if unknown:
        parser.error(f"unknown samplers: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    options.simulations = [int(n) for n in options.simulations.split(",")]
    options.step_sizes = [float(size) for size in options.step_sizes.split(",")]
    if options.quick:
        options.tune, options.draws, options.seeds = 300, 300, 1
    return options


def main(arguments=None):
    options = parse(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    exact = problem.exact_posterior()
    print(f"{options.seeds} chains, tune {options.tune}, draws {options.draws}. Exact sd:")
    print(f"{exact.sd.mean():.3f}. Errors above {SUSPICIOUS:g} standard errors are in bold.\n")
    rows = []
    for sampler in options.samplers:
        for n_simulations in options.simulations:
            for name, setting in settings(sampler, options).items():
                chains = [
                    run(sampler, setting, n_simulations, options, seed + 1)
                    for seed in range(options.seeds)
                ]
                rows.append(figures(name, n_simulations, chains, exact))
                print(" | ".join(cells(rows[-1], None)), flush=True)
    of_kmc = [row for row in rows if row.sampler == "KMC"]
    reference = min(of_kmc, key=lambda row: row.cost) if of_kmc else None
    print("\n" + markdown(HEADER, [cells(row, reference) for row in rows]) + "\n")
    print("\n".join(goals(rows, reference)))
    return rows


if __name__ == "__main__":
    main()
