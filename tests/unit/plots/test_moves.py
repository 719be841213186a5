"""Moves are drawn as a run's statistics and draws say, counted one by one."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

import pymc_kmc as kmc
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.plots.moves import COLOURS
from tests.plots import labels, line, panels_of

NAMES = ("acceptance", "jumps", "share")
WALK = "random walk"


def both(idata, group, name):
    """A statistic or a variable over tuning and sampling, (chain, iteration)."""
    parts = [getattr(idata, f"{prefix}{group}")[name].values for prefix in ("warmup_", "")]
    return np.concatenate(parts, axis=1)


def test_acceptance_and_jumps_of_a_kind(curved):
    idata, _ = curved
    acceptance, jumps, _ = panels_of(kmc.plots.plot_moves(idata, n_bins=5, var_names="x"), *NAMES)
    moves = both(idata, "sample_stats", "kmc_move")
    rates = both(idata, "sample_stats", "acceptance_rate")
    x = both(idata, "posterior", "x")
    x_sd = idata.posterior["x"].values.std()
    centres = np.arange(25, 250, 50)
    drawn = [line(ax, WALK) for ax in (acceptance, jumps)]
    n_checked = 0
    for interval, first in enumerate(range(0, 250, 50)):
        found = [
            (rates[c, i], (x[c, i] - x[c, i - 1]) / x_sd if i else 0.0)
            for c in range(2)
            for i in range(first, first + 50)
            if moves[c, i] == MoveKind.RANDOM_WALK
        ]
        if len(found) < 3:
            assert np.isnan(drawn[0][1, interval]) and np.isnan(drawn[1][1, interval])
            continue
        n_checked += 1
        rate, jump = np.array(found).T
        assert drawn[0][1, interval] == pytest.approx(rate.mean())
        assert drawn[1][1, interval] == pytest.approx(np.sqrt(np.mean(jump**2)))
    assert n_checked >= 2
    np.testing.assert_array_equal(drawn[0][0], centres)


def test_shares_fill_the_panel(curved):
    idata, _ = curved
    (share,) = panels_of(kmc.plots.plot_moves(idata, n_bins=4), *NAMES)[2:]
    edges = [0, 62, 125, 187, 250]
    moves = both(idata, "sample_stats", "kmc_move")
    top = np.zeros(4)
    kinds = [MoveKind(kind) for kind in np.unique(moves)]
    areas = [area for area in share.collections if area.get_label()[0] != "_"]
    assert len(areas) == len(kinds)
    for kind, area in zip(kinds, areas, strict=True):
        assert area.get_label() == kind.name.lower().replace("_", " ")
        top += [np.mean(moves[:, a:b] == kind) for a, b in pairwise(edges)]
        vertices = area.get_paths()[0].vertices
        for i, height in enumerate(top):
            inside = (vertices[:, 0] >= edges[i]) & (vertices[:, 0] <= edges[i + 1])
            assert np.min(np.abs(vertices[inside, 1] - height)) < 1e-9
    np.testing.assert_allclose(top, 1.0)


def test_what_is_never_a_draw_has_a_share_alone(curved):
    acceptance, _, share = panels_of(kmc.plots.plot_moves(curved[0]), *NAMES)
    assert "auxiliary" in [area.get_label() for area in share.collections]
    assert "auxiliary" not in [found.get_label() for found in acceptance.get_lines()]


def test_tuning_is_shaded_where_it_was_kept(curved, noisy):
    (acceptance,) = panels_of(kmc.plots.plot_moves(curved[0]), *NAMES)[:1]
    (shade,) = [patch for patch in acceptance.patches if patch.get_label() == "tuning"]
    np.testing.assert_allclose([shade.get_x(), shade.get_width()], [0, 150])
    (acceptance,) = panels_of(kmc.plots.plot_moves(noisy), *NAMES)[:1]
    assert not acceptance.patches


def test_axes_of_the_users_own(noisy):
    _, axes = plt.subplots(3)
    found = panels_of(kmc.plots.plot_moves(noisy, ax=axes), *NAMES)
    assert all(a is b for a, b in zip(found, axes, strict=True))
    assert labels(axes[2])[1] == "iteration" and all(labels(ax)[2] for ax in axes)
    with pytest.raises(ValueError, match="ax has 2 axes; this picture has 3 panels"):
        kmc.plots.plot_moves(noisy, ax=axes[:2])


def test_each_kind_has_a_colour():
    assert set(COLOURS) == set(MoveKind)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"var_names": "q"}, "var_names has 'q'; idata has x"),
        ({"coords": {"place": 1}}, "coords has ..place.., which idata's variables"),
        ({"step": 1}, "step=1 must be from 0 to 0"),
        ({"n_bins": 0}, "n_bins=0 must be"),
    ],
)
def test_bad_arguments(noisy, arguments, message):
    with pytest.raises(ValueError, match=message):
        kmc.plots.plot_moves(noisy, **arguments)
