"""TargetDensity: what is recycled, what is evaluated again, starting points."""

from copy import deepcopy

import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import SamplingError

import pymc_kmc as kmc
from tests.models import noisy_gaussian
from tests.targets import target_of


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


@pytest.mark.parametrize("z", [0.0, 2.0])
def test_a_restored_state_notices_what_another_step_has_moved(z):
    """Also back to the value that the restoring target has seen, its model's first."""
    model = noisy_gaussian(1.0, companion=True)
    target, other = target_of(model, ["x"]), target_of(model, ["x"])
    start = model.initial_point()
    target.current(start | {"z": np.array(2.0)})
    other.state = deepcopy(target.state)
    point = start | {"z": np.array(z)}
    expected, actual = target.current(point), other.current(point)
    assert actual.log_density == expected.log_density
    np.testing.assert_equal(actual.noise, expected.noise)
    assert other.n_evaluations == target.n_evaluations == (1 if z == 2.0 else 2)


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


def test_a_state_of_two_precisions_is_recycled_from_pymcs_memory():
    """In worker processes its point is a copy, each variable of its own type."""
    with pm.Model() as model:
        pm.Normal("x")
        pm.Normal("y", dtype="float32", shape=2)
    target = target_of(model, compile_kwargs={"mode": "FAST_COMPILE"})
    place = np.array([0.1, 0.2, 0.3])
    evaluation = target.propose(place, np.random.default_rng(2))
    np.testing.assert_array_equal(evaluation.position, [0.1, *np.float32([0.2, 0.3])])
    np.testing.assert_array_equal(place, [0.1, 0.2, 0.3])
    target.accept(evaluation)
    point = target.point(model.initial_point(), evaluation.position)
    copied = {name: np.array(value) for name, value in point.items()}
    assert target.current(copied) is evaluation


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
