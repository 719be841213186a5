"""A picture of a surrogate of the log density: its values, uncertainty and gradient."""

from itertools import combinations

import matplotlib
import numpy as np

from pymc_kmc.numerics.checks import check_count
from pymc_kmc.plots.panels import Panels, choose, elements_of, positions_of
from pymc_kmc.steps.base import AdaptiveStep
from pymc_kmc.steps.surrogate import SurrogateStep
from pymc_kmc.surrogates.protocol import check_surrogate

# Heights of the contours relative to the surrogate's maximum, in nats.
CONTOURS = (-64.0, -32.0, -16.0, -8.0, -4.0, -2.0, -1.0, -0.5)
# Contour levels of the standard deviation, in nats.
STD_LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
PALETTE = matplotlib.colormaps["YlOrBr"]
# Points a side of the grids of values and of arrows.
N_GRID, ARROWS = 60, 13
# Margin of a grid on each side, as a share of the range of the draws' central 99 %.
GRID_MARGIN = 0.25
# Most rows of panels: the pairs of four coordinates.
MOST_PAIRS = 6


def plot_surrogate(
    source, idata=None, *, var_names=None, coords=None, grid=N_GRID, figsize=None, ax=None
):
    """Draw a surrogate's log density, and its uncertainty.

    For each pair of coordinates a row of two panels. Left: the surrogate's log density below its
    maximum, with its gradient as arrows and the draws as dots. Right: the standard deviation of the
    predicted log density, if there is one, with the evaluations. The other coordinates have their
    medians over the draws. Coordinates are unconstrained: a positive variable's is its logarithm.

    Parameters
    ----------
    source : KMC, KMCLite, KMCFinite or Surrogate
        The step that has sampled in this process, with ``pm.sample(step=step, cores=1)``: the
        surrogate of its last chain is drawn. Or a fitted surrogate.
    idata : arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace, optional
        The result of `pm.sample`; required with a surrogate. By default the slices lie around the
        step's evaluations, and no draws are shown.
    var_names : str or sequence of str, optional
        Variables that are drawn; by default the first two coordinates.
    coords : dict, optional
        Coordinates to choose from these.
    grid : int
        Number of points a side at which the surrogate is evaluated.
    figsize : (float, float), in inches, optional
    ax : array of matplotlib.axes.Axes, optional
        Two for each pair of coordinates, one without standard deviations.

    Returns
    -------
    matplotlib.axes.Axes, ndarray of Axes or arviz_plots.PlotCollection
        With ArviZ 0.x and 1.x. Panels: "log density of x and y", "sd of x and y" and so on.

    Raises
    ------
    ValueError
        If there are fewer than two coordinates to draw, more than four are chosen, or nothing has
        been learned.
    """
    surrogate = learned_surrogate(source)
    d = surrogate.n_features_in_
    check_count(grid, "grid")
    is_step = isinstance(source, AdaptiveStep)
    evaluated = source.history_[0] if is_step and len(source.history_[0]) else None
    if idata is None and evaluated is None:
        raise ValueError("idata is missing: pass what pm.sample returned, to say where to look.")
    draws = None if idata is None else positions_of(source, idata, d)
    elements = elements_of(source, d)
    chosen = choose(elements, var_names, coords, 2)
    if var_names is None and coords is None:
        chosen = chosen[:2]
    pairs = list(combinations(chosen, 2))
    if len(pairs) > MOST_PAIRS:
        raise ValueError(
            f"var_names and coords choose {len(chosen)} coordinates, {len(pairs)} pairs of them; "
            "choose at most 4."
        )
    # Of the evaluations, those near the mass: a chain's way from its start is of no interest.
    where = draws if draws is not None else _upper_half(*source.history_)
    has_std = callable(getattr(surrogate, "predict", None))

    names = [[f"log density of {elements[i].label} and {elements[j].label}"] for i, j in pairs]
    if has_std:
        for row, (i, j) in zip(names, pairs, strict=True):
            row.append(f"sd of {elements[i].label} and {elements[j].label}")
    size = (4.5 * len(names[0]), 0.4 + 3.6 * len(pairs))
    panels = Panels(sum(names, []), names, figsize or size, ax)
    for row, pair in zip(names, pairs, strict=True):
        labels = elements[pair[0]].label, elements[pair[1]].label
        X, axes = slice_grid(where, pair, grid)
        _draw_log_density(panels, row[0], surrogate, X, axes, pair, where, draws, labels)
        if has_std:
            _draw_std(panels, row[1], surrogate, X, axes, pair, evaluated, labels)
    if d > 2:
        panels.figure.supxlabel("other coordinates at their medians", fontsize="small", color="0.3")
    return panels.result()


def learned_surrogate(source):
    """Return the fitted surrogate of a step, or the argument if it is one; else a TypeError."""
    if isinstance(source, SurrogateStep):
        return source.surrogate_
    if isinstance(source, AdaptiveStep):
        raise TypeError(
            f"{type(source).__name__} has no surrogate: pass a KMC, KMCLite or KMCFinite that has "
            "sampled, or a fitted surrogate."
        )
    return check_surrogate(source, getattr(source, "n_features_in_", None))


def _upper_half(X, values):
    return X[values >= np.median(values)]


def slice_grid(where, pair, n):
    """Return points (n n, d) on a grid of the coordinates `pair`, and its two axes (n,).

    The grid lies around points `where` (m, d); the other coordinates have their medians.
    """
    axes = []
    for i in pair:
        low, high = np.quantile(where[:, i], [0.005, 0.995])
        margin = GRID_MARGIN * (high - low or 1.0)
        axes.append(np.linspace(low - margin, high + margin, n))
    X = np.tile(np.median(where, axis=0), (n * n, 1))
    across, up = np.meshgrid(*axes)
    X[:, pair[0]], X[:, pair[1]] = across.ravel(), up.ravel()
    return X, axes


def draw_contours(ax, surrogate, X, axes):
    """Draw the log density below its maximum on a grid; return the values and the contours."""
    values = surrogate.log_density(X).reshape(len(axes[1]), len(axes[0]))
    values = values - np.nanmax(values)
    levels = [level for level in CONTOURS if level > np.nanmin(values)] + [0.0]
    norm_levels = levels if len(levels) > 1 else [np.nanmin(values) - 1.0, 0.0]
    filled = ax.contourf(*axes, values, norm_levels, cmap="Blues", extend="min", alpha=0.9)
    ax.contour(*axes, values, norm_levels, colors="0.35", linewidths=0.5, linestyles="solid")
    return values, filled


def frame(ax, axes, labels, title):
    """Label a slice of two coordinates, and end it where its grid ends."""
    ax.set(xlabel=labels[0], ylabel=labels[1], title=title)
    ax.set(xlim=axes[0][[0, -1]], ylim=axes[1][[0, -1]])


def _draw_log_density(panels, name, surrogate, X, axes, pair, where, draws, labels):
    ax = panels[name]
    values, filled = draw_contours(ax, surrogate, X, axes)
    bar = panels.figure.colorbar(filled, ax=ax)
    bar.set_label("surrogate's log density (nats)", fontsize="small")
    if draws is not None:
        ax.plot(*draws[:, pair].T, ".", ms=2, color="k", alpha=0.5, label="draws")
        ax.legend(fontsize="small", loc="upper right", markerscale=3)
    arrows, corners = slice_grid(where, pair, ARROWS)
    gradients = surrogate.gradient(arrows)[:, pair]
    # Directions as they look on the page, lengths damped: far out gradients are enormous.
    spans = np.array([axis[-1] - axis[0] for axis in corners])
    seen = gradients * spans
    lengths = np.linalg.norm(seen, axis=1, keepdims=True)
    typical = np.median(lengths[lengths > 0]) if np.any(lengths > 0) else 1.0
    shown = seen / np.maximum(lengths, 1e-300) * np.minimum(1.0, np.sqrt(lengths / typical))
    ax.quiver(
        *arrows[:, pair].T,
        *(shown * spans * 0.5 / ARROWS).T,
        angles="xy",
        scale_units="xy",
        scale=1.0,
        color="tab:orange",
        width=0.004,
    )
    frame(ax, axes, labels, "Log density, gradient")
    panels.show(name, _dims(labels), values)


def _draw_std(panels, name, surrogate, X, axes, pair, evaluated, labels):
    ax = panels[name]
    _, std = surrogate.predict(X, return_std=True)
    std = std.reshape(len(axes[1]), len(axes[0]))
    levels = [level for level in STD_LEVELS if std.min() < level < std.max()]
    levels = [std.min(), *levels, std.max() * (1.0 + 1e-9) + 1e-12]
    colours = np.linspace(0.05, 0.75, len(levels) - 1)
    filled = ax.contourf(*axes, std, levels, colors=[PALETTE(c) for c in colours])
    bar = panels.figure.colorbar(filled, ax=ax, format="%.2g")
    bar.set_label("its standard deviation (nats)", fontsize="small")
    if evaluated is not None:
        ax.plot(*evaluated[:, pair].T, ".", ms=2, color="k", alpha=0.5, label="evaluations")
        ax.legend(fontsize="small", loc="upper right", markerscale=3)
    frame(ax, axes, labels, "Uncertainty")
    panels.show(name, _dims(labels), std)


def _dims(labels):
    return f"{labels[1]} ", f"{labels[0]} "
