"""A picture of a random walk's proposal distributions at several places."""

import numpy as np
from matplotlib.patches import Ellipse

from pymc_kmc.numerics.checks import check_count
from pymc_kmc.numerics.samples import far_apart
from pymc_kmc.plots.panels import Panels, choose, elements_of, positions_of
from pymc_kmc.steps.kamh import KAMH
from pymc_kmc.surrogates.kernels import squared_distances
from pymc_kmc.surrogates.protocol import NotFittedError

# Radius of an ellipse, in standard deviations of the proposal.
N_SDS = 1.0


def plot_proposals(
    step, idata, *, var_names=None, coords=None, n_ellipses=12, figsize=None, ax=None
):
    """Draw a random walk's proposal distributions at several places, over the draws.

    An ellipse is one standard deviation of the proposals from the dot in its middle. With
    :class:`~pymc_kmc.KAMH` its shape follows the target, with :class:`~pymc_kmc.AdaptiveMetropolis`
    it is the same everywhere. KAMH's isotropic part makes ellipses rounder than a narrow target;
    ``KAMH(gamma=0.2)`` shows more of the learned shape.

    Parameters
    ----------
    step : KAMH or AdaptiveMetropolis
        The step that has sampled in this process, with ``pm.sample(step=step, cores=1)``.
    idata : arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
        The result of `pm.sample`.
    var_names : str or sequence of str, optional
        Variables whose first two values are the axes.
    coords : dict, optional
        Coordinates from which these are chosen.
    n_ellipses : int
        Number of places, spread over the draws.
    figsize : (float, float), in inches, optional
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes or arviz_plots.PlotCollection
        With ArviZ 0.x and 1.x. Panel: "proposals".

    Raises
    ------
    TypeError
        If the step's proposals have no covariance.
    NotFittedError
        If the step has not sampled in this process, and got no covariance.
    """
    if not callable(getattr(step, "proposal_covariance", None)):
        raise TypeError(
            f"step is of type {type(step).__name__}, whose proposals have no covariance; pass the "
            "kmc.KAMH or kmc.AdaptiveMetropolis that has sampled."
        )
    if step.progress.n_iterations == 0 and getattr(step, "initial_covariance", None) is None:
        raise NotFittedError(
            f"this {type(step).__name__} has not sampled yet, or in another process: pass it to "
            "pm.sample(step=step, cores=1) first, with enough tuning."
        )
    n_ellipses, is_local = check_count(n_ellipses, "n_ellipses"), isinstance(step, KAMH)
    elements = elements_of(step, step.n_dimensions)
    i, j = choose(elements, var_names, coords, 2)[:2]
    positions = positions_of(step, idata, step.n_dimensions)
    shown = positions[:, [i, j]]
    places = positions[typical_rows(shown, n_ellipses)]

    panels = Panels(("proposals",), [["proposals"]], figsize or (6, 4.5), ax)
    axes = panels["proposals"]
    axes.plot(*shown.T, ".", ms=3, color="0.6", alpha=0.6, label="draws")
    covariances = []
    for n, place in enumerate(places):
        whole = step.proposal_covariance(place) if is_local else step.proposal_covariance()
        covariance = whole[np.ix_([i, j], [i, j])]
        covariances.append(covariance)
        label = "proposals from ●, one sd" if n == 0 else None
        axes.add_patch(ellipse(place[[i, j]], covariance, label=label))
    axes.plot(*places[:, [i, j]].T, "o", ms=4, color="tab:red")
    axes.autoscale_view()
    axes.set(xlabel=elements[i].label, ylabel=elements[j].label)
    axes.set_title(f"Proposals of {type(step).__name__}")
    axes.legend(fontsize="small", loc="best")
    panels.show("proposals", ("place", "row", "column"), covariances)
    return panels.result()


def ellipse(centre, covariance, label=None):
    """Return the ellipse of one standard deviation of N(centre, covariance) in two dimensions."""
    variances, axes = np.linalg.eigh(covariance)
    width, height = 2.0 * N_SDS * np.sqrt(np.maximum(variances, 0.0))
    angle = np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    style = {"facecolor": (0.84, 0.15, 0.16, 0.12), "edgecolor": "tab:red", "lw": 1.3}
    return Ellipse(tuple(centre), width, height, angle=angle, label=label, **style)


def typical_rows(points, n):
    """Return indices of n points of (m, k), far from each other and typical of those around."""
    scaled = (points - points.mean(axis=0)) / np.maximum(points.std(axis=0), np.finfo(float).tiny)
    chosen = far_apart(scaled, n)
    # The outermost draws are typical of nothing: the middle of those around each is.
    nearest, typical = np.argmin(squared_distances(scaled, scaled[chosen]), axis=1), []
    for group in range(len(chosen)):
        (members,) = np.nonzero(nearest == group)
        middle = scaled[members].mean(axis=0)
        typical.append(members[np.argmin(np.sum((scaled[members] - middle) ** 2, axis=1))])
    return np.array(typical)
