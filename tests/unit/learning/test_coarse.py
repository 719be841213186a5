"""A coarse version of a black box: what it saves, and what becomes of a bad one."""

import logging

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning.emulated_density import on_emulators
from pymc_kmc.learning.emulator import NodeEmulator
from pymc_kmc.model.opaque import OpaqueModel
from tests.learned import (
    OBSERVED,
    TIMES,
    decay,
    emulated,
    learned_curve,
    log_likelihood,
    on_grid,
)

QUIET = {"progressbar": False}


def roughly(size, rate):
    """The curve by Euler's method, some 5 % off."""
    steps, step = np.round(TIMES / 0.25).astype(int), 0.25
    return 1.02 * size * np.maximum(1.0 - step * min(rate, 3.0), 0.01) ** steps + 0.02


def model(coarse, fine=decay, on_error="raise"):
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        options = {"coarse": coarse, "on_error": on_error}
        mean = kmc.BlackBox("curve", fine, size, rate, shape=(5,), **options)
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    return model


def number(coarse):
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        term = kmc.BlackBox("loglik", log_likelihood, size, rate, coarse=coarse)
        pm.Potential("p", term)
    return model


def is_right(learned):
    X, weights = on_grid()
    mean = weights @ X
    sd = np.sqrt(weights @ (X - mean) ** 2)
    np.testing.assert_array_less(np.abs(learned.positions.mean(axis=0) - mean) / sd, 0.15)
    np.testing.assert_allclose(learned.positions.std(axis=0), sd, rtol=0.1)


@pytest.fixture(scope="module")
def learned():
    return kmc.learn(model(roughly), **QUIET)


def test_half_the_evaluations_or_fewer(learned):
    assert learned.has_converged
    assert 2 * learned.n_evaluations <= learned_curve().n_evaluations
    assert learned.n_coarse_evaluations > 30
    assert f"and {learned.n_coarse_evaluations} of the coarse version." in repr(learned)
    assert learned.emulators[0].base is not None
    is_right(learned)


def test_both_are_counted():
    n_fine, n_coarse = [], []

    def fine(size, rate):
        n_fine.append(1)
        return decay(size, rate)

    def coarse(size, rate):
        n_coarse.append(1)
        return roughly(size, rate)

    of_both = model(coarse, fine)
    learned = kmc.learn(of_both, **QUIET)
    # Each is tried out twice.
    assert (len(n_fine), len(n_coarse)) == (
        learned.n_evaluations + 2,
        learned.n_coarse_evaluations + 2,
    )
    (box,) = kmc.black_boxes(of_both)
    assert (box.n_evaluations, box.coarse.n_evaluations) == (len(n_fine), len(n_coarse))
    assert f"; coarse: {len(n_coarse)}>" in repr(box)


def test_a_number_is_learned_by_its_difference():
    # Two of five seeds give the coarse version up after its first values.
    of_both = number(lambda a, b: log_likelihood(1.05 * a, b) + 3.0)
    learned = kmc.learn(of_both, random_seed=2, **QUIET)
    assert learned.has_converged and learned.emulators[0].base is not None
    is_right(learned)


@pytest.mark.exactness
def test_chains_move_on_the_sum_of_both(learned):
    density = on_emulators(learned, model(roughly)).surrogate
    X = learned.positions[:20]
    with np.errstate(all="ignore"):
        expected = density.composite(X, penalty=0.0)
    np.testing.assert_allclose(expected.mean, learned.log_densities[:20], rtol=1e-6)
    parameters = density.parameters
    assert hasattr(parameters, "address")
    _, function = density._compiled
    found = [function(x) for x in X]
    np.testing.assert_allclose([value for value, _ in found], expected.penalised, atol=1e-4)
    gradients = [gradient for _, gradient in found]
    np.testing.assert_allclose(gradients, expected.gradient, atol=1e-3)
    step, gradient = 1e-5, expected.gradient
    for j in range(2):
        ahead, behind = X.copy(), X.copy()
        ahead[:, j] += step
        behind[:, j] -= step
        slopes = density.log_density(ahead) - density.log_density(behind)
        np.testing.assert_allclose(slopes / (2 * step), gradient[:, j], rtol=1e-4, atol=1e-4)


def test_it_is_stored_with_its_base(learned, tmp_path):
    learned.to_netcdf(tmp_path / "a.nc")
    again = kmc.LearnedPosterior.from_netcdf(tmp_path / "a.nc")
    np.testing.assert_array_equal(
        again.emulators[0].base.process.Z, learned.emulators[0].base.process.Z
    )
    first, second = (emulated(one, model(roughly)) for one in (learned, again))
    X = learned.positions[:5]
    np.testing.assert_array_equal(first.log_density(X), second.log_density(X))


@pytest.mark.exactness
def test_draws_are_of_the_fine_model():
    with model(roughly):
        idata = pm.sample(
            tune=50, draws=500, chains=2, cores=1, random_seed=1, step=kmc.KMC(), **QUIET
        )
    X, weights = on_grid()
    mean = weights @ X
    sd = np.sqrt(weights @ (X - mean) ** 2)
    draws = np.log([np.ravel(idata.posterior[name]) for name in ("size", "rate")])
    np.testing.assert_array_less(np.abs(draws.mean(axis=1) - mean) / sd, 0.2)


def raising(size, rate):
    if size > 2.0:
        raise ValueError("too coarse")
    return roughly(size, rate)


def unrelated(size, rate):
    return np.cos(1e3 * size + np.arange(5.0) * rate)


def elsewhere(size, rate):
    return decay(0.2 * size, rate**2) + np.sin(3.0 * rate)


@pytest.mark.parametrize("bad", [raising, unrelated, elsewhere])
def test_a_bad_one_costs_little_and_is_told(bad, caplog):
    with caplog.at_level(logging.INFO, "pymc.pymc_kmc"):
        learned = kmc.learn(model(bad), **QUIET)
    assert learned.has_converged
    is_right(learned)
    assert learned.n_evaluations <= 1.2 * learned_curve().n_evaluations
    if learned.emulators[0].base is None:
        assert "the coarse version of curve isn't used" in caplog.text
    if bad is raising:
        assert "ValueError: too coarse" in caplog.text


def test_where_one_node_has_none_the_fine_model_is_learned_alone(caplog):
    with model(roughly) as two, caplog.at_level(logging.INFO, "pymc.pymc_kmc"):
        pm.Potential("p", kmc.BlackBox("other", lambda x: -(x**2), two["rate"]))
        with pytest.warns(UserWarning, match="max_evaluations"):
            learned = kmc.learn(max_evaluations=20, **QUIET)
    assert "isn't used: other has none" in caplog.text
    assert learned.n_coarse_evaluations == 0


@pytest.mark.parametrize(
    ("coarse", "error", "message"),
    [
        (lambda size, rate: np.zeros(4), TypeError, "'curve, coarse' must return.*shape \\(5,\\)"),
        (lambda size: np.zeros(5), TypeError, "curve, coarse"),
        (lambda size, rate: np.full(5, np.nan), ValueError, "'curve, coarse' isn't finite"),
        (lambda size, rate: np.random.default_rng().normal(size=5), ValueError, "deterministic"),
        (3.0, TypeError, "coarse"),
    ],
)
def test_a_wrong_one_is_refused(coarse, error, message):
    with pytest.raises(error, match=message):
        model(coarse)


def test_an_estimate_has_none():
    with pm.Model(), pytest.raises(TypeError, match="coarse"):
        kmc.PseudoMarginalPotential("p", lambda x, rng: 0.0, pm.Normal("x"), coarse=lambda x: 0.0)


def test_earlier_evaluations_go_on_the_same_way(learned):
    again = kmc.learn(model(roughly), evaluations=learned, **QUIET)
    assert again.n_evaluations == 0
    is_right(again)


def test_a_fit_without_use_for_its_base_is_the_plain_one():
    rng, opaque = (
        np.random.default_rng(0),
        OpaqueModel((one := model(unrelated)).continuous_value_vars, one, np.random.default_rng(0)),
    )
    coarse = OpaqueModel(one.continuous_value_vars, one, rng, is_coarse=True)
    X = rng.normal(size=(12, 2))
    fine, rough = opaque.evaluate(X), coarse.evaluate(X)
    plain = NodeEmulator(opaque.nodes[0]).fit(fine, X, fine.inputs)
    based = NodeEmulator(opaque.nodes[0])
    based.base = NodeEmulator(coarse.nodes[0]).fit(rough, X, fine.inputs)
    based.fit(fine, X, fine.inputs)
    assert not based.is_corrected and based.state.base is None
    found, expected = (e.predict(X, fine.inputs).outputs for e in (based, plain))
    np.testing.assert_array_equal(found, expected)
