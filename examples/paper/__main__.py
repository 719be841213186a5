"""The figures and tables of the papers behind this package, one command each.

    python -m examples.paper kmc-figure-3
    python -m examples.paper all --quick

A run that is finished is kept in NAME.csv and not made again; a command that was interrupted goes
on from there. `README.md` has what the papers published beside what is found here.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import importlib  # noqa: E402
import logging  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402

from examples.paper.frame import execute  # noqa: E402

MODULES = (
    "trajectories",
    "banana",
    "glass",
    "skew_normal",
    "lognormal",
    "gad",
    "kamh",
    "partial",
)
RESULTS = Path(__file__).parent / "results"


def experiments():
    """All experiments by name, in the order of the papers."""
    modules = [importlib.import_module(f"examples.paper.{name}") for name in MODULES]
    return {one.name: one for module in modules for one in module.EXPERIMENTS}


def main(arguments=None):
    known = experiments()
    parser = argparse.ArgumentParser(
        prog="python -m examples.paper",
        description="Figures and tables of the papers, with a CSV and a PNG each.",
        epilog="\n".join(f"{name:20} {one.about}" for name, one in known.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*known, "all"], metavar="NAME", help="see below, or all")
    parser.add_argument("--quick", action="store_true", help="sees that it runs; means nothing")
    parser.add_argument("--seeds", type=int, help="runs of each kind; its own number by default")
    parser.add_argument("--folder", type=Path, help="for CSV and PNG; results/ by default")
    options = parser.parse_args(arguments)
    folder = options.folder or RESULTS / ("quick" if options.quick else "")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    chosen = known.values() if options.name == "all" else [known[options.name]]
    for one in chosen:
        print(f"\n{one.name}: {one.about}\n")
        execute(one, folder, options.quick, options.seeds)


if __name__ == "__main__":
    main()
