"""Fits to a chain's history: right gradients, right coordinates, no exceptions."""

import numpy as np
import pytest

from pymc_kmc.adaptation.surrogate import FiniteFamily, LiteFamily, SurrogateAdaptation
from tests.records import banana, banana_draws, record_of

BEND = 0.2
FAMILIES = {
    "lite": lambda: LiteFamily(300, "rkhs"),
    "finite": lambda: FiniteFamily(300, 1000, "gaussian"),
}


def banana_gradient(X):
    residual = X[:, 1] - BEND * (X[:, 0] ** 2 - 9)
    return np.stack([-X[:, 0] / 9 + 2 * BEND * X[:, 0] * residual, -residual], axis=1)


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_of_a_banana(family, values):
    adaptation = SurrogateAdaptation(FAMILIES[family](), "gaussian", values)
    rng = np.random.default_rng(0)
    states = banana_draws(700, np.random.default_rng(1), BEND)
    record = record_of(states, banana(states, BEND))
    for _ in range(2):
        assert adaptation.fit(record, rng)
    X = banana_draws(500, np.random.default_rng(2), BEND)
    true = banana_gradient(X)
    divergence = ((adaptation.gradient(X) - true) ** 2).sum() / (true**2).sum()
    assert divergence < (0.01 if values else 0.15)
    assert adaptation.n_fits == 2 and adaptation.failure is None


def test_a_gaussian_is_learned_from_values_far_from_its_mass():
    """The states are those of a chain on its way: score matching alone would copy their spread."""
    precision = np.diag([0.25, 4.0])
    X = np.linspace(5.0, 3.0, 200)[:, None] + 0.2 * np.random.default_rng(3).normal(size=(200, 2))

    def log_density(Y):
        return -0.5 * np.einsum("ni,ij,nj->n", Y, precision, Y)

    adaptation = SurrogateAdaptation(FAMILIES["lite"](), "gaussian", True)
    record = record_of(X, log_density(X))
    assert adaptation.fit(record, np.random.default_rng(4))
    gradient = adaptation.gradient(X[-50:])
    np.testing.assert_allclose(gradient, -X[-50:] @ precision, rtol=0.02)


def test_a_chain_that_has_not_moved_gives_no_surrogate():
    adaptation = SurrogateAdaptation(FAMILIES["lite"](), "gaussian", True)
    record = record_of(np.zeros((100, 2)), np.zeros(100))
    assert not adaptation.fit(record, np.random.default_rng(0))
    assert adaptation.hamiltonian is None and adaptation.failure is None


def test_a_failed_fit_keeps_the_last_surrogate():
    adaptation = SurrogateAdaptation(FAMILIES["lite"](), "gaussian", True)
    rng = np.random.default_rng(0)
    states = banana_draws(200, np.random.default_rng(5), BEND)
    record = record_of(states, banana(states, BEND))
    adaptation.fit(record, rng)
    kept = adaptation.hamiltonian

    def fail(*arguments):
        raise np.linalg.LinAlgError("singular")

    adaptation.family.unfitted = fail
    assert not adaptation.fit(record, rng)
    assert adaptation.hamiltonian is kept
    assert "singular" in adaptation.failure


@pytest.mark.parametrize("family", FAMILIES)
def test_update_learns_from_new_states(family):
    regularisation = {"lite": 30.0, "finite": 1e-3}[family]
    adaptation = SurrogateAdaptation(FAMILIES[family](), "gaussian", False, 60.0, regularisation)
    rng = np.random.default_rng(0)
    X = banana_draws(900, np.random.default_rng(6), BEND)
    record = record_of(X[:150], banana(X[:150], BEND))
    adaptation.fit(record, rng)
    test = banana_draws(500, np.random.default_rng(7), BEND)
    true = banana_gradient(test)
    before = ((adaptation.gradient(test) - true) ** 2).sum()
    for x in X[150:]:
        record.append(x, 0.0)
    adaptation.update(record, rng)
    assert ((adaptation.gradient(test) - true) ** 2).sum() < before
    assert adaptation.n_seen == 900
    if family == "finite":
        assert adaptation.surrogate.total_weight_ == pytest.approx(0.6 * 150 + 750)
