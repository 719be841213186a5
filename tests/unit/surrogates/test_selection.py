"""Cross-validated choice of hyper-parameters."""

import warnings

import numpy as np
import pytest

from pymc_kmc.surrogates import (
    KernelExpFinite,
    KernelExpLite,
    select,
    unique_states,
)
from pymc_kmc.surrogates.selection import (
    _with_basis,
    contiguous_folds,
    finite_systems,
    held_out_losses,
    lite_systems,
)


def banana(n, seed=0, bend=0.5):
    X = np.random.default_rng(seed).normal(size=(n, 2))
    X[:, 1] += bend * (X[:, 0] ** 2 - 1.0)
    return X


def test_unique_states_keep_order_and_time():
    chain = np.array([[2.0, 0], [2, 0], [1, 0], [2, 0], [0, 0], [0, 0]])
    X, weights = unique_states(chain)
    np.testing.assert_array_equal(X, [[2, 0], [1, 0], [0, 0]])
    np.testing.assert_array_equal(weights, [3, 1, 2])


@pytest.mark.parametrize("base", [None, "gaussian"])
@pytest.mark.parametrize(
    "make",
    [
        lambda base: KernelExpLite(3.0, 0.4, base=base),
        lambda base: KernelExpLite(3.0, 0.4, penalty="reference", base=base),
        lambda base: KernelExpLite(0.1, 0.4, penalty="rkhs", base=base),
        lambda base: KernelExpFinite(30, 3.0, 0.4, base=base, rng=1),
    ],
    ids=["lite", "lite-reference", "lite-rkhs", "finite"],
)
def test_closed_form_loss_is_that_of_fitting(make, base):
    """The held-out losses of all regularisations are those of fit-and-evaluate, fold by fold."""
    X, weights = banana(60), np.random.default_rng(1).integers(1, 4, size=60).astype(float)
    surrogate = make(base)
    slices = contiguous_folds(weights, 3)
    if isinstance(surrogate, KernelExpFinite):
        surrogate = _with_basis(surrogate, 2, 200, np.random.default_rng(2))
        systems = finite_systems(surrogate, X, weights, slices, surrogate.sigma)
    else:
        systems = lite_systems(surrogate, X, weights, slices, surrogate.sigma)
    for fold, system in zip(slices, systems, strict=True):
        rest = np.ones(len(X), dtype=bool)
        rest[fold] = False
        if isinstance(surrogate, KernelExpFinite):
            omega, phase = surrogate.basis
            fitted = KernelExpFinite.from_basis(omega / np.sqrt(3.0), phase, 0.4, base)
        else:
            fitted = surrogate
        fitted.fit(X[rest], weights[rest])
        expected = fitted.loss(X[fold], weights[fold])
        found = held_out_losses(system, np.array([0.1, 0.4]))[1]
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("estimator", ["lite", "finite"])
def test_choice_is_near_the_best_of_a_grid(estimator):
    X, test = banana(400), banana(4000, seed=9)
    chosen = select(X, estimator, random_seed=0)
    assert not chosen.at_edge
    surrogate = chosen.estimator
    surrogate.rng = 1
    loss = surrogate.fit(X).loss(test)
    losses = []
    for sigma in chosen.sigma * 4.0 ** np.arange(-2, 3):
        for regularisation in chosen.regularisation * 100.0 ** np.arange(-2, 3):
            surrogate.sigma, surrogate.regularisation = sigma, regularisation
            losses.append(surrogate.fit(X).loss(test))
    fisher = 1.0 + 0.5**2 * 4 + 1.0  # E|grad log pi|^2 of the banana, for scale
    assert loss - min(losses) < 0.05 * fisher


@pytest.mark.filterwarnings("ignore:the best sigma found")
def test_seeded_and_warm_started():
    X = banana(500)
    first, again = (select(X, "finite", random_seed=3) for _ in range(2))
    assert (first.sigma, first.regularisation) == (again.sigma, again.regularisation)
    warm = select(X, "finite", random_seed=3, warm_start=first)
    assert len(warm.table) <= len(first.table)
    assert warm.loss < first.loss + first.standard_error
    assert select(X, "finite", random_seed=3, warm_start=(first.sigma, 1.0)).loss == warm.loss


def test_repeats_count_as_weights():
    X = banana(80)
    stays = np.random.default_rng(0).integers(1, 5, size=80)
    repeated = select(np.repeat(X, stays, axis=0), "lite", random_seed=0)
    weighted = select(X, "lite", sample_weight=stays, random_seed=0)
    assert repeated.n_points == 80
    assert repeated.loss == weighted.loss
    assert repeated.sigma == weighted.sigma


def test_folds_are_contiguous_and_of_equal_weight():
    weights = np.array([5.0, 1, 1, 1, 1, 1, 2, 2, 1])
    folds = contiguous_folds(weights, 3)
    assert [fold.start for fold in folds] + [folds[-1].stop] == [0, *[f.stop for f in folds]]
    assert [weights[fold].sum() for fold in folds] == [5, 5, 5]
    # One state outweighs the rest of its folds: equal numbers instead.
    heavy = contiguous_folds(np.array([100.0, 1, 1, 1, 1, 1]), 3)
    assert [fold.stop for fold in heavy] == [2, 4, 6]


def test_the_edge_of_a_given_range_is_reported():
    X = banana(200)
    free = select(X, "lite", random_seed=0)
    with pytest.warns(UserWarning, match="edge of its range"):
        low = select(X, "lite", sigmas=free.sigma * np.array([0.01, 0.02]), random_seed=0)
    assert low.at_edge
    assert low.sigma == pytest.approx(0.02 * free.sigma)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = select(X, "lite", sigmas=free.sigma * np.array([0.1, 1.0, 10.0]), random_seed=0)
        fixed = select(X, "lite", sigmas=[2.0], random_seed=0)
    assert not inside.at_edge
    assert fixed.sigma == 2.0


def test_a_range_next_to_the_best_is_extended():
    X = banana(200)
    free = select(X, "lite", random_seed=0)
    started_far_off = select(X, "lite", warm_start=(free.sigma * 4.0**4, 1.0), random_seed=0)
    assert not started_far_off.at_edge
    assert started_far_off.loss < free.loss + 0.1 * free.standard_error


def test_caps():
    result = select(banana(400), "lite", max_points=50, random_seed=0)
    assert result.n_points == 50


def test_result_keeps_the_estimators_own_arguments():
    surrogate = KernelExpLite(1.0, 1.0, penalty="rkhs", base="gaussian").fit(banana(50))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = select(banana(100), surrogate, random_seed=0)
    assert (chosen.estimator.penalty, chosen.estimator.base) == ("rkhs", "gaussian")
    assert chosen.estimator.sigma == chosen.sigma
    assert not hasattr(chosen.estimator, "parameters_")
    assert surrogate.sigma == 1.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"estimator": "full"}, "estimator='full'"),
        ({"n_folds": 1}, "n_folds=1"),
        ({"n_folds": 20}, "distinct states"),
        ({"sigmas": [1.0, -1.0]}, "sigmas="),
        ({"sigmas": [np.nan]}, "sigmas="),
        ({"max_points": 0}, "max_points=0"),
        ({"estimator": KernelExpFinite.from_basis(np.ones((2, 4)), np.ones(4), 1.0)}, "basis"),
        ({"warm_start": (-1.0, 1.0)}, "warm_start"),
        ({"estimator": KernelExpLite(None, None, penalty="x")}, "penalty='x'"),
        ({"estimator": KernelExpLite(None, None, base="x")}, "base='x'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        select(banana(30), **arguments)
