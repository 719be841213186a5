"""A picture of a surrogate's learning, and of its cost."""

import numpy as np

from pymc_kmc.learning import LearnedPosterior
from pymc_kmc.plots.learned import draw_rounds
from pymc_kmc.plots.panels import Panels, bins, check_step
from pymc_kmc.runs import Run

# Colours of the chains' evaluations and of the step's own work.
EVALUATION, OWN = "tab:blue", "tab:orange"
# Smallest error that is drawn, in nats: a log scale has no zero.
SMALLEST_ERROR = 1e-4


def plot_learning(source, *, chains=None, step=0, n_bins=30, figsize=None, ax=None):
    """Draw a surrogate's errors at fresh evaluations, and the cost of learning it.

    Three panels: the error of the surrogate at each new evaluation *before* learning from it, with
    its median and the central 80 % in intervals of evaluations; the best log density that each
    chain has found; the seconds and evaluations that tuning and sampling have taken, all chains
    together. Errors are in nats; with a noisy likelihood the noise is in them.

    Parameters
    ----------
    source : arviz.InferenceData, xarray.DataTree, pymc.backends.base.MultiTrace or LearnedPosterior
        The result of `pm.sample(step=kmc.KMC(), discard_tuned_samples=False)`, or of
        :func:`~pymc_kmc.learn`. Of the latter two panels are drawn: the errors at fresh draws,
        round by round, with the temperature of these; and the best log density by evaluation.
    chains : sequence of int, optional
        Numbers of the chains to draw; by default all.
    step : int
        Number of the step, where the model was sampled by several of this package.
    n_bins : int
        Number of intervals of evaluations.
    figsize : (float, float), optional
        In inches.
    ax : array of matplotlib.axes.Axes, optional
        Axes to draw in, one a panel.

    Returns
    -------
    ndarray of matplotlib.axes.Axes or arviz_plots.PlotCollection
        With ArviZ 0.x and 1.x. Panels: "error", "best", and "cost" of a run.

    Raises
    ------
    ValueError
        If the tuning iterations were discarded, or the step has no surrogate.
    """
    if isinstance(source, LearnedPosterior):
        return draw_rounds(source, figsize, ax)
    run = Run.of(source)
    check_step(run, step)
    run.needs_tuning("A surrogate")
    if "kmc_prediction_error" not in run.sampling.statistics:
        raise ValueError(
            "source has no kmc_prediction_error: its step has no surrogate. KMC, KMCLite and "
            "KMCFinite have one."
        )
    chosen = _chosen(chains, run.sampling.shape[0])

    def along(name):
        phases = [phase.values(name)[chosen, :, step] for phase in run.phases]
        return np.concatenate(phases, axis=1)

    evaluations = np.cumsum(along("kmc_n_evaluations"), axis=1)
    errors = np.maximum(np.abs(along("kmc_prediction_error")), SMALLEST_ERROR)
    best = np.maximum.accumulate(along("model_logp"), axis=1)
    n_tuning = run.tuning.shape[1]
    end_of_tuning = evaluations[:, n_tuning - 1].mean()

    layout = [["error", "error"], ["best", "cost"]]
    panels = Panels(("error", "best", "cost"), layout, figsize or (8, 5.5), ax)
    _draw_errors(panels, evaluations, errors, n_bins)
    for number, x, y in zip(chosen, evaluations, best, strict=True):
        panels["best"].plot(x, y, color=f"C{number % 10}", lw=1.5, label=f"chain {number}")
    # Where a chain starts may be thousands of nats away.
    finite = best[np.isfinite(best)]
    low = np.quantile(finite, 0.05)
    span = max(finite.max() - low, 1.0)
    panels["best"].set(ylim=(low - 0.5 * span, finite.max() + 0.2 * span))
    panels["best"].set(xlabel="evaluations of a chain", ylabel="log density (nats)", xscale="log")
    panels["best"].set_title("Best log density so far", fontsize="medium")
    panels["best"].legend(fontsize="small", loc="lower right")
    for name in ("error", "best"):
        panels[name].axvline(end_of_tuning, color="0.4", ls="--", lw=1)
    panels["error"].text(
        end_of_tuning,
        0.03,
        " end of tuning",
        transform=panels["error"].get_xaxis_transform(),
        va="bottom",
        color="0.3",
        fontsize="small",
    )
    panels["best"].set_xlim(max(1, evaluations.min()), evaluations.max())
    _draw_costs(panels, run, chosen, step)
    panels.show("best", ("chain", "iteration"), best, chain=chosen)
    return panels.result()


def _chosen(chains, n_chains):
    if chains is None:
        return list(range(n_chains))
    chosen = [int(chain) for chain in np.atleast_1d(chains)]
    if not chosen or min(chosen) < 0 or max(chosen) >= n_chains:
        raise ValueError(f"chains={chains!r} must be numbers from 0 to {n_chains - 1}.")
    return chosen


def _draw_errors(panels, evaluations, errors, n_bins):
    ax = panels["error"]
    x, y = evaluations.ravel(), errors.ravel()
    known = np.isfinite(y)
    if not known.any():
        raise ValueError(
            "idata has no prediction of a surrogate: none was ever fitted. Tune for longer."
        )
    x, y = x[known], y[known]
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    ax.plot(x, y, ".", ms=2, color="0.6", alpha=0.5, rasterized=True, label="one evaluation")
    edges = bins(len(x), n_bins)
    parts = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    centres = np.array([np.median(x[part]) for part in parts])
    quantiles = np.array([np.quantile(y[part], [0.1, 0.5, 0.9]) for part in parts]).T
    ax.fill_between(
        centres, quantiles[0], quantiles[2], color="C0", alpha=0.25, lw=0, label="central 80 %"
    )
    ax.plot(centres, quantiles[1], color="C0", lw=2, label="median")
    ax.set(yscale="log", xlim=(0, evaluations.max()), xlabel="evaluations of a chain")
    # Room for the legend above, and for the end of tuning below.
    low, high = quantiles[0].min(), np.quantile(y, 0.995)
    ax.set_ylim(low * (low / high) ** 0.15, high * (high / low) ** 0.2)
    ax.set_ylabel("|found - predicted|\n(nats)")
    ax.set_title("Error of the surrogate at fresh evaluations", fontsize="medium")
    ax.legend(fontsize="x-small", loc="upper right", ncols=3, markerscale=4)
    panels.show("error", ("interval",), quantiles[1], evaluations=("interval", centres))


def _draw_costs(panels, run, chosen, step):
    ax = panels["cost"]
    names = ("tuning", "sampling")
    seconds = np.empty((2, 2))
    for i, phase in enumerate(run.phases):
        evaluation = phase.values("kmc_evaluation_time")[chosen, :, step].sum()
        own = np.nansum(phase.values("kmc_proposal_time")[chosen, :, step])
        seconds[i] = evaluation, own
        count = phase.values("kmc_n_evaluations")[chosen, :, step].sum()
        ax.text(
            0, i - 0.32, f" {count:,.0f} evaluations", va="bottom", fontsize="small", color="0.2"
        )
    unit, factor = ("seconds", 1.0) if seconds.sum() >= 1 else ("milliseconds", 1e3)
    positions = np.arange(2)
    style = {"height": 0.3}
    ax.barh(positions, factor * seconds[:, 0], color=EVALUATION, label="evaluations", **style)
    ax.barh(
        positions,
        factor * seconds[:, 1],
        left=factor * seconds[:, 0],
        color=OWN,
        label="proposals",
        **style,
    )
    ax.set_yticks(positions, names)
    ax.set(ylim=(2.0, -0.6), xlabel=f"{unit}, all chains")
    ax.set_title("Cost, without fits", fontsize="medium")
    ax.legend(fontsize="small", loc="lower right", ncols=2, borderpad=0.3)
    panels.show("cost", ("phase", "part"), seconds, phase=list(names), part=["evaluation", "own"])
