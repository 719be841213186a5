"""GadRWM and GadMALA: gradients of the speed measure, the compiled loop, what is refused."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_kmc as kmc
from pymc_kmc._compat import PYTENSOR_MAJOR
from pymc_kmc.steps.gad import leapfrog
from tests.models import noisy_gaussian

GAD_STEPS = [kmc.GadRWM, kmc.GadMALA]
RHO = 0.6


def curved_model():
    """Neither Gaussian nor symmetric."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=3)
        pm.Potential("curved", -0.3 * pt.exp(x[0]) - 0.5 * (x[1] - x[0] ** 2) ** 2 + x[2] * x[0])
    return model


def evaluated(step, position):
    evaluation = step.target._evaluate(position, ())
    step.target.accept(evaluation)
    return evaluation


def log_ratio(step, factor, x, noise):
    """gadMALA's log ratio as a function of L, from the two proposal densities."""
    start = step.target._evaluate(x, ())
    y = x + 0.5 * factor @ factor.T @ start.gradient + factor @ noise
    end = step.target._evaluate(y, ())
    inverse = np.linalg.inv(factor)
    back = inverse @ (x - y - 0.5 * factor @ factor.T @ end.gradient)
    ratio = end.log_density - start.log_density - 0.5 * back @ back + 0.5 * noise @ noise
    return ratio, end


@pytest.fixture(scope="module")
def exact_step():
    with curved_model():
        return kmc.GadMALA(update="multiplicative", variant="exact")


def case(seed=0):
    rng = np.random.default_rng(seed)
    factor = np.tril(0.2 * rng.standard_normal((3, 3))) + 0.5 * np.eye(3)
    return factor, 0.5 * rng.standard_normal(3), rng.standard_normal(3)


def test_acceptance_ratio_is_that_of_the_proposal_densities(exact_step):
    factor, x, noise = case()
    start = evaluated(exact_step, x)
    expected, end = log_ratio(exact_step, factor, x, noise)
    position, log_density, gradient, ratio = exact_step._leapfrog(
        x, start.gradient, factor, 1.0, 1, noise
    )
    np.testing.assert_allclose(position, end.position, rtol=1e-12)
    np.testing.assert_allclose(gradient, end.gradient, rtol=1e-12)
    assert log_density - start.log_density + ratio == pytest.approx(expected, rel=1e-10)


def test_exact_gradient_in_the_factor(exact_step):
    """Against central differences of the log ratio in each element of L."""
    factor, x, noise = case()
    start = evaluated(exact_step, x)
    _, end = log_ratio(exact_step, factor, x, noise)
    U, V = exact_step._outer_products(factor, noise, start.gradient, end)
    expected = np.zeros((3, 3))
    for i in range(3):
        for j in range(i + 1):
            change = np.zeros((3, 3))
            change[i, j] = 1e-5
            ratios = [log_ratio(exact_step, factor + s * change, x, noise)[0] for s in (1, -1)]
            expected[i, j] = (ratios[0] - ratios[1]) / 2e-5
    np.testing.assert_allclose(np.tril(U.T @ V), expected, rtol=1e-5, atol=1e-7)


def test_fast_gradient_holds_the_gradients_fixed(exact_step):
    factor, x, noise = case()
    start = evaluated(exact_step, x)
    _, end = log_ratio(exact_step, factor, x, noise)
    exact_step.variant = "fast"
    U, V = exact_step._outer_products(factor, noise, start.gradient, end)
    exact_step.variant = "exact"
    h, b = 0.5 * factor.T @ start.gradient + noise, 0.5 * factor.T @ end.gradient
    expected = 0.5 * np.outer(end.gradient - start.gradient, h - b)
    np.testing.assert_allclose(U.T @ V, expected, rtol=1e-12)


def test_a_trajectory_can_be_followed_back(exact_step):
    factor, x, noise = case()
    start = evaluated(exact_step, x)
    density = exact_step.target.density
    end, _, gradient, ratio = leapfrog.py_func(
        density, (), x, start.gradient, factor, 0.7, 4, noise
    )
    # The momentum at the end, from the definition of one more half step each.
    momentum, position, at = noise, x, start.gradient
    for _ in range(4):
        momentum = momentum + 0.35 * factor.T @ at
        position = position + 0.7 * factor @ momentum
        at = density((position,))[1]
        momentum = momentum + 0.35 * factor.T @ at
    np.testing.assert_allclose(end, position, rtol=1e-10)
    back, _, _, ratio_back = leapfrog.py_func(density, (), end, gradient, factor, 0.7, 4, -momentum)
    np.testing.assert_allclose(back, x, atol=1e-10)
    assert ratio_back == pytest.approx(-ratio, abs=1e-10)


def plain():
    """PyTensor's value is a view that isn't known to be contiguous."""
    return pm.Normal("x", shape=3), None


def with_data():
    scale = pm.Data("scale", np.array([1.0, 2.0, 0.5]))
    x = pm.Normal("x", shape=3)
    return x, pm.Normal("z", x.sum() * scale, 1.0, shape=3)


def with_a_scalar():
    """The gradient is such a view."""
    y = pm.Normal("y")
    return pm.Normal("x", RHO * y, 1.0), y


def test_without_numba_there_is_no_compiled_density():
    with pm.Model() as model:
        pm.Normal("x")
        step = kmc.GadMALA(rng=0, compile_kwargs={"mode": "FAST_COMPILE"})
    assert step.target.compiled() == (None, ())
    step.step(model.initial_point())


@pytest.mark.skipif(PYTENSOR_MAJOR < 3, reason="PyTensor's default isn't numba before version 3")
@pytest.mark.parametrize(("build", "n_shared"), [(plain, 0), (with_data, 2), (with_a_scalar, 1)])
def test_compiled_loop_is_the_python_loop(build, n_shared):
    """Also with data and other variables, which are in shared variables."""
    with pm.Model() as model:
        x, _ = build()
        step = kmc.GadMALA(vars=[x], rng=0)
    target = step.target
    assert target.compiled()[0] is not None
    assert len(target.shared_values) == n_shared
    step.step(model.initial_point())
    d = target.n_dimensions
    rng = np.random.default_rng(1)
    for n_steps in (1, 3):
        x, factor, noise = rng.standard_normal(d), 0.3 * np.eye(d), rng.standard_normal(d)
        arguments = (x, target.gradient(x), factor, 0.9, n_steps, noise)
        expected = leapfrog.py_func(target.density, (), *arguments)
        for a, b in zip(step._leapfrog(*arguments), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_other_variables_moved_by_other_steps_are_seen():
    """Beside a step of y: x | y ~ N(rho y, 1 - rho^2); 4.5 standard errors, 7e-6 a moment."""
    with pm.Model() as model:
        y = pm.Normal("y")
        x = pm.Normal("x", RHO * y, (1 - RHO**2) ** 0.5)
        step = kmc.GadMALA(vars=[x])
    rng = np.random.default_rng(2)
    step.set_rng(rng)
    point, n, residuals = model.initial_point(), 6000, []
    for i in range(n):
        point["y"] = np.array(rng.standard_normal())
        for _ in range(3):
            point, _ = step.step(point)
        if i == 500:
            step.stop_tuning()
        residuals.append((point["x"] - RHO * point["y"]) / (1 - RHO**2) ** 0.5)
    residuals = np.array(residuals[1000:])
    assert abs(residuals.mean()) < 4.5 / np.sqrt(len(residuals)) * 1.5
    assert residuals.std() == pytest.approx(1.0, abs=0.06)


class Opaque(Op):
    """x^2 without a gradient."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] ** 2)


@pytest.mark.parametrize("step_class", GAD_STEPS)
def test_a_model_without_gradient_is_refused(step_class):
    with pm.Model():
        x = pm.Normal("x")
        pm.Potential("opaque", -Opaque()(x))
        with pytest.raises(TypeError, match="no gradient in 'x'.*Opaque.*AdaptiveMetropolis"):
            step_class()


@pytest.mark.parametrize("step_class", GAD_STEPS)
def test_a_noisy_likelihood_is_refused(step_class):
    with noisy_gaussian(1.0), pytest.raises(TypeError, match="'loglik' is estimated.*kmc.KMC"):
        step_class()


@pytest.mark.parametrize("step_class", GAD_STEPS)
def test_discrete_variables_are_refused(step_class):
    with pm.Model():
        switch = pm.Bernoulli("switch", 0.5)
        with pytest.raises(TypeError, match="'switch' is discrete"):
            step_class(vars=[switch])


def test_bad_arguments_are_named():
    with pm.Model():
        pm.Normal("x")
        with pytest.raises(ValueError, match="update='daily'"):
            kmc.GadMALA(update="daily")
        with pytest.raises(ValueError, match="update='fisher'"):
            kmc.GadRWM(update="fisher")
        with pytest.raises(ValueError, match="variant='slow'"):
            kmc.GadMALA(variant="slow")
        with pytest.raises(ValueError, match="variant='exact'.*leave it out"):
            kmc.GadMALA(update="fisher", variant="exact")


@pytest.mark.parametrize("step_class", GAD_STEPS)
def test_a_start_without_a_finite_gradient_is_refused(step_class):
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("root", -pt.sqrt(pt.abs(x)))
        step = step_class()
        with pytest.raises(SamplingError, match="gradient.*isn't finite(?s:.*)x: nan"):
            step.step(model.initial_point())


@pytest.mark.parametrize("step_class", GAD_STEPS)
@pytest.mark.parametrize(("start", "sd"), [(0.0, 1e-6), (3e4, 1.0), (0.0, 1e6)])
def test_scales_far_from_one_are_found(step_class, start, sd):
    """Beta does not run away (median of |x| / sd is .67; 3000 draws after 3000)."""
    with pm.Model():
        x = pm.Flat("x", shape=2)
        pm.Potential("density", -0.5 * pt.sum((x / sd) ** 2))
        step = step_class(rng=3)
    point = {"x": np.full(2, start)}
    draws = []
    for i in range(6000):
        if i == 3000:
            step.stop_tuning()
        point, _ = step.step(point)
        draws.append(point["x"])
    assert np.median(np.abs(draws[3000:])) / sd == pytest.approx(0.67, abs=0.2)


def test_gradients_are_counted():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        mala, walk = kmc.GadMALA(rng=4), kmc.GadRWM(rng=4)
    for step in (mala, walk):
        point = model.initial_point()
        point, _ = step.step(point)
        counts = {True: [], False: []}
        for i in range(600):
            if i == 400:
                step.stop_tuning()
            point, (statistics,) = step.step(point)
            counts[i >= 400].append(statistics)
        after = counts[True]
        if step is mala:
            assert all(s["kmc_n_evaluations"] == s["n_steps"] for s in after)
            assert after[-1]["n_steps"] >= 2
        else:
            assert {s["kmc_n_evaluations"] for s in after} == {1}
            assert {s["kmc_n_evaluations"] for s in counts[False]} == {1, 2}
