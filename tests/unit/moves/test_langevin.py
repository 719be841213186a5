"""Langevin moves: their ratio, their way back, and the compiled loop beside the Python one."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc._compat import PYTENSOR_MAJOR
from pymc_kmc.moves.langevin import FactorRandomWalk, Langevin, leapfrog, trajectory
from tests.curved import curved_model, evaluated, proposal_case
from tests.moves import evaluation

RHO = 0.6


@pytest.fixture(scope="module")
def target():
    """A differentiable target: what a step makes of a model."""
    with curved_model():
        return kmc.GadMALA(update="multiplicative").target


def test_acceptance_ratio_is_that_of_the_proposal_densities(target):
    """One step of unit size is gadMALA's proposal, and its ratio the Hastings one."""
    factor, x, noise = proposal_case()
    start = evaluated(target, x)
    drift = 0.5 * factor @ factor.T
    y = x + drift @ start.gradient + factor @ noise
    end = evaluated(target, y)
    back = np.linalg.solve(factor, x - y - drift @ end.gradient)
    position, log_density, gradient, ratio = trajectory(target, start, factor, 1.0, 1, noise)
    np.testing.assert_allclose(position, y, rtol=1e-12)
    np.testing.assert_allclose(gradient, end.gradient, rtol=1e-12)
    assert log_density == pytest.approx(end.log_density, rel=1e-12)
    assert ratio == pytest.approx(0.5 * noise @ noise - 0.5 * back @ back, rel=1e-10)


def test_a_trajectory_can_be_followed_back(target):
    factor, x, noise = proposal_case()
    start, density = evaluated(target, x), target.density
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
        current = evaluation(x, gradient=arguments[1])
        found = trajectory(target, current, *arguments[2:])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


# The moves


def preconditioner(has_window, n_steps=1):
    return SimpleNamespace(
        factor=proposal_case()[0], scale=0.7, step_size=0.9, n_steps=n_steps, has_window=has_window
    )


def test_a_proposal_brings_its_evaluation_and_counts_it(target):
    start, move = evaluated(target, proposal_case()[1]), Langevin(preconditioner(False, n_steps=3))
    before = target.n_evaluations
    proposal = move.propose(start, target, np.random.default_rng(1))
    assert target.n_evaluations == before + 3 == before + proposal.n_steps
    expected = evaluated(target, proposal.position)
    assert proposal.evaluation.log_density == pytest.approx(expected.log_density)
    np.testing.assert_allclose(proposal.evaluation.gradient, expected.gradient)
    assert proposal.step_size == 0.7


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ends_are_rounded_to_each_variables_type(dtype):
    """So that what PyMC records is the state: it isn't evaluated again in worker processes."""
    with pm.Model():
        for name, of_variable in (("x", dtype), ("y", "float32"), ("z", "float32")):
            pm.Normal(name, np.float32(0), np.float32(1), dtype=of_variable)
        target = kmc.GadMALA(compile_kwargs={"mode": "FAST_COMPILE"}).target
    start = target.evaluate(proposal_case()[1], ())
    proposal = Langevin(preconditioner(False)).propose(start, target, np.random.default_rng(1))
    end, again = proposal.evaluation, target.evaluate(proposal.position, ())
    rounded = end.position.astype(np.float32)
    np.testing.assert_array_equal(rounded[1:], end.position[1:])
    assert (rounded[0] == end.position[0]) == (dtype == "float32")
    assert end.position.dtype == np.float64
    assert end.log_density == again.log_density
    np.testing.assert_array_equal(end.gradient, again.gradient)


def step_size_of(proposal, start, factor):
    """Of one leapfrog step e: L^-1 (x' - x) = e noise + e^2 / 2 L' gradient, of both roots."""
    jump = np.linalg.solve(factor, proposal.position - start.position)
    kick = 0.5 * factor.T @ start.gradient
    roots = np.roots([kick[0], proposal.details[0], -jump[0]]).real
    return min(
        roots, key=lambda root: np.abs(root * proposal.details + root**2 * kick - jump).sum()
    )


def test_step_sizes_vary_once_there_is_a_window(target):
    """Several steps of one size could resonate with the target."""
    start = evaluated(target, proposal_case()[1])
    for has_window in (False, True):
        move = Langevin(preconditioner(has_window))
        proposals = [move.propose(start, target, np.random.default_rng(i)) for i in range(20)]
        sizes = [step_size_of(p, start, move.preconditioner.factor) for p in proposals]
        low, high = Langevin.STEP_SIZE_JITTER if has_window else (1.0, 1.0)
        assert 0.9 * low - 1e-8 <= min(sizes) <= max(sizes) <= 0.9 * high + 1e-8
        assert np.ptp(sizes) > 0.5 * 0.9 * (high - low) or not has_window


def test_the_factors_random_walk_is_its_factor_times_noise():
    move = FactorRandomWalk(preconditioner(False))
    x = proposal_case()[1]
    proposal = move.propose(evaluation(x), None, np.random.default_rng(2))
    step = move.preconditioner.factor @ proposal.details
    np.testing.assert_allclose(proposal.position - x, step)
    assert proposal.log_ratio == 0.0
