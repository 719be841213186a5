"""Each noisy part of a graph has frozen noise of its own; chains on one model keep theirs."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import SamplingError

import pymc_kmc as kmc
from tests.models import noisy_gaussian
from tests.targets import column, metropolis_chain, run, sample, target_of, warnings_of


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
    again = target.evaluate(position, values[0].noise)
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
    again = target.evaluate(evaluation.position, evaluation.noise)
    assert again.log_density == evaluation.log_density


def failing_simulator_model(value, initval):
    """A simulator that fails where x exceeds .5."""

    def simulate(rng, x, size):
        return np.full(size, value) if x > 0.5 else rng.normal(x, 1.0, size=size)

    with pm.Model() as model:
        x = pm.Normal("x", initval=initval)
        pm.Simulator("y", simulate, x, epsilon=2.0, observed=[1.0, 0.5])
    return model


def test_a_failed_simulation_of_pymc_is_rejected_and_nan_counts_as_invalid():
    places, statistics = metropolis_chain(failing_simulator_model(np.nan, 0.2))
    assert max(places) <= 0.5 and len(set(places)) > 10
    assert statistics[-1]["kmc_n_invalid"] > 5
    (message,) = [m for m in warnings_of(statistics) if "log density was nan" in m]
    assert "inf from a pm.Simulator whose simulation fails" in message
    places, statistics = metropolis_chain(failing_simulator_model(np.inf, 0.2))
    assert max(places) <= 0.5 and len(set(places)) > 10
    assert not column(statistics, "kmc_n_invalid").any()
    assert np.isnan(statistics[-1]["kmc_failed_share"])


def test_a_start_where_a_simulation_of_pymc_fails():
    with pytest.raises(SamplingError, match="is to return inf, not NaN, where a simulation fails"):
        metropolis_chain(failing_simulator_model(np.nan, 0.6), n=1)
    places, _ = metropolis_chain(failing_simulator_model(np.inf, 0.6))
    assert min(places) < 0.5


def test_likelihoods_are_found_in_the_order_of_their_names():
    """Noise and replicates of a saved state belong to names, not to places in a graph."""
    with pm.Model() as model:
        x = pm.Normal("x")
        for name, n in (("b", 3), ("a", 2), ("c", 1)):
            kmc.PseudoMarginalPotential(name, lambda x, rng: 0.0, x, n_replicates=n)
    target = target_of(model)
    assert [likelihood.name for likelihood in target.likelihoods] == ["a", "b", "c"]
    assert [len(rows) for rows in target.noise] == [2, 3, 1]
    assert target.n_replicates == 6


def test_equal_names_of_submodels_are_in_the_order_of_the_graph():
    """That of a set follows addresses in memory: the same seed gave other draws in each process."""
    numbers = [7, 6, 5, 4, 3, 2, 1]  # the last term comes first
    with pm.Model() as model:
        for n in reversed(numbers):
            with pm.Model(name=f"g{n}"):
                x = pm.Normal("x")
                kmc.PseudoMarginalPotential("a", lambda x, rng: 0.0, x, n_replicates=n)
                pm.Potential("b", kmc.BlackBox("box", lambda x, n=n: n * x, x))
    found = [likelihood.n_start for likelihood in target_of(model).likelihoods]
    assert found == numbers
    assert [box.function(1) for box in kmc.black_boxes(model)] == numbers


def doubled(estimate):
    pm.Potential("again", estimate)


def tempered(estimate):
    pm.Potential("tempered", -0.9 * estimate)


def a_mean(estimate):
    pm.Normal("y", estimate, 1.0)


def an_argument(estimate):
    kmc.PseudoMarginalPotential("other", lambda x, rng: x, estimate)


@pytest.mark.parametrize("use", [doubled, tempered, a_mean, an_argument])
def test_an_estimate_that_the_density_uses_elsewhere_is_refused(use):
    """It was added once, whatever its role: a wrong posterior."""
    with pm.Model() as model:
        estimate = kmc.PseudoMarginalPotential("loglik", lambda x, rng: -x, pm.Normal("x"))
        pm.Deterministic("recorded", 2 * estimate)
        assert kmc.AdaptiveMetropolis()
        use(estimate)
        for make in (kmc.AdaptiveMetropolis, kmc.KMC, lambda: kmc.learn(model, progressbar=False)):
            with pytest.raises(ValueError, match="The estimate 'loglik' is used in"):
                make()


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
