"""How long `pm.sample(step=kmc.KMC())` takes to begin on a computer that has never run it.

    python -m examples.benchmarks.first_run
    python -m examples.benchmarks.first_run --quick

A process with empty folders for what numba and PyTensor compile samples a normal distribution in
two dimensions, and a second process does so with what the first one has left in them. Seconds are
of the clock and, in brackets, of processors, from the first import on. `--quick` has no second
process, and too few iterations for a fit.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402

ROOT = Path(__file__).parents[2]
#: Iterations in which KMC makes its first fits, and draws with them.
TUNE, DRAWS = 200, 100
QUICK_TUNE, QUICK_DRAWS = 10, 5
RUNS = ("first run", "second run")
ROWS = ("all is imported", "first iteration", "first draw", "last draw")


def seconds_of_a_run(tune, draws):
    """Sample once in this process; return [clock, processors] of each event of `ROWS`."""
    times = []

    def note():
        # C compilers are children.
        times.append([time.perf_counter(), sum(os.times()[:4])])

    note()
    import pymc as pm

    from pymc_kmc import KMC

    note()

    def listen(trace, draw):
        if len(times) == 2 or (len(times) == 3 and not draw.tuning):
            note()

    with pm.Model():
        pm.Normal("x", shape=2)
        pm.sample(
            draws,
            tune=tune,
            step=KMC(),
            chains=1,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
            callback=listen,
        )
    note()
    start = times.pop(0)
    return [[event[i] - start[i] for i in range(2)] for event in times]


def in_a_process(folder, tune, draws):
    """`seconds_of_a_run` in a process that keeps compiled code in `folder` alone."""
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), f"base_compiledir={folder / 'pytensor'}"]
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "PYTENSOR_FLAGS": ",".join(filter(None, flags)),  # of two values the last counts
    }
    command = [sys.executable, "-m", "examples.benchmarks.first_run", "--here"]
    done = subprocess.run(
        [*command, "--tune", str(tune), "--draws", str(draws)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"The run has failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", type=int, default=TUNE, help=f"iterations of tuning ({TUNE})")
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"draws ({DRAWS})")
    parser.add_argument("--quick", action="store_true", help="checks that it runs")
    parser.add_argument("--here", action="store_true", help="one run in this process, as JSON")
    options = parser.parse_args(arguments)
    if options.quick:
        options.tune, options.draws = QUICK_TUNE, QUICK_DRAWS
    if options.here:
        print(json.dumps(seconds_of_a_run(options.tune, options.draws)))
        return
    runs = RUNS[:1] if options.quick else RUNS
    with TemporaryDirectory() as folder:
        found = [in_a_process(Path(folder), options.tune, options.draws) for _ in runs]
    print(f"| seconds until | {' | '.join(runs)} |\n| --- |{' --- |' * len(runs)}")
    for row, *times in zip(ROWS, *found, strict=True):
        cells = [f"{clock:.1f} ({processors:.1f})" for clock, processors in times]
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
