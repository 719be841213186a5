r"""Hamiltonian trajectories on a surrogate and on the target: Figure 1 of the KMC paper.

The target would accept a point (x', p') of a trajectory on a surrogate f from (x, p) with
probability :math:`\min(1, \exp(\log\pi(x') - \log\pi(x) - K(p') + K(p)))`. It is near 1 as long as
f resembles the target.

References
----------
Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.
"""

import numpy as np
from matplotlib.colors import to_rgb

from pymc_kmc.dynamics import Metric, SurrogateHamiltonian
from pymc_kmc.numerics.checks import check_count, check_positive, check_rng
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.numerics.evaluation import evaluable
from pymc_kmc.numerics.samples import shrunk_covariance
from pymc_kmc.plots.panels import Panels, choose, elements_of, positions_of
from pymc_kmc.plots.proposals import typical_rows
from pymc_kmc.plots.surrogate import N_GRID, draw_contours, frame, learned_surrogate, slice_grid
from pymc_kmc.steps.base import AdaptiveStep

# Step of the central differences of the target's gradients, in standard deviations of the draws.
DIFFERENCE = 1e-4
# Colours of the trajectories: none of them is the contours' blue.
HUES = ("tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink")


class Target:
    """The target as a surrogate, whose gradients are central differences of `steps` (d,)."""

    def __init__(self, log_density, steps):
        self._log_density, self.steps = log_density, np.diag(steps)
        self.n_features_in_ = len(steps)

    def log_density(self, x):
        return float(self._log_density(np.asarray(x)))

    def gradient(self, x):
        changes = [self.log_density(x + h) - self.log_density(x - h) for h in self.steps]
        return np.array(changes) / (2.0 * np.diag(self.steps))


def plot_trajectories(
    source,
    idata,
    *,
    log_density=None,
    on_target=None,
    n_trajectories=3,
    n_steps=60,
    step_size=0.05,
    random_seed=0,
    var_names=None,
    coords=None,
    figsize=None,
    ax=None,
):
    """Draw Hamiltonian trajectories on the surrogate and on the target, and their acceptance.

    Left: trajectories from some draws with random momenta, solid on the surrogate, dashed on the
    target, over the surrogate's log density (the other coordinates have their medians). Right: the
    probability that the target accepts the point after so many leapfrog steps. The momenta's
    covariance is the inverse of the draws' covariance.

    Parameters
    ----------
    source : KMC, KMCLite, KMCFinite or Surrogate
        The step that has sampled in this process, with ``pm.sample(step=step, cores=1)``: the
        surrogate of its last chain is drawn. Or a fitted surrogate.
    idata : arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
        The result of `pm.sample`.
    log_density : callable, optional
        The target's log density, up to a constant, at a position (d,) in the coordinates of the
        surrogate; by default the step's, under the noise of its chain's last state.
    on_target : bool, optional
        Whether trajectories on the target are drawn, with 2 d evaluations a leapfrog step. By
        default they are, unless the likelihood is noisy.
    n_trajectories : int
        Number of starts, spread over the draws.
    n_steps : int
        Number of leapfrog steps.
    step_size : float
        Of a leapfrog step, in standard deviations of the draws.
    random_seed : int or numpy.random.Generator
        Seed or generator of the momenta.
    var_names : str or sequence of str, optional
        Variables whose first two values are the axes.
    coords : dict, optional
        Coordinates from which these are chosen.
    figsize : (float, float), in inches, optional
    ax : array of two matplotlib.axes.Axes, optional

    Returns
    -------
    ndarray of matplotlib.axes.Axes or arviz_plots.PlotCollection
        With ArviZ 0.x and 1.x. Panels: "trajectories", "acceptance".

    Raises
    ------
    ValueError
        If an argument is out of its range, or a surrogate comes without `log_density`.
    """
    check_count(n_trajectories, "n_trajectories")
    check_count(n_steps, "n_steps")
    check_positive(step_size, "step_size")
    surrogate = learned_surrogate(source)
    d = surrogate.n_features_in_
    is_step = isinstance(source, AdaptiveStep)
    if log_density is None:
        log_density = _log_density_of(source)
    if on_target is None:
        on_target = not (is_step and source.target.is_noisy)
    elements = elements_of(source, d)
    pair = choose(elements, var_names, coords, 2)[:2]
    draws = positions_of(source, idata, d)
    covariance = shrunk_covariance(draws)
    target = Target(log_density, DIFFERENCE * np.sqrt(np.diag(covariance)))
    followed = {"surrogate": surrogate} | ({"target": target} if on_target else {})
    starts = draws[typical_rows(draws[:, pair], n_trajectories)]
    rng = check_rng(random_seed, "random_seed")
    found = _trajectories(followed, target, Metric(covariance), starts, rng, step_size, n_steps)
    panels = Panels(
        ("trajectories", "acceptance"), [["trajectories", "acceptance"]], figsize or (9, 4.2), ax
    )
    _draw_paths(panels, surrogate, draws, pair, found, elements)
    _draw_acceptance(panels, found)
    if d > 2:
        panels.figure.supxlabel("contours: other coordinates at their medians", fontsize="small")
    kinds = list(found)
    positions = [[path for path, _ in found[kind]] for kind in kinds]
    rates = [[rate for _, rate in found[kind]] for kind in kinds]
    panels.show("trajectories", ("on", "start", "step", "coordinate"), positions, on=kinds)
    panels.show("acceptance", ("on", "start", "step"), rates, on=kinds)
    return panels.result()


def _log_density_of(step):
    if not isinstance(step, AdaptiveStep):
        raise ValueError(
            "log_density is missing: a surrogate doesn't know its target. Pass the target's "
            "log density as a function of a position, or the step that sampled."
        )
    target = step.target
    noise = target.noise if target.is_noisy else ()

    def log_density(position):
        return target.evaluate(position, noise).log_density

    return log_density


def _trajectories(followed, target, metric, starts, rng, step_size, n_steps):
    momenta = [metric.draw_momentum(rng) for _ in starts]
    return {
        name: [
            _trajectory(function, target, metric, start, momentum, step_size, n_steps)
            for start, momentum in zip(starts, momenta, strict=True)
        ]
        for name, function in followed.items()
    }


def _trajectory(function, target, metric, start, momentum, step_size, n_steps):
    """Return a trajectory's positions (n + 1, d), and the target's acceptance probabilities."""
    identity = Coordinates.identity(len(start))
    hamiltonian = SurrogateHamiltonian(evaluable(function), identity, metric)
    with np.errstate(all="ignore"):
        path, changes = hamiltonian.path(start, momentum, step_size, n_steps)
        positions = np.vstack([start, path])
        heights = np.array([hamiltonian.log_density(x) for x in positions])
        kinetic = np.append(0.0, changes) + heights - heights[0]
        values = heights
        if function is not target:
            values = np.array([target.log_density(x) for x in positions])
        rates = np.exp(np.minimum(0.0, values - values[0] - kinetic))
    # Where it has diverged nothing is accepted.
    return positions, np.nan_to_num(rates, nan=0.0)


def _style(kind, i):
    colour = np.array(to_rgb(HUES[i % len(HUES)]))
    label = f"on the {kind}" if i == 0 else None
    if kind == "surrogate":
        return {"color": colour, "lw": 3.0, "alpha": 0.7, "label": label}
    return {"color": 0.45 * colour, "lw": 1.3, "ls": "--", "label": label}


def _draw_paths(panels, surrogate, draws, pair, found, elements):
    ax = panels["trajectories"]
    X, axes = slice_grid(draws, pair, N_GRID)
    draw_contours(ax, surrogate, X, axes)
    for kind, trajectories in found.items():
        for i, (path, _) in enumerate(trajectories):
            ax.plot(*path[:, pair].T, **_style(kind, i))
    for i, (path, _) in enumerate(found["surrogate"]):
        label = "starts" if i == 0 else None
        ax.plot(*path[0, pair], "o", color=HUES[i % len(HUES)], mec="k", ms=6, label=label)
    frame(ax, axes, [elements[i].label for i in pair], "Trajectories over the surrogate")
    ax.legend(fontsize="small", loc="best")


def _draw_acceptance(panels, found):
    ax = panels["acceptance"]
    for kind, trajectories in found.items():
        for i, (_, rates) in enumerate(trajectories):
            ax.plot(np.arange(len(rates)), rates, **_style(kind, i))
    ax.set(ylim=(-0.03, 1.05), xlabel="leapfrog steps", ylabel="acceptance probability")
    ax.set_title("Would the target accept them?")
    ax.legend(fontsize="small", loc="best")
