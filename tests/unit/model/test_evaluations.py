"""The record of evaluations: it grows, finds a place, and says places as the model's variables."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.evaluations import evaluations_of


def three():
    X = np.array([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]])
    return evaluations_of(X, np.arange(6.0).reshape(3, 2), np.arange(3.0))


def test_it_grows_and_has_rows():
    both = three().joined(three()[1:])
    assert len(both) == 5 and both.names == ("x0", "x1")
    np.testing.assert_array_equal(both.log_densities, [0, 1, 2, 1, 2])
    chosen = both[both.log_densities == 1.0]
    np.testing.assert_array_equal(chosen.outputs, [[2, 3], [2, 3]])
    assert len(chosen.inputs) == len(chosen.seconds) == 2
    assert repr(both) == "Evaluations(5, 2 outputs each: x0, x1)"


def test_it_finds_the_last_row_of_a_place():
    np.testing.assert_array_equal(three().rows(np.array([[0.0, 1.0], [5.0, 5.0]])), [2, -1])
    nothing = kmc.Evaluations.none(("x",), 1, 1, 3)
    assert len(nothing) == 0 and nothing.outputs.shape == (0, 3)
    np.testing.assert_array_equal(nothing.rows(np.zeros((1, 1))), [-1])


def test_places_have_the_names_of_the_models_variables():
    with pm.Model() as model:
        pm.HalfNormal("rate", shape=2)
        pm.Normal("beside")
        pm.Uniform("level", -1.0, 3.0)
    names, X = ("level_interval__", "rate_log__"), np.array([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0]])
    evaluations = kmc.Evaluations(names, X, X, X, X[:, 0], X[:, 0])
    found = evaluations.variables(model)
    assert set(found) == {"rate", "level"}
    np.testing.assert_allclose(found["rate"], np.exp(X[:, 1:]))
    np.testing.assert_allclose(found["level"], -1.0 + 4.0 / (1.0 + np.exp(-X[:, 0])))
    with model:
        np.testing.assert_array_equal(evaluations.variables()["rate"], found["rate"])
    with pm.Model() as other, pytest.raises(ValueError, match="model has no .*level_interval__"):
        pm.HalfNormal("rate", shape=2)
        evaluations.variables(other)
