"""Pictures of what was learned show its rounds and predictions."""

import dataclasses

import numpy as np
import pytest

import pymc_kmc as kmc
from tests.learned import learned_curve
from tests.plots import line, panels_of


@pytest.fixture(scope="module")
def learned():
    return learned_curve()


def test_rounds(learned):
    error, best = panels_of(kmc.plots.plot_learning(learned), "error", "best")
    x, y = line(error, "round")
    np.testing.assert_array_equal(x, [found.n_evaluations for found in learned.rounds])
    expected = [max(found.error, 1e-4) for found in learned.rounds]
    np.testing.assert_allclose(y, expected)
    assert x[-1] == len(learned.evaluations)
    x, y = line(best, "best")
    np.testing.assert_array_equal(x, 1 + np.arange(len(learned.evaluations)))
    values = learned.evaluations.log_densities
    np.testing.assert_allclose(y, [values[: i + 1].max() for i in range(len(values))])


def test_bands_of_outputs(learned):
    panel, held_out = panels_of(kmc.plots.plot_emulator(learned), "outputs", "held_out")
    (found,) = learned.emulated.nodes
    x, y = line(panel, "mean")
    np.testing.assert_array_equal(x, np.arange(5))
    np.testing.assert_allclose(y, found.outputs.mean(axis=0))
    # The emulator is exact to six digits here: the means are those of the curve over draws.
    size, rate = (learned.variables[name][:256] for name in ("size", "rate"))
    times = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    exact = size[:, None] * np.exp(-rate[:, None] * times)
    np.testing.assert_allclose(y, exact.mean(axis=0), rtol=1e-3)
    errors = held_out.get_lines()[0].get_ydata()
    assert len(errors) % 5 == 0
    assert len(errors) >= 5 * 16
    assert np.all(np.abs(errors) < 1.0)


def test_curves_of_outputs_with_two_axes(learned):
    (node,) = learned.emulated.nodes
    arrays = {name: np.repeat(getattr(node, name), 2, axis=1) for name in node._fields[4:]}
    node = node._replace(shape=(5, 2), columns=np.arange(10), **arrays)
    twice = dataclasses.replace(learned, emulated=learned.emulated._replace(nodes=(node,)))
    first, second, _ = panels_of(
        kmc.plots.plot_emulator(twice), "outputs_0", "outputs_1", "held_out"
    )
    np.testing.assert_allclose(line(first, "mean"), line(second, "mean"))
    assert first.get_title() == "curve, [:, 0]"


def test_a_number(learned):
    (node,) = learned.emulated.nodes
    arrays = {name: getattr(node, name)[:, :1] for name in node._fields[4:]}
    node = node._replace(name="p", shape=(), columns=np.arange(1), **arrays)
    one = dataclasses.replace(learned, emulated=learned.emulated._replace(nodes=(node,)))
    (panel,) = panels_of(kmc.plots.plot_emulator(one, "p"), "held_out")
    x, y = panel.get_lines()[0].get_data()
    assert set(x) <= set(node.evaluated[:, 0])
    assert set(y) <= set(node.held_out[:, 0])
    assert len(x) > 10


def test_bad_arguments(learned):
    with pytest.raises(TypeError, match="learned"):
        kmc.plots.plot_emulator(3)
    for node in (1, "other", -1, True):
        with pytest.raises(ValueError, match="node"):
            kmc.plots.plot_emulator(learned, node)
