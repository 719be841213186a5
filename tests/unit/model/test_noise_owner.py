"""Chains on one noisy model in one process do not disturb each other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import SamplingError

import pymc_kmc as kmc
from tests.models import noisy_gaussian
from tests.targets import column, run, sample


def steps_on(model, n, **options):
    steps = [kmc.AdaptiveMetropolis(model=model, **options) for _ in range(n)]
    for seed, step in enumerate(steps):
        step.set_rng(np.random.default_rng(seed))
    return steps


def alone(seed, n=200):
    model = noisy_gaussian(2.0)
    step = kmc.AdaptiveMetropolis(model=model)
    step.set_rng(np.random.default_rng(seed))
    return column(run(step, model.initial_point(), n)[0], "x")


@pytest.mark.parametrize("begin_together", [True, False])
def test_two_chains_in_turn_have_their_own_draws(begin_together):
    model = noisy_gaussian(2.0)
    steps = steps_on(model, 2)
    points = [model.initial_point() for _ in steps]
    draws = [[], []]
    for i in range(200):
        for j, step in enumerate(steps):
            if i == 0 and not begin_together:
                step.set_rng(np.random.default_rng(j))
            points[j], _ = step.step(points[j])
            draws[j].append(points[j]["x"])
    for seed, of_chain in enumerate(draws):
        np.testing.assert_array_equal(of_chain, alone(seed))


def test_chains_in_threads_have_their_own_draws():
    model = noisy_gaussian(2.0)
    steps = steps_on(model, 2)

    def chain(step):
        return column(run(step, model.initial_point(), 200)[0], "x")

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(chain, steps))
    for seed, draws in enumerate(found):
        np.testing.assert_array_equal(draws, alone(seed))


def test_estimating_noise_in_between_changes_nothing():
    model = noisy_gaussian(2.0)
    (step,) = steps_on(model, 1)
    first, _ = run(step, model.initial_point(), 100)
    kmc.estimate_noise(model, n=10)
    kmc.AdaptiveMetropolis(model=model)
    second, _ = run(step, first[-1], 100)
    np.testing.assert_array_equal(column(first + second, "x"), alone(0))


def test_refused_where_other_steps_read_the_noise():
    model = noisy_gaussian(2.0, companion=True)
    step = kmc.AdaptiveMetropolis([model["x"]], model=model)
    points, _ = run(step, model.initial_point(), 10)
    (other,) = steps_on(model, 1)
    points_of_other, _ = run(other, model.initial_point(), 10)
    with pytest.raises(SamplingError, match="Another sampling of this model has begun"):
        step.step(points[-1])
    run(other, points_of_other[-1], 10)
    step.set_rng(np.random.default_rng(3))  # a new chain
    run(step, model.initial_point(), 10)


def test_a_third_step_beside_on_the_same_variable_is_no_stranger():
    """It moves what the step before has returned, and never what this one has."""
    with noisy_gaussian(0.5, companion=True) as model:
        x, z = model["x"], model["z"]
        steps = [kmc.AdaptiveMetropolis([x]), kmc.AdaptiveMetropolis([z]), pm.Metropolis([z])]
        idata = sample(steps, draws=50, tune=50, chains=2)
    assert idata.posterior.sizes["draw"] == 50
