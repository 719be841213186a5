"""The default step and its rivals, from a cold start: spread first, then effective samples.

    python -m examples.benchmarks.default --targets banana,funnel --seeds 4
    python -m examples.benchmarks.default --jobs 2 --append results.jsonl       # takes hours
    python -m examples.benchmarks.default --jobs 2 --append results.jsonl --noise 1
    python -m examples.benchmarks.default --from results.jsonl                  # tables only
    python -m examples.benchmarks.default --quick

A run is a chain of one sampler on one target from one starting point, a draw from N(0, 9 I) that
depends on target and seed alone. (Lotka-Volterra starts three standard deviations out or, a target
of its own, at a draw from the prior.) With `--append` each run is written to the file as soon as it
ends, one JSON object a line, and what the file has is not run again: a benchmark may be interrupted
and done in pieces.

Our steps and `pymc.DEMetropolisZ` run through `pymc.sample` with their defaults. HMC has the true
gradient and the true covariance as its metric, random lengths up to half a period, and a step size
that accepts at .8. NUTS is PyMC's, tuned for 1000 iterations. A table's cells are "median (worst)"
over seeds:

es             the largest |log(sd / true sd)| over coordinates, along the target's own axes
ESS            the smallest bulk effective sample size over coordinates, of x and of (x - mean)^2,
               per 1000 evaluations of the density while drawing (of the gradient for HMC and NUTS);
               0 if a coordinate never moved
ESS, tuning    the same draws per 1000 evaluations of tuning and drawing
R-hat          rank-normalised, of 4 chains from their 4 starting points (thinned), the largest over
               coordinates; seeds are taken in fours
/ Metropolis   ESS in units of AdaptiveMetropolis's at the same seed
/ NUTS         ESS in units of NUTS's median
own ms         of processor time an iteration of our steps, besides the density: tuning; drawing
seconds        of processor time a run, the density included

**An ESS counts only where es holds**: a chain that is confined to a part of the target has a high
one. What KMC misses of the figures to reach is in bold.

With `--noise SD` every evaluation has N(-SD^2 / 2, SD^2) added to it: for our steps through
`pymc_kmc.PseudoMarginalPotential`, for DEMetropolisZ drawn anew at every look, the current state's
too, as in the models that PyMC's users write. It then samples the wrong distribution, and is shown
for that.

Glass, where the likelihood is itself an estimate, has a table of its own: 6000 iterations from 0,
the first 2000 of them tuning, nothing discarded (ESS: the last 4000). sd / truth and MMD^2 are
those of :mod:`examples.benchmarks.glass`; the former is shown of the coordinates with the smallest
and with the largest.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import functools  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import multiprocessing  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
import zlib  # noqa: E402
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait  # noqa: E402
from pathlib import Path  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pytensor.graph.basic import Apply  # noqa: E402
from pytensor.graph.op import Op  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.cold_start import effective_sizes  # noqa: E402
from examples.benchmarks.oracle import hmc  # noqa: E402
from examples.benchmarks.targets import TARGETS, Target, markdown  # noqa: E402
from pymc_kmc._compat import expect_numba_fallback  # noqa: E402

OURS = ("KMC", "KMCLite", "KMCFinite", "AdaptiveMetropolis")
WITH_GRADIENTS = ("HMC", "NUTS")
SAMPLERS = (*OURS, "DEMetropolisZ", *WITH_GRADIENTS)
GLASS = "glass"
DEFAULT_TARGETS = (
    "banana",
    "rotated-banana",
    "gaussian",
    "gaussian-20",
    "gaussian-50",
    "two-modes",
    "eight-schools",
    "student-t",
    "funnel",
    "lotka-volterra",
    "lotka-volterra-prior",
    GLASS,
)
#: Iterations of tuning and of drawing; for Glass the first 2000 of 6000 are tuning.
TUNE, DRAWS = 2500, 3500
GLASS_TUNE, GLASS_DRAWS = 2000, 4000
QUICK_TUNE, QUICK_DRAWS = 200, 300
NUTS_TUNE = 1000
#: HMC tunes its step size in so many rounds, towards the acceptance that NUTS aims at; in the first
#: round its logarithm moves by this times the difference.
HMC_ROUNDS, HMC_ACCEPTANCE, HMC_GAIN = 50, 0.8, 2.0
#: Bounds of its step sizes, in units of the tuned one, and most leapfrog steps.
HMC_JITTER, HMC_MOST_STEPS = (0.8, 1.2), 200
#: For R-hat, of each chain so many draws are kept in the results.
KEPT_DRAWS, CHAINS_FOR_R_HAT = 500, 4
#: Iterations from the start after which Glass is judged by its MMD.
MMD_AFTER = (500, 1000, 2000, 3000, 6000)
#: Evaluations timed.
TIMED = 200


@dataclasses.dataclass(frozen=True)
class Goal:
    """What KMC is to reach on a target: median and worst seed, None where there is no figure.

    The last two are ratios of its ESS to that of AdaptiveMetropolis and of NUTS.
    """

    spread: tuple[float | None, float | None] = (None, None)
    ess: tuple[float | None, float | None] = (None, None)
    to_metropolis: tuple[float | None, float | None] = (None, None)
    to_nuts: tuple[float | None, float | None] = (None, None)


#: By target and standard deviation of the noise.
GOALS = {
    ("banana", 0.0): Goal((0.08, 0.15), (400, 200)),
    ("banana", 1.0): Goal((0.15, 0.30), (60, 25)),
    ("rotated-banana", 0.0): Goal((0.12, 0.25), (200, 80)),
    ("rotated-banana", 1.0): Goal((0.25, 0.40), (40, 15)),
    ("gaussian", 0.0): Goal((0.05, 0.10), (800, 600)),
    ("gaussian", 1.0): Goal((0.10, 0.20), (130, 80)),
    ("gaussian-20", 0.0): Goal((0.05, 0.10), (750, 600)),
    ("gaussian-20", 1.0): Goal((0.10, 0.20), (110, 60)),
    ("gaussian-50", 0.0): Goal((0.05, 0.10), (300, 150)),
    ("gaussian-50", 1.0): Goal((0.10, 0.20), (40, 15)),
    ("two-modes", 0.0): Goal((0.04, 0.08), (600, 450)),
    ("two-modes", 1.0): Goal((0.06, 0.12), (110, 80)),
    ("eight-schools", 0.0): Goal((0.08, 0.15), (400, 200)),
    ("eight-schools", 1.0): Goal((0.12, 0.25), (90, 40)),
    ("student-t", 0.0): Goal((0.08, 0.15), (450, 300)),
    ("student-t", 1.0): Goal((0.12, 0.25), (80, 40)),
    ("funnel", 0.0): Goal((0.15, 0.30), (100, 40)),
    ("lotka-volterra", 0.0): Goal((0.08, 0.15)),
    ("lotka-volterra", 1.0): Goal((0.12, None)),
    ("lotka-volterra-prior", 0.0): Goal((0.08, 0.15)),
    ("lotka-volterra-prior", 1.0): Goal((0.12, None)),
}
#: The same on every target; NUTS is to be matched without noise, up to so many dimensions.
WORST_TO_METROPOLIS, TO_NUTS, NUTS_DIMENSIONS = 0.8, 1.0, 20
#: Milliseconds an iteration while drawing, in 10 dimensions.
OWN_MS = 0.3
#: Glass: sd / truth, averaged over seeds, of each coordinate; ESS per 1000 of the last 4000.
GLASS_SPREAD, GLASS_ESS = (0.9, 1.1), 100.0


@dataclasses.dataclass(frozen=True)
class Run:
    """What identifies a run."""

    target: str
    sampler: str
    seed: int
    noise: float
    tune: int
    draws: int


@dataclasses.dataclass(frozen=True)
class Chain:
    """What a sampler returns; evaluations and processor seconds are of (tuning, drawing)."""

    tuning: np.ndarray
    draws: np.ndarray
    acceptance: float
    evaluations: tuple[int, int]
    seconds: tuple[float, float]
    moves: dict[str, float] = dataclasses.field(default_factory=dict)


# Models


class RedrawnEstimate(Op):
    """A noisy log density as users write it today: an Op with a generator of its own."""

    def __init__(self, estimator, seed):
        self.estimator = estimator
        self.rng = np.random.default_rng(seed)

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.asarray(self.estimator(inputs[0], rng=self.rng))


expect_numba_fallback(RedrawnEstimate)


def add_estimate(estimator, x, redrawn, seed):
    """Add the estimate to the model: rightly for our steps, or drawn anew at every look."""
    if redrawn:
        pm.Potential("estimate", RedrawnEstimate(estimator, seed)(x))
    else:
        kmc.PseudoMarginalPotential("estimate", estimator, x)


def noisy_model(target, noise, redrawn, seed):
    """The target, its log density with noise of this standard deviation."""

    def estimator(x, rng):
        return target.log_density(x) + noise * rng.standard_normal() - 0.5 * noise**2

    with pm.Model() as model:
        x = pm.Flat("x", shape=target.dimension)
        add_estimate(estimator, x, redrawn, seed)
    return model


def glass_model(redrawn, seed):
    """The model of `examples.glass_gp_classification`, its variable called x."""
    from examples.glass_gp_classification import PRIOR_SD, glass_classifier

    classifier = glass_classifier()
    with pm.Model() as model:
        x = pm.Normal("x", 0, PRIOR_SD, shape=len(kmc.datasets.load_glass().feature_names))
        add_estimate(classifier.log_likelihood_estimate, x, redrawn, seed)
    return model


@functools.lru_cache(maxsize=2)
def target_named(name):
    return TARGETS[name]()


@functools.lru_cache(maxsize=4)
def model_for(target_name, noise, redrawn, seed):
    """The model for a run; the seed is that of estimates drawn anew, None otherwise."""
    if target_name == GLASS:
        return glass_model(redrawn, seed)
    target = target_named(target_name)
    if noise == 0.0:
        return target.model()
    return noisy_model(target, noise, redrawn, seed)


def starting_point(target_name, seed):
    """Glass starts from 0, the others where the target says, at a density above zero."""
    if target_name == GLASS:
        return np.zeros(len(kmc.datasets.load_glass().feature_names))
    target = target_named(target_name)
    rng = np.random.default_rng([zlib.crc32(target_name.encode()), seed])
    while True:
        start = target.start(rng)
        if np.isfinite(target.log_density(start)):
            return start


@functools.lru_cache(maxsize=2)
def evaluation_seconds(target_name, noise):
    """Processor time of one evaluation of the compiled log density."""
    model = model_for(target_name, noise, False, None)
    log_density = model.compile_logp()
    start = starting_point(target_name, 0)
    rng = np.random.default_rng(0)
    points = [{"x": start + 1e-3 * rng.standard_normal(len(start))} for _ in range(TIMED)]
    log_density(points[0])
    begin = time.process_time()
    for point in points:
        log_density(point)
    return (time.process_time() - begin) / TIMED


# Samplers


def through_pymc(run):
    """A chain of `pymc.sample`."""
    noisy = run.target == GLASS or run.noise > 0.0
    redrawn = noisy and run.sampler not in OURS
    model = model_for(run.target, run.noise, redrawn, run.seed if redrawn else None)
    tune, clock = run.tune, []
    with model:
        if run.sampler == "NUTS":  # PyMC sets it up; the starting point isn't jittered
            tune = min(run.tune, NUTS_TUNE)
            sampler = {"nuts_sampler": "pymc", "init": "adapt_diag"}
        else:
            step_class = getattr(kmc, run.sampler, None) or getattr(pm, run.sampler)
            sampler = {"step": step_class()}
        idata = pm.sample(
            **sampler,
            tune=tune,
            draws=run.draws,
            chains=1,
            cores=1,
            initvals={"x": starting_point(run.target, run.seed)},
            random_seed=run.seed,
            progressbar=False,
            compute_convergence_checks=False,
            discard_tuned_samples=False,
            callback=lambda trace, draw: clock.append(time.process_time()),
        )
    if len(clock) < tune + run.draws:  # PyMC hands over what there is when it is interrupted
        raise KeyboardInterrupt
    return as_chain(idata, (clock[tune - 1] - clock[0], clock[-1] - clock[tune - 1]))


def as_chain(idata, seconds):
    """What `pymc.sample` returned, as a Chain."""
    statistics = idata.sample_stats
    moves = {}
    if "kmc_move" in statistics:
        kinds, counts = np.unique(np.asarray(statistics["kmc_move"]), return_counts=True)
        shares = (counts / counts.sum()).tolist()
        moves = {str(kind): share for kind, share in zip(kinds, shares, strict=True)}
    acceptance = next(name for name in ("acceptance_rate", "accept") if name in statistics)
    return Chain(
        tuning=np.asarray(idata.warmup_posterior["x"])[0],
        draws=np.asarray(idata.posterior["x"])[0],
        acceptance=float(np.minimum(statistics[acceptance], 1.0).mean()),
        evaluations=(n_evaluations(idata.warmup_sample_stats), n_evaluations(statistics)),
        seconds=seconds,
        moves=moves,
    )


def n_evaluations(statistics):
    """What the draws cost: our own count, NUTS's leapfrog steps, or one each."""
    for name in ("kmc_n_evaluations", "n_steps"):
        if name in statistics:
            return int(statistics[name].sum())
    return statistics.sizes["draw"]


def whitened(target):
    """The density of L^-1 (x - mean), L L' the covariance; and the two maps between them."""
    L = np.linalg.cholesky(target.covariance)

    def back(z):
        return target.mean + z @ L.T

    def there(x):
        return np.linalg.solve(L, x - target.mean)

    white = Target(
        name=target.name,
        mean=np.zeros(target.dimension),
        covariance=np.eye(target.dimension),
        log_density=lambda z: target.log_density(back(z)),
        gradient=lambda z: target.gradient(back(z)) @ L,
        symbolic=None,
    )
    return white, there, back


def with_true_gradient(run):
    """HMC in whitened coordinates, where half a period is about pi."""
    target = target_named(run.target)
    white, there, back = whitened(target)
    n_gradients = 0

    def counted_gradient(z):
        nonlocal n_gradients
        n_gradients += 1
        return white.gradient(z)

    counted = dataclasses.replace(white, gradient=counted_gradient)
    rng = np.random.default_rng(run.seed)

    def trajectories(start, n, step_size):
        bounds = tuple(step_size * bound for bound in HMC_JITTER)
        longest = int(np.clip(np.pi / step_size, 1, HMC_MOST_STEPS))
        with np.errstate(all="ignore"):
            return hmc(counted, start, n, bounds, (1, longest), rng)

    begin, log_step_size, tuning = time.process_time(), 0.0, []
    z = there(starting_point(run.target, run.seed))
    n_rounds = min(HMC_ROUNDS, run.tune)
    for i, n in enumerate(np.diff(np.linspace(0, run.tune, n_rounds + 1).astype(int))):
        draws, acceptance = trajectories(z, n, np.exp(log_step_size))
        z = draws[-1]
        log_step_size += HMC_GAIN * (1.0 + i) ** -0.6 * (acceptance - HMC_ACCEPTANCE)
        tuning.append(back(draws))
    # The gradient at the start of a trajectory is known from the one before.
    n_tuning, middle = n_gradients - run.tune, time.process_time()
    draws, acceptance = trajectories(z, run.draws, np.exp(log_step_size))
    return Chain(
        tuning=np.concatenate(tuning),
        draws=back(draws),
        acceptance=float(acceptance),
        evaluations=(n_tuning, n_gradients - run.tune - n_tuning - run.draws),
        seconds=(middle - begin, time.process_time() - middle),
    )


# Runs


def smallest_ess(x):
    """Smallest bulk ESS over the columns of x (n, k) and of (x - mean)^2; 0 if one never moved."""
    if np.any(np.ptp(x, axis=0) == 0.0):  # ArviZ's would be n
        return 0.0
    size = effective_sizes(x)[1]
    return size if np.isfinite(size) else 0.0


def execute(run):
    """A run's line of results, of JSON's types; a failure has its message under "error"."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    result = dataclasses.asdict(run)
    try:
        chain = with_true_gradient(run) if run.sampler == "HMC" else through_pymc(run)
    except Exception as error:  # the other runs go on
        return result | {"error": f"{type(error).__name__}: {error}"}
    result["acceptance"] = chain.acceptance
    result["moves"] = chain.moves
    result["evaluations"] = chain.evaluations
    result["seconds"] = chain.seconds
    if run.sampler in OURS:
        result["evaluation_seconds"] = evaluation_seconds(run.target, run.noise)
    figures = glass_figures if run.target == GLASS else target_figures
    return result | figures(run, chain)


def target_figures(run, chain):
    """Spread, effective sample size and some draws, along the target's axes."""
    target = target_named(run.target)
    draws = target.along_axes(chain.draws)
    with np.errstate(divide="ignore"):
        ratios = np.log(draws.std(axis=0, ddof=1) / target.axes_sd)
    kept = draws[:: max(1, len(draws) // KEPT_DRAWS)]
    return {
        "log_sd_ratio": np.maximum(ratios, np.log(np.finfo(float).tiny)).tolist(),
        "ess": smallest_ess(draws),
        "kept": [[float(f"{value:.5g}") for value in draw] for draw in kept],
    }


def glass_figures(run, chain):
    """Spread and MMD from the first iteration on, effective sample size after tuning."""
    from examples.benchmarks import glass

    reference = glass.load_reference()
    everything = np.concatenate([chain.tuning, chain.draws])
    return {
        "sd_ratio": (everything.std(axis=0, ddof=1) / reference["sd"]).tolist(),
        "ess": smallest_ess(chain.draws),
        "mmd": {
            str(n): float(glass.squared_mmd(everything[:n], reference))
            for n in MMD_AFTER
            if n <= len(everything)
        },
    }


# Tables


def of_run(result):
    """The Run of a line of results."""
    return Run(**{field.name: result[field.name] for field in dataclasses.fields(Run)})


def spread(result):
    return max(abs(ratio) for ratio in result["log_sd_ratio"])


def ess(result, with_tuning=False):
    """Effective samples per 1000 evaluations."""
    tuning, drawing = result["evaluations"]
    return 1000.0 * result["ess"] / (drawing + with_tuning * tuning)


def own_milliseconds(result):
    """Of an iteration, besides the density: (tuning, drawing); NaN where that isn't timed."""
    lengths = (result["tune"], result["draws"])
    timings = zip(result["seconds"], result["evaluations"], lengths, strict=True)
    each = result.get("evaluation_seconds", np.nan)
    return [1e3 * (seconds - n * each) / length for seconds, n, length in timings]


def r_hats(results):
    """R-hat of each four chains whose seeds belong together."""
    groups = {}
    for result in results:
        groups.setdefault(result["seed"] // CHAINS_FOR_R_HAT, []).append(result["kept"])
    values = []
    for group in groups.values():
        if len(group) == CHAINS_FOR_R_HAT:
            chains = np.array(group)
            values.append(max(float(az.rhat(chains[..., j])) for j in range(chains.shape[-1])))
    return values


def goal_for(target_name, noise):
    """The figures for KMC to reach."""
    smooth = noise == 0.0 and TARGETS[target_name]().dimension <= NUTS_DIMENSIONS
    return dataclasses.replace(
        GOALS.get((target_name, noise), Goal()),
        to_metropolis=(None, WORST_TO_METROPOLIS),
        to_nuts=(TO_NUTS if smooth else None, None),
    )


def goal_text(goal, sign, digits):
    """A goal in the line of figures to reach."""
    shown = [
        text.format(f"{wanted:.{digits}f}")
        for text, wanted in zip(("{}", "({})"), goal, strict=True)
        if wanted is not None
    ]
    return " ".join([sign, *shown]) if shown else ""


def bold_if(missed, text):
    return f"**{text}**" if missed else text


def median_and_worst(values, worst, digits, goal=(None, None)):
    """ "median (worst)", in bold where the goal is missed; `worst` is min or max of the values."""
    if not values or np.isnan(values).any():
        return ""
    cells = []
    for value, wanted in zip((np.median(values), worst(values)), goal, strict=True):
        missed = wanted is not None and (value > wanted if worst is max else value < wanted)
        cells.append(bold_if(missed, f"{value:.{digits}f}"))
    return f"{cells[0]} ({cells[1]})"


def moves_text(results):
    """Average share of each kind of move."""
    kinds = sorted({kind for result in results for kind in result["moves"]})
    shares = [np.mean([result["moves"].get(kind, 0.0) for result in results]) for kind in kinds]
    return ", ".join(f"{kind}: {share:.2f}" for kind, share in zip(kinds, shares, strict=True))


def by_sampler(results):
    """By sampler, in the order of SAMPLERS: runs that ended, the number of those that failed."""
    groups = {}
    for sampler in SAMPLERS:
        mine = [result for result in results if result["sampler"] == sampler]
        if mine:
            good = [result for result in mine if "error" not in result]
            groups[sampler] = good, len(mine) - len(good)
    return groups


def label(sampler, results, n_failed, noisy):
    """First cell of a line: what runs there were."""
    text = sampler
    if noisy and sampler not in OURS:
        text += ", estimate drawn anew: wrong"
    n_runs = len(results) + n_failed
    failed = f", {n_failed} failed" if n_failed else ""
    return f"{text} ({n_runs} seed{'s' if n_runs > 1 else ''}{failed})"


def own_text(results):
    """Own milliseconds an iteration, tuning and drawing."""
    tuning, drawing = np.median([own_milliseconds(result) for result in results], axis=0)
    return "" if np.isnan(drawing) else f"{tuning:.2f}; {drawing:.2f}"


def seconds_text(results):
    """Seconds a run."""
    return f"{np.median([sum(result['seconds']) for result in results]):.1f}"


def target_table(target_name, noise, results):
    """The table of one target."""
    header = ["sampler", "es", "ESS", "ESS, tuning", "R-hat", "acceptance"]
    header += ["/ Metropolis", "/ NUTS", "own ms", "seconds", "moves"]
    goal = goal_for(target_name, noise)
    to_reach = [
        "*to reach, KMC*",
        goal_text(goal.spread, "<=", 2),
        goal_text(goal.ess, ">=", 0),
        *["", "", ""],
        goal_text(goal.to_metropolis, ">=", 1),
        goal_text(goal.to_nuts, ">=", 0),
        f"; <= {OWN_MS:g}",
        *["", ""],
    ]
    groups = by_sampler(results)

    def rates_of(sampler):
        return {result["seed"]: ess(result) for result in groups.get(sampler, [[]])[0]}

    metropolis = rates_of("AdaptiveMetropolis")
    nuts = np.median(list(rates_of("NUTS").values()) or [np.nan])
    rows = [to_reach]
    for sampler, (good, n_failed) in groups.items():
        first = label(sampler, good, n_failed, noise > 0.0)
        cells = [""] * (len(header) - 1)
        if good:
            cells = target_cells(good, goal if sampler == "KMC" else Goal(), metropolis, nuts)
        rows.append([first, *cells])
    return markdown(header, rows)


def target_cells(results, goal, metropolis, nuts):
    """A sampler's figures; `metropolis` has AdaptiveMetropolis's ESS by seed, `nuts` a median."""
    rates = [ess(result) for result in results]
    to_metropolis = [
        rate / metropolis[result["seed"]]
        for rate, result in zip(rates, results, strict=True)
        if metropolis.get(result["seed"])
    ]
    return [
        median_and_worst([spread(result) for result in results], max, 2, goal.spread),
        median_and_worst(rates, min, 1, goal.ess),
        median_and_worst([ess(result, with_tuning=True) for result in results], min, 1),
        median_and_worst(r_hats(results), max, 2),
        median_and_worst([result["acceptance"] for result in results], min, 2),
        median_and_worst(to_metropolis, min, 1, goal.to_metropolis),
        median_and_worst([rate / nuts for rate in rates], min, 2, goal.to_nuts),
        own_text(results),
        seconds_text(results),
        moves_text(results),
    ]


def glass_table(results):
    """The table of Glass."""
    header = ["sampler", "sd / truth, mean over seeds", "in any seed"]
    header += [f"MMD^2 after {n}" for n in MMD_AFTER]
    header += ["ESS", "acceptance", "seconds", "moves"]
    to_reach = ["*to reach, KMC*", "{:g} - {:g}".format(*GLASS_SPREAD), ""]
    to_reach += ["< Metropolis's after 6000" if n == GLASS_TUNE else "" for n in MMD_AFTER]
    to_reach += [f">= {GLASS_ESS:g}", "", "", ""]
    groups = by_sampler(results)
    metropolis = discrepancies(groups.get("AdaptiveMetropolis", [[]])[0], MMD_AFTER[-1])
    rows = [to_reach]
    for sampler, (good, n_failed) in groups.items():
        cells = [""] * (len(header) - 1)
        if good:
            cells = glass_cells(good, sampler == "KMC", np.median(metropolis or [np.nan]))
        rows.append([label(sampler, good, n_failed, noisy=True), *cells])
    return markdown(header, rows)


def discrepancies(results, n):
    """Squared MMDs after n iterations, of the runs that were so long."""
    return [result["mmd"][str(n)] for result in results if str(n) in result["mmd"]]


def glass_cells(results, judged, metropolis):
    """A sampler's figures; `metropolis` is the MMD to be reached in a third of the iterations."""
    ratios = np.array([result["sd_ratio"] for result in results])
    averages = ratios.mean(axis=0)
    lowest, highest = GLASS_SPREAD
    missed = judged and (averages.min() < lowest or averages.max() > highest)
    goals = {n: (metropolis if judged and n == GLASS_TUNE else None, None) for n in MMD_AFTER}
    return [
        bold_if(missed, f"{averages.min():.2f} - {averages.max():.2f}"),
        f"{ratios.min():.2f} - {ratios.max():.2f}",
        *(median_and_worst(discrepancies(results, n), max, 0, goals[n]) for n in MMD_AFTER),
        median_and_worst(
            [ess(result) for result in results], min, 1, (GLASS_ESS if judged else None, None)
        ),
        median_and_worst([result["acceptance"] for result in results], min, 2),
        seconds_text(results),
        moves_text(results),
    ]


def print_tables(results):
    """A table for each target, noise and length, in the order in which they first appear."""
    groups = {}
    for result in results:
        run = of_run(result)
        groups.setdefault((run.target, run.noise, run.tune, run.draws), []).append(result)
    for (target_name, noise, tune, draws), group in groups.items():
        name = "Glass" if target_name == GLASS else TARGETS[target_name]().name
        noise_text = f", noise of sd {noise:g}" if noise else ""
        print(f"\n### {name}{noise_text}\n\nTune {tune}, draws {draws}; median (worst seed).\n")
        print(
            glass_table(group) if target_name == GLASS else target_table(target_name, noise, group)
        )
        for result in group:
            if "error" in result:
                print(f"\n{result['sampler']}, seed {result['seed']}: {result['error']}")


# The command


def read_results(path):
    """Results by run, the last one where a run was done twice; unreadable lines are left out."""
    results = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            result = json.loads(line)
            results[of_run(result)] = result
        except (ValueError, KeyError) as error:  # the end of an interrupted write
            print(f"{path}, line {number}, left out: {error}", file=sys.stderr)
    return results


def append_result(path, result):
    """One line at the end of the file, in a single write."""
    with open(path, "ab", buffering=0) as file:
        file.write((json.dumps(result) + "\n").encode())


def runs_wanted(options):
    """The runs that the options ask for; samplers that can't do a target are left out."""
    runs = []
    for target_name in options.targets:
        noisy = options.noise > 0.0 or target_name == GLASS
        if target_name == GLASS and options.noise > 0.0:
            print("glass has noise of its own, it is left out", file=sys.stderr)
            continue
        tune, draws = (GLASS_TUNE, GLASS_DRAWS) if target_name == GLASS else (TUNE, DRAWS)
        tune = tune if options.tune is None else options.tune
        draws = draws if options.draws is None else options.draws
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for sampler in options.samplers:
                if not (noisy and sampler in WITH_GRADIENTS):
                    runs.append(Run(target_name, sampler, seed, options.noise, tune, draws))
    return runs


def executed(runs, n_jobs):
    """Results of the runs, as they come in."""
    if n_jobs == 1:
        yield from map(execute, runs)
        return
    # A forked process would share what compilers and BLAS hold; a new one doesn't. One run a
    # process is handed out at a time: when interrupted, none is left that would still be begun.
    context = multiprocessing.get_context("spawn")
    waiting = iter(runs)
    with ProcessPoolExecutor(n_jobs, mp_context=context) as pool:
        running = {pool.submit(execute, run) for run in itertools.islice(waiting, n_jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(execute, run) for run in itertools.islice(waiting, len(done))}
            yield from (future.result() for future in done)


def report(result, number, total):
    """One line on what a run gave."""
    text = result.get("error", "")
    if not text:
        text = f"ESS {ess(result):.1f}, acceptance {result['acceptance']:.2f}"
        if "log_sd_ratio" in result:
            text = f"es {spread(result):.2f}, {text}"
        text += f", {sum(result['seconds']):.1f} s"
    run = f"{result['target']} {result['sampler']} {result['seed']}"
    print(f"[{number}/{total}] {run}: {text}", file=sys.stderr, flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(
        description="The default step and its rivals from a cold start.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def names(known):
        def split(text):
            chosen = [name for name in text.split(",") if name]
            unknown = sorted(set(chosen) - set(known))
            if unknown:
                raise argparse.ArgumentTypeError(f"{unknown} not among {', '.join(known)}")
            return chosen

        return split

    parser.add_argument(
        "--targets",
        type=names([*TARGETS, GLASS]),
        default=",".join(DEFAULT_TARGETS),
        help="comma-separated, of " + ", ".join([*TARGETS, GLASS]),
    )
    parser.add_argument(
        "--samplers", type=names(SAMPLERS), default=",".join(SAMPLERS), help="comma-separated"
    )
    parser.add_argument("--seeds", type=int, default=20, help="number of them")
    parser.add_argument("--first-seed", type=int, default=0, help="a multiple of 4, for R-hat")
    parser.add_argument("--noise", type=float, default=0.0, help="sd of noise in the log density")
    parser.add_argument(
        "--tune", type=int, help=f"iterations; {TUNE}, Glass {GLASS_TUNE} if not given"
    )
    parser.add_argument("--draws", type=int, help=f"{DRAWS}, Glass {GLASS_DRAWS} if not given")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a process each")
    parser.add_argument(
        "--append", type=Path, metavar="FILE", help="write results there; runs it has are not done"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="print a file's tables, run nothing",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"1 seed, tune {QUICK_TUNE}, draws {QUICK_DRAWS}"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.tune, options.draws = 1, QUICK_TUNE, QUICK_DRAWS
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.source:
        results = read_results(options.source).values()
        print_tables(
            [
                result
                for result in results
                if result["target"] in options.targets and result["sampler"] in options.samplers
            ]
        )
        return
    runs = runs_wanted(options)
    stored = {}
    if options.append and options.append.exists():
        stored = read_results(options.append)
    results = {run: stored[run] for run in runs if run in stored and "error" not in stored[run]}
    missing = [run for run in runs if run not in results]
    try:
        for number, result in enumerate(executed(missing, options.jobs), start=1):
            if options.append:
                append_result(options.append, result)
            results[of_run(result)] = result
            report(result, number, len(missing))
    except KeyboardInterrupt:
        print("interrupted; the tables are of what was done", file=sys.stderr)
    print_tables([results[run] for run in runs if run in results])


if __name__ == "__main__":
    main()
