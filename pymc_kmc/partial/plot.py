"""The paths of partial posteriors as a picture."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator

# Most labelled ticks of the axis of sizes.
MOST_TICKS = 8


def plot_paths(result, element=0, *, reference=None, ax=None, figsize=None):
    """See :meth:`PartialPosteriors.plot`."""
    labels = result.labels
    if isinstance(element, str):
        if element not in labels:
            raise ValueError(f"element {element!r} isn't one of {labels}.")
        element = labels.index(element)
    if not 0 <= element < len(labels):
        raise ValueError(f"element must be from 0 to {len(labels) - 1}, got {element!r}.")
    if ax is None:
        _, ax = plt.subplots(figsize=figsize or (7, 4), layout="constrained")

    sizes, runs, paths = result.schedule.sizes, result.runs, result.paths
    for index, path in enumerate(paths):
        values = path.reshape(len(path), -1)[:, element]
        label = "partial posteriors, one line a replication" if index == 0 else None
        ax.plot(sizes[: len(path)], values, "-", color="C0", lw=0.8, alpha=0.5, label=label)
        ax.plot(sizes[len(path) - 1], values[-1], ".", color="C0", ms=4)
    suspect = runs[runs["suspect"]]
    if len(suspect):
        values = [paths[r].reshape(len(paths[r]), -1)[t, element] for r, t in suspect.index]
        ax.plot(
            suspect["size"], values, "o", mfc="none", color="C3", ms=5, label="chains too short"
        )

    estimate = np.ravel(result.estimate)[element]
    low, high = (np.ravel(end)[element] for end in result.interval(0.9))
    ax.axhline(estimate, color="C1", label=f"debiased mean, {estimate:.4g}")
    if np.isfinite(low):
        ax.axhspan(low, high, color="C1", alpha=0.2, lw=0, label="its 90 % interval")
    if reference is not None:
        ax.axhline(reference, color="k", ls="--", lw=1, label=f"all data, {reference:.4g}")
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    every = -(-len(sizes) // MOST_TICKS)
    ticks = sizes[::every]
    if len(ticks) > 1 and np.log2(ticks[-1] / ticks[-2]) < 0.5 * every:
        ticks = ticks[:-1]  # too near for a number of its own
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
    ax.set_xlabel("data in the subset")
    ax.set_ylabel(labels[element])
    ax.legend(fontsize="small")
    return ax
