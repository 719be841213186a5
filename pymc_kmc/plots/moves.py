"""A picture of the moves along a run: their shares, their acceptance, their jumps."""

import numpy as np

from pymc_kmc.moves.base import MoveKind
from pymc_kmc.plots.panels import Panels, bins, check_step, draws_of, mark_tuning, run_values
from pymc_kmc.runs import Run

# Colours of the kinds of move: greys for kinds that are never draws; kinds of one step differ.
COLOURS = {
    MoveKind.RANDOM_WALK: "tab:brown",
    MoveKind.TEMPERED_TRANSITION: "tab:red",
    MoveKind.AUXILIARY: "0.65",
    MoveKind.ACTIVE_LEARNING: "0.45",
    MoveKind.SHORT_TRANSITION: "tab:cyan",
    MoveKind.SINGLE_TRANSITION: "tab:green",
    MoveKind.FEW_TRANSITIONS: "tab:olive",
    MoveKind.MANY_TRANSITIONS: "tab:blue",
    MoveKind.LONG_TRAJECTORY: "tab:blue",
    MoveKind.SHORT_TRAJECTORY: "tab:cyan",
    MoveKind.LOCAL_RANDOM_WALK: "tab:orange",
    MoveKind.LANGEVIN: "tab:purple",
    MoveKind.NOISE_PROBE: "0.25",
    MoveKind.LEARNED_DRAW: "0.8",
    MoveKind.STAY: "0.9",
    MoveKind.MODE_JUMP: "tab:pink",
    MoveKind.MODE_TRANSITION: "tab:purple",
    MoveKind.EXCHANGE: "tab:blue",
}
NEVER_DRAWS = (
    MoveKind.AUXILIARY,
    MoveKind.ACTIVE_LEARNING,
    MoveKind.NOISE_PROBE,
    MoveKind.LEARNED_DRAW,
    MoveKind.STAY,
)
# Fewest moves of a kind in an interval for a point: the mean of one or two is noise.
FEWEST_MOVES = 3


def plot_moves(idata, *, var_names=None, coords=None, step=0, n_bins=40, figsize=None, ax=None):
    """Draw the acceptance, the jumps and the shares of the kinds of move along a run.

    Three panels with averages over all chains in intervals of iterations: each kind of move's mean
    acceptance probability, its root mean square jump, in standard deviations of the draws, and its
    share. Kinds in grey are made while tuning and are never draws: they only have a share. Tuning
    is drawn if `idata` has it (``discard_tuned_samples=False``).

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
        The result of `pm.sample`.
    var_names : str or sequence of str, optional
        Variables whose jumps are measured; by default all.
    coords : dict, optional
        Coordinates to which the jumps are restricted.
    step : int
        Number of the step, if several of this package sampled the model.
    n_bins : int
        Number of intervals.
    figsize : (float, float), in inches, optional
    ax : array of three matplotlib.axes.Axes, optional

    Returns
    -------
    ndarray of matplotlib.axes.Axes or arviz_plots.PlotCollection
        With ArviZ 0.x and 1.x. Panels: "acceptance", "jumps", "share".
    """
    run = Run.of(idata)
    check_step(run, step)
    moves, n_tuning = run_values(run, "kmc_move", step)
    acceptance, _ = run_values(run, "acceptance_rate", step)
    draws, _ = draws_of(run, var_names, coords)
    kinds = [MoveKind(int(kind)) for kind in np.unique(moves)]
    edges = bins(moves.shape[1], n_bins)
    centres = 0.5 * (edges[1:] + edges[:-1])

    names = ("acceptance", "jumps", "share")
    panels = Panels(names, [[n] for n in names], figsize or (7, 6), ax, sharex=True)
    members = [moves == kind for kind in kinds]
    counts = np.array([_sums(member, edges) for member in members])
    rates = _ratios([acceptance * member for member in members], counts, edges)
    squares = _squared_jumps(draws, n_tuning)
    jumps = np.sqrt(_ratios([squares * member for member in members], counts, edges))
    shares = counts / counts.sum(axis=0)
    for kind, rate, jump in zip(kinds, rates, jumps, strict=True):
        style = {"color": COLOURS[kind], "lw": 1.5, "marker": ".", "ms": 4, "label": _label(kind)}
        if kind not in NEVER_DRAWS:
            panels["acceptance"].plot(centres, rate, **style)
            panels["jumps"].plot(centres, jump, **style)
    areas = {"colors": [COLOURS[k] for k in kinds], "labels": [_label(k) for k in kinds]}
    steps = np.repeat(edges, 2)[1:-1]
    panels["share"].stackplot(steps, np.repeat(shares, 2, axis=1), lw=0, alpha=0.8, **areas)

    kinds_coord = {"kind": [kind.name for kind in kinds], "iteration": centres}
    for name, values in (("acceptance", rates), ("jumps", jumps), ("share", shares)):
        panels.show(name, ("kind", "iteration"), values, **kinds_coord)
        mark_tuning(panels[name], n_tuning, label=name == "acceptance")
    panels["acceptance"].set(ylim=(-0.03, 1.03), ylabel="acceptance\nprobability")
    panels["acceptance"].set_title("Acceptance, jumps and shares of moves")
    panels["jumps"].set(ylabel="rms jump\n(posterior sd)", ylim=(0, None))
    panels["share"].set(ylabel="share\nof moves", ylim=(0, 1), xlabel="iteration")
    panels["share"].set_xlim(0, moves.shape[1])
    _legend(panels, kinds, n_tuning)
    return panels.result()


def _legend(panels, kinds, n_tuning):
    handles, labels = panels["share"].get_legend_handles_labels()
    handles, labels = handles[::-1], labels[::-1]
    if n_tuning:
        shaded = panels["acceptance"].get_legend_handles_labels()
        handles.append(shaded[0][shaded[1].index("tuning")])
        labels.append("tuning iterations")
    # A legend of a figure makes room for itself, if the figure is ours.
    style = {"ncols": 3, "fontsize": "small"}
    if panels.is_own:
        panels.figure.legend(handles, labels, loc="outside lower center", **style)
    else:
        panels["share"].legend(handles, labels, loc="best", **style)


def _label(kind):
    return kind.name.lower().replace("_", " ")


def _sums(values, edges):
    return np.add.reduceat(np.sum(values, axis=0), edges[:-1], dtype=float)


def _ratios(values, counts, edges):
    sums = np.array([_sums(value, edges) for value in values])
    return np.where(counts >= FEWEST_MOVES, sums / np.maximum(counts, 1), np.nan)


def _squared_jumps(draws, n_tuning):
    """Return mean squared jumps (chain, iteration), in the draws' variances."""
    drawn = draws[:, n_tuning:]
    variances = drawn.reshape(-1, draws.shape[2]).var(axis=0)
    changes = np.diff(draws, axis=1, prepend=draws[:, :1])
    moving = variances > 0
    return np.mean(changes[..., moving] ** 2 / variances[moving], axis=2)
