"""Replicates on an executor: how much faster than one after the other, and what a task costs.

    python -m examples.benchmarks.executors
    python -m examples.benchmarks.executors --workers 8 --replicates 32
    python -m examples.benchmarks.executors --quick

Adaptive Metropolis on a toy whose estimate averages replicates of a simulator that takes 20 ms,
either of a processor's time ("computes") or asleep ("sleeps"), which shows the same on a machine
that others use. The draws must be those without an executor. "a task" is what a replicate that
does nothing costs.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import time  # noqa: E402
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor  # noqa: E402
from functools import partial  # noqa: E402

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402


def estimator(x, rng, *, seconds, computes):
    """Log of a kernel weight of a simulated data set, after so many seconds."""
    if computes:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
    elif seconds:
        time.sleep(seconds)
    return -0.5 * (x + rng.standard_normal() - 1.0) ** 2


def run(task, executor, n_replicates, n_iterations):
    """Draws of a chain, and the seconds of an iteration."""
    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", task, x, n_replicates=n_replicates, executor=executor)
        step = kmc.AdaptiveMetropolis()
    step.set_rng(np.random.default_rng(1))
    point, draws = step.step(model.initial_point())[0], []  # it starts the workers
    begin = time.perf_counter()
    for _ in range(n_iterations):
        point, _ = step.step(point)
        draws.append(float(point["x"]))
    return draws, (time.perf_counter() - begin) / n_iterations


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Replicates on an executor.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--replicates", type=int, default=8)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="of a simulation")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="2 iterations")
    options = parser.parse_args(arguments)
    n_iterations = 2 if options.quick else options.iterations
    seconds = options.milliseconds / 1e3
    print(
        f"{options.replicates} replicates of {options.milliseconds:g} ms an estimate, "
        f"{options.workers} workers, {n_iterations} iterations\n"
    )
    rows = []
    with (
        ProcessPoolExecutor(options.workers) as processes,
        ThreadPoolExecutor(options.workers) as threads,
    ):
        for what in ("sleeps", "computes"):
            task = partial(estimator, seconds=seconds, computes=what == "computes")
            kinds = {"none": None, "process pool": processes}
            if what == "sleeps":
                kinds["thread pool"] = threads
            for name, executor in kinds.items():
                draws, spent = run(task, executor, options.replicates, n_iterations)
                if executor is None:
                    expected, serial = draws, spent
                same = "yes" if draws == expected else "**no**"
                rows.append([what, name, f"{1e3 * spent:.0f}", f"{serial / spent:.2f}", same])
        nothing = partial(estimator, seconds=0.0, computes=False)
        costs = [
            [name, f"{1e6 * run(nothing, executor, 32, 5 * n_iterations)[1] / 32:.0f}"]
            for name, executor in (
                ("none", None),
                ("process pool", processes),
                ("threads", threads),
            )
        ]
    header = ["simulator", "executor", "ms an iteration", "times as fast", "same draws"]
    print(markdown(header, rows))
    print()
    print(markdown(["executor", "microseconds a task"], costs))


if __name__ == "__main__":
    main()
