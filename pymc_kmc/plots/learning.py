"""Pictures of learning: its rounds, an emulator's predictions, and a chain's errors and costs."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from pymc_kmc.learning import LearnedPosterior
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.likelihoods.checks import is_positive_integer
from pymc_kmc.plots.panels import Panels, bins, check_step
from pymc_kmc.runs import Run

# Smallest error that is drawn, in nats: a log scale has no zero.
SMALLEST_ERROR = 1e-4
# Least range of errors that is drawn, a ratio: all of an exact surrogate's are the smallest.
LEAST_RANGE = 10.0
# Most curves that are drawn, of outputs with several axes: a panel each.
MOST_CURVES = 4
# Probabilities of a band's ends.
BAND = (0.05, 0.95)
EMULATED, EVALUATED = "C0", "0.25"
# Colours of the chains' evaluations and of the step's own work.
OF_EVALUATION, OWN = "tab:blue", "tab:orange"


def draw_rounds(learned, figsize=None, ax=None):
    """Draw the errors at fresh draws, round by round, and the best log density by evaluation."""
    panels = Panels(("error", "best"), [["error", "best"]], figsize or (9, 3.4), ax)
    values = learned.evaluations.log_densities
    error = panels["error"]
    ends = np.array([found.n_evaluations for found in learned.rounds])
    errors = np.array([found.error for found in learned.rounds])
    for found in learned.rounds:
        first = found.n_evaluations - len(found.predicted)
        fresh = np.abs(values[first : first + found.n_fresh] - found.predicted[: found.n_fresh])
        x = np.full(len(fresh), found.n_evaluations)
        error.plot(x, np.maximum(fresh, SMALLEST_ERROR), ".", ms=4, color="0.6")
    error.plot(ends, np.maximum(errors, SMALLEST_ERROR), "o-", ms=4, color="C0", label="round")
    temperatures = [found.temperature for found in learned.rounds]
    error.plot(ends, temperatures, drawstyle="steps-mid", color="C1", lw=1, label="temperature")
    error.set(yscale="log", xlabel="evaluations", ylabel="|found - predicted| (nats)")
    # Single places may be off by thousands of nats where draws are tempered.
    shown = np.concatenate([errors[np.isfinite(errors)], temperatures])
    if len(shown):
        low, high = max(shown.min(), SMALLEST_ERROR), shown.max()
        error.set_ylim(0.2 * low, 5.0 * high)
        error.legend(fontsize="small")
    error.set_title("Error at fresh draws")
    best = np.maximum.accumulate(values)
    n = 1 + np.arange(len(values))
    panels["best"].plot(n, best, color="C0", lw=1.5, label="best")
    _label_best(panels["best"], best, 0.1, "evaluations")
    panels.show("error", ("round",), errors, n_evaluations=("round", ends))
    panels.show("best", ("evaluation",), best)
    return panels.result()


def _label_best(ax, best, share, xlabel):
    """Label the panel of the best log densities, without the lowest `share` of them."""
    finite = best[np.isfinite(best)]
    top = finite.max()
    span = max(top - np.quantile(finite, share), 1.0)
    ax.set(xlabel=xlabel, ylabel="log density (nats)", title="Best log density so far")
    ax.set_ylim(top - 1.5 * span, top + 0.2 * span)


def plot_emulator(learned, node=0, *, figsize=None, ax=None):
    """Draw an emulator's predictions of its outputs over their index, and its errors.

    For outputs with an index, such as an ODE's solution: their central 90 % over posterior draws,
    the emulator's error included, and evaluations where the posterior has mass; below, the
    emulator's leave-one-out errors at these, in the outputs' posterior standard deviations. For a
    number, such as a log likelihood: leave-one-out predictions against evaluated values.

    Parameters
    ----------
    learned : LearnedPosterior
    node : int or str
        Number of the emulated node, or its name.
    figsize : (float, float), in inches, optional
    ax : array of matplotlib.axes.Axes, one a panel, optional

    Returns
    -------
    ndarray of matplotlib.axes.Axes or arviz_plots.PlotCollection
        With ArviZ 0.x and 1.x. Panels: "held_out", and "outputs", or "outputs_0", "outputs_1", ...
        along the first axis of outputs with several axes.

    Raises
    ------
    TypeError, ValueError
        If `learned` isn't a result of :func:`~pymc_kmc.learn`, or has no such node.
    """
    if not isinstance(learned, LearnedPosterior):
        raise TypeError(f"learned={learned!r} must be what kmc.learn() has returned.")
    found = _node(learned, node)
    values = learned.evaluations.log_densities
    # Emulators needn't be right where the posterior has no mass.
    depth = COMPRESSION_DEPTH * learned.n_dimensions
    near = np.isfinite(values) & (values > np.nanmax(values) - depth)
    near &= np.isfinite(found.held_out).all(axis=1)
    if len(found.columns) == 1:
        return _draw_number(found, near, figsize, ax)
    return _draw_outputs(found, near, figsize, ax)


def _node(learned, node):
    nodes = learned.emulated.nodes
    names = [found.name for found in nodes]
    if isinstance(node, str) and names.count(node) == 1:
        return nodes[names.index(node)]
    is_first = node == 0 and not isinstance(node, bool | np.bool_)
    if is_first or (is_positive_integer(node) and node < len(nodes)):
        return nodes[node]
    raise ValueError(
        f"node={node!r} must be a number below {len(nodes)}, or one of the names {names}."
    )


def _draw_number(found, near, figsize, ax):
    panels = Panels(("held_out",), [["held_out"]], figsize or (4.5, 4), ax)
    x, y, sd = (part[near, 0] for part in (found.evaluated, found.held_out, found.held_out_sd))
    panel = panels["held_out"]
    panel.errorbar(x, y, 2.0 * sd, fmt="o", ms=3, lw=1, color=EMULATED, label="± 2 sd")
    ends = [x.min(), x.max()]
    panel.plot(ends, ends, color=EVALUATED, lw=1)
    panel.set(xlabel="evaluated", ylabel="predicted from all others", title=found.name)
    panel.legend(fontsize="small")
    panels.show("held_out", ("evaluation",), y, evaluated=("evaluation", x))
    return panels.result()


def _draw_outputs(found, near, figsize, ax):
    index = np.unravel_index(found.columns, found.shape)
    curves = np.ravel_multi_index(index[1:], found.shape[1:]) if len(index) > 1 else 0 * index[0]
    shown = np.unique(curves)[:MOST_CURVES]
    names = ["outputs"] if len(np.unique(curves)) == 1 else [f"outputs_{k}" for k in shown]
    rows = [[name] for name in (*names, "held_out")]
    figsize = figsize or (7, 2.2 * len(rows))
    panels = Panels((*names, "held_out"), rows, figsize, ax, sharex=True)
    spread = np.hypot(found.outputs.std(axis=0), np.sqrt(np.mean(found.sd**2, axis=0)))
    for name, curve in zip(names, shown, strict=True):
        columns = curves == curve
        x, panel = index[0][columns], panels[name]
        low, high = _band(found.outputs[:, columns], found.sd[:, columns])
        panel.fill_between(x, low, high, color=EMULATED, alpha=0.3, lw=0, label="emulated, 90 %")
        middle = found.outputs[:, columns].mean(axis=0)
        panel.plot(x, middle, color=EMULATED, lw=1.5, label="mean")
        evaluated = found.evaluated[near][:, columns]
        points = np.broadcast_to(x, evaluated.shape)
        panel.plot(
            points.ravel(),
            evaluated.ravel(),
            ".",
            ms=2,
            alpha=0.5,
            color=EVALUATED,
            label="evaluated",
            rasterized=True,
        )
        # Evaluations at the edge of the mass would flatten the band.
        span = high.max() - low.min()
        panel.set_ylim(low.min() - 0.3 * span, high.max() + 0.3 * span)
        title = found.name if name == "outputs" else f"{found.name}, {_label(found.shape, curve)}"
        panel.set_title(title)
        panels.show(name, ("end", "index"), [low, high], index=("index", x))
    panels[names[0]].legend(fontsize="x-small", ncols=3, markerscale=4)
    panel = panels["held_out"]
    spread = np.where(spread > 0, spread, 1.0)
    errors = (found.held_out - found.evaluated)[near] / spread
    points = np.broadcast_to(index[0], errors.shape)
    panel.plot(points.ravel(), errors.ravel(), ".", ms=2, color=EMULATED, rasterized=True)
    panel.axhline(0.0, color=EVALUATED, lw=1)
    panel.set(xlabel="index of the output", ylabel="error (posterior sds)")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_title("Each evaluation predicted from all others")
    panels.show("held_out", ("evaluation", "output"), errors, output=("output", found.columns))
    return panels.result()


def _band(outputs, sd):
    """Return quantiles over draws (k, m), widened by the emulator's standard deviations."""
    low, high = np.quantile(outputs, BAND, axis=0)
    usual = np.median(sd, axis=0)
    return low - usual, high + usual


def _label(shape, curve):
    others = np.unravel_index(curve, shape[1:])
    return f"[:, {', '.join(str(int(k)) for k in others)}]"


def plot_learning(source, *, chains=None, step=0, n_bins=30, figsize=None, ax=None):
    """Draw a surrogate's errors at fresh evaluations, and the cost of learning it.

    Three panels: the surrogate's error at each new evaluation *before* learning from it, with its
    median and central 80 % in intervals of evaluations; each chain's best log density; the seconds
    and evaluations of tuning and sampling, over all chains. Errors are in nats, the noise included.

    Parameters
    ----------
    source : arviz.InferenceData, xarray.DataTree, pymc.backends.base.MultiTrace or LearnedPosterior
        The result of `pm.sample(step=kmc.KMC(), discard_tuned_samples=False)`, or of
        :func:`~pymc_kmc.learn`, which has two panels: the errors at fresh draws by round, with the
        draws' temperature, and the best log density by evaluation.
    chains : sequence of int, optional
        Numbers of the chains to draw; by default all.
    step : int
        Number of the step, if several of this package sampled the model.
    n_bins : int
        Number of intervals of evaluations.
    figsize : (float, float), in inches, optional
    ax : array of matplotlib.axes.Axes, one a panel, optional

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
    _label_best(panels["best"], best, 0.05, "evaluations of a chain")
    panels["best"].set_xscale("log")
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
    low = quantiles[0].min()
    high = max(np.quantile(y, 0.995), LEAST_RANGE * low)
    ax.set_ylim(low * (low / high) ** 0.15, high * (high / low) ** 0.2)
    title = "Error of the surrogate at fresh evaluations"
    ax.set(ylabel="|found - predicted|\n(nats)", title=title)
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
    ax.barh(positions, factor * seconds[:, 0], color=OF_EVALUATION, label="evaluations", **style)
    ax.barh(
        positions,
        factor * seconds[:, 1],
        left=factor * seconds[:, 0],
        color=OWN,
        label="proposals",
        **style,
    )
    ax.set_yticks(positions, names)
    ax.set(ylim=(2.0, -0.6), xlabel=f"{unit}, all chains", title="Cost, without fits")
    ax.legend(fontsize="small", loc="lower right", ncols=2, borderpad=0.3)
    panels.show("cost", ("phase", "part"), seconds, phase=list(names), part=["evaluation", "own"])
