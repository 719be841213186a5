"""What holds for every surrogate, and what holds for one of them."""

import pickle

import numpy as np
import pytest

from pymc_kmc.numerics import checks
from pymc_kmc.surrogates import (
    KernelExpFinite,
    KernelExpLite,
    NotFittedError,
    Surrogate,
    gradient_at,
    log_density_at,
)
from pymc_kmc.surrogates import lite as lite_module
from pymc_kmc.surrogates.exponential_family import score_matching_loss

SIGMA, REGULARISATION = 8.0, 0.05


def points(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


MAKERS = {
    "lite": lambda base: KernelExpLite(SIGMA, REGULARISATION, base=base),
    "lite-reference": lambda base: KernelExpLite(SIGMA, 0.05, penalty="reference", base=base),
    "lite-rkhs": lambda base: KernelExpLite(SIGMA, REGULARISATION, penalty="rkhs", base=base),
    "lite-low-rank": lambda base: KernelExpLite(SIGMA, REGULARISATION, base=base, rank=20),
    "finite": lambda base: KernelExpFinite(40, SIGMA, REGULARISATION, base=base, rng=1),
    "finite-rq": lambda base: KernelExpFinite(
        40, SIGMA, REGULARISATION, kernel="rational_quadratic", base=base, rng=1
    ),
}


@pytest.fixture(params=[None, "gaussian"], ids=["no base", "gaussian base"])
def base(request):
    return request.param


@pytest.fixture(params=MAKERS)
def unfitted(request, base):
    return MAKERS[request.param](base)


def scaled_error(value, expected):
    return np.abs(np.asarray(value) - expected).max() / np.abs(expected).max()


def test_gradient_is_the_derivative_of_the_log_density(unfitted):
    surrogate = unfitted.fit(points())
    x, h = points(seed=1)[:5], 1e-5
    steps = h * np.eye(3)
    central = np.stack(
        [(surrogate.log_density(x + s) - surrogate.log_density(x - s)) / (2 * h) for s in steps], 1
    )
    assert scaled_error(surrogate.gradient(x), central) < 1e-6


def test_loss_is_the_score_matching_objective(unfitted):
    surrogate = unfitted.fit(points())
    x, h = points(seed=1)[:6], 1e-4
    weights = np.arange(1.0, 7.0)
    laplacians = sum(
        (surrogate.gradient(x + s) - surrogate.gradient(x - s))[:, a] / (2 * h)
        for a, s in enumerate(h * np.eye(3))
    )
    pointwise = laplacians + 0.5 * (surrogate.gradient(x) ** 2).sum(axis=1)
    assert surrogate.loss(x) == pytest.approx(pointwise.mean(), rel=1e-5)
    expected = weights @ pointwise / weights.sum()
    assert surrogate.loss(x, weights) == pytest.approx(expected, rel=1e-5)


def test_compiled_evaluation_is_that_of_numpy(unfitted):
    surrogate = unfitted.fit(points(n=300))
    assert isinstance(surrogate, Surrogate)
    out = np.empty(3)
    for x in points(seed=1)[:5]:
        gradient_at(surrogate.parameters_, x, out)
        assert scaled_error(out, surrogate.gradient(x)) < 1e-8
        value = log_density_at(surrogate.parameters_, x)
        assert value == pytest.approx(surrogate.log_density(x), rel=1e-8)


def test_one_point_and_many(unfitted):
    surrogate = unfitted.fit(points())
    x = points(seed=1)[:4]
    assert surrogate.log_density(x).shape == (4,)
    assert isinstance(surrogate.log_density(x[0]), float)
    assert surrogate.log_density(x)[2] == pytest.approx(surrogate.log_density(x[2]), rel=1e-9)
    np.testing.assert_allclose(surrogate.gradient(x)[2], surrogate.gradient(x[2]), rtol=1e-7)


def test_chunks_do_not_show(unfitted, monkeypatch):
    surrogate, x = unfitted.fit(points()), points(seed=1)
    expected = surrogate.gradient(x), surrogate.log_density(x)
    monkeypatch.setattr(checks, "CHUNK_ENTRIES", 500)
    np.testing.assert_allclose(surrogate.gradient(x), expected[0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(surrogate.log_density(x), expected[1], rtol=1e-7, atol=1e-9)


def test_weights_are_multiplicities(unfitted):
    X = points(30)
    weights = np.random.default_rng(2).integers(0, 4, size=30)
    x = points(seed=1)[:5]
    weighted = unfitted.fit(X, weights).gradient(x)
    repeated = unfitted.fit(np.repeat(X, weights, axis=0)).gradient(x)
    assert scaled_error(weighted, repeated) < 1e-6
    assert scaled_error(weighted, unfitted.fit(X).gradient(x)) > 1e-3


def test_a_diverged_trajectory_gets_nan(unfitted):
    parameters = unfitted.fit(points()).parameters_
    out = np.zeros(3)
    gradient_at(parameters, np.array([0.0, np.nan, 0.0]), out)
    assert np.isnan(out).all()
    assert np.isnan(log_density_at(parameters, np.array([0.0, np.nan, 0.0])))


def test_parameters_survive_a_refit_and_pickling(unfitted):
    surrogate = unfitted.fit(points())
    old = surrogate.parameters_
    x, before, after = points(seed=1)[0], np.empty(3), np.empty(3)
    gradient_at(old, x, before)
    surrogate.fit(points(seed=5))
    gradient_at(pickle.loads(pickle.dumps(old)), x, after)
    np.testing.assert_array_equal(before, after)
    gradient_at(old, x, after)
    np.testing.assert_array_equal(before, after)
    gradient_at(surrogate.parameters_, x, after)
    assert not np.allclose(before, after)


@pytest.mark.parametrize("method", ["log_density", "gradient", "loss"])
def test_unfitted_use(unfitted, method):
    with pytest.raises(NotFittedError, match="call `fit"):
        getattr(unfitted, method)(points())


@pytest.mark.parametrize(
    "X, weights, message",
    [
        (np.zeros(5), None, r"X has shape \(5,\)"),
        (np.zeros((0, 3)), None, "at least one point"),
        (np.array([[0.0, np.nan], [1.0, 1.0]]), None, r"X\[0, 1\] is nan"),
        (np.array([[0.0, np.inf], [1.0, 1.0]]), None, r"X\[0, 1\] is inf"),
        (np.ones((5, 2)), None, "1 distinct point"),
        (np.arange(6.0).reshape(3, 2), [1, 0, 0], "1 distinct point"),
        (np.arange(6.0).reshape(3, 2), [1, -1, 0], r"sample_weight\[1\] is -1"),
        (np.arange(6.0).reshape(3, 2), [1, 1], "one weight a row"),
        (np.arange(6.0).reshape(3, 2), [0, 0, 0], "zero everywhere"),
        ([["a", "b"]], None, "array of real numbers"),
    ],
)
def test_bad_data(unfitted, X, weights, message):
    with pytest.raises(ValueError, match=message):
        unfitted.fit(X, weights)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, None, "wide"])
@pytest.mark.parametrize("name", ["sigma", "regularisation"])
def test_bad_scalars(unfitted, name, value):
    setattr(unfitted, name, value)
    with pytest.raises(ValueError, match=f"{name}="):
        unfitted.fit(points())


def test_bad_choices():
    for surrogate, message in [
        (KernelExpLite(1, 1, penalty="l2"), "penalty='l2'"),
        (KernelExpLite(1, 1, base="student"), "base='student'"),
        (KernelExpLite(1, 1, rank=0), "rank=0"),
        (KernelExpLite(1, 1, tolerance=-1), "tolerance.*-1"),
        (KernelExpLite(1, 1, tolerance=2.0), "tolerance.*2.0"),
        (KernelExpFinite(0, 1, 1), "n_features=0"),
        (KernelExpFinite(10, 1, 1, kernel="matern"), "kernel='matern'"),
    ]:
        with pytest.raises(ValueError, match=message):
            surrogate.fit(points())
    with pytest.raises(ValueError, match="phase has shape"):
        KernelExpFinite.from_basis(np.ones((2, 5)), np.ones(4), 1.0)
    surrogate = KernelExpLite(1.0, 1.0).fit(points())
    with pytest.raises(ValueError, match=r"takes \(3,\) or \(n, 3\)"):
        surrogate.gradient(np.zeros(2))
    with pytest.raises(TypeError, match="registered surrogate"):
        gradient_at((1.0,), np.zeros(3), np.zeros(3))


def test_hard_but_legal_input(unfitted):
    line = np.outer(np.arange(30.0), [1.0, 2.0, -1.0])
    close = np.concatenate([points(20), points(20) + 1e-9])
    far = points(30) + 1e6
    constant_column = points(30) * [1.0, 0.0, 1.0]
    for X in (line, close, far, constant_column, points(2)):
        for regularisation in (1e-300, 1e-12, 1e8):
            unfitted.regularisation = regularisation
            with np.errstate(all="ignore"):
                assert np.isfinite(unfitted.fit(X).gradient(X[0])).all()


# -- each estimator minimises its objective -------------------------------------------------------


def objective(surrogate, X, weights, coefficients, penalty):
    """Score-matching objective of given coefficients by the public methods, plus a penalty."""
    return surrogate.loss(X, weights) + penalty(coefficients)


@pytest.mark.parametrize("penalty", lite_module.PENALTIES)
def test_lite_minimises_the_penalised_objective(penalty, base):
    X, weights = points(25), np.random.default_rng(3).uniform(0.5, 2.0, size=25)
    lam = 2.0
    surrogate = KernelExpLite(SIGMA, lam, penalty=penalty, base=base).fit(X, weights)
    K = lite_module.gaussian_kernel(X, X, SIGMA)
    P = lite_module.penalty_matrix(penalty, K)
    alpha = surrogate.coefficients_
    # C = (sigma / 2)^2 times the Hessian of the summed objective, hence the factor.
    scale = 0.5 * lam * (2.0 / SIGMA) ** 2 / weights.sum()

    def value(a):
        gradients, laplacians = lite_module.derivatives(X, X, a, SIGMA, surrogate.base_)
        loss = score_matching_loss(gradients, laplacians, weights)
        return loss + scale * a @ P @ a

    check_minimum(value, alpha)


def test_finite_minimises_the_penalised_objective(base):
    X, weights = points(50), np.random.default_rng(3).uniform(0.5, 2.0, size=50)
    surrogate = KernelExpFinite(20, SIGMA, 0.01, base=base, rng=1).fit(X, weights)
    parameters, theta = surrogate.parameters_, surrogate.coefficients_

    def value(t):
        surrogate.parameters_ = parameters._replace(coefficients=np.sqrt(2 / 20) * t)
        return surrogate.loss(X, weights) + 0.005 * t @ t

    check_minimum(value, theta)


def check_minimum(value, minimiser):
    """A quadratic's slope vanishes at the minimiser, in every direction of a random basis."""
    rng = np.random.default_rng(0)
    at = value(minimiser)
    for _ in range(10):
        direction = rng.normal(size=len(minimiser))
        direction *= np.linalg.norm(minimiser) / np.linalg.norm(direction)
        up, down = value(minimiser + 0.1 * direction), value(minimiser - 0.1 * direction)
        curvature = up + down - 2 * at
        assert curvature > 0
        assert abs(up - down) < 1e-5 * curvature


# -- lite -----------------------------------------------------------------------------------------


def test_lite_merges_repeated_points():
    X = points(20)
    repeated = np.concatenate([X, X[:5], X[3:4]])
    surrogate = KernelExpLite(SIGMA, 1.0).fit(repeated)
    np.testing.assert_array_equal(surrogate.points_, X)
    np.testing.assert_array_equal(surrogate.weights_, [2, 2, 2, 3, 2] + [1] * 15)


def test_full_rank_is_the_exact_fit(base):
    X = points(40)
    for penalty in lite_module.PENALTIES[:2]:
        exact = KernelExpLite(SIGMA, 0.5, penalty=penalty, base=base).fit(X)
        low_rank = KernelExpLite(SIGMA, 0.5, penalty=penalty, base=base, tolerance=1e-13).fit(X)
        assert scaled_error(low_rank.gradient(X), exact.gradient(X)) < 1e-6


@pytest.mark.parametrize("regularisation", [1e-8, 1e-3, 10.0])
def test_online_is_batch(base, regularisation):
    X, weights = points(300), np.random.default_rng(4).uniform(0.0, 3.0, size=300)
    batch = KernelExpFinite(60, SIGMA, regularisation, base=base, rng=1).fit(X, weights)
    online = KernelExpFinite(60, SIGMA, regularisation, base=base, rng=1).fit(X[:50], weights[:50])
    for i in range(50, 280):
        online.update(X[i], weights[i])
    online.update(X[280:283], weights[280:283]).update(X[283:], weights[283:])
    assert scaled_error(online.gradient(X), batch.gradient(X)) < 1e-6
    assert online.total_weight_ == pytest.approx(weights.sum())


def test_update_keeps_old_parameters():
    X = points(80)
    surrogate = KernelExpFinite(30, SIGMA, 0.1, rng=1).fit(X[:60])
    old = surrogate.parameters_
    copy = [np.copy(field) for field in old]
    surrogate.update(X[60]).update(X[61:])
    assert surrogate.parameters_ is not old
    for field, before in zip(old, copy, strict=True):
        np.testing.assert_array_equal(field, before)


def test_update_checks_its_input():
    surrogate = KernelExpFinite(30, SIGMA, 0.1, rng=1)
    with pytest.raises(NotFittedError):
        surrogate.update(np.zeros(3))
    surrogate.fit(points())
    with pytest.raises(ValueError, match=r"X_new\[0, 0\] is nan"):
        surrogate.update(np.full(3, np.nan))
    with pytest.raises(ValueError, match="X_new has 2 columns"):
        surrogate.update(np.zeros(2))


def test_seeded_basis():
    fits = [KernelExpFinite(10, 1.0, 1.0, rng=seed).fit(points()).omega_ for seed in (1, 1, 2)]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.allclose(fits[0], fits[2])


def test_gaussian_base_fits_a_gaussian():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 2)) * [1.0, 3.0] + [5.0, -2.0]
    x = np.array([30.0, 30.0])  # far out, where the kernel part is nil
    surrogate = KernelExpLite(1.0, 1e3, base="gaussian").fit(X[:300])
    truth = -(x - [5.0, -2.0]) / [1.0, 9.0]
    np.testing.assert_allclose(surrogate.gradient(x), truth, rtol=0.25)
