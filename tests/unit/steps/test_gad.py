"""GadRWM and GadMALA: gradients of the speed measure, scales, counts, what is refused."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_kmc as kmc
from pymc_kmc.moves.base import MoveKind
from tests.chains import column, iterate, run
from tests.curved import curved_model, evaluated, proposal_case
from tests.models import noisy_gaussian

GAD_STEPS = [kmc.GadRWM, kmc.GadMALA]
RHO = 0.6


def log_ratio(target, factor, x, noise):
    """gadMALA's log ratio as a function of L, from the two proposal densities; and the end."""
    start = evaluated(target, x)
    y = x + 0.5 * factor @ factor.T @ start.gradient + factor @ noise
    end = evaluated(target, y)
    inverse = np.linalg.inv(factor)
    back = inverse @ (x - y - 0.5 * factor @ factor.T @ end.gradient)
    ratio = end.log_density - start.log_density - 0.5 * back @ back + 0.5 * noise @ noise
    return ratio, end


@pytest.fixture(scope="module")
def exact_step():
    with curved_model():
        # Evaluated some times: compiling would take longer.
        quick = {"mode": "FAST_COMPILE"}
        return kmc.GadMALA(update="multiplicative", variant="exact", compile_kwargs=quick)


def test_exact_gradient_in_the_factor(exact_step):
    """Against central differences of the log ratio in each element of L."""
    factor, x, noise = proposal_case()
    start = evaluated(exact_step.target, x)
    _, end = log_ratio(exact_step.target, factor, x, noise)
    U, V = exact_step._outer_products(factor, noise, start.gradient, end)
    expected = np.zeros((3, 3))
    for i in range(3):
        for j in range(i + 1):
            change = np.zeros((3, 3))
            change[i, j] = 1e-5
            ratios = [
                log_ratio(exact_step.target, factor + s * change, x, noise)[0] for s in (1, -1)
            ]
            expected[i, j] = (ratios[0] - ratios[1]) / 2e-5
    np.testing.assert_allclose(np.tril(U.T @ V), expected, rtol=1e-5, atol=1e-7)


def test_fast_gradient_holds_the_gradients_fixed(exact_step):
    factor, x, noise = proposal_case()
    start = evaluated(exact_step.target, x)
    _, end = log_ratio(exact_step.target, factor, x, noise)
    exact_step.variant = "fast"
    U, V = exact_step._outer_products(factor, noise, start.gradient, end)
    exact_step.variant = "exact"
    h, b = 0.5 * factor.T @ start.gradient + noise, 0.5 * factor.T @ end.gradient
    expected = 0.5 * np.outer(end.gradient - start.gradient, h - b)
    np.testing.assert_allclose(U.T @ V, expected, rtol=1e-12)


def test_without_numba_there_is_no_compiled_density():
    with pm.Model() as model:
        pm.Normal("x")
        step = kmc.GadMALA(rng=0, compile_kwargs={"mode": "FAST_COMPILE"})
    assert step.target.compiled() == (None, ())
    step.step(model.initial_point())


def test_other_variables_moved_by_other_steps_are_seen():
    """Beside a step of y: x | y ~ N(rho y, 1 - rho^2); 4.5 standard errors, 7e-6 a moment."""
    with pm.Model() as model:
        y = pm.Normal("y")
        x = pm.Normal("x", RHO * y, (1 - RHO**2) ** 0.5)
        step = kmc.GadMALA(vars=[x])
    rng = np.random.default_rng(2)
    step.set_rng(rng)
    point, residuals = model.initial_point(), []
    for i in range(6000):
        point["y"] = np.array(rng.standard_normal())
        point, _ = run(step, point, 3)
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
        with pytest.raises(ValueError, match="update='windowed'"):
            kmc.GadRWM(update="windowed")
        with pytest.raises(ValueError, match="variant='slow'"):
            kmc.GadMALA(variant="slow")


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
        # Data: a graph with another constant would be compiled anew.
        pm.Potential("density", -0.5 * pt.sum((x / pm.Data("sd", sd)) ** 2))
        step = step_class(rng=3)
    point, _ = run(step, {"x": np.full(2, start)}, 3000)
    step.stop_tuning()
    draws = [point["x"] for point, _ in iterate(step, point, 3000)]
    assert np.median(np.abs(draws)) / sd == pytest.approx(0.67, abs=0.2)


def test_gradients_are_counted():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        mala, walk = kmc.GadMALA(rng=4), kmc.GadRWM(rng=4)
    for step, kind in ((mala, MoveKind.LANGEVIN), (walk, MoveKind.RANDOM_WALK)):
        point, _ = run(step, model.initial_point(), 1)
        point, tuning = run(step, point, 400)
        step.stop_tuning()
        _, after = run(step, point, 200)
        n_evaluations = column(after, "kmc_n_evaluations")
        if step is mala:
            np.testing.assert_array_equal(n_evaluations, column(after, "n_steps"))
            assert after[-1]["n_steps"] >= 2
        else:
            assert set(n_evaluations) == {1}
            assert set(column(tuning, "kmc_n_evaluations")) == {1, 2}
        assert set(column(tuning + after, "kmc_move")) == {kind}
