"""Fits to a chain's history: right gradients, right coordinates, no exceptions."""

import numpy as np
import pytest

from pymc_kmc.adaptation.history import Record
from pymc_kmc.adaptation.surrogate import FiniteFamily, LiteFamily, SurrogateAdaptation

FAMILIES = {
    "lite": lambda: LiteFamily(300, "rkhs"),
    "finite": lambda: FiniteFamily(300, 1000, "gaussian"),
}


def record_of(X, log_density):
    """The record of a chain through X, each state evaluated once."""
    record = Record(X.shape[1])
    for x, value in zip(X, log_density(X), strict=True):
        record.append(x, value)
        record.append_evaluation(x, value)
    return record


def banana(X):
    return -0.5 * X[:, 0] ** 2 / 9 - 0.5 * (X[:, 1] - 0.2 * (X[:, 0] ** 2 - 9)) ** 2


def banana_gradient(X):
    residual = X[:, 1] - 0.2 * (X[:, 0] ** 2 - 9)
    return np.stack([-X[:, 0] / 9 + 0.4 * X[:, 0] * residual, -residual], axis=1)


def banana_draws(n, seed):
    rng = np.random.default_rng(seed)
    x = 3 * rng.standard_normal(n)
    return np.stack([x, 0.2 * (x**2 - 9) + rng.standard_normal(n)], axis=1)


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_of_a_banana(family, values):
    adaptation = SurrogateAdaptation(FAMILIES[family](), "gaussian", values)
    rng = np.random.default_rng(0)
    record = record_of(banana_draws(700, 1), banana)
    for _ in range(2):
        assert adaptation.fit(record, rng)
    X = banana_draws(500, 2)
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
    record = record_of(X, log_density)
    assert adaptation.fit(record, np.random.default_rng(4))
    gradient = adaptation.gradient(X[-50:])
    np.testing.assert_allclose(gradient, -X[-50:] @ precision, rtol=0.02)


def test_a_chain_that_has_not_moved_gives_no_surrogate():
    adaptation = SurrogateAdaptation(FAMILIES["lite"](), "gaussian", True)
    record = record_of(np.zeros((100, 2)), banana)
    assert not adaptation.fit(record, np.random.default_rng(0))
    assert adaptation.hamiltonian is None and adaptation.failure is None


def test_a_failed_fit_keeps_the_last_surrogate():
    adaptation = SurrogateAdaptation(FAMILIES["lite"](), "gaussian", True)
    rng = np.random.default_rng(0)
    record = record_of(banana_draws(200, 5), banana)
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
    X = banana_draws(900, 6)
    record = record_of(X[:150], banana)
    adaptation.fit(record, rng)
    test = banana_draws(500, 7)
    true = banana_gradient(test)
    before = ((adaptation.gradient(test) - true) ** 2).sum()
    for x in X[150:]:
        record.append(x, 0.0)
    adaptation.update(record, rng)
    assert ((adaptation.gradient(test) - true) ** 2).sum() < before
    assert adaptation.n_seen == 900
    if family == "finite":
        assert adaptation.surrogate.total_weight_ == pytest.approx(0.6 * 150 + 750)
