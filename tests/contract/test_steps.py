"""Every step class against every promise of PyMC's loop."""

from io import StringIO
from itertools import cycle

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from pymc.progress_bar.progress import MCMCProgressBarManager
from pymc.step_methods.compound import CompoundStep
from rich.console import Console

import pymc_kmc as kmc
from tests.models import (
    POSTERIOR_MEAN,
    POSTERIOR_SD,
    NoisyEstimator,
    constrained,
    gaussian,
    noisy_gaussian,
)
from tests.steps import GRADIENT_STEPS, NOISY_STEPS, STEPS


@pytest.fixture
def quickly_compiled(with_short_sequences):
    """Chains here are so short that compiling would take longer."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


def of_each(names):
    """Decorate a test of each of these steps."""

    def decorate(test):
        return pytest.mark.usefixtures("quickly_compiled")(
            pytest.mark.parametrize("name", names)(test)
        )

    return decorate


any_step = of_each(STEPS)
noisy_step = of_each(NOISY_STEPS)

# Past every step's first fit and the first noise probe.
N_ITERATIONS = 130
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def sample(step, *, draws=40, tune=100, chains=2, seed=7, **kwargs):
    options = {"cores": 1} | QUIET | kwargs
    return pm.sample(step=step, draws=draws, tune=tune, chains=chains, random_seed=seed, **options)


def toy(name, variance, companion=False):
    """The Gaussian toy, with noise where the step is for it."""
    if name in GRADIENT_STEPS:
        return gaussian(companion)
    return noisy_gaussian(variance, companion=companion)


def draws_of(idata, name="x"):
    return idata.posterior[name].values


# Forks take everything along, whichever the step; spawned processes get what can be pickled.
@pytest.mark.parametrize(
    ("names", "start_methods"),
    [(NOISY_STEPS, ("fork", "spawn")), (GRADIENT_STEPS, ("spawn",))],
    ids=["noisy", "gradients"],
)
def test_same_seed_same_draws_whatever_cores_and_start_method(names, start_methods):
    """All steps in one model, each with a variable of its own: processes take long to start.

    With PyTensor's own backend, unlike the other tests.
    """
    with pm.Model() as model:
        for name in names:
            x = pm.Normal(name)
            if name in NOISY_STEPS:
                kmc.PseudoMarginalPotential(f"loglik of {name}", NoisyEstimator(1.0), x)
        pm.Normal("z", sum(model[name] for name in names), 1.0)
        steps = [STEPS[name](vars=[model[name]]) for name in names]
        steps.append(kmc.AdaptiveMetropolis([model["z"]]))
        one_core = sample(steps, tune=60, cores=1)
        for start_method in start_methods:
            processes = sample(steps, tune=60, cores=2, mp_ctx=start_method)
            for name in (*names, "z"):
                np.testing.assert_array_equal(draws_of(one_core, name), draws_of(processes, name))
    for name in names:
        first, second = draws_of(one_core, name)
        assert not np.array_equal(first, second)


@any_step
def test_nothing_is_left_of_the_last_chain(name):
    with toy(name, 1.0):
        used = STEPS[name]()
        sample(used, seed=1, chains=1)
        again = sample(used, seed=2, chains=1)
        fresh = sample(STEPS[name](), seed=2, chains=1)
    np.testing.assert_array_equal(draws_of(again), draws_of(fresh))


@any_step
def test_in_a_compound_too(name):
    """PyMC doesn't reset `tune` of a compound's sub-steps."""
    with toy(name, 1.0, companion=True) as model:

        def compound():
            return [STEPS[name](vars=[model["x"]]), kmc.AdaptiveMetropolis([model["z"]])]

        used = CompoundStep(compound())
        sample(used, seed=1, chains=1)
        again = sample(used, seed=2, chains=1)
        fresh = sample(CompoundStep(compound()), seed=2, chains=1)
    np.testing.assert_array_equal(draws_of(again), draws_of(fresh))


@any_step
def test_adaptation_ends_with_tuning(name):
    with toy(name, 0.5) as model:
        step = STEPS[name]()
        point = model.initial_point()
        step.set_rng(np.random.default_rng(3))
        for _ in range(N_ITERATIONS):
            point, _ = step.step(point)
        step.stop_tuning()
        learned = cloudpickle.dumps(step.adapted)
        for _ in range(50):
            point, _ = step.step(point)
        assert cloudpickle.dumps(step.adapted) == learned


def warnings_without_tuning(step):
    """Messages that a user gets, a list for each draw."""
    told = []

    def listen(trace, draw):
        told.append([str(s["warning"]) for s in draw.stats if s.get("warning") is not None])

    sample(step, tune=0, draws=3, chains=1, callback=listen)
    return told


@any_step
def test_no_tuning_is_told_once(name):
    """PyMC tells a step and a compound differently that there is none."""
    with toy(name, 0.5, companion=True) as model:
        alone = STEPS[name]()
        compound = [STEPS[name]([model["x"]]), pm.Metropolis([model["z"]])]
        for step in (alone, alone, compound):
            (first,), *rest = warnings_without_tuning(step)
            assert "was not tuned (tune=0)" in first
            assert not any(rest)
        assert not any(warnings_without_tuning(STEPS[name](adaptation="vanishing")))


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("options", [{"covariance": [[0.5]]}, {"tune": False}])
def test_who_needs_no_tuning_is_not_told(options):
    with gaussian():
        assert not any(warnings_without_tuning(kmc.AdaptiveMetropolis(**options)))


@any_step
def test_vanishing_adaptation_goes_on(name):
    with toy(name, 0.5) as model:
        step = STEPS[name](adaptation="vanishing")
        point = model.initial_point()
        step.set_rng(np.random.default_rng(3))
        for _ in range(N_ITERATIONS):
            point, _ = step.step(point)
        step.stop_tuning()
        learned = cloudpickle.dumps(step.adapted)
        for _ in range(50):
            point, _ = step.step(point)
        assert cloudpickle.dumps(step.adapted) != learned


@any_step
def test_statistics_are_those_declared(name):
    with toy(name, 1.0) as model:
        step = STEPS[name]()
        declared = step.stats_dtypes_shapes
        point = model.initial_point()
        for _ in range(100):
            point, (statistics,) = step.step(point)
            assert statistics.keys() == declared.keys()
            for key, (dtype, shape) in declared.items():
                if key == "warning":
                    continue
                assert shape == []
                assert np.asarray(statistics[key]).dtype.kind == np.dtype(dtype).kind, key
                assert np.shape(statistics[key]) == ()
        idata = sample(step, tune=20, draws=20, chains=1)
    for key in ("acceptance_rate", "lp", "kmc_loglik", "kmc_n_evaluations"):
        assert key in idata.sample_stats
    assert "warning" not in idata.sample_stats


@noisy_step
def test_one_estimate_an_iteration(name):
    with pm.Model() as model:
        x = pm.Normal("x")
        estimator = NoisyEstimator(1.0)
        kmc.PseudoMarginalPotential("loglik", estimator, x)
        step = STEPS[name]()
        step.set_rng(np.random.default_rng(5))
        point = model.initial_point()
        point, _ = step.step(point)  # evaluates the start too
        before = estimator.n_calls
        counted = 0
        for _ in range(N_ITERATIONS):
            point, (statistics,) = step.step(point)
            counted += statistics["kmc_n_evaluations"]
    assert estimator.n_calls - before == N_ITERATIONS
    assert counted == N_ITERATIONS


@noisy_step
def test_one_estimate_an_iteration_beside_a_step_of_another_variable(name):
    """The other step looks at the density under the same noise: the estimate is remembered."""
    with pm.Model() as model:
        x = pm.Normal("x")
        estimator = NoisyEstimator(1.0)
        kmc.PseudoMarginalPotential("loglik", estimator, x)
        z = pm.Normal("z", x / 2, 1.0)
        compound = CompoundStep([STEPS[name](vars=[x]), pm.Metropolis([z])])
        point = model.initial_point()
        point, _ = compound.step(point)
        before, n_diverging = estimator.n_calls, 0
        for _ in range(N_ITERATIONS):
            point, (statistics, _) = compound.step(point)
            n_diverging += statistics.get("diverging", False)  # rejected without an estimate
    assert n_diverging < 20
    assert estimator.n_calls - before == N_ITERATIONS - n_diverging


@noisy_step
def test_one_estimate_an_iteration_for_a_chain_that_stays_where_it_is(name):
    """However many proposals were rejected since, the accepted estimate is never made again."""
    with pm.Model() as model:
        x = pm.Normal("x")
        estimator = NoisyEstimator(1.0)

        def lucky_once(x, rng):
            """No proposal is accepted after the 40th estimate, at least not within 200."""
            return estimator(x, rng) + (1e3 if estimator.n_calls == 40 else 0.0)

        kmc.PseudoMarginalPotential("loglik", lucky_once, x)
        pm.Normal("z", x / 2, 1.0)
        step = STEPS[name](vars=[x], rng=1)
        point = model.initial_point()
        point, _ = step.step(point)
        before, places = estimator.n_calls, []
        for i in range(200):
            if i % 30 == 0:
                point["z"] = np.asarray(0.01 * i)
            point, _ = step.step(point)
            places.append(float(point["x"]))
    assert len(set(places[-150:])) == 1
    assert estimator.n_calls - before == 200


@noisy_step
def test_the_accepted_estimate_is_recycled(name):
    with noisy_gaussian(1.0) as model:
        step = STEPS[name]()
        point = model.initial_point()
        previous = None
        n_rejected = 0
        for _ in range(N_ITERATIONS):
            point, (statistics,) = step.step(point)
            if not statistics["kmc_accepted"] and previous is not None:
                n_rejected += 1
                assert statistics["kmc_loglik"] == previous["kmc_loglik"]
                assert statistics["model_logp"] == previous["model_logp"]
            previous = statistics
    assert n_rejected > 20


@any_step
def test_transforms_and_shapes(name):
    with constrained():
        idata = sample(STEPS[name](), chains=1)
    np.testing.assert_allclose(draws_of(idata, "weights").sum(axis=-1), 1.0)
    assert np.all(np.abs(draws_of(idata, "u") - 1.0) < 2.0)
    assert np.ptp(draws_of(idata, "scale")) > 0


@any_step
def test_not_blocked(name):
    with gaussian(companion=True):
        step = STEPS[name](blocked=False)
        assert isinstance(step, CompoundStep)
        idata = sample(step, tune=40, draws=20, chains=1)
    assert np.ptp(draws_of(idata, "x")) > 0 and np.ptp(draws_of(idata, "z")) > 0


# How PyMC's steps look at the model doesn't depend on which of ours is beside them.
OTHERS = dict(zip(STEPS, cycle([pm.Metropolis, pm.Slice, pm.NUTS]), strict=False))


@any_step
def test_beside_pymc_steps_on_other_variables(name):
    with toy(name, 1.0, companion=True) as model:
        step = [STEPS[name](vars=[model["x"]]), OTHERS[name]([model["z"]])]
        idata = sample(step, tune=60, draws=20, cores=2, mp_ctx="fork")
    assert np.ptp(draws_of(idata, "z")) > 0
    assert np.ptp(draws_of(idata)) > 0


@any_step
def test_beside_discrete_variables(name):
    with pm.Model():
        pm.Normal("x")
        pm.Bernoulli("switch", 0.3)
        idata = sample(STEPS[name](), chains=1)
    assert set(np.unique(draws_of(idata, "switch"))) == {0, 1}


@any_step
def test_saved_state_goes_on_with_the_same_draws(name):
    with toy(name, 1.0) as model:
        step = STEPS[name]()
        step.set_rng(np.random.default_rng(11))
        point = model.initial_point()
        for _ in range(150):
            point, _ = step.step(point)
        state = cloudpickle.loads(cloudpickle.dumps(step.sampling_state))
        saved = point
        expected = []
        for _ in range(50):
            point, _ = step.step(point)
            expected.append(float(point["x"]))
        other = STEPS[name]()
        other.sampling_state = state
        point = saved
        actual = []
        for _ in range(50):
            point, _ = other.step(point)
            actual.append(float(point["x"]))
    assert actual == expected


@pytest.mark.parametrize("is_one", [True, False])
def test_two_steps_may_sample_one_variable(is_one):
    """Each sees what the other has moved, and the noise that it has accepted."""
    with noisy_gaussian(0.5, companion=True) as model:
        first = kmc.AdaptiveMetropolis([model["x"]], covariance=[[0.5]])
        second = first if is_one else kmc.AdaptiveMetropolis()
        idata = sample([first, second], draws=3000, tune=400)
    draws = draws_of(idata)
    standard_error = POSTERIOR_SD * np.sqrt(30 / draws.size)  # some 30 iterations a free draw
    assert draws.mean() == pytest.approx(POSTERIOR_MEAN, abs=4 * standard_error)
    assert draws.std() == pytest.approx(POSTERIOR_SD, abs=4 * standard_error)


@any_step
def test_what_is_kept_is_of_where_another_step_has_gone(name):
    """Another step of the same variable, by hand."""
    with gaussian() as model:
        step = STEPS[name](rng=3)
        log_density, gradient = model.compile_logp(), model.compile_dlogp()
    point = model.initial_point()
    for _ in range(20):
        point, _ = step.step(point)
        point = {"x": point["x"] + 0.1}
        kept = step.target.current(point)
        assert kept.position == pytest.approx(point["x"])
        assert kept.log_density == pytest.approx(float(log_density(point)), rel=1e-10)
        if name == "GadMALA":  # gadRWM has those of its proposals alone
            assert kept.gradient == pytest.approx(gradient(point), rel=1e-10)


@noisy_step
def test_travels_by_pickle_with_its_seed(name):
    with noisy_gaussian(1.0, companion=True) as model:
        compound = CompoundStep([STEPS[name](vars=[model["x"]]), pm.Metropolis([model["z"]])])
        copy = cloudpickle.loads(cloudpickle.dumps(compound))
        first, second = copy.methods
        point = model.initial_point()
        first.set_rng(np.random.default_rng(0))
        (before,) = first.target.noise
        for _ in range(50):
            point, (statistics, _) = copy.step(point)
        (noise,) = first.target.noise
        assert noise != before
        # The other step's compiled function reads the seed that ours has set.
        (shared,) = (v for v in second.delta_logp.get_shared() if v.name == "loglik_noise")
        assert shared.get_value() == noise


@any_step
def test_interrupting_returns_the_draws_so_far(name):
    with toy(name, 1.0):

        def interrupt(trace, draw):
            if draw.draw_idx == 90:
                raise KeyboardInterrupt

        idata = sample(STEPS[name](), tune=50, draws=100, chains=1, callback=interrupt)
    assert 30 <= idata.posterior.sizes["draw"] <= 41


@any_step
def test_progress_columns(name):
    with toy(name, 1.0) as model:
        step = STEPS[name]()
        columns, keys = step._progressbar_config(3)
        assert columns
        assert all(len(values) == 3 for values in keys.values())
        (update,) = step._make_progressbar_update_functions()
        _, (statistics,) = step.step(model.initial_point())
        shown = update(statistics)
        assert shown.keys() - {"failing"} == keys.keys()


@any_step
def test_progress_bar_fits_into_80_characters(name):
    """With PyMC's columns: speed and times whole, of four chains that do four things."""
    with toy(name, 1.0) as model:
        step = STEPS[name]()
        _, (statistics,) = step.step(model.initial_point())
    progress = MCMCProgressBarManager(step, chains=4, draws=20_000, tune=2000)._backend._progress
    (update,) = step._make_progressbar_update_functions()
    doing = [{"tune": False, "kmc_recent_acceptance": 1.0}, {"kmc_n_fits": 123}]
    doing += [{"tune": False, "kmc_steps_since_accept": 9999}, {"kmc_n_learning_evaluations": 9}]
    for each in doing:
        progress.add_task(
            "",
            total=22_000,
            draw=21_999,
            sampling_speed=12345.67,
            speed_unit="draws/s",
            **{"failing": False} | update(statistics | each),
        )
    output = StringIO()
    Console(width=80, file=output).print(progress.make_tasks_table(progress.tasks))
    lines = [line for line in output.getvalue().splitlines() if "12345.67" in line]
    assert len(lines) == 4 and not any("…" in line for line in lines)
    assert all("21999" in line and "12345.67 draws/s" in line for line in lines)
    assert "acc 1.0" in lines[0] and "fit 123" in lines[1] and "stuck" in lines[2]


@any_step
def test_a_subset_needs_no_other_variables_moved(name):
    with toy(name, 1.0, companion=True) as model:
        step = STEPS[name](vars=[model["z"]])
        point = model.initial_point() | {"x": np.array(0.3)}
        for _ in range(50):
            point, _ = step.step(point)
        assert point["x"] == 0.3
