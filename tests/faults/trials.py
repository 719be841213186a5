"""Trials in a process of their own, with a time beyond which they count as hanging."""

import json
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Seconds that a trial may take: it samples three times, and a hanging worker has half a second.
LONGEST_TRIAL = 60.0
# Seconds for imports and compilation before the first.
LONGEST_START = 120.0


def run_all(trials):
    """Run trials one after the other, and go on in a new process where one doesn't end.

    Parameters
    ----------
    trials : list of (str, int)
        Names of scenarios, and seeds.

    Yields
    ------
    (str, int, str)
        The trial, and what didn't hold: empty if all did.
    """
    todo = list(trials)
    while todo:
        done = 0
        for outcome in _run_in_one_process(todo):
            yield (*todo[done], outcome)
            done += 1
        if done < len(todo):
            yield (*todo[done], "did not end in time, or ended the process")
            done += 1
        todo = todo[done:]


def _run_in_one_process(trials):
    limit = LONGEST_START + LONGEST_TRIAL * len(trials)
    command = [sys.executable, "-m", "tests.faults.trials", json.dumps(trials)]
    try:
        text = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit
        ).stdout
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode()
    for line in text.splitlines():
        if line.startswith("OUTCOME "):
            yield json.loads(line.removeprefix("OUTCOME "))


if __name__ == "__main__":
    from tests.faults.scenarios import run

    for name, seed in json.loads(sys.argv[1]):
        outcome = ""
        try:
            run(name, seed)
        except BaseException as error:
            frames = traceback.format_tb(error.__traceback__)[-1].strip()
            outcome = f"{type(error).__name__}: {error}\n{frames}"
        print(f"OUTCOME {json.dumps(outcome)}", flush=True)
