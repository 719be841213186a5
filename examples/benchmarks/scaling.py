"""How much sooner many workers bring the draws, on a virtual clock.

    python -m examples.benchmarks.scaling                                  # some hours
    python -m examples.benchmarks.scaling --targets survival --workers 1,32 --seeds 3
    python -m examples.benchmarks.scaling --no-chains                      # learning alone
    python -m examples.benchmarks.scaling --plot speed.png
    python -m examples.benchmarks.scaling --quick

`kmc.learn` and `kmc.KMC(learned, executor=...)` run on an executor that computes each evaluation in
this process, at once, and records when it was asked for, when its result was waited for, and the
processor's seconds between. The clock is simulated from that record: workers take evaluations in
order, each of which takes seconds whose logarithm is spread; own seconds count as they are, unless
`--own 0` sets them apart. Cells are medians over seeds.

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
import logging  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
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


class Recorder:
    """An executor of `n` workers that computes at once, and records what happens.

    The record has pairs of what happens and a number: "own" seconds of the processor, and the
    number of a task that is submitted ("begin") or whose result is waited for ("end").
    """

    def __init__(self, n):
        self._max_workers, self.n_tasks, self.record = n, 0, []
        self._last = time.process_time()

    def submit(self, function, *arguments):
        self.note("begin", self.n_tasks)
        task = Task(self, self.n_tasks, function(*arguments))
        self.n_tasks += 1
        self._last = time.process_time()
        return task

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


def elapsed(record, n_workers, seconds=1.0, spread=0.0, own=0.0):
    """Return the seconds that a record takes on simulated workers.

    An evaluation takes `seconds`, with logarithms that have standard deviation `spread`; own
    seconds count `own` times.
    """
    rng, free, ends, now = np.random.default_rng(0), [0.0] * n_workers, {}, 0.0
    for what, value in record:
        if what == "own":
            now += own * value
        elif what == "begin":
            begin = max(now, heapq.heappop(free))
            ends[value] = begin + seconds * np.exp(spread * rng.standard_normal())
            heapq.heappush(free, ends[value])
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
    """Return the figures of one run with so many workers, by name."""
    model = learning.MODELS[name]()
    learned, record = learn(model, seed, n_workers)
    clock = options.seconds, options.spread, options.own
    figures = {"evaluations": learned.n_evaluations, "depth": elapsed(record, n_workers)}
    figures["learned"] = elapsed(record, n_workers, *clock)
    if not options.no_chains:
        n_draws = QUICK_DRAWS if options.quick else DRAWS
        *phases, ess = draw(model, learned, seed, n_workers, n_draws)
        tuning, drawing = (
            sum(elapsed(part, n_workers, *clock) for part in parts) for parts in phases
        )
        figures["to 400"] = figures["learned"] + tuning + drawing * learning.EFFECTIVE / ess
    return figures


def plot(found, path):
    """Save a picture of the speed against the workers, {target: {workers: times as fast}}."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, speeds in found.items():
        axes.plot(list(speeds), list(speeds.values()), "o-", label=name)
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
    parser.add_argument("--no-chains", action="store_true", help="learning alone")
    parser.add_argument("--plot", metavar="FILE", help="picture of speed against workers")
    parser.add_argument("--quick", action="store_true", help="one target, one seed, few draws")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names, counts = options.targets.split(","), list(map(int, options.workers.split(",")))
    seeds = range(options.seeds)
    if options.quick:
        names, counts, seeds = ["survival"], [1, 32], range(1)
    rows, speeds = [], {}
    for name in names:
        speeds[name] = {}
        for n_workers in counts:
            found = [run(name, seed, n_workers, options) for seed in seeds]
            middle = {key: np.median([one[key] for one in found]) for key in found[0]}
            *_, speeds[name][n_workers] = middle.values()
            told = [f"{key} {value:.0f}" for key, value in middle.items()]
            print(name, n_workers, *told, flush=True)
            rows.append([name, str(n_workers), *(f"{value:.0f}" for value in middle.values())])
        speeds[name] = {n: speeds[name][counts[0]] / value for n, value in speeds[name].items()}
        for row in rows[-len(counts) :]:
            row.append(f"{speeds[name][int(row[1])]:.1f}")
    print("\n" + markdown(["target", "workers", *middle, "times as fast"], rows))
    if options.plot:
        plot(speeds, options.plot)


if __name__ == "__main__":
    main()
