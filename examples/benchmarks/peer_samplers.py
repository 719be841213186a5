"""The peers of :mod:`examples.benchmarks.peers`: NUTS, and what samples without gradients.

Each is a function of a :class:`Problem` and a number of evaluations, which yields a
:class:`Snapshot` of what it knows after some of them. Each has its own defaults.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.stats import norm

import pymc_kmc as kmc
from examples.benchmarks import learning
from examples.benchmarks.seconds import of_vector
from examples.benchmarks.targets import START_SD, TARGETS
from pymc_kmc.exact_averages import FEWEST_A_CHAIN, ExactAverages
from pymc_kmc.model.opaque import OpaqueModel

BUDGET, QUICK_BUDGET = 10_000, 500
#: Evaluations at which chains are looked at, each some 1.5 times the one before.
CHECKPOINTS = (50, 75, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000, 10_000)
CHECKPOINTS += (15_000, 20_000, 30_000, 50_000, 70_000, 100_000, 150_000, 200_000)
#: Most evaluations of `learn`, from the beginning each; the last is its own default.
LEARN_BUDGETS = 20, 30, 40, 50, 70, 100, 140, 200, 280, None
#: Quantiles of the prior between which PyVBMC expects the posterior, its documentation's advice.
PLAUSIBLE = 0.16, 0.84
#: Draws of the prior that tell them, and of PyVBMC's posterior.
N_PRIOR, N_DRAWS = 1000, 20_000
#: Log density, in nats, that is told for -inf to those that don't take it.
LOWEST = -1e5
#: GPry's prior is uniform: half widths of the plausible box in it.
GPRY_WIDTHS = 3.0
#: Power of the dimension in GPry's weight of uncertainty, its own default.
GPRY_ZETA = 0.85
#: The defaults of most evaluations, a dimension and two, and a dimension to the power of 1.5.
VBMC_CALLS, GPRY_CALLS = 50, 70
#: emcee's and zeus's walkers a dimension.
WALKERS = 4
#: Live points of the nested samplers: with their defaults, 500 and 2000, none ends by the budget.
LIVE_POINTS = 200
#: Share of a chain's iterations that tune, where the sampler doesn't say.
TUNED = 0.1
#: Evaluations, roughly: of a value in an iteration of Slice, of a particle of SMC in all.
SLICE_CALLS, SMC_CALLS = 6, 40


class Snapshot(NamedTuple):
    """What a peer knows after so many evaluations and own seconds: draws (n, d), weights (n,).

    `moments` are means and standard deviations (d,) that are known better than by the draws.
    """

    evaluations: int
    seconds: float
    draws: np.ndarray
    weights: np.ndarray | None = None
    log_evidence: float = np.nan
    moments: tuple | None = None


class Problem:
    """A posterior that counts its evaluations.

    Attributes
    ----------
    model, exact : pymc.Model
        With and without noise.
    low, high, middle, half : ndarray, shape (d,)
        The plausible box, on the unconstrained scale; its middle and half its width.
    n_calls : int
    """

    def __init__(self, name, noise, seed):
        self.name, self.noise, self.seed, self.n_calls = name, noise, seed, 0
        self.rng = np.random.default_rng(seed)
        with mock.patch.object(kmc, "BlackBox", self._counted(kmc.BlackBox)):
            self.exact = self.model = learning.MODELS[name]()
        if noise:
            with mock.patch.object(kmc, "BlackBox", self._estimated):
                self.model = learning.MODELS[name]()
        opaque = OpaqueModel(self.exact.continuous_value_vars, self.exact, self.rng)
        self.dimension = opaque.n_dimensions
        prior = opaque.prior_points(N_PRIOR, self.rng)
        if prior is None:
            target = TARGETS[learning.KNOWN[name]]()
            self.low, self.high = target.mean + np.outer([-1, 1], START_SD * target.sd)
        else:
            self.low, self.high = np.quantile(prior, PLAUSIBLE, axis=0)
        self.middle, self.half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        self.starts = functools.partial(opaque.jittered_points, rng=self.rng)
        self._exact_log_density, _ = of_vector(self.exact)

    def begin(self):
        self.n_calls, self._began = 0, time.process_time()

    @property
    def seconds(self):
        return time.process_time() - self._began

    def _counted(self, box):
        def black_box(name, function, *params, **options):
            def counted(*values, **others):
                self.n_calls += 1
                return function(*values, **others)

            return box(name, counted, *params, **options)

        return black_box

    def _estimated(self, name, function, *params, **options):
        """A term of the model, in place of a box; the expression around it adds nothing."""

        def estimate(*values, rng):
            noise = self.noise_at(values)
            return function(*values) + rng.normal(-0.5 * noise**2, noise)

        self._counted(kmc.PseudoMarginalPotential)(f"estimated {name}", estimate, *params)
        return pt.constant(0.0)

    def noise_at(self, values):
        """Standard deviation of an estimate's noise, given the function's arguments."""
        return self.noise

    def log_density(self, x):
        """Log density (float) of an unconstrained vector (d,), -inf where there is none."""
        return self._exact_log_density(np.ravel(x)) + self.noise * self.rng.standard_normal()

    def finite(self, x):
        return max(self.log_density(x), LOWEST)

    def from_cube(self, u):
        """Map the unit cube (d,) to the normal distribution whose quantiles are the box."""
        return self.middle + self.half * norm.ppf(u)

    def relative(self, x):
        """Log density relative to that distribution."""
        return self.finite(x) - norm.logpdf(x, self.middle, self.half).sum()

    def along(
        self, draws, counts, seconds, before=(0, 0.0), first_share=0.5, moments=lambda n: None
    ):
        """Snapshots of chains (n, k, d), whose iterations ended after `counts` (n,) evaluations.

        `before` are evaluations and seconds that preceded them; a share of draws is left out.
        ``moments(n)`` are those by the first n draws of each chain.
        """
        per_call = (seconds - before[1]) / (counts[-1] - before[0])
        for checkpoint in (*(c for c in CHECKPOINTS if c < counts[-1]), counts[-1]):
            end = int(np.searchsorted(counts, checkpoint, side="right"))
            kept = draws[int(first_share * end) : end]
            if len(kept) > 1:
                spent = before[1] + per_call * (checkpoint - before[0])
                found = kept.reshape(-1, draws.shape[-1])
                yield Snapshot(int(checkpoint), spent, found, moments=moments(end))


def by_learning(problem, budget):
    for most in LEARN_BUDGETS:
        problem.begin()
        learned = kmc.learn(
            problem.model,
            max_evaluations=min(most, budget) if most else None,
            random_seed=problem.seed,
            progressbar=False,
        )
        found = learned.positions, learned.weights, learned.log_evidence.value
        yield Snapshot(problem.n_calls, problem.seconds, *found)
        if learned.has_converged or most == budget:
            return


def by_learning_and_chains(problem, budget):
    """`learn`, then four chains, all of whose draws count; averages are those of `kmc.summary`."""
    learned = kmc.learn(problem.model, random_seed=problem.seed, progressbar=False)
    before = problem.n_calls, problem.seconds
    left = max(budget - before[0], QUICK_BUDGET)
    yield from by_pymc(
        lambda: kmc.KMC(learned),
        problem,
        left,
        tune=learning.TUNE,
        learned=learned,
        before=before,
        first_share=0.0,
    )


def by_pymc(make_step, problem, budget, calls=1, tune=None, learned=None, **options):
    """Four chains, an iteration of which makes some number of calls; tuning is left out."""
    n = budget // (calls * learning.CHAINS)
    tune = int(TUNED * n) if tune is None else tune
    counts = [[] for _ in range(learning.CHAINS)]
    with problem.model:
        idata = pm.sample(
            step=make_step(),
            tune=tune,
            draws=n,
            chains=learning.CHAINS,
            cores=1,
            random_seed=problem.seed,
            progressbar=False,
            compute_convergence_checks=False,
            callback=lambda trace, draw: counts[draw.chain].append(problem.n_calls),
        )
    draws = learning.unconstrained(problem.model, idata.posterior).swapaxes(0, 1)
    before = options.get("before", (0, 0.0))[0]
    # Chains that ran one after the other are counted as if they had run at once.
    ends = [before, *(each[-1] for each in counts)]
    own = sum(np.array(each[tune:]) - end for each, end in zip(counts, ends, strict=False))
    if learned is not None:
        options["moments"] = functools.partial(exact_moments, idata, learned, problem.model)
    return problem.along(draws, before + own, problem.seconds, **options)


def exact_moments(idata, learned, model, n):
    """Means and standard deviations (d,) on the unconstrained scale, by n draws of each chain."""
    if n < FEWEST_A_CHAIN:
        return None
    averages = ExactAverages.of(idata.isel(draw=slice(n)), learned, model)
    found = averages.table(averages.compared.X, learned.positions, None, ())
    return found["mean"].to_numpy(), found["sd"].to_numpy()


def by_nuts(problem, budget):
    """Four chains to PyMC's own end, on the same density with its gradient, which is what counts.

    A KeyError names a target of which no gradient is known.
    """
    counts = [[0] for _ in range(learning.CHAINS)]
    with TARGETS[learning.KNOWN[problem.name]]().model():
        idata = pm.sample(
            chains=learning.CHAINS,
            cores=1,
            nuts_sampler="pymc",
            random_seed=problem.seed,
            progressbar=False,
            compute_convergence_checks=False,
            callback=lambda trace, draw: counts[draw.chain].append(draw.stats[0]["tree_size"]),
        )
    draws = idata.posterior["x"].values.swapaxes(0, 1)
    totals = np.cumsum(counts, axis=1).sum(axis=0)[-len(draws) - 1 :]
    spent = problem.seconds * totals[0] / totals[-1]
    return problem.along(draws, totals[1:], problem.seconds, (totals[0], spent), first_share=0.0)


def by_smc(problem, budget):
    with problem.model:
        idata = pm.sample_smc(
            draws=max(budget // SMC_CALLS, 10),
            chains=2,
            cores=1,
            random_seed=problem.seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    draws = learning.unconstrained(problem.model, idata.posterior)
    stages = np.ravel(idata.sample_stats["log_marginal_likelihood"].values)
    evidence = np.mean([np.ravel(stage)[-1] for stage in stages])
    draws = draws.reshape(-1, problem.dimension)
    yield Snapshot(problem.n_calls, problem.seconds, draws, None, float(evidence))


def by_emcee(problem, budget, de_moves=False):
    import emcee

    n = WALKERS * problem.dimension
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)] if de_moves else None
    sampler = emcee.EnsembleSampler(n, problem.dimension, problem.log_density, moves=moves)
    sampler.random_state = np.random.RandomState(problem.seed).get_state()  # noqa: NPY002  its interface
    sampler.run_mcmc(problem.starts(n), budget // n - 1)
    counts = n * (2 + np.arange(budget // n - 1))
    return problem.along(sampler.get_chain(), counts, problem.seconds)


def by_zeus(problem, budget):
    import zeus

    np.random.seed(problem.seed)  # noqa: NPY002  zeus draws from NumPy's global generator.
    n, counts = WALKERS * problem.dimension, []
    sampler = zeus.EnsembleSampler(n, problem.dimension, problem.log_density, verbose=False)
    for _ in sampler.sample(problem.starts(n), iterations=budget // n, progress=False):
        counts.append(problem.n_calls)
        if counts[-1] >= budget:
            break
    return problem.along(sampler.get_chain()[: len(counts)], np.array(counts), problem.seconds)


def by_dynesty(problem, budget):
    import dynesty

    sampler = dynesty.NestedSampler(
        problem.relative,
        problem.from_cube,
        problem.dimension,
        nlive=LIVE_POINTS,
        rstate=np.random.default_rng(problem.seed),
    )
    sampler.run_nested(maxcall=budget, print_progress=False)
    found = sampler.results
    weights = found.importance_weights()
    seconds, evidence = problem.seconds, float(found.logz[-1])
    yield Snapshot(problem.n_calls, seconds, found.samples, weights, evidence)


def by_nautilus(problem, budget):
    import nautilus

    sampler = nautilus.Sampler(
        problem.from_cube,
        problem.relative,
        problem.dimension,
        n_live=LIVE_POINTS,
        pass_dict=False,
        seed=problem.seed,
    )
    for most in (*(c for c in CHECKPOINTS if LIVE_POINTS < c < budget), budget):
        has_ended = sampler.run(n_like_max=most, discard_exploration=False)
        draws, log_weights, _ = sampler.posterior()
        weights, evidence = np.exp(log_weights - log_weights.max()), float(sampler.log_z)
        yield Snapshot(problem.n_calls, problem.seconds, draws, weights, evidence)
        if has_ended:
            return


def by_pocomc(problem, budget):
    import pocomc

    prior = pocomc.Prior([norm(*each) for each in zip(problem.middle, problem.half, strict=True)])
    sampler = pocomc.Sampler(prior, problem.relative, random_state=problem.seed)
    sampler.run(progress=False)
    draws, weights, *_ = sampler.posterior()
    evidence = float(sampler.evidence()[0])
    yield Snapshot(problem.n_calls, problem.seconds, draws, weights, evidence)


def by_vbmc(problem, budget):
    from pyvbmc import VBMC

    np.random.seed(problem.seed)  # noqa: NPY002  PyVBMC draws from NumPy's global generator.
    seconds = {}

    def log_density(x):
        value = problem.finite(x)
        seconds[problem.n_calls] = problem.seconds
        return (value, float(problem.noise)) if problem.noise else value

    solver = VBMC(
        log_density,
        np.clip(problem.starts(1), problem.low, problem.high),
        plausible_lower_bounds=problem.low[None],
        plausible_upper_bounds=problem.high[None],
        options={
            "display": "off",
            "specify_target_noise": bool(problem.noise),
            "max_fun_evals": min(budget, VBMC_CALLS * (problem.dimension + 2)),
        },
    )
    best, results = solver.optimize()
    ended = problem.seconds
    history = solver.iteration_history
    known = zip(history["func_count"], history["vp"], history["elbo"], strict=True)
    for n, posterior, evidence in known:
        if n < problem.n_calls:
            draws, _ = posterior.sample(N_DRAWS)
            yield Snapshot(int(n), seconds.get(int(n), ended), draws, None, float(evidence))
    evidence = float(results["elbo"])
    yield Snapshot(problem.n_calls, ended, best.sample(N_DRAWS)[0], None, evidence)


def by_gpry(problem, budget):
    """GPry with its optimizer of acquisitions: its nested way takes hours without PolyChord."""
    from gpry import Runner
    from gpry.acquisition_functions import LogExp

    class OneNumber(LogExp):
        """Its own value at one place has an axis, which NumPy 2.4 doesn't put into an array."""

        def __call__(self, *args, eval_gradient=False, **options):
            found = super().__call__(*args, eval_gradient=eval_gradient, **options)
            return (np.squeeze(found[0]), found[1]) if eval_gradient else np.squeeze(found)

    snapshots, drawing = [], [0.0]

    def look(runner):
        before = problem.seconds
        runner.generate_mc_sample()
        found, (evidence, _) = runner.last_mc_samples(), runner.last_mc_logZ()
        snapshots.append(
            Snapshot(
                problem.n_calls,
                problem.seconds - drawing[0],
                found["X"],
                found["w"],
                float(evidence) + volume,
            )
        )
        drawing[0] += problem.seconds - before

    def look_now_and_then(runner):
        last = snapshots[-1].evaluations if snapshots else 0
        if any(last < each <= problem.n_calls for each in (*LEARN_BUDGETS[:3], *CHECKPOINTS)):
            look(runner)

    box = problem.middle[:, None] + GPRY_WIDTHS * np.outer(problem.half, [-1, 1])
    volume = np.log(box[:, 1] - box[:, 0]).sum()
    acquisition = OneNumber(dimension=problem.dimension, zeta_scaling=GPRY_ZETA)
    runner = Runner(
        problem.finite,
        bounds=box,
        ref_bounds=np.column_stack([problem.low, problem.high]),
        options={"max_total": min(budget, int(GPRY_CALLS * problem.dimension**1.5))},
        gp_acquisition={"BatchOptimizer": {"acq_func": acquisition}},
        # Its default for another acquisition asks for that one's draws, or for Cobaya's.
        convergence_criterion={"CorrectCounter": {"policy": "n"}},
        surrogate={"regressor": {"noise_level": problem.noise}} if problem.noise else "RBF",
        callback=look_now_and_then,
        seed=problem.seed,
        verbose=1,
    )
    runner.run()
    look(runner)
    return snapshots


class Peer(NamedTuple):
    """``run(problem, budget)`` yields snapshots; `needs` a package of that name."""

    run: Callable
    needs: str = "pymc"


PEERS = {
    "learn": Peer(by_learning),
    "learn+KMC": Peer(by_learning_and_chains),
    "DEMetropolisZ": Peer(functools.partial(by_pymc, pm.DEMetropolisZ)),
    "Metropolis": Peer(lambda p, n: by_pymc(pm.Metropolis, p, n, len(p.model.free_RVs))),
    "Slice": Peer(lambda p, n: by_pymc(pm.Slice, p, n, SLICE_CALLS * p.dimension)),
    "SMC": Peer(by_smc),
    "NUTS": Peer(by_nuts),
    "emcee": Peer(by_emcee, "emcee"),
    "emcee-DE": Peer(functools.partial(by_emcee, de_moves=True), "emcee"),
    "zeus": Peer(by_zeus, "zeus"),
    "dynesty": Peer(by_dynesty, "dynesty"),
    "nautilus": Peer(by_nautilus, "nautilus"),
    "pocoMC": Peer(by_pocomc, "pocomc"),
    "PyVBMC": Peer(by_vbmc, "pyvbmc"),
    "GPry": Peer(by_gpry, "gpry"),
}
