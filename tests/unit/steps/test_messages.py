"""What a single chain shows of itself."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.steps.messages import MOST_STATES, OwnChecks, Thinned
from tests.steps import STEPS
from tests.targets import sample

pytestmark = pytest.mark.usefixtures("with_short_sequences")


def checks_of(states, n_tuning=0):
    """The checks after these states, and numbers of draws at which one was due."""
    checks, due = OwnChecks(), []
    for i, state in enumerate(states):
        checks.observe(state, i < n_tuning)
        if i >= n_tuning and checks.is_due():
            due.append(checks.n_draws)
    return checks, due


def test_memory_stays_and_states_are_spread_evenly():
    thinned = Thinned()
    for i in range(100_000):
        thinned.append(np.array([i]))
    states = thinned.states[:, 0]
    assert MOST_STATES / 2 <= len(states) < MOST_STATES
    assert len(set(np.diff(states))) == 1 and states[-1] > 99_000


def test_when_a_check_is_due():
    states = np.zeros((2000, 1))
    # Parts are compared from 256 draws on, tails are looked at from 1000 on.
    assert checks_of(states)[1] == [64, 96, 144, 216, 256, 384, 576, 864, 1000, 1500]
    checks = OwnChecks()
    checks.n_expected = 600
    due = [i for i in range(1, 601) if checks.observe(np.zeros(1), False) or checks.is_due()]
    assert due[-3:] == [384, 576, 600]


def test_parts_of_few_draws_are_not_compared():
    states = np.cumsum(np.ones((255, 1)), axis=0)
    assert np.isnan(checks_of(states)[0].r_hat()).all()


def test_good_chains_are_left_alone():
    """40 effective draws: 100 chains of 2 coordinates, each of which fails in 1 of 10,000 cases."""
    rng = np.random.default_rng(0)
    innovations = rng.standard_normal((100, 1600, 2))
    correlation = 1.0 - 2.0 / 41.0  # 1600 draws are 40
    n_found = 0
    for innovation in innovations:
        states = np.empty_like(innovation)
        state = rng.standard_normal(2)
        for i, noise in enumerate(innovation):
            state = correlation * state + np.sqrt(1 - correlation**2) * noise
            states[i] = state
        checks, _ = checks_of(states)
        n_found += np.nanmax(checks.r_hat()) > 1.45
        assert len(checks.drifting(np.array([True, True]))) == 0
    assert n_found <= 1


def test_a_chain_on_its_way_is_seen():
    rng = np.random.default_rng(1)
    states = np.cumsum(0.1 + rng.standard_normal((1000, 2)), axis=0)
    states[:, 1] = rng.standard_normal(1000)
    checks, _ = checks_of(states)
    first, second = checks.r_hat()
    assert first > 1.45 > second
    assert np.isnan(checks_of(np.ones((1000, 1)))[0].r_hat()[0])


def test_a_chain_that_hardly_moves_is_seen():
    """Brownian motion: 96 of 100 chains differ; fewer than 85 with a probability of 1e-5."""
    rng = np.random.default_rng(3)
    n_found = 0
    for _ in range(100):
        checks, _ = checks_of(np.cumsum(rng.standard_normal((1000, 1)), axis=0))
        n_found += checks.r_hat()[0] > 1.45
    assert n_found >= 85


def test_heavy_tails_are_no_drift():
    """Standard deviations of Cauchy draws grow with their number; quartiles don't."""
    for seed in range(20):
        states = np.random.default_rng(seed).standard_cauchy((3000, 1))
        assert len(checks_of(states, n_tuning=1000)[0].drifting(np.array([True]))) == 0


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KAMH", "KMC"])
def test_scales_of_sixteen_orders_of_magnitude(name):
    """2000 draws, 60 of them effective or more: 4.5 standard errors of a log sd are .41."""
    scales = {"small": 1e-8, "one": 1.0, "large": 1e8}
    with pm.Model():
        for variable, sd in scales.items():
            pm.Normal(variable, 0.0, sd)
        posterior = sample(STEPS[name](), draws=2000, tune=1500).posterior
    for variable, sd in scales.items():
        assert abs(np.log(posterior[variable].std() / sd)) < 0.41


@pytest.mark.parametrize("name", ["KMCLite", "KMCFinite"])
def test_trajectories_at_scales_of_sixteen_orders_of_magnitude(name):
    """400 draws, 20 of them effective or more: 4.5 standard errors of a log sd are .71."""
    scales = np.array([1e-8, 1.0, 1e8])
    with pm.Model():
        pm.Normal("x", 0.0, scales)
        posterior = sample(STEPS[name](), draws=400, tune=400).posterior
    found = posterior["x"].std(dim=("chain", "draw")).values
    assert np.all(np.abs(np.log(found / scales)) < 0.71)


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KAMH"])
def test_noisy_scales_of_sixteen_orders_of_magnitude(name):
    """4000 draws, 100 of them effective or more: 4.5 standard errors of a log sd are .32."""
    sd = np.array([1e-8, 1.0, 1e8])

    def estimator(small, one, large, rng):
        z = np.array([small, one, large]) / sd
        return -0.5 * z @ z + rng.standard_normal() - 0.5

    with pm.Model():
        variables = [pm.Flat(name, initval=0.0) for name in ("small", "one", "large")]
        kmc.PseudoMarginalPotential("loglik", estimator, *variables)
        posterior = sample(STEPS[name](), draws=4000, tune=1500).posterior
    found = [float(posterior[variable.name].std()) for variable in variables]
    assert np.all(np.abs(np.log(found / sd)) < 0.32)


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KAMH"])
def test_a_ridge_of_seven_by_a_ten_thousandth(name):
    """2000 draws, 60 of them effective or more: 4.5 standard errors of a log sd are .41."""
    with pm.Model():
        pm.Normal("y", pm.Normal("x", 0.0, 7.0), 1e-4)
        posterior = sample(STEPS[name](), draws=2000, tune=1000).posterior
    width = float((posterior["y"] - posterior["x"]).std())
    assert abs(np.log(float(posterior["x"].std()) / 7.0)) < 0.41
    assert abs(np.log(width / 1e-4)) < 0.41


def told(caplog):
    """What a run has said."""
    return " ".join(record.getMessage() for record in caplog.records)


def far_peak():
    pm.Normal("x", 0.0, 1e-6, shape=2, initval=np.full(2, 5.0))
    return kmc.KAMH()


def narrow_ridge():
    pm.Normal("y", pm.Normal("x", 0.0, 7.0), 1e-4)
    return kmc.GadMALA()


def improper():
    pm.Normal("fine")
    pm.Potential("nothing", 0.0 * pm.Flat("x", initval=0.0))
    return kmc.AdaptiveMetropolis()


@pytest.mark.parametrize(
    ("problem", "expected", "cores"),
    [
        (far_peak, "No proposal was accepted for 500 iterations", 1),
        (narrow_ridge, r"differ from each other along x, y", 1),
        (improper, r"range grows and grows along x: either the posterior isn't proper", 2),
    ],
)
def test_what_did_not_converge_says_so(problem, expected, cores, caplog):
    """Once a chain, whichever process it runs in."""
    with pm.Model():
        sample(problem(), draws=1000, tune=1000, chains=cores, cores=cores)
    assert told(caplog).count(expected) == cores


GROWS = "range grows and grows along x_log__"


@pytest.mark.parametrize("name", STEPS)
def test_a_short_chain_that_escapes_says_so(name, caplog):
    """Nothing holds x back above but the largest number that there is."""
    with pm.Model():
        x = pm.HalfFlat("x", initval=1.0)
        pm.Potential("p", -0.5 * pm.math.exp(-x))
        sample(STEPS[name](), draws=300, tune=300)
    assert GROWS in told(caplog)


KERNEL_HMC = ("KMCLite", "KMCFinite")


def test_trajectories_are_local_moves():
    """What such a step says of its draws is the next test's, of steps that take less long."""
    with pm.Model():
        pm.Normal("x")
        assert all(STEPS[name]()._is_local for name in KERNEL_HMC)
        assert not STEPS["KMC"]()._is_local


@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("KMC", *KERNEL_HMC)])
def test_heavy_tails_are_told_by_every_step_of_local_moves(name, caplog):
    """Of 40 chains of GadMALA and of GadRWM 34 are told, of other steps more: two of six but for
    a probability of .04 %.
    """
    with pm.Model():
        pm.Cauchy("x", 0.0, 1.0)
        sample(STEPS[name](), draws=1000, tune=1000, chains=6, random_seed=0)
    assert told(caplog).count("heavy tails along x") >= 2


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KAMH", "GadMALA", "GadRWM"])
def test_usual_tails_are_not_worth_a_word(name, caplog):
    """A Laplace's were told in 1 of 30 chains of GadMALA, 3 of 60 of AdaptiveMetropolis, none of
    60 of KAMH. At one in twenty two of three chains are with a probability of .7 %.
    """
    n_told = 0
    for seed in (1, 2, 3):
        caplog.clear()
        with pm.Model():
            pm.Laplace("x", 0.0, 1.0)
            pm.Normal("y")
            sample(STEPS[name](), draws=2000, tune=1000, random_seed=seed)
        n_told += "heavy tails" in told(caplog)
    assert n_told < 2


def test_a_chain_that_never_moves_says_so_soon(caplog):
    with pm.Model():
        pm.Normal("x", 0.0, [1e-8, 1.0, 1e8])
        draws = sample(kmc.GadRWM(), draws=300, tune=100, random_seed=1).posterior["x"]
    assert float(draws.std()) == 0.0 and "No proposal was accepted for 200 iter" in told(caplog)


def test_a_walk_that_is_far_too_short_says_so(caplog):
    """GadRWM begins with a scale of its own; of 5 seeds all are told."""
    with pm.Model():
        pm.Normal("x", 0.0, [1e-8, 1.0, 1e8])
        draws = sample(kmc.GadRWM(), draws=1000, tune=1000, random_seed=5).posterior["x"]
    assert float(draws[..., 2].std()) < 1e7 and "differ from each other along x" in told(caplog)


def test_what_is_seen_around_the_start_is_learned():
    """No evaluation is thrown away: the surrogate's values begin with those of the first shape."""
    with pm.Model() as model:
        pm.Normal("x", 0.0, 1e-3, shape=2)
        step = kmc.KMC()
    step.set_rng(np.random.default_rng(0))
    _, (statistics,) = step.step(model.initial_point())
    places, values = step.history_
    n = statistics["kmc_n_evaluations"]
    assert n > 6 and len(values) == n - 1  # less that of the start
    np.testing.assert_allclose(values, model_values(model, places))


def model_values(model, places):
    log_density = model.compile_logp()
    return [float(log_density({"x": place})) for place in places]


def test_an_estimator_may_fail_where_only_the_search_looks():
    """Four standard deviations away, where the chain doesn't come in ten iterations."""

    def estimator(x, rng):
        if abs(x) > 2.0:
            raise ZeroDivisionError("the solver failed")
        return -0.5 * x**2 + rng.standard_normal()

    with pm.Model():
        kmc.PseudoMarginalPotential("loglik", estimator, pm.Flat("x", initval=0.0))
        step = kmc.AdaptiveMetropolis(scale=1e-3)
        assert sample(step, draws=5, tune=5).posterior["x"].shape == (1, 10 - 5)
