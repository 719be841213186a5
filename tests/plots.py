"""What plots have drawn, on both lines of ArviZ."""

import numpy as np


def panels_of(result, *names):
    """Return the axes of the panels with these names, in the order of the picture's panels."""
    if hasattr(result, "get_viz"):
        return [result.get_viz("plot", name) for name in names]
    axes = list(np.ravel(np.asarray(result, dtype=object)))
    assert len(axes) == len(names)
    return axes


def line(ax, label):
    """Return the (x, y) of the line with a label, shape (2, n)."""
    (found,) = [line for line in ax.get_lines() if line.get_label() == label]
    return np.array(found.get_data(), dtype=float)


def labels(ax):
    """Return the texts of a panel: title and the axes' labels."""
    return [ax.get_title(), ax.get_xlabel(), ax.get_ylabel()]
