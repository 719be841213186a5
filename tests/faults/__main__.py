"""All faults, many times each: prints what was tried and what held.

python -m tests.faults              # 10 trials of each
python -m tests.faults --trials 50 --only an_interrupt
"""

import argparse
import sys
from collections import Counter

from tests.faults.scenarios import SCENARIOS
from tests.faults.trials import run_all


def main():
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.faults")
    parser.add_argument("--trials", type=int, default=10, help="of each fault")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="this fault")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial")
    options = parser.parse_args()
    tried, held, failures = Counter(), Counter(), []
    for name in options.only or SCENARIOS:
        seeds = range(options.seed, options.seed + options.trials)
        for _, seed, outcome in run_all([(name, seed) for seed in seeds]):
            tried[name] += 1
            held[name] += not outcome
            if outcome:
                failures.append(f"{name}, seed {seed}: {outcome}")
        print(f"{name.replace('_', ' '):28} tried {tried[name]:4}  held {held[name]:4}", flush=True)
    print(f"{'all':28} tried {tried.total():4}  held {held.total():4}")
    print("\n".join(failures))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
