"""Seconds to the first draw and to 400 effective draws, by what an evaluation takes.

    pip install emcee
    python -m examples.benchmarks.seconds                               # some twenty minutes
    python -m examples.benchmarks.seconds --targets schools --samplers "KMC(),emcee" --seeds 3
    python -m examples.benchmarks.seconds --cold                        # nothing compiled is kept
    python -m examples.benchmarks.seconds --wait 3 --targets schools    # evaluations wait 3 ms
    python -m examples.benchmarks.seconds --quick

Each run is a process of its own: four chains of PyMC's, one after another, or emcee's walkers, with
defaults and PyMC's own starts. The black box counts its calls. Its evaluations take microseconds,
and an evaluation of c milliseconds adds c to each call, so that one run tells all columns; with
`--wait` they do take so long, which shows that the sum is right. Seconds are of the processor, with
those of the compiler's processes; imports and the making of the model are left out.

first draw     learning and tuning of all chains: calls and own seconds
to 400         those, and drawing until the smallest bulk effective sample size over parameters, of
               x and of (x - mean)^2, is 400, by the ESS of the run
R-hat          the largest; where it is above 1.05 the effective sample size means nothing, and the
               run is left out when the least seconds are told
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from unittest import mock  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from pymc.blocking import DictToArrayBijection, RaveledVars  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.black_boxes import MODELS  # noqa: E402
from examples.benchmarks.learning import CHAINS, EFFECTIVE, smallest_ess, unconstrained  # noqa: E402
from examples.benchmarks.learning import MODELS as MORE_MODELS  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402

MODELS = MORE_MODELS | MODELS
TARGETS = "dose-response", "time-series", "survival", "mixture", "pharmacokinetics", "schools"
#: Milliseconds of an evaluation.
COSTS = 0.03, 0.3, 3.0, 30.0
#: So many times the least seconds of any sampler that KMC() may take, by cost.
TO_REACH = 3.0, 1.5, 1.0, 1.0
#: Iterations of tuning, by default the step's own, and draws of each chain.
STEPS = {
    "KMC()": (lambda seed: kmc.KMC(rng=seed), None, 1000),
    "KMC(learn=False)": (lambda seed: kmc.KMC(rng=seed, learn=False), None, 1000),
    "DEMetropolisZ": (lambda seed: pm.DEMetropolisZ(), 2000, 10_000),
    "Slice": (lambda seed: pm.Slice(), 500, 1000),
    "Metropolis": (lambda seed: pm.Metropolis(), 2000, 5000),
}
SAMPLERS = [*STEPS, "emcee"]
#: emcee's walkers a dimension, and their steps before and after the first draw.
WALKERS, EMCEE_TUNE, EMCEE_DRAWS = 4, 1000, 3000
#: R-hat above which chains haven't mixed.
UNMIXED = 1.05


class Counter:
    """Counts calls and seconds, before the first draw and while drawing."""

    def __init__(self, wait):
        self.wait, self.n_calls, self.box_of = wait, 0, kmc.BlackBox
        self.begin()

    def begin(self):
        self.calls, self.seconds = {True: 0, False: 0}, {True: 0.0, False: 0.0}
        self._last = self._now()

    def _now(self):
        return self.n_calls, sum(os.times()[:4])

    def box(self, name, function, *params, **options):
        def counted(*values):
            self.n_calls += 1
            begin = time.perf_counter()
            while time.perf_counter() - begin < self.wait:
                pass
            return function(*values)

        return self.box_of(name, counted, *params, **options)

    def add(self, is_before):
        """Add what was used since the last call."""
        now = self._now()
        self.calls[is_before] += now[0] - self._last[0]
        self.seconds[is_before] += now[1] - self._last[1]
        self._last = now


def by_pymc(name, model, seed, counter, share):
    make, tune, n_draws = STEPS[name]
    with model:
        step = make(seed)
        tune = step.default_tune_steps if tune is None else tune
        idata = pm.sample(
            step=step,
            tune=tune,
            draws=int(share * n_draws),
            chains=CHAINS,
            cores=1,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
            callback=lambda trace, draw: counter.add(draw.tuning),
        )
    return unconstrained(model, idata.posterior)


def of_vector(model):
    """The log density of an unconstrained vector (d,), -inf where there is none; a first one."""
    log_density = model.compile_logp()
    start = DictToArrayBijection.map(model.initial_point())

    def value_at(x):
        with np.errstate(all="ignore"):
            point = DictToArrayBijection.rmap(RaveledVars(x, start.point_map_info))
            value = float(log_density(point))
        return value if np.isfinite(value) else -np.inf

    return value_at, start.data


def by_emcee(model, seed, counter, share):
    import emcee

    rng = np.random.default_rng(seed)
    log_density, start = of_vector(model)
    d = len(start)

    # PyMC's jitter.
    begin = start + rng.uniform(-1, 1, (WALKERS * d, d))
    sampler = emcee.EnsembleSampler(len(begin), d, log_density)
    sampler.random_state = np.random.RandomState(seed).get_state()  # noqa: NPY002  its interface
    state = sampler.run_mcmc(begin, int(share * EMCEE_TUNE))
    counter.add(True)
    sampler.reset()
    sampler.run_mcmc(state, int(share * EMCEE_DRAWS))
    counter.add(False)
    return sampler.get_chain().swapaxes(0, 1)


def run(target, name, seed, wait=0.0, share=1.0):
    """Return the figures of one run in this process."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    counter = Counter(1e-3 * wait)
    with mock.patch.object(kmc, "BlackBox", counter.box):
        model = MODELS[target]()
    counter.begin()
    if name == "emcee":
        draws = by_emcee(model, seed, counter, share)
    else:
        draws = by_pymc(name, model, seed, counter, share)
    ess = smallest_ess(draws)
    return {
        "calls": counter.calls[True],
        "seconds": counter.seconds[True],
        "more calls": counter.calls[False] * EFFECTIVE / ess,
        "more seconds": counter.seconds[False] * EFFECTIVE / ess,
        "rhat": max(float(az.rhat(draws[..., j])) for j in range(draws.shape[-1])),
    }


def in_a_process(target, name, seed, options):
    """Return the figures of one run in a process of its own; None where it failed."""
    command = [sys.executable, "-m", "examples.benchmarks.seconds", "--targets", target]
    command += ["--samplers", name, "--first", str(seed), "--wait", str(options.wait), "--one"]
    command += ["--quick"] * options.quick
    with tempfile.TemporaryDirectory() as empty:
        environment = dict(os.environ)
        if options.cold:
            flags = environment.get("PYTENSOR_FLAGS", "")
            environment["PYTENSOR_FLAGS"] = f"{flags},base_compiledir={empty}".lstrip(",")
            environment["NUMBA_CACHE_DIR"] = empty
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"{target}, {name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def seconds(figures, cost):
    """Seconds to the first draw and to all draws, given the milliseconds of an evaluation."""
    first = figures["seconds"] + 1e-3 * cost * figures["calls"]
    return first, first + figures["more seconds"] + 1e-3 * cost * figures["more calls"]


def table(found):
    """Return the table of all runs, {(target, sampler): figures of each seed}."""
    header = ["target", "sampler", "calls to first draw", "to 400", "own s", "to 400", "R-hat"]
    header += [f"{which}, {cost:g} ms" for cost in COSTS for which in ("first", "to 400")]
    rows = []
    for (target, name), runs in found.items():
        if not runs:
            continue
        middle = {key: float(np.median([one[key] for one in runs])) for key in runs[0]}
        row = [target, name, f"{middle['calls']:.0f}"]
        row += [f"{middle['calls'] + middle['more calls']:.0f}", f"{middle['seconds']:.1f}"]
        row += [f"{middle['seconds'] + middle['more seconds']:.1f}", f"{middle['rhat']:.2f}"]
        row += [f"{value:.1f}" for cost in COSTS for value in seconds(middle, cost)]
        rows.append(row)
    return markdown(header, rows)


def ratios(found):
    """Return the table of KMC()'s seconds to 400 draws, in units of the least of all others."""
    rows = []
    for target in dict.fromkeys(target for target, _ in found):
        row = [target]
        for cost in COSTS:
            least = {
                name: np.median([seconds(one, cost)[1] for one in runs])
                for (of, name), runs in found.items()
                if of == target and runs and np.median([one["rhat"] for one in runs]) < UNMIXED
            }
            mine = least.pop("KMC()", np.nan)
            best = min(least, key=least.get, default=None)
            row.append(f"{mine / least[best]:.2f} ({best})" if best else "-")
        rows.append(row)
    rows.append(["to reach", *(f"{ratio:g}" for ratio in TO_REACH)])
    return markdown(["target", *(f"{cost:g} ms" for cost in COSTS)], rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(TARGETS), help="default: %(default)s")
    parser.add_argument("--samplers", default=",".join(SAMPLERS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=1, help="number of runs, default 1")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--wait", type=float, default=0.0, help="milliseconds, busily, a call")
    parser.add_argument("--cold", action="store_true", help="nothing compiled is kept")
    parser.add_argument("--one", action="store_true", help="one run in this process, as JSON")
    parser.add_argument("--quick", action="store_true", help="two samplers, few draws")
    options = parser.parse_args(arguments)
    targets, samplers = options.targets.split(","), options.samplers.split(",")
    if options.one:
        share = 0.05 if options.quick else 1.0
        print(json.dumps(run(targets[0], samplers[0], options.first, options.wait, share)))
        return
    if options.quick:
        targets, samplers = ["dose-response"], ["KMC()", "Slice"]
    found = {}
    for target in targets:
        for name in samplers:
            seeds = range(options.first, options.first + options.seeds)
            runs = [in_a_process(target, name, seed, options) for seed in seeds]
            found[target, name] = [one for one in runs if one is not None]
            for one in found[target, name]:
                shown = ", ".join(f"{key} {value:.4g}" for key, value in one.items())
                print(f"{target}, {name}: {shown}", flush=True)
    print("\n" + table(found) + "\n\n" + ratios(found))


if __name__ == "__main__":
    main()
