"""Acceptance along trajectories on surrogates of Gaussians (KMC, Figures 1, 2 and 5).

No chain is run. Trajectories start at exact draws with momenta from N(0, I); the acceptance
probability of each of their places, that of the true energy's error, is averaged over the
trajectory and over `N_TRAJECTORIES` of them. Surrogates have n exact draws:

- "finite": random Fourier features, as many as draws, score matching; the paper's. Bandwidth and
  regularisation by cross-validation.
- "finite, base": the same beside a Gaussian of the draws' moments.
- "KMC": the default step's, fitted to the draws and the values of the log density there.
- "quadratic": what draws and values can tell at most. The surrogate knows that the target is a
  Gaussian and has all coefficients' posterior mean, given the values; their prior is that of the
  draws' moments, whose errors are 1 / sqrt(n) in the draws' own coordinates.

Step size .1 and lengths of 1 and 10 are those of the authors' scripts. Where the smallest standard
deviation of a target is below .2 steps are half of it: at .1 the true gradient itself diverges.
"""

import numpy as np

from examples.benchmarks.targets import gaussian, rotated_gaussian
from examples.paper.frame import Experiment, averages, lines
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, LogDensityGP, select

STEP_SIZE = 0.1
N_TRAJECTORIES = 50
#: Draws and features in the cross-validation, whatever the surrogate's size.
SELECTION = {"max_features": 300, "max_points": 500}
SURROGATES = ("true gradient", "finite", "finite, base", "KMC", "quadratic")
#: Variance added to a value's, relative to the largest, for rounding errors.
JITTER = 1e-6


def leapfrog(gradient, x, momentum, step_size, n_steps):
    """Positions and momenta (n_steps + 1, n, d) of trajectories that start at x (n, d)."""
    positions, momenta, slope = [x], [momentum], gradient(x)
    for _ in range(n_steps):
        momentum = momentum + 0.5 * step_size * slope
        x = x + step_size * momentum
        slope = gradient(x)
        momentum = momentum + 0.5 * step_size * slope
        positions.append(x)
        momenta.append(momentum)
    return np.array(positions), np.array(momenta)


def acceptances(target, positions, momenta):
    """Acceptance probability of each place of a trajectory, (n_steps + 1, n)."""
    energy = 0.5 * np.sum(momenta**2, axis=-1) - target.log_density(positions)
    return np.where(np.isfinite(energy), np.exp(np.minimum(0.0, energy[0] - energy)), 0.0)


def gradient_of(name, target, kernel, n, seed):
    """The gradient of a surrogate fitted to n exact draws, or the true one."""
    rng = np.random.default_rng([1, seed])
    X = target.sample(n, rng)
    if name == "true gradient":
        return target.gradient
    if name == "KMC":
        surrogate = LogDensityGP(rng=seed)
        return surrogate.fit(X, target.log_density(X), reference=X).gradient
    if name == "quadratic":
        return best_quadratic(X, target.log_density(X))
    if name == "lite":
        template = KernelExpLite(1.0, 1.0, penalty="rkhs")
        chosen = select(X, template, random_seed=seed, max_points=SELECTION["max_points"])
        return chosen.estimator.fit(X).gradient
    base = "gaussian" if name == "finite, base" else None
    template = KernelExpFinite(n, 1.0, 1.0, kernel=kernel, base=base, rng=seed)
    return select(X, template, random_seed=seed, **SELECTION).estimator.fit(X).gradient


def best_quadratic(X, values):
    """The gradient of the best quadratic, given n draws (n, d) and the log densities (n,) there."""
    n, d = X.shape
    mean, covariance = X.mean(axis=0), np.cov(X.T).reshape(d, d)
    whitening = np.linalg.inv(np.linalg.cholesky(covariance))
    Z = (X - mean) @ whitening.T
    products = Z @ Z.T
    kernel = products / n + 0.5 * products**2 / n
    kernel += JITTER * np.mean(np.diag(kernel)) * np.eye(n)
    targets = np.column_stack([values + 0.5 * np.sum(Z**2, axis=1), np.ones(n)])
    weights, of_constant = np.linalg.solve(kernel, targets).T
    weights -= weights.sum() / of_constant.sum() * of_constant
    slope, change = Z.T @ weights / n, (Z.T * weights) @ Z / n

    def gradient(x):
        z = (x - mean) @ whitening.T
        return (slope - z + z @ change) @ whitening

    return gradient


def grid(kind, dimensions, sizes, names=SURROGATES):
    """A function that lists the runs of a figure."""

    def settings(quick, seeds):
        chosen = ((2,), (100,)) if quick else (dimensions, sizes)
        return [
            {"kind": kind, "d": d, "n": n, "surrogate": name, "seed": seed}
            for seed in range(seeds)
            for d in chosen[0]
            for n in chosen[1]
            for name in names
        ]

    return settings


def run(kind, d, n, surrogate, seed):
    """Mean acceptance along trajectories."""
    if kind == "Gamma":
        target, kernel, length = rotated_gaussian(d, seed=[d, seed]), "rational_quadratic", 1.0
    else:
        target, kernel, length = gaussian(np.ones(d)), "gaussian", 10.0
    gradient = gradient_of(surrogate, target, kernel, n, seed)
    smallest = np.sqrt(np.linalg.eigvalsh(target.covariance)[0])
    n_steps = int(np.ceil(length / min(STEP_SIZE, 0.5 * smallest)))
    rng = np.random.default_rng([2, seed])
    x, momentum = target.sample(N_TRAJECTORIES, rng), rng.standard_normal((N_TRAJECTORIES, d))
    with np.errstate(all="ignore"):
        path = leapfrog(gradient, x, momentum, length / n_steps, n_steps)
        return [{"acceptance": acceptances(target, *path)[1:].mean()}]


def table(results):
    """Acceptance at the largest n, against d."""
    results = results[results.n == results.n.max()]
    return averages(results, ["d", "n", "surrogate"], {"acceptance": ".2f"})


def draw(results, figure):
    """Acceptance against d at the largest n, and against n at some d."""
    some = sorted(set(results.d))[-3:]
    panels = figure.subplots(1, 1 + len(some), sharey=True)
    lines(panels[0], results[results.n == results.n.max()], "d", "acceptance", "surrogate")
    panels[0].set(xscale="log", title=f"n = {results.n.max()}", ylim=(0, 1.02))
    for axes, d in zip(panels[1:], some, strict=True):
        lines(axes, results[results.d == d], "n", "acceptance", "surrogate")
        axes.set(xscale="log", title=f"d = {d}", ylabel="")
        axes.set_xticks(sorted(set(results.n)), sorted(set(results.n)))
        axes.minorticks_off()
    panels[0].legend(frameon=False, fontsize="small")


def run_path(kind, d, n, surrogate, seed):
    """One trajectory, place by place."""
    target, rng = gaussian(np.ones(d)), np.random.default_rng([2, seed])
    x, momentum = target.sample(1, rng), rng.standard_normal((1, d))
    gradient = gradient_of(surrogate, target, "gaussian", n, seed)
    positions, momenta = leapfrog(gradient, x, momentum, STEP_SIZE, 100)
    chance = acceptances(target, positions, momenta)[:, 0]
    columns = zip(positions[:, 0, 0], positions[:, 0, 1], chance, strict=True)
    return [
        {"step": i, "x": x, "y": y, "acceptance": chance}
        for i, (x, y, chance) in enumerate(columns)
    ]


def table_of_paths(results):
    runs = results.groupby(["surrogate", "seed"], sort=False).acceptance.mean().reset_index()
    return averages(runs, ["surrogate"], {"acceptance": ".2f"})


def draw_paths(results, figure):
    groups = list(results.groupby("surrogate", sort=False))
    panels = figure.subplots(2, len(groups), sharex="row", sharey="row")
    for (name, group), (above, below) in zip(groups, panels.T, strict=True):
        above.plot(group.x, group.y)
        above.plot(group.x.iloc[0], group.y.iloc[0], "r*")
        above.plot(group.x.iloc[-1], group.y.iloc[-1], "b*")
        above.set(title=name, xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
        below.plot(group.step, group.acceptance)
        below.set(xlabel="leapfrog step", ylim=(0, 1.05))
    panels[1, 0].set_ylabel("acceptance")


EXPERIMENTS = (
    Experiment(
        "kmc-figure-1",
        "trajectories on the true energy and on surrogates of a 2-d Gaussian",
        grid("isotropic", (2,), (200,), ("true gradient", "finite", "lite", "KMC")),
        run_path,
        table_of_paths,
        draw_paths,
        seeds=1,
        size=(10.0, 5.0),
    ),
    Experiment(
        "kmc-figure-2",
        "acceptance along trajectories, rotated Gaussian with Gamma(1, 1) variances",
        grid("Gamma", (2, 5, 10, 20, 50, 100), (200, 500, 2000)),
        run,
        table,
        draw,
        seeds=2,
        size=(11.0, 3.5),
    ),
    Experiment(
        "kmc-figure-5",
        "the same on isotropic Gaussians",
        grid("isotropic", (2, 10, 50, 100), (200, 500, 2000)),
        run,
        table,
        draw,
        seeds=2,
        size=(11.0, 3.5),
    ),
)
