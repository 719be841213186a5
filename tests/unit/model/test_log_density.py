"""LogDensity: its values are the model's, other variables are followed, wrong blocks refused."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.model.log_density import LogDensity
from tests.models import constrained, gaussian
from tests.targets import target_of


def test_agrees_with_the_models_log_density():
    model = constrained()
    target = target_of(model)
    log_density = model.compile_logp()
    rng = np.random.default_rng(1)
    for _ in range(5):
        position = rng.standard_normal(target.n_dimensions)
        evaluation = target.propose(position, rng)
        point = target.point(model.initial_point(), position)
        assert evaluation.log_density == pytest.approx(float(log_density(point)), rel=1e-12)


def test_likelihood_is_not_estimated_where_the_prior_is_zero():
    calls = []

    def estimator(x, rng):
        calls.append(x)
        return 0.0

    with pm.Model() as model:
        x = pm.Uniform("x", 0, 1, default_transform=None, initval=0.5)
        kmc.PseudoMarginalPotential("loglik", estimator, x)
    target = target_of(model)
    n_calls = len(calls)
    assert target.propose(np.array([2.0]), np.random.default_rng(0)).log_density == -np.inf
    assert len(calls) == n_calls


def test_discrete_variables_are_refused():
    with pm.Model():
        switch = pm.Bernoulli("switch", 0.5)
        with pytest.raises(TypeError, match="'switch' is discrete"):
            kmc.AdaptiveMetropolis(vars=[switch])


def test_no_continuous_variables():
    with pm.Model():
        pm.Bernoulli("switch", 0.5)
        with pytest.raises(ValueError, match="no free continuous"):
            kmc.AdaptiveMetropolis()


def test_other_variables_are_followed():
    model = gaussian(companion=True)
    x, _ = model.value_vars
    density = LogDensity([x], model, model.initial_point())
    log_density = model.compile_logp()
    position = np.array([0.3])
    for z, changed in ((0.0, False), (2.0, True), (2.0, False)):
        point = {"x": position[0], "z": np.array(z)}
        assert density.follow(point) == changed
        value = density.evaluate(position, ()).log_density
        assert value == pytest.approx(float(log_density(point)), rel=1e-12)
    assert density.n_evaluations == 3


def test_position_and_point_are_inverse():
    """A target of constrained and vector variables."""
    model = constrained()
    target = target_of(model)
    position = np.random.default_rng(2).standard_normal(target.n_dimensions)
    point = target.point(model.initial_point(), position)
    assert {name: value.shape for name, value in point.items()} == {
        name: value.shape for name, value in model.initial_point().items()
    }
    np.testing.assert_array_equal(target.position(point), position)


def test_an_impossible_parameter_has_density_zero():
    """As where a scale's logarithm underflows; PyMC's own steps see -inf there, too."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Normal("y", 0.0, scale, observed=1.0)
    target = target_of(model)
    assert target.evaluate(np.array([-800.0]), ()).log_density == -np.inf
