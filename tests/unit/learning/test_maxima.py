"""Maxima of an emulated density, draws that jump between them, and errors where they don't mix."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.learning.averages import INEFFICIENCY, inefficiency
from pymc_kmc.learning.composite import Values
from pymc_kmc.learning.drawing import MIXED, drawn
from pymc_kmc.learning.evidence import one_turn
from pymc_kmc.learning.maxima import maxima
from pymc_kmc.learning.search import are_constant
from pymc_kmc.learning.starts import spread_out
from pymc_kmc.numerics.samples import far_apart

PLACES, SDS, SHARES = np.array([-4.0, 4.0]), np.array([0.5, 0.25]), np.array([0.3, 0.7])


class TwoModes:
    """Two Gaussians of one coordinate, as a composite that knows all."""

    model = SimpleNamespace(nearest_copy=lambda x, to: x, periods=np.array([np.inf]))

    def __call__(self, X, temperature=1.0, penalty=0.0):
        away = (X - PLACES) / SDS
        logs = np.log(SHARES / SDS) - 0.5 * away**2
        values = np.logaddexp(*logs.T)
        weights = np.exp(logs - values[:, None])
        gradient = -(weights * away / SDS).sum(axis=1, keepdims=True)
        none = np.zeros(len(X))
        return Values(values / temperature, gradient / temperature, values, none, none)


def test_all_maxima_above_draws_are_found():
    X = np.random.default_rng(0).normal(PLACES[[0] * 60 + [1] * 4], 0.3)[:, None]
    found = sorted(maxima(TwoModes(), X), key=lambda mode: mode.x[0])
    np.testing.assert_allclose([mode.x[0] for mode in found], PLACES, atol=1e-3)
    np.testing.assert_allclose([mode.covariance[0, 0] for mode in found], SDS**2, rtol=1e-3)


def test_chains_that_do_not_mix_jump_between_maxima():
    """Standard error of the share: .02 at 2048 nearly independent draws; 7 of them are allowed."""
    starts = PLACES[np.arange(64) % 2][:, None] + 0.1
    state = SimpleNamespace(
        draws=starts, factor=np.eye(1), modes=(), maps=None, step_size=0.3, has_converged=True
    )
    found = drawn(TwoModes(), state, np.random.default_rng(0))
    assert found.r_hat < MIXED
    X = np.concatenate([part.X[:, 0] for part in found.parts])
    assert np.mean(X > 0) == pytest.approx(SHARES[1], abs=0.14)
    assert len(found.modes) == 2


def test_draws_are_worth_less_where_chains_differ():
    assert inefficiency(1.0, 8) == INEFFICIENCY
    assert inefficiency(50.0, 8) == pytest.approx(8.0, rel=1e-2)


def test_one_turn_of_an_angle_holds_most_draws():
    rng = np.random.default_rng(0)
    draws = np.column_stack([np.pi + 0.3 * rng.standard_normal(200), rng.standard_normal(200)])
    draws[:20, 0] -= 2 * np.pi
    is_inside = one_turn(draws, np.array([2 * np.pi, np.inf]))
    assert is_inside(draws).sum() == 180
    assert is_inside(np.array([[np.pi, 1e9]])).all()
    assert not is_inside(np.array([[-np.pi / 2, 0.0]])).any()


def test_starts_fill_the_prior():
    pool = np.random.default_rng(0).normal(size=(256, 1))
    for seed in range(5):
        chosen = spread_out(pool, 8, np.random.default_rng(seed))[:, 0]
        assert len(np.unique(chosen)) == 8
        strata = np.searchsorted(np.quantile(pool, np.arange(1, 8) / 8), chosen)
        assert len(np.unique(strata)) >= 7  # ranks are rounded


def test_points_are_far_apart():
    X = np.array([[0.0], [0.1], [5.0], [-5.0], [0.2]])
    assert set(far_apart(X, 3)) == {1, 2, 3}
    assert set(far_apart(np.vstack([X, X]), 10)) == set(range(5))


def test_constant_outputs():
    assert are_constant(np.array([[1.0, np.nan], [1.0, np.nan]]))
    assert not are_constant(np.array([[1.0, 2.0], [1.0, 2.1]]))
