"""How much sooner many workers bring the draws, on a virtual clock.

    python -m examples.benchmarks.scaling                                  # some hours
    python -m examples.benchmarks.scaling --targets survival --workers 1,32 --seeds 3
    python -m examples.benchmarks.scaling --no-chains                      # learning alone
    python -m examples.benchmarks.scaling --lost 0.02                      # workers die
    python -m examples.benchmarks.scaling --peers emcee,pocoMC --plot speed.png
    python -m examples.benchmarks.scaling --real 2 --seconds 0.05          # real processes
    python -m examples.benchmarks.scaling --quick

`kmc.learn` and `kmc.KMC(learned, executor=...)` run on an executor that computes each evaluation in
this process, at once, and records when it was asked for, when its result was waited for, and the
processor's seconds between. The clock is simulated from that record: workers take evaluations in
order, each of which takes seconds whose logarithm is spread; own seconds count as they are, unless
`--own 0` sets them apart. A share `--lost` of evaluations ends with its worker, anywhere in it, and
begins again. Cells are medians over seeds.

`--peers` has others on the same clock, if they are installed. emcee makes stretch moves of two
walkers a worker, 32 at least, half of them at once (Foreman-Mackey et al., 2013). They begin at
draws of what was learned, which cost them nothing. pocoMC begins with the normal distribution of
their moments, three times as wide, ends by itself, and then has its effective particles
(Karamanis et al., 2022).

`--real` learns "outputs" and draws from it in this process, on real ones and on a local cluster of
Dask's, if it is installed. Their start counts.

evaluations    of learning
depth          batches in sequence while learning: its time in evaluations, if all take as long and
               own seconds are nothing
learned        seconds until all is learned
to 400         those, and drawing until the smallest bulk effective sample size, of x and of
               (x - mean)^2, is 400, tuning included
times as fast  as one worker, to 400; without chains until all is learned
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import heapq  # noqa: E402
import importlib.util  # noqa: E402
import logging  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from contextlib import nullcontext  # noqa: E402
from typing import NamedTuple  # noqa: E402

import numpy as np  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks import learning  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402

TARGETS = "outputs", "schools", "time-series", "survival", "scalar"
WORKERS = 1, 8, 32, 256
#: Seconds of an evaluation, and standard deviation of their logarithm.
SECONDS, SPREAD = 10.0, 0.3
DRAWS, QUICK_DRAWS = 1000, 50
#: How many times wider than the posterior pocoMC's prior is.
WIDER = 3.0
#: Walkers that emcee has at least, and their steps.
FEWEST_WALKERS, STEPS, QUICK_STEPS = 32, 1000, 100
#: pocoMC's active particles: its default; twice as many are effective while it anneals.
ACTIVE = 256
#: Places at once, draws and tuning of each chain on real processes.
AT_ONCE, REAL_DRAWS, REAL_TUNE = 16, 250, 50


class Recorder:
    """An executor of `n` workers that computes at once, and records what happens.

    The record has pairs of what happens and a number: "own" seconds of the processor, and the
    number of a task that is submitted ("begin") or whose result is waited for ("end").
    """

    def __init__(self, n):
        self.n_workers = self._max_workers = n
        self.n_tasks, self.record = 0, []
        self._last = time.process_time()

    def submit(self, function, *arguments):
        self.note("begin", self.n_tasks)
        task = Task(self, self.n_tasks, function(*arguments))
        self.n_tasks += 1
        self._last = time.process_time()
        return task

    def map(self, function, arguments):
        return [task.result() for task in [self.submit(function, each) for each in arguments]]

    def note(self, what, number):
        now = time.process_time()
        self.record += [("own", now - self._last), (what, number)]
        self._last = now


class Task(NamedTuple):
    """A future of a :class:`Recorder`."""

    recorder: Recorder
    number: int
    value: object

    def result(self, timeout=None):
        self.recorder.note("end", self.number)
        return self.value

    def done(self):
        return True

    def cancel(self):
        return False


def elapsed(record, n_workers, seconds=1.0, spread=0.0, own=0.0, lost=0.0):
    """Return the seconds that a record takes on simulated workers.

    An evaluation takes `seconds`, with logarithms that have standard deviation `spread`; own
    seconds count `own` times. A share `lost` of evaluations is begun again by the next free worker.
    """
    rng, free, ends, now = np.random.default_rng(0), [0.0] * n_workers, {}, 0.0
    for what, value in record:
        if what == "own":
            now += own * value
        elif what == "begin":
            end, is_lost = now, True
            while is_lost:
                begin = max(end, heapq.heappop(free))
                takes = seconds * np.exp(spread * rng.standard_normal())
                is_lost = lost > 0 and rng.random() < lost
                end = begin + takes * (rng.random() if is_lost else 1.0)
                heapq.heappush(free, end)
            ends[value] = end
        else:
            now = max(now, ends.get(value, now))
    return now


def learn(model, seed, n_workers):
    """Return what is learned with so many workers, and the record."""
    recorder = Recorder(n_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned = kmc.learn(model, executor=recorder, random_seed=seed, progressbar=False)
    recorder.note("end", recorder.n_tasks - 1)
    return learned, recorder.record


def draw(model, learned, seed, n_workers, n_draws):
    """Return records of tuning and of drawing, lists of a chain each, and the smallest ESS.

    The chains run one after the other, each with all workers.
    """
    recorder = Recorder(n_workers)
    with model:
        idata = learning.sample(kmc.KMC(learned, executor=recorder), n_draws, seed)
    recorder.note("end", recorder.n_tasks - 1)
    groups = idata.warmup_sample_stats, idata.sample_stats
    counts = [group["kmc_n_evaluations"].values.sum(axis=1) for group in groups]
    parts = pieces(recorder.record, np.cumsum(np.stack(counts, axis=1)))
    ess = learning.smallest_ess(learning.unconstrained(model, idata.posterior))
    return parts[::2], parts[1::2], ess


def pieces(record, bounds):
    """Return a record in pieces, the first of as many tasks as the first of `bounds` says."""
    begun, parts = 0, [[] for _ in bounds]
    for what, value in record:
        begun += what == "begin"
        task = value if what == "end" else max(begun - 1, 0)
        parts[min(np.searchsorted(bounds, task, side="right"), len(bounds) - 1)].append(
            (what, value)
        )
    return parts


def run(name, seed, n_workers, options):
    """Return the figures of one run with so many workers, by name, those of peers last."""
    model = learning.MODELS[name]()
    learned, record = learn(model, seed, n_workers)
    clock = options.seconds, options.spread, options.own, options.lost
    figures = {"evaluations": learned.n_evaluations, "depth": elapsed(record, n_workers)}
    figures["learned"] = elapsed(record, n_workers, *clock)
    if not options.no_chains:
        n_draws = QUICK_DRAWS if options.quick else DRAWS
        *phases, ess = draw(model, learned, seed, n_workers, n_draws)
        tuning, drawing = (
            sum(elapsed(part, n_workers, *clock) for part in parts) for parts in phases
        )
        figures["to 400"] = figures["learned"] + tuning + drawing * learning.EFFECTIVE / ess
        for peer in options.peers:
            recorder = Recorder(n_workers)
            ess = PEERS[peer](log_density_of(model, learned), learned, seed, recorder, options)
            recorder.note("end", recorder.n_tasks - 1)
            seconds = elapsed(recorder.record, n_workers, *clock)
            figures[f"{peer} to 400"] = seconds * learning.EFFECTIVE / ess
    return figures


def log_density_of(model, learned):
    """Return the log density of an unconstrained vector, in the order of what was learned."""
    log_density, point = model.compile_logp(), model.initial_point()
    shapes = [point[name].shape for name in learned.names]
    ends = np.cumsum([point[name].size for name in learned.names])

    def log_density_at(x):
        values = map(np.reshape, np.split(x, ends[:-1]), shapes)
        return float(log_density(dict(zip(learned.names, values, strict=True))))

    return log_density_at


def stretch(log_density, learned, seed, recorder, options):
    """Make emcee's stretch moves; return their effective draws."""
    import emcee

    rng, n_steps = np.random.default_rng(seed), QUICK_STEPS if options.quick else STEPS
    n_walkers = max(2 * recorder.n_workers, FEWEST_WALKERS)
    starts = rng.choice(learned.positions, n_walkers)
    starts += 1e-6 * rng.normal(size=starts.shape)
    sampler = emcee.EnsembleSampler(*starts.shape, log_density, pool=recorder)
    sampler.random_state = np.random.RandomState(seed).get_state()
    sampler.run_mcmc(starts, n_steps)
    chain = sampler.get_chain()
    both = np.concatenate([chain, (chain - chain.mean(axis=(0, 1))) ** 2], axis=-1)
    steps_a_draw = emcee.autocorr.integrated_time(both, tol=0, quiet=True).max()
    return n_walkers * n_steps / steps_a_draw


def preconditioned(log_density, learned, seed, recorder, options):
    """Run pocoMC, as many active particles as workers or its default; return its effective ones."""
    import pocomc
    from scipy.stats import norm

    middle, sd = learned.positions.mean(axis=0), WIDER * learned.positions.std(axis=0)
    prior = pocomc.Prior([norm(*each) for each in zip(middle, sd, strict=True)])

    def log_likelihood(x):
        return log_density(x) - norm.logpdf(x, middle, sd).sum()

    n_active = max(recorder.n_workers, ACTIVE)
    sampler = pocomc.Sampler(
        prior,
        log_likelihood,
        n_effective=2 * n_active,
        n_active=n_active,
        pool=recorder,
        random_state=seed,
    )
    sampler.run(n_total=learning.EFFECTIVE, n_evidence=0, progress=False)
    _, weights, *_ = sampler.posterior()
    return weights.sum() ** 2 / (weights**2).sum()


#: Functions that run a peer and return its effective draws.
PEERS = {"emcee": stretch, "pocoMC": preconditioned}
#: Lines of our own and of theirs.
LINES = "o-", "o--", "o:"


def on_real_processes(n_processes, seconds):
    """Print how long learning and drawing take with a slow solver, here, on a pool and on Dask."""
    model, found = learning.outputs(learning.Slow(seconds)), []
    learn(learning.outputs(), 0, 1)  # compiles
    pools = {
        "this process": nullcontext,
        f"{n_processes} processes": lambda: ProcessPoolExecutor(n_processes),
    }
    if importlib.util.find_spec("distributed"):
        from distributed import Client

        options = {"n_workers": n_processes, "threads_per_worker": 1, "dashboard_address": None}
        pools[f"{n_processes} workers of Dask"] = lambda: Client(**options)
    for where, make in pools.items():
        begin, used = time.perf_counter(), time.process_time()
        with make() as executor, model:
            learned = kmc.learn(executor=executor, random_seed=0, progressbar=False)
            middle = time.perf_counter()
            step = kmc.KMC(learned, executor=executor, n_parallel=AT_ONCE)
            idata = learning.sample(step, REAL_DRAWS, 0, tune=REAL_TUNE)
        end, used = time.perf_counter(), time.process_time() - used
        counts = [
            group["kmc_n_evaluations"] for group in (idata.warmup_sample_stats, idata.sample_stats)
        ]
        n = learned.n_evaluations + sum(int(count.sum()) for count in counts)
        print(
            f"{where}: {end - begin:.1f} s, {middle - begin:.1f} of learning, {used:.1f} own; "
            f"{n} evaluations of {seconds:g} s",
            flush=True,
        )
        found.append((end - begin, learning.unconstrained(model, idata.posterior)))
    (here, draws), *others = found
    for there, same in others:
        print(f"{here / there:.2f} times as fast; identical: {np.array_equal(draws, same)}")


def plot(found, path):
    """Save a picture of the speed against the workers, {target: {workers: times as fast}}.

    Lines of peers, "target, peer", are broken.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    colours: dict = {}
    for name, speeds in found.items():
        target, _, peer = name.partition(", ")
        colour = colours.setdefault(target, f"C{len(colours)}")
        line = LINES[["", *PEERS].index(peer)]
        axes.plot(list(speeds), list(speeds.values()), line, color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="times as fast as one worker")
    axes.legend()
    figure.savefig(path)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(TARGETS), help="default: %(default)s")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), help="%(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs, default 3")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of an evaluation")
    parser.add_argument("--spread", type=float, default=SPREAD, help="of their logarithm")
    parser.add_argument("--own", type=float, default=1.0, help="weight of own seconds")
    parser.add_argument("--lost", type=float, default=0.0, help="share of evaluations, default 0")
    parser.add_argument("--peers", default="", help="those of emcee,pocoMC, if installed")
    parser.add_argument("--real", metavar="N", type=int, help="on N real processes, and here")
    parser.add_argument("--no-chains", action="store_true", help="learning alone")
    parser.add_argument("--plot", metavar="FILE", help="picture of speed against workers")
    parser.add_argument("--quick", action="store_true", help="one target, one seed, few draws")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    if options.real:
        on_real_processes(options.real, options.seconds)
        return
    asked = options.peers.split(",") if options.peers else []
    options.peers = [peer for peer in asked if importlib.util.find_spec(peer.lower())]
    for peer in set(asked) - set(options.peers):
        print(f"{peer} is not installed: left out.")
    names, counts = options.targets.split(","), list(map(int, options.workers.split(",")))
    seeds = range(options.seeds)
    if options.quick:
        names, counts, seeds = ["survival"], [1, 32], range(1)
    rows, speeds = [], {}
    timed = {"": "learned" if options.no_chains else "to 400"}
    timed |= {f", {peer}": f"{peer} to 400" for peer in options.peers}
    for name in names:
        for n_workers in counts:
            found = [run(name, seed, n_workers, options) for seed in seeds]
            middle = {key: np.median([one[key] for one in found]) for key in found[0]}
            if n_workers == counts[0]:
                alone = middle[timed[""]]
            fast = {name + who: alone / middle[key] for who, key in timed.items()}
            for label, speed in fast.items():
                speeds.setdefault(label, {})[n_workers] = speed
            told = [f"{key} {value:.0f}" for key, value in middle.items()]
            print(name, n_workers, *told, flush=True)
            cells = [f"{value:.0f}" for value in middle.values()]
            rows.append([name, str(n_workers), *cells, *(f"{x:.3g}" for x in fast.values())])
    header = ["target", "workers", *middle, *(f"times as fast{who}" for who in timed)]
    print("\n" + markdown(header, rows))
    if options.plot:
        plot(speeds, options.plot)


if __name__ == "__main__":
    main()
