"""How far what is learned is off, beside the standard errors that are stated.

    python -m examples.benchmarks.standard_errors                          # some ten minutes
    python -m examples.benchmarks.standard_errors --noise 1 --targets survival
    python -m examples.benchmarks.standard_errors --growth 0.5
    python -m examples.benchmarks.standard_errors --quick

Targets are those of :mod:`examples.benchmarks.peers`, the log likelihood of each one estimated
number. "error" is the root mean square error of means and standard deviations of the unconstrained
variables, in posterior standard deviations; "z" is that of errors in standard errors, about 1 if
these are honest. References have errors of some .005. Cells are over seeds and variables.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402

import numpy as np  # noqa: E402

from examples.benchmarks import learning  # noqa: E402
from examples.benchmarks.peer_samplers import Problem  # noqa: E402
from examples.benchmarks.peers import reference  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402
from pymc_kmc.model.opaque import OpaqueModel  # noqa: E402

TARGETS = "dose-response", "time-series", "survival", "mixture", "two-modes", "schools"
#: z that one Gaussian error of 370 has.
LARGE = 3.0
#: Number of draws that tell an input's standard deviation, and its largest value in these.
N_INPUTS, FARTHEST = 400, 6.0


class Uneven(Problem):
    """Noise whose log variance grows by `growth` with a standard deviation of the first input."""

    def __init__(self, name, noise, seed, growth, known):
        self.growth, self.first = growth, None
        super().__init__(name, noise, seed)
        model, rng = self.exact, np.random.default_rng(0)
        draws = known.mean + known.sd * rng.standard_normal((N_INPUTS, self.dimension))
        inputs = OpaqueModel(model.continuous_value_vars, model, rng).inputs(draws)[:, 0]
        self.first = inputs.mean(), inputs.std()

    def noise_at(self, values):
        if self.first is None:
            return self.noise
        mean, sd = self.first
        away = np.clip((np.ravel(values[0])[0] - mean) / sd, -FARTHEST, FARTHEST)
        return self.noise * np.exp(0.5 * self.growth * away)


def scores(name, noise, seed, growth):
    """Return evaluations of learning, errors (2 d,) in standard deviations, and z (2 d,)."""
    known = reference(name)
    learned, _ = learning.learn(Uneven(name, noise, seed, growth, known).model, seed)
    labels = [f"{i}" for i in range(learned.n_dimensions)]
    found = learned._averages.table(learned.positions, labels, quantiles=())
    errors = np.r_[found["mean"] - known.mean, found["sd"] - known.sd]
    stated = np.r_[found["se_mean"], found["se_sd"]]
    return len(learned.evaluations), errors / np.tile(known.sd, 2), errors / stated


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(TARGETS), help="default: %(default)s")
    parser.add_argument("--noise", type=float, default=2.0, help="standard deviation, in nats")
    parser.add_argument(
        "--growth", type=float, default=0.0, help="of its log variance, a standard deviation"
    )
    parser.add_argument("--seeds", type=int, default=6, help="number of runs a target")
    parser.add_argument("--quick", action="store_true", help="one small target, one seed")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = ["dose-response"] if options.quick else options.targets.split(",")
    rows = []
    for name in names:
        runs = [
            scores(name, options.noise, seed, options.growth)
            for seed in range(1 if options.quick else options.seeds)
        ]
        n, errors, z = (np.array(each) for each in zip(*runs, strict=True))
        error, ratio = (np.sqrt(np.mean(each**2)) for each in (errors, z))
        cells = f"{np.median(n):.0f}", f"{error:.2g}", f"{ratio:.2f}", f"{np.abs(z).max():.1f}"
        rows.append([name, *cells, f"{100 * np.mean(np.abs(z) > LARGE):.1f}"])
        print(*rows[-1], flush=True)
    header = ["target", "evaluations", "error", "z", "largest z", f"% above {LARGE:.0f}"]
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
