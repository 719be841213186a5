"""Gradient-based adaptive MCMC: the tables of Titsias and Dellaportas (2019), and Figure 1.

The tables: regressions and Neal's Gaussian, those of `examples.benchmarks.logistic`, whose
docstring says where the data come from and in what two of them differ from the paper's; digits are
in place of MNIST. 20,000 iterations of tuning and 20,000 draws; ESS of x, smallest, median and
largest coordinate. "additive" is the paper's update with its constants: gadMALAf, gadMALAe and
gadRWM. "GadMALA" is this package's default. "AdaptiveMetropolis", "RandomWalk", "MALA" and "NUTS"
are the paper's AM, RWM, MALA and NUTS, for which the published figure is the smallest ESS a second
alone. Seconds are of this machine's processor, tuning included, and don't compare with theirs:
ratios within a table do.

The figure: the covariance L L' that was learned for a 2-d Gaussian with correlation .99, and for
the values at 51 places in [0, 4] of a Gaussian process with kernel exp(-(s - t)^2 / .32) and noise
of variance .01, beside the true one.
"""

import arviz as az
import numpy as np
from threadpoolctl import threadpool_limits

from examples.benchmarks import logistic, targets
from examples.benchmarks.oracle import chain
from examples.paper.frame import Experiment, averages, with_published

LENGTH = 20_000
ALGORITHMS = ("GadMALA-additive", "GadMALA-additive-exact", "GadRWM-additive", "GadMALA")
#: The paper's rivals, by their names in `examples.benchmarks.logistic`: AM, RWM, MALA and NUTS.
RIVALS = ("AdaptiveMetropolis", "RandomWalk", "MALA", "NUTS")
#: Acceptance; ESS min, median, max; min ESS a second: f, e and RWM in the order of `ALGORITHMS`.
PUBLISHED = {
    "ripley": (
        ".536; 8328, 8913, 9442; 2506",
        ".543; 8447, 9007, 9596; 1713",
        ".068; 638, 737, 803; 206",
    ),
    "pima": (
        ".545; 5408, 5810, 6468; 1176",
        ".547; 5470, 5964, 6421; 801",
        ".267; 636, 760, 866; 151",
    ),
    "heart": (
        ".551; 3893, 4363, 4785; 947",
        ".560; 3832, 4372, 4846; 600",
        ".288; 343, 441, 536; 89",
    ),
    "australian": (
        ".569; 3486, 4263, 4784; 444",
        ".540; 3035, 4234, 4836; 228",
        ".253; 288, 423, 515; 39",
    ),
    "german": (
        ".560; 2735, 3415, 3929; 253",
        ".549; 2808, 3385, 3883; 126",
        ".248; 179, 253, 323; 18",
    ),
    "neal": (".556; 1413, 1987, 2581; 162", ".541; 922, 2006, 2691; 92", ".254; 28, 67, 127; 4.0"),
    "caravan": (".621; 228, 750, 1115; 9.9", ".494; 67, 508, 1443; .70", ".234; 5, 34, 105; .23"),
}
#: Smallest ESS a second of `RIVALS`, on another computer: of GadMALA's it is in `PUBLISHED`.
PUBLISHED_RATES = {
    "ripley": ("570", "535", "1046", "1266"),
    "pima": ("149", "112", "377", "1009"),
    "heart": ("107", "87", "404", "1295"),
    "australian": ("70", "9", "20", "73"),
    "german": ("9.7", "5.5", "47", "167"),
    "neal": ("3.7", "1.3", ".95", "51"),
    "caravan": (".16", ".20", ".19", "5.3"),
}
FIGURES = {
    "acceptance": ".3f",
    "ess_min": ".0f",
    "ess_median": ".0f",
    "ess_max": ".0f",
    "ess_a_second": ".3g",
}
#: Of the 51 places every third is kept for the picture.
STRIDE = 3


def settings(quick, seeds):
    """Runs of the tables: one seed of the rivals, whose NUTS takes 48 minutes of Caravan."""
    usual = (*PUBLISHED, "digits"), ALGORITHMS, RIVALS, LENGTH
    names, algorithms, rivals, length = (("neal",), ALGORITHMS[:1], (), 200) if quick else usual
    return [
        {"target": target, "algorithm": algorithm, "length": length, "seed": seed}
        for seed in range(1, seeds + 1)
        for target in names
        for algorithm in (*algorithms, *(rivals if seed == 1 else ()))
    ]


def run(target, algorithm, length, seed):
    """Acceptance and effective sample sizes."""
    with threadpool_limits(1):
        found = logistic.run(algorithm, logistic.make_model(target), seed, (length, length))
    sizes = [float(az.ess(column[None], method="mean")) for column in found["draws"].T]
    spread = (min(sizes), np.median(sizes), max(sizes), min(sizes) / found["sampling"])
    return [dict(zip(FIGURES, (found["acceptance"], *spread), strict=True))]


def table(results):
    found = averages(results, ["target", "algorithm"], FIGURES)
    published = {
        (target, algorithm): cells
        for target, of_target in PUBLISHED.items()
        for algorithm, cells in zip(ALGORITHMS, of_target, strict=False)
    }
    for target, rates in PUBLISHED_RATES.items():
        published |= {(target, name): rate for name, rate in zip(RIVALS, rates, strict=True)}
    return with_published(found, ["target", "algorithm"], published)


def draw(results, figure):
    """Smallest ESS, ours against the published."""
    axes = figure.subplots()
    names = list(dict.fromkeys(results.target))
    for i, algorithm in enumerate(ALGORITHMS):
        found = results[results.algorithm == algorithm].groupby("target").ess_min.mean()
        places = np.array([names.index(name) for name in found.index]) + 0.2 * i
        axes.bar(places, found, 0.2, label=algorithm)
        if algorithm != "GadMALA":
            published = [PUBLISHED.get(name) for name in found.index]
            heights = [
                float(cells[i].split(";")[1].split(",")[0]) if cells else np.nan
                for cells in published
            ]
            axes.plot(places, heights, "k_", markersize=9)
    axes.plot([], [], "k_", label="published")
    axes.set(yscale="log", ylabel="smallest ESS of 20,000 draws")
    axes.set_xticks(np.arange(len(names)) + 0.3, names)
    # Above the bars, of which each group has one that comes near the top.
    axes.legend(frameon=False, fontsize="small", ncols=5, loc="lower right", bbox_to_anchor=(1, 1))


def target_of_figure(d):
    """A Gaussian of 2 or 51 dimensions."""
    covariance = np.array([[1.0, 0.99], [0.99, 1.0]])
    if d > 2:
        places = np.linspace(0.0, 4.0, d)
        covariance = np.exp(-((places[:, None] - places) ** 2) / 0.32) + 0.01 * np.eye(d)
    variances, Q = np.linalg.eigh(covariance)
    return targets.rotated(targets.gaussian(variances), Q, f"Gaussian, {d}-d")


def settings_of_figure(quick, seeds):
    dimensions, length = ((2,), 200) if quick else ((2, 51), LENGTH)
    return [
        {"d": d, "algorithm": algorithm, "length": length, "seed": seed}
        for seed in range(1, seeds + 1)
        for d in dimensions
        for algorithm in ALGORITHMS[: 1 if quick else None]
    ]


def run_of_figure(d, algorithm, length, seed):
    """The learned covariance, scaled to the true one's trace, and its relative error."""
    target, steps = target_of_figure(d), []

    def make_step():
        steps.append(logistic.VARIANTS[algorithm]())
        return steps[-1]

    start = target.sample(1, np.random.default_rng(seed))[0]
    chain(make_step, target.model(), start, 100, seed, tune=length)
    factor = steps[-1].adapted.preconditioner.factor
    learned = factor @ factor.T
    learned *= np.trace(target.covariance) / np.trace(learned)
    error = np.linalg.norm(learned - target.covariance) / np.linalg.norm(target.covariance)
    kept = range(0, d, STRIDE if d > 2 else 1)
    return [
        {"i": i, "j": j, "learned": learned[i, j], "true": target.covariance[i, j], "error": error}
        for i in kept
        for j in kept
    ]


def table_of_figure(results):
    first = results[(results.i == 0) & (results.j == 0)]
    return averages(first, ["d", "algorithm"], {"error": ".3f"})


def draw_figure(results, figure):
    results = results[results.seed == results.seed.min()]
    dimensions = list(dict.fromkeys(results.d))
    names = ["true", *dict.fromkeys(results.algorithm)]
    panels = figure.subplots(len(dimensions), len(names), squeeze=False)
    for d, row in zip(dimensions, panels, strict=True):
        for name, axes in zip(names, row, strict=True):
            algorithm = names[1] if name == "true" else name
            one = results[(results.d == d) & (results.algorithm == algorithm)]
            value = "true" if name == "true" else "learned"
            matrix = one.pivot(index="i", columns="j", values=value).to_numpy()
            axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
            axes.set(title=f"{name}, {d}-d", xticks=[], yticks=[])
            axes.title.set_fontsize("small")


EXPERIMENTS = (
    Experiment(
        "gad-tables",
        "regressions and Neal's Gaussian: acceptance and ESS, the paper's protocol",
        settings,
        run,
        table,
        draw,
        seeds=2,
        size=(9.0, 4.0),
    ),
    Experiment(
        "gad-figure-1",
        "learned covariances of a 2-d and a 51-d Gaussian",
        settings_of_figure,
        run_of_figure,
        table_of_figure,
        draw_figure,
        seeds=1,
        size=(11.0, 4.8),
    ),
)
