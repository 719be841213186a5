"""PseudoMarginalPotential: what the estimator gets, and what happens when it misbehaves."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.models import FailingEstimator
from tests.targets import column, metropolis_chain, sample, warnings_of


def test_parameters_arrive_on_their_natural_scale_with_their_shapes():
    seen = []

    def estimator(scale, matrix, expression, rng):
        seen.append((scale, matrix, expression))
        return 0.0

    with pm.Model() as model:
        scale = pm.HalfNormal("scale", initval=3.0)
        matrix = pm.Normal("matrix", shape=(2, 3))
        kmc.PseudoMarginalPotential("loglik", estimator, scale, matrix, 2 * scale)
        step = kmc.AdaptiveMetropolis()
        step.step(model.initial_point())
    for scale, matrix, expression in seen:
        assert np.shape(scale) == () and scale > 0
        assert matrix.shape == (2, 3)
        assert expression == pytest.approx(2 * scale)
    assert seen[0][0] == pytest.approx(3.0)


def test_estimator_may_write_into_its_arguments():
    def estimator(x, rng):
        x[:] = np.nan
        return 0.0

    with pm.Model():
        x = pm.Normal("x", shape=2)
        kmc.PseudoMarginalPotential("loglik", estimator, x)
        idata = sample(kmc.AdaptiveMetropolis())
    assert np.isfinite(idata.posterior["x"]).all()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (3.0, "estimator of 'loglik' must be callable"),
        (lambda x: 0.0, "can't be called as estimator"),
        (lambda x, y, rng: 0.0, "can't be called as estimator"),
        (lambda x, rng: np.zeros(1), r"array of shape \(1,\)"),
        (lambda x, rng: None, "None of type NoneType"),
        (lambda x, rng: 1j, "complex"),
        (lambda x, rng: "0", "'0' of type str"),
        (lambda x, rng: True, "of type bool"),
        (lambda x, rng: np.ma.masked, "masked"),
    ],
)
def test_wrong_type_or_shape_is_found_when_the_model_is_built(estimator, message):
    with pm.Model():
        x = pm.Normal("x")
        with pytest.raises(TypeError, match=message):
            kmc.PseudoMarginalPotential("loglik", estimator, x)


@pytest.mark.parametrize(
    "value", [0, np.float32(0), np.int64(0), np.array(0.0), -np.inf, np.float64(-3)]
)
def test_what_is_a_real_scalar(value):
    with pm.Model():
        kmc.PseudoMarginalPotential("loglik", lambda x, rng: value, pm.Normal("x"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_replicates": 0}, "n_replicates of 'loglik' must be .* got 0"),
        ({"n_replicates": 2.0}, "n_replicates of 'loglik' must be .* got 2.0"),
        ({"n_replicates": "many"}, "n_replicates of 'loglik' must be .* got 'many'"),
        ({"target_variance": -1}, "target_variance of 'loglik' must be positive, got -1"),
        ({"target_variance": "1"}, "target_variance of 'loglik' must be positive, got '1'"),
        ({"correlation": 0.9}, "correlation=0.9 of 'loglik' needs several replicates"),
        ({"correlation": 1.0, "n_replicates": 5}, r"must be in \[0, 1\), got 1.0"),
        ({"correlation": "high", "n_replicates": 5}, r"must be in \[0, 1\), got 'high'"),
        ({"n_normals": 0}, "n_normals of 'loglik' must be .* got 0"),
        ({"n_normals": "5"}, "n_normals of 'loglik' must be .* got '5'"),
    ],
)
def test_wrong_arguments_of_the_potential(arguments, message):
    with pm.Model():
        x = pm.Normal("x")
        with pytest.raises(ValueError, match=message):
            kmc.PseudoMarginalPotential("loglik", lambda x, **random: 0.0, x, **arguments)


def test_no_parameters():
    with pm.Model():
        pm.Normal("x")
        with pytest.raises(ValueError, match="got no params"):
            kmc.PseudoMarginalPotential("loglik", lambda rng: 0.0)


def test_an_error_at_the_initial_point_comes_when_the_model_is_built():
    with pm.Model():
        x = pm.Normal("x", initval=1.0)
        with pytest.raises(kmc.EstimatorError, match="solver failed"):
            kmc.PseudoMarginalPotential("loglik", FailingEstimator(), x)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_reject_count_and_warn_once(value, caplog):
    with pm.Model():
        x = pm.Normal("x", initval=0.0)
        kmc.PseudoMarginalPotential("loglik", FailingEstimator(value), x)
        idata = sample(kmc.AdaptiveMetropolis(), draws=500)
    assert (idata.posterior["x"] <= 0.5).all()
    assert idata.sample_stats["kmc_n_invalid"].values[0, -1] > 10
    warnings = [r for r in caplog.records if f"log density was {value}" in r.getMessage()]
    assert len(warnings) == 1


def test_minus_infinity_is_a_plain_rejection(caplog):
    with pm.Model():
        x = pm.Normal("x", initval=0.0)
        kmc.PseudoMarginalPotential("loglik", FailingEstimator(-np.inf), x)
        idata = sample(kmc.AdaptiveMetropolis(), draws=500)
    assert (idata.posterior["x"] <= 0.5).all()
    assert idata.sample_stats["kmc_n_invalid"].values.max() == 0
    assert "log density was" not in caplog.text


@pytest.mark.parametrize(("value", "is_invalid"), [(np.nan, True), (-np.inf, False)])
def test_nan_of_one_replicate_is_invalid_and_minus_infinity_is_averaged(value, is_invalid):
    """Half of the replicates return the value, but for the start's."""

    def estimator(x, rng):
        return value if abs(x) > 0.01 and rng.random() < 0.5 else 0.0

    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", estimator, x, n_replicates=4)
    places, statistics = metropolis_chain(model, n=100, seed=5)
    assert (statistics[-1]["kmc_n_invalid"] > 50) == is_invalid
    kept = np.exp(column(statistics, "kmc_loglik"))
    assert (kept == 1).all() if is_invalid else {0.25, 0.5, 0.75} <= set(kept.round(12))
    messages = [m for m in warnings_of(statistics) if "from an estimator whose estimate is" in m]
    assert len(messages) == is_invalid


def test_a_start_at_minus_infinity_that_noise_may_lift_is_warned_about(caplog):
    def estimator(x, rng):
        return -0.5 * x**2 if x > 1 else -np.inf

    with pm.Model():
        x = pm.Normal("x", initval=0.0)
        kmc.PseudoMarginalPotential("loglik", estimator, x)
        idata = sample(kmc.AdaptiveMetropolis(), draws=500)
    assert "starts where the estimate of the log likelihood is -inf" in caplog.text
    assert idata.posterior["x"].values[0, -1] > 1


def test_other_steps_see_the_same_random_numbers_in_every_estimate():
    """As docs/noisy_likelihoods.md says: they draw from the posterior of that one estimate."""
    with pm.Model() as model:
        x = pm.Flat("x")
        kmc.PseudoMarginalPotential("term", lambda x, rng: x * rng.standard_normal(), x)
    log_density = model.compile_logp()
    at = [float(log_density({"x": np.array(value)})) for value in (1.0, 1.0, 3.0, -2.0)]
    np.testing.assert_allclose(at, at[0] * np.array([1.0, 1.0, 3.0, -2.0]))
