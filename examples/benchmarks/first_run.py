"""How long README's first lines take until they draw, on a computer that has never run them.

    python -m examples.benchmarks.first_run
    python -m examples.benchmarks.first_run --quick

A process with empty folders for what numba and PyTensor compile runs README's first block, its
chains one after the other, and a second process does so with what the first one has left in them.
Seconds are of the clock and, in brackets, those of processors and those of compilers: numba's by
the clock, C compilers' by processors. All are from the first import on. `--quick` has no second
process, and too few iterations for chains.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402

ROOT = Path(__file__).parents[2]
RUNS = ("first run", "second run")
ROWS = ("all is imported", "first iteration", "first draw", "the end")


def seconds_of_a_run(is_quick):
    """Run README's block in this process; return [clock, processors, compilers] for `ROWS`."""
    times = []
    compiling = {"depth": 0, "seconds": 0.0}

    def note():
        # C compilers are children.
        compilers = compiling["seconds"] + sum(os.times()[2:4])
        times.append([time.perf_counter(), sum(os.times()[:4]), compilers])

    def listen(trace, draw):
        if len(times) == 2 or (len(times) == 3 and not draw.tuning):
            note()

    note()
    import pymc as pm
    from numba.core import event

    import pymc_kmc as kmc

    kmc.KMC  # noqa: B018 (imports it)
    note()

    class Compiling(event.Listener):
        def on_start(self, event):
            compiling["depth"] += 1
            if compiling["depth"] == 1:
                compiling["seconds"] -= time.perf_counter()

        def on_end(self, event):
            compiling["depth"] -= 1
            if compiling["depth"] == 0:
                compiling["seconds"] += time.perf_counter()

    event.register("numba:compile", Compiling())
    pm.sample = partial(pm.sample, cores=1, progressbar=False, callback=listen)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]
    if is_quick:
        code = code.replace("=1000", "=10")
    exec(code, {})
    note()
    start = times.pop(0)
    return [[now - then for now, then in zip(event, start, strict=True)] for event in times]


def in_a_process(folder, *options):
    """`seconds_of_a_run` in a process that keeps compiled code in `folder` alone."""
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), f"base_compiledir={folder / 'pytensor'}"]
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "PYTENSOR_FLAGS": ",".join(filter(None, flags)),  # of two values the last counts
    }
    done = subprocess.run(
        [sys.executable, "-m", "examples.benchmarks.first_run", "--here", *options],
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
    parser.add_argument("--quick", action="store_true", help="checks that it runs")
    parser.add_argument("--here", action="store_true", help="one run in this process, as JSON")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(seconds_of_a_run(options.quick)))
        return
    runs, quick = (RUNS[:1], ["--quick"]) if options.quick else (RUNS, [])
    with TemporaryDirectory() as folder:
        found = [in_a_process(Path(folder), *quick) for _ in runs]
    print(f"| seconds until | {' | '.join(runs)} |\n| --- |{' --- |' * len(runs)}")
    for row, *times in zip(ROWS, *found, strict=True):
        cells = ["{:.1f} ({:.1f}, {:.1f})".format(*seconds) for seconds in times]
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
