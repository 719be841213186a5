"""Draw the documentation's pictures.

    python docs/pictures.py
    python docs/pictures.py --only emulator

The front page's: one target, one number of evaluations, three samplers. The target is the banana
B(.03, 100) in eight dimensions (Haario, Saksman and Tamminen, 1999). Each sampler starts at the
same bad place, makes 2500 iterations of tuning and 1000 draws, and evaluates the log density once
in each.

That of learning once: what is known of the populations of hares and lynx, an ODE's solution, before
any chain. That of few draws: the error of a mean by draws alone and by `kmc.summary`.
"""

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import arviz as az  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.learning import MODELS  # noqa: E402
from examples.benchmarks.targets import banana  # noqa: E402

N_TUNE, N_DRAWS, SEED = 2500, 1000, 3
SAMPLERS = {
    "pm.DEMetropolisZ": pm.DEMetropolisZ,
    "kmc.AdaptiveMetropolis": kmc.AdaptiveMetropolis,
    "kmc.KMC": kmc.KMC,
}
N_FEW, N_PARTS = (5, 10, 20, 50, 100, 200, 400), 10
COLOURS = ("#8a8f98", "#c2762e", "#2166ac")


def draws_of(step, target):
    """Run one chain; return its draws, shape (n, d)."""
    start = target.start(np.random.default_rng(SEED))
    with target.model():
        idata = pm.sample(
            N_DRAWS,
            tune=N_TUNE,
            step=step(),
            initvals={"x": start},
            chains=1,
            random_seed=SEED,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return idata.posterior["x"].values[0]


def smallest_ess(draws):
    """Return the smallest bulk ESS of coordinates and their squares."""
    return min(float(az.ess(part)) for part in np.hstack([draws, draws**2]).T[:, None])


def draw(shape, size, chains, target):
    """Draw the chains, each in a panel of its own, with the contours of the exact density."""
    grid_1, grid_2 = np.meshgrid(np.linspace(-34, 34, 300), np.linspace(-9, 26, 300))
    points = np.zeros((*grid_1.shape, target.dimension))
    points[..., 0], points[..., 1] = grid_1, grid_2
    density = target.log_density(points)
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained")
    for axis, colour, (name, draws) in zip(axes, COLOURS, chains.items(), strict=True):
        # Regions that have 50, 90 and 99 % of the mass: chi-squared quantiles for two coordinates.
        levels = [-4.61, -2.30, -0.69]
        axis.contour(
            grid_1, grid_2, density, levels, colors="0.75", linewidths=0.9, linestyles="solid"
        )
        axis.plot(draws[:, 0], draws[:, 1], ".", ms=3, color=colour, alpha=0.5, mew=0)
        axis.set_title(f"{name}\n{smallest_ess(draws):.0f} effective draws", fontsize=12)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_color("0.85")
    return figure


def draw_bananas(folder):
    target = banana()
    chains = {name: draws_of(step, target) for name, step in SAMPLERS.items()}
    # Side by side, and one below the other for narrow screens.
    draw((1, 3), (10, 3.3), chains, target).savefig(folder / "banana.png", dpi=130)
    draw((3, 1), (4, 9), chains, target).savefig(folder / "banana_narrow.png", dpi=130)


def draw_emulator(folder, model="outputs"):
    learned = kmc.learn(MODELS[model](), random_seed=SEED, progressbar=False)
    kmc.plots.plot_emulator(learned, figsize=(7, 6))
    plt.gcf().savefig(folder / "emulator.png", dpi=130)


def draw_few_draws(folder, name="dose-response"):
    """The root mean square error of the parameters' means, over parts of a long run."""
    model = MODELS[name]()
    with model:
        learned = kmc.learn(random_seed=SEED, progressbar=False)
        options = {"chains": 4, "cores": 1, "random_seed": SEED, "progressbar": False}
        idata = pm.sample(4000, tune=20, step=kmc.KMC(learned), **options)
    exact = kmc.summary(idata, learned, model)
    errors = {"draws alone": [], "kmc.summary": []}
    for n in N_FEW:
        found = {label: [] for label in errors}
        for begin in range(0, 4000, 4000 // N_PARTS):
            part = idata.isel(draw=slice(begin, begin + n))
            draws = part.posterior[list(learned.variables)].mean(("chain", "draw"))
            alone = np.concatenate([np.ravel(values) for values in draws.values()])
            found["draws alone"].append((alone - exact["mean"]) / exact["sd"])
            averages = kmc.summary(part, learned, model, quantiles=())
            found["kmc.summary"].append((averages["mean"] - exact["mean"]) / exact["sd"])
        for label, parts in found.items():
            errors[label].append(np.sqrt(np.mean(np.square(parts))))
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for colour, (label, values) in zip(COLOURS[1:], errors.items(), strict=True):
        axis.loglog(4 * np.array(N_FEW), values, "o-", color=colour, label=label)
    axis.set(xlabel="evaluations by four chains", ylabel="error of a mean, in sds")
    axis.legend(frameon=False)
    figure.savefig(folder / "few_draws.png", dpi=130)


PICTURES = {"bananas": draw_bananas, "emulator": draw_emulator, "few_draws": draw_few_draws}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "_static")
    parser.add_argument("--only", choices=PICTURES, help="one of the pictures")
    options = parser.parse_args(arguments)
    for name, draw_it in PICTURES.items():
        if options.only in (None, name):
            draw_it(options.folder)


if __name__ == "__main__":
    main()
