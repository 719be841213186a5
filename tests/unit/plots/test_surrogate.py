"""Contours, arrows and dots of a surrogate are where it says."""

import numpy as np
import pytest
from matplotlib.contour import QuadContourSet
from matplotlib.quiver import Quiver

import pymc_kmc as kmc
from tests.plots import labels, line, panels_of

NAMES = ("log density of x and y", "sd of x and y")


class Known:
    """Of (x, y, log s): a Gaussian, and a standard deviation that grows with x alone."""

    n_features_in_ = 3
    SCALES = np.array([1.0, 2.0, 1.0])

    def log_density(self, X):
        return -0.5 * np.sum((X / self.SCALES) ** 2, axis=-1)

    def gradient(self, X):
        return -X / self.SCALES**2

    def predict(self, X, return_std=False):
        return self.log_density(X), np.exp(X[..., 0])


@pytest.fixture
def known(curved):
    """The result's panels, with a given surrogate."""
    result = kmc.plots.plot_surrogate(Known(), curved[0])
    return panels_of(result, "log density of x0 and x1", "sd of x0 and x1")


def contour_sets(ax):
    return [found for found in ax.collections if isinstance(found, QuadContourSet)]


def test_contours_of_the_log_density(known):
    """Each line is where the surrogate is so many nats below its largest value in the picture."""
    (_, lines) = contour_sets(known[0])
    checked = 0
    for level, path in zip(lines.levels, lines.get_paths(), strict=True):
        if -20 < level < 0 and len(path.vertices):
            values = -0.5 * np.sum((path.vertices / Known.SCALES[:2]) ** 2, axis=1)
            np.testing.assert_allclose(values, level, atol=0.05 + 0.02 * abs(level))
            checked += 1
    assert checked >= 4


def test_contours_of_the_standard_deviation(known):
    (filled,) = contour_sets(known[1])
    levels = filled.levels
    frame = np.array([known[1].get_xlim(), known[1].get_ylim()]).T
    for path in filled.get_paths():
        inside = np.all(np.abs(path.vertices[:, None] - frame) > 1e-9, axis=(1, 2))
        distances = np.abs(path.vertices[inside, :1] - np.log(levels))
        # Levels are joined linearly between the points of the grid.
        assert distances.min(axis=1).max(initial=0.0) < 0.02
    # All of 1, 3, 10 and so on that the frame has.
    low, high = np.exp(known[1].get_xlim())
    expected = {value for value in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0) if low < value < high}
    assert {0.3, 1.0, 3.0} <= expected <= {round(level, 6) for level in levels}


def test_arrows_point_uphill(known):
    (arrows,) = [found for found in known[0].collections if isinstance(found, Quiver)]
    places, shown = arrows.XY, np.column_stack([arrows.U, arrows.V])
    spans = np.array([np.ptp(known[0].get_xlim()), np.ptp(known[0].get_ylim())])
    expected = -places / Known.SCALES[:2] ** 2 * spans  # as it looks on the page
    seen = shown / spans
    moving = np.linalg.norm(expected, axis=1) > 1e-9
    cosines = np.sum(expected * seen, axis=1)[moving]
    cosines /= np.linalg.norm(expected, axis=1)[moving] * np.linalg.norm(seen, axis=1)[moving]
    np.testing.assert_allclose(cosines, 1.0)
    assert np.linalg.norm(seen, axis=1).max() < 1.0 / 13  # none runs into the next


def test_dots_of_a_step(curved):
    """Draws are brought to the step's coordinates; evaluations are those that it learned from."""
    idata, step = curved
    result = kmc.plots.plot_surrogate(step, idata, var_names=["x", "s"])
    left, right = panels_of(result, "log density of x and s (log)", "sd of x and s (log)")
    draws = idata.posterior
    expected = draws["x"].values.ravel(), np.log(draws["s"].values.ravel())
    np.testing.assert_allclose(line(left, "draws"), expected)
    evaluated = step.history_[0]
    np.testing.assert_array_equal(line(right, "evaluations"), evaluated[:, [0, 2]].T)
    assert labels(left)[1:] == ["x", "s (log)"]


def test_without_draws(curved):
    left, right = panels_of(kmc.plots.plot_surrogate(curved[1]), *NAMES)
    assert len(left.get_lines()) == 0 and len(right.get_lines()) == 1


def test_all_pairs_that_are_chosen(curved):
    idata, step = curved
    result = kmc.plots.plot_surrogate(step, idata, var_names=["y", "x", "s"], grid=5)
    pairs = ["y and x", "y and s (log)", "x and s (log)"]
    panels = panels_of(result, *(f"{kind} of {p}" for p in pairs for kind in ("log density", "sd")))
    assert [labels(ax)[1:] for ax in panels[::2]] == [pair.split(" and ") for pair in pairs]


def test_a_surrogate_without_standard_deviation_has_one_panel(curved):
    class Bare:
        n_features_in_ = 3
        log_density, gradient = Known.log_density, Known.gradient
        SCALES = Known.SCALES

    panels_of(kmc.plots.plot_surrogate(Bare(), curved[0]), "log density of x0 and x1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"var_names": "x"}, "choose 1 coordinate"),
        ({"var_names": ["x", "q"]}, "var_names has 'q'; there are s, x, y"),
        ({"coords": {"place": 1}}, "coords has ..place.."),
    ],
)
def test_bad_choices(curved, arguments, message):
    with pytest.raises(ValueError, match=message):
        kmc.plots.plot_surrogate(curved[1], curved[0], **arguments)


def test_what_has_no_surrogate(walked, curved):
    with pytest.raises(TypeError, match="KAMH has no surrogate"):
        kmc.plots.plot_surrogate(walked[1], walked[0])
    with pytest.raises(ValueError, match="idata is missing"):
        kmc.plots.plot_surrogate(Known())
    with pytest.raises(ValueError, match="3 values a draw .* surrogate 1 coord"):
        surrogate = Known()
        surrogate.n_features_in_ = 1
        kmc.plots.plot_surrogate(surrogate, curved[0])
    with pytest.raises(TypeError, match="has no log_density"):
        kmc.plots.plot_surrogate(3, curved[0])
