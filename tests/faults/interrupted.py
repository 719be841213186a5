"""A run in a process of its own that gets a real SIGINT, as from Ctrl-C.

`python -m tests.faults.interrupted '{"step": ..., "cores": ..., "phase": ...}'` prints READY once
iterations of that phase are made, with one core for each chain, then what came of it.
"""

import json
import signal
import sys

import numpy as np
import pymc as pm

from tests.steps import STEPS

# Number of iterations that no process makes before it is interrupted.
ENDLESS = 400_000
# Iterations that are made before the interrupt may come.
FIRST = 50


def sample(name, **options):
    quiet = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1}
    with pm.Model():
        pm.Normal("x", shape=2)
        return pm.sample(step=STEPS[name](), **quiet | options)


def outcome(step, cores, phase):
    """What pm.sample makes of the interrupt: numbers of chains and draws, or the error."""
    seen = [0, 0]

    def tell(trace, draw):
        if draw.tuning == (phase == "tuning"):
            seen[draw.chain] += 1
            if seen[draw.chain] == FIRST and (cores == 1 or min(seen) >= FIRST):
                print("READY", flush=True)

    tune, draws = (ENDLESS, 100) if phase == "tuning" else (100, ENDLESS)
    try:
        found = sample(step, cores=cores, chains=2, tune=tune, draws=draws, callback=tell)
    except (Exception, KeyboardInterrupt) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    x = found.posterior["x"].values
    return {"chains": x.shape[0], "draws": x.shape[1], "finite": bool(np.isfinite(x).all())}


def main():
    # Children of a shell's background jobs ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = json.loads(sys.argv[1])
    short = {"tune": 40, "draws": 60, "cores": 1, "chains": 1}
    expected = sample(options["step"], **short).posterior["x"].values
    found = outcome(**options)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one is enough: the next run is asked for
    again = sample(options["step"], **short).posterior["x"].values
    print(json.dumps(found | {"next_is_right": bool(np.array_equal(expected, again))}), flush=True)


if __name__ == "__main__":
    main()
