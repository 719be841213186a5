"""When an emulator's covariance is extended, and that it is the same again."""

import numpy as np
import pytest

from pymc_kmc.learning.emulator import FEWEST_EXTENDED, NodeEmulator
from pymc_kmc.model.opaque import OpaqueNode

D = 4
TERM = OpaqueNode("term", 1, True, False, slice(0, D), slice(0, 1), np.arange(D), ())


def normal(X):
    return -0.5 * (X**2).sum(axis=1)


def mixture(X):
    """Radial terms gain a tenth of a nat a value."""
    ends = [-0.5 * ((X - mean) ** 2).sum(axis=1) for mean in (-1.0, 1.0)]
    return np.logaddexp(*ends)


def separate(X):
    return -0.25 * (X**2).sum(axis=1) + np.tanh(4.0 * X).sum(axis=1)


def heavy(X):
    return -4.5 * np.log1p((X**2).sum(axis=1) / 5.0)


def emulated(function, n, grows=True):
    rng = np.random.default_rng(0)
    X, draws = rng.standard_t(5.0, size=(n, D)), rng.normal(size=(64, D))
    values = function(X)
    emulator = NodeEmulator(TERM, grows=grows)
    return emulator.fit(X, X, values[:, None], values, draws, draws)


@pytest.mark.parametrize(
    ("function", "extension"),
    [(normal, None), (mixture, None), (separate, "additive"), (heavy, "radial")],
)
def test_a_covariance_is_extended_where_that_tells_more(function, extension):
    assert emulated(function, FEWEST_EXTENDED + 50).process.extension == extension


@pytest.mark.parametrize(("n", "grows"), [(FEWEST_EXTENDED - 20, True), (200, False)])
def test_few_values_and_searches_have_no_extension(n, grows):
    assert emulated(heavy, n, grows).process.extension is None


@pytest.mark.parametrize("function", [normal, separate, heavy])
def test_an_emulator_restored_predicts_the_same(function):
    emulator = emulated(function, FEWEST_EXTENDED + 50)
    again = NodeEmulator.restored(TERM, emulator.state)
    X = np.random.default_rng(1).normal(size=(5, D))
    np.testing.assert_array_equal(again.predict(X, X).outputs, emulator.predict(X, X).outputs)
    assert again.process.extension == emulator.process.extension
