"""Fits to a chain's states and values by score matching: right gradients, no exceptions."""

import numpy as np
import pytest

from pymc_kmc.adaptation.fit_to_scores import FitToScores, gradients_of
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite
from tests.bananas import Banana
from tests.fitted import short_transitions, snapshot
from tests.histories import add_state, history_of

BANANA = Banana(bend=0.2)
FAMILIES = {
    "lite": lambda **chosen: (KernelExpLite(penalty="rkhs", base="gaussian", **chosen), 300),
    "finite": lambda **chosen: (KernelExpFinite(300, base="gaussian", **chosen), 1000),
}


def fits_with(family, values, sigma=None, regularisation=None):
    made = FAMILIES[family](sigma=sigma, regularisation=regularisation)
    return FitToScores(*made, values, short_transitions)


def squared_error(fitted, X):
    return ((gradients_of(fitted, X) - BANANA.gradient(X)) ** 2).sum()


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_of_a_banana(family, values):
    fits, fitted = fits_with(family, values), None
    rng = np.random.default_rng(0)
    states = BANANA.draws(700, np.random.default_rng(1))
    history = history_of(states, BANANA.log_density(states))
    for _ in range(2):
        fitted = fits.fit(history, fitted, rng)
    X = BANANA.draws(500, np.random.default_rng(2))
    divergence = squared_error(fitted, X) / (BANANA.gradient(X) ** 2).sum()
    assert divergence < (0.01 if values else 0.15)
    assert fits.n_fits == 2 and fits.failure is None


def test_a_gaussian_is_learned_from_values_far_from_its_mass():
    """The states are those of a chain on its way: score matching alone would copy their spread."""
    precision = np.diag([0.25, 4.0])
    X = np.linspace(5.0, 3.0, 200)[:, None] + 0.2 * np.random.default_rng(3).normal(size=(200, 2))

    def log_density(Y):
        return -0.5 * np.einsum("ni,ij,nj->n", Y, precision, Y)

    history = history_of(X, log_density(X))
    fitted = fits_with("lite", True).fit(history, None, np.random.default_rng(4))
    gradient = gradients_of(fitted, X[-50:])
    np.testing.assert_allclose(gradient, -X[-50:] @ precision, rtol=0.02)


def test_a_chain_that_has_not_moved_gives_no_surrogate():
    fits = fits_with("lite", True)
    history = history_of(np.zeros((100, 2)), np.zeros(100))
    assert fits.fit(history, None, np.random.default_rng(0)) is None
    assert fits.failure is None and fits.n_fits == 0


def test_a_failed_fit_gives_none_and_says_why(monkeypatch):
    """Which is to keep the surrogate in use."""
    fits, rng = fits_with("lite", True), np.random.default_rng(0)
    states = BANANA.draws(200, np.random.default_rng(5))
    history = history_of(states, BANANA.log_density(states))
    kept = fits.fit(history, None, rng)
    before = snapshot(kept)

    def fail(*arguments):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(KernelExpLite, "fit", fail)
    assert fits.fit(history, kept, rng) is None
    assert "singular" in fits.failure and fits.n_fits == 1
    assert snapshot(kept) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_update_learns_from_new_states(family):
    """And leaves the surrogate before it as it was, with its moves and log weights."""
    regularisation = {"lite": 30.0, "finite": 1e-3}[family]
    fits = fits_with(family, False, 60.0, regularisation)
    rng = np.random.default_rng(0)
    X = BANANA.draws(900, np.random.default_rng(6))
    history = history_of(X[:150], BANANA.log_density(X[:150]))
    last = fits.fit(history, None, rng)
    before = snapshot(last)
    for x in X[150:]:
        add_state(history, x, 0.0)
    updated = fits.update(history, last, rng)
    test = BANANA.draws(500, np.random.default_rng(7))
    assert squared_error(updated, test) < squared_error(last, test)
    assert fits.n_seen == 900 and fits.failure is None
    assert snapshot(last) == before
    assert updated.log_weights is last.log_weights
    assert updated.transitions.n_steps == last.transitions.n_steps
    if family == "finite":
        assert updated.surrogate.total_weight_ == pytest.approx(100 + 750)


def test_a_failed_update_keeps_the_surrogate_and_says_why(monkeypatch):
    fits, rng = fits_with("lite", False, 60.0, 30.0), np.random.default_rng(0)
    states = BANANA.draws(200, np.random.default_rng(8))
    history = history_of(states, BANANA.log_density(states))
    last = fits.fit(history, None, rng)

    def fail(*arguments):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(KernelExpLite, "fit", fail)
    assert fits.update(history, last, rng) is last
    assert "singular" in fits.failure
