"""A picture of the noise of a likelihood's estimates, and of its effect on chains."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from pymc_kmc.findings import LONG_STAY, TOO_NOISY
from pymc_kmc.plots.moves import NEVER_DRAWS
from pymc_kmc.plots.panels import Panels, bins, check_step, draws_of, mark_tuning, run_values
from pymc_kmc.runs import Run

# Noise variances that make the best use of evaluations (Doucet et al., 2015, see advice.py).
BEST = (1.0, 2.0)


def plot_noise(idata, *, var_names=None, coords=None, step=0, n_bins=40, figsize=None, ax=None):
    """Draw the noise of the likelihood's estimates along a run, and its effect on chains.

    Three panels: the running estimate of the log estimate's variance near each chain; the mean
    acceptance probability, and that of perfect proposals under this noise; the share of draws that
    belong to stays at one place of at least so many iterations.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
        The result of `pm.sample` for a model with a noisy likelihood.
    var_names : str or sequence of str, optional
        A stay ends where one of these variables moves; by default any.
    coords : dict, optional
        Coordinates to which these variables are restricted.
    step : int
        Number of the step, if several of this package sampled the model.
    n_bins : int
        Number of intervals of iterations in which the acceptance is averaged.
    figsize : (float, float), in inches, optional
    ax : array of three matplotlib.axes.Axes, optional

    Returns
    -------
    ndarray of matplotlib.axes.Axes or arviz_plots.PlotCollection
        With ArviZ 0.x and 1.x. Panels: "variance", "acceptance", "stays".

    Raises
    ------
    ValueError
        If the likelihood is not noisy.
    """
    run = Run.of(idata)
    check_step(run, step)
    variance, n_tuning = run_values(run, "kmc_noise_variance", step)
    if not np.nanmax(variance, initial=0.0) > 0:
        raise ValueError(
            "idata has no noise to draw: its likelihood is exact, or its noise was never measured "
            "(kmc_noise_variance). Noisy ones are kmc.PseudoMarginalPotential and its relatives."
        )
    ideal, _ = run_values(run, "kmc_ideal_acceptance", step)
    acceptance, _ = run_values(run, "acceptance_rate", step)
    draws, _ = draws_of(run, var_names, coords)
    n_chains, n = variance.shape
    edges = bins(n, n_bins)
    # Iterations that are never draws have no acceptance.
    is_draw = np.isin(run_values(run, "kmc_move", step)[0], NEVER_DRAWS, invert=True)
    counts = np.add.reduceat(is_draw, edges[:-1], axis=1, dtype=float)
    with np.errstate(invalid="ignore"):
        real = np.add.reduceat(acceptance * is_draw, edges[:-1], axis=1) / counts
    lengths = [stays(chain[n_tuning:]) for chain in draws]
    grid = np.arange(1, max(int(found.max()) for found in lengths) + 1)
    shares = np.array([[found[found >= k].sum() / found.sum() for k in grid] for found in lengths])

    layout = [["variance", "stays"], ["acceptance", "stays"]]
    panels = Panels(("variance", "acceptance", "stays"), layout, figsize or (8.5, 4.5), ax)
    _draw_variance(panels["variance"], variance, n_tuning)
    _draw_acceptance(panels["acceptance"], 0.5 * (edges[1:] + edges[:-1]), real, ideal)
    for name in ("variance", "acceptance"):
        mark_tuning(panels[name], n_tuning, label=name == "variance")
        panels[name].set_xlim(0, n)
        panels[name].xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panels[name].legend(fontsize="x-small", ncols=2, loc="upper right", borderpad=0.3)
    _draw_stays(panels["stays"], grid, shares)
    chains = np.arange(n_chains)
    panels.show("variance", ("chain", "iteration"), variance, chain=chains)
    panels.show("acceptance", ("chain", "interval"), real, chain=chains)
    panels.show("stays", ("chain", "length"), shares, chain=chains, length=grid)
    return panels.result()


def _draw_variance(ax, variance, n_tuning):
    iterations = np.arange(1, variance.shape[1] + 1)
    for chain, values in enumerate(variance):
        ax.plot(iterations, values, label=f"chain {chain}", color=f"C{chain % 10}", lw=1.5)
    ax.axhspan(*BEST, color="tab:green", alpha=0.2, lw=0, label="best use of cost")
    ax.axhline(TOO_NOISY, color="tab:red", ls="--", lw=1, label="chains stick")
    top = 1.8 * max(TOO_NOISY, np.nanmax(variance[:, n_tuning:]))
    ax.set(ylim=(0, top), ylabel="variance (nats²)", title="Noise of log estimates")


def _draw_acceptance(ax, centres, real, ideal):
    iterations = np.arange(1, ideal.shape[1] + 1)
    for chain, (own, best) in enumerate(zip(real, ideal, strict=True)):
        color, is_first = f"C{chain % 10}", chain == 0
        ax.plot(centres, own, color=color, lw=1.5, label="real" if is_first else None)
        ax.plot(iterations, best, color=color, ls=":", lw=2, label="ideal" if is_first else None)
    ax.set(ylim=(0, 1.03), ylabel="probability", xlabel="iteration")
    ax.set_title("Acceptance, real and ideal")


def _draw_stays(ax, grid, shares):
    for chain, share in enumerate(shares):
        ax.step(grid, share, where="mid", color=f"C{chain % 10}", label=f"chain {chain}")
    ax.axvline(LONG_STAY, color="tab:red", ls="--", lw=1, label="too long")
    ax.set(xscale="log", ylim=(0, 1.03), xlabel="length of stay (iterations)")
    ax.set(ylabel="draws in stays at least as long (share)", title="Stays at one place")
    ax.legend(fontsize="small")


def stays(draws):
    """Return the lengths of a chain's stays at one place; draws (iteration, element)."""
    moved = np.flatnonzero(np.any(np.diff(draws, axis=0) != 0, axis=1)) + 1
    return np.diff(np.concatenate([[0], moved, [len(draws)]]))
