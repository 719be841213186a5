"""TargetDensity: values, recycling, starting points, refusals."""

import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import SamplingError

import pymc_kmc as kmc
from pymc_kmc.model.target import TargetDensity
from tests.models import constrained, noisy_gaussian


def target_of(model, names=None):
    names = names or [variable.name for variable in model.value_vars]
    variables = [variable for variable in model.value_vars if variable.name in names]
    target = TargetDensity(variables, model, model.initial_point())
    target.start_chain(np.random.default_rng(0))
    return target


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


def test_noisy_value_is_that_of_the_graph_under_the_accepted_seed():
    model = noisy_gaussian(1.0)
    target = target_of(model)
    rng = np.random.default_rng(2)
    evaluation = target.propose(np.array([0.4]), rng)
    target.accept(evaluation)
    value = model.compile_logp()({"x": np.array(0.4)})
    assert evaluation.log_density == pytest.approx(float(value), rel=1e-12)


def test_rejected_proposals_leave_the_noise_as_it_was():
    model = noisy_gaussian(1.0)
    target = target_of(model)
    before = target.noise
    target.propose(np.array([0.4]), np.random.default_rng(2))
    np.testing.assert_equal(target.noise, before)


def test_moved_by_another_step_is_evaluated_again_under_the_same_noise():
    model = noisy_gaussian(1.0, companion=True)
    target = target_of(model, ["x"])
    point = model.initial_point()
    first = target.current(point)
    assert target.current(point) is first
    assert target.n_evaluations == 1
    moved = target.current(point | {"z": np.array(2.0)})
    assert target.n_evaluations == 2
    np.testing.assert_equal(moved.noise, first.noise)
    assert moved.log_likelihood_estimate == first.log_likelihood_estimate
    assert moved.log_density < first.log_density


def test_a_view_of_the_state_in_another_order_is_evaluated_anew():
    """What a step that swaps labels may hand over: the state's own memory, read backwards."""
    with pm.Model() as model:
        pm.Normal("x", [0.0, 5.0], 1.0, shape=2)
    target = target_of(model)
    point = {"x": np.array([0.0, 5.0])}
    first = target.current(point)
    point = target.point(point, first.position)
    assert target.current(point) is first
    swapped = target.current({"x": point["x"][::-1]})
    assert swapped.log_density == pytest.approx(first.log_density - 25.0)


def test_point_memory_written_to_by_pymc_is_noticed():
    """In worker processes PyMC writes each new point into the arrays of the last one."""
    model = noisy_gaussian(1.0, companion=True)
    target = target_of(model, ["x"])
    point = {name: np.array(value) for name, value in model.initial_point().items()}
    first = target.current(point)
    point["z"][...] = 2.0
    assert target.current(point).log_density < first.log_density


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


@pytest.mark.parametrize(("value", "shown"), [(-np.inf, "-inf"), (np.nan, "nan")])
def test_bad_start_names_the_term(value, shown):
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("fine", 0.0)
        pm.Potential("culprit", x * 0 + value)
        step = kmc.AdaptiveMetropolis()
        with pytest.raises(SamplingError, match=f"culprit: {shown}") as caught:
            step.step(model.initial_point())
    assert "fine" not in str(caught.value).split("Terms")[1]
    assert "initvals" in str(caught.value)


@pytest.mark.parametrize("cores", [1, 2])
def test_bad_start_reaches_the_user_of_sample(cores):
    with pm.Model():
        x = pm.Normal("x")
        pm.Potential("culprit", x * 0 - np.inf)
        with pytest.raises(Exception) as caught:
            pm.sample(
                step=kmc.AdaptiveMetropolis(), tune=10, draws=10, chains=2, cores=cores,
                mp_ctx="fork", progressbar=False,
            )  # fmt: skip
    assert "culprit: -inf" in "".join(str(e) for e in (caught.value, caught.value.__cause__))


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


def simulator_model(companion=False):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        if companion:
            pm.Normal("z")
        data = np.full(5, 1.0)
        pm.Simulator(
            "data", simulate, mu, epsilon=1.0, sum_stat=mean, distance="gaussian", observed=data
        )
    return model


def simulate(rng, mu, size):
    return rng.normal(mu, 1.0, size=size)


def mean(values):
    return np.mean(values)


def test_simulator_in_one_block_has_frozen_noise():
    model = simulator_model()
    target = target_of(model)
    rng = np.random.default_rng(3)
    position = np.array([0.3])
    values = [target.propose(position, rng) for _ in range(5)]
    assert len({value.log_density for value in values}) == 5
    target.accept(values[0])
    point = {"mu": np.array(0.3)}
    assert target.current(point) is values[0]
    again = target._evaluate(position, values[0].noise)
    assert again.log_density == values[0].log_density


def test_simulator_in_a_mixed_block_is_refused():
    model = simulator_model(companion=True)
    with model, pytest.raises(ValueError, match=r"pm\.Simulator.*\['z'\]"):
        kmc.AdaptiveMetropolis(vars=[model["mu"]])


def test_a_simulator_beside_a_potential():
    """Both terms are in the density, each under its own frozen noise."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Simulator("y", lambda rng, x, size: rng.normal(x, 1.0, size=size), x, observed=[1.0])
        kmc.PseudoMarginalPotential("loglik", lambda x, rng: 100.0 + rng.standard_normal(), x)
    target = target_of(model)
    evaluation = target.propose(np.array([0.3]), np.random.default_rng(1))
    assert 80 < evaluation.log_density < 110
    target.accept(evaluation)
    again = target._evaluate(evaluation.position, evaluation.noise)
    assert again.log_density == evaluation.log_density
