"""KMC on an executor: how many places are evaluated at once, at what cost, and what goes wrong."""

import os
import threading
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.black_box_op import BlackBoxError
from pymc_kmc.likelihoods.executors import LazyExecutor
from pymc_kmc.likelihoods.noisy_log_likelihood import EstimatorError
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.partners import NearPartner, Partner
from pymc_kmc.steps import kmc as kmc_step
from tests.chains import ONE_CHAIN, column, iterate, run

FORK = get_context("fork")  # spawned workers import PyMC, in seconds


@cache
def surrogate():
    X = np.random.default_rng(0).normal(size=(60, 2))
    return kmc.surrogates.LogDensityGP(rng=0).fit(X, -((X - 0.2) ** 2).sum(axis=1))


def square(x):
    return -0.5 * np.sum((x - 0.3) ** 2)


def estimate(x, rng):
    return 0.3 * rng.standard_normal() * np.cos(x[0])


def model_of(function=square, estimator=estimate, options=None, noisy=None):
    """A black box and a noisy likelihood of x; `options` and `noisy` are theirs."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        if function is not None:
            pm.Potential("p", kmc.BlackBox("square", function, x, **(options or {})))
        if estimator is not None:
            kmc.PseudoMarginalPotential("noisy", estimator, x, **(noisy or {}))
    return model


def step_of(model, **options):
    """A step whose sweeps begin with its second iteration."""
    step = kmc.KMC(model=model, surrogate=surrogate(), tune=False, **options)
    step.set_rng(np.random.default_rng(2))
    return step


def chain(model, n=40, **options):
    _, statistics = run(step_of(model, **options), model.initial_point(), n)
    return column(statistics, "model_logp"), statistics


def test_the_same_draws_whatever_the_executor():
    here, _ = chain(model_of(), n_parallel=4)
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2) as processes:
        there, _ = chain(model_of(), n_parallel=4, executor=processes)
        # The executors that the model brings.
        own = model_of(options={"executor": threads}, noisy={"executor": processes})
        brought, _ = chain(own, n_parallel=4)
    np.testing.assert_array_equal(there, here)
    np.testing.assert_array_equal(brought, here)


@pytest.mark.parametrize("noisy", [False, True])
def test_the_same_draws_where_a_worker_dies(noisy, tmp_path):
    """It is the twelfth call's, somewhere in a sweep."""
    parent = os.getpid()

    def deadly(x, rng=None):
        with (tmp_path / "calls").open("a") as calls:
            calls.write(".")
        if os.getpid() != parent and (tmp_path / "calls").stat().st_size == 12:
            os._exit(1)
        return square(x) if rng is None else estimate(x, rng)

    model = model_of(square, deadly) if noisy else model_of(deadly)
    expected, _ = chain(model_of(), n_parallel=4)
    found, _ = chain(model, n_parallel=4, executor=partial(ProcessPoolExecutor, 1, FORK))
    assert (tmp_path / "calls").stat().st_size > 12
    np.testing.assert_array_equal(found, expected)


def test_a_sweep_is_evaluated_at_once():
    n_running, most, lock = 0, 0, threading.Lock()
    meet = threading.Barrier(4)

    def slow(x, rng=None):
        nonlocal n_running, most
        with lock:
            n_running += 1
            most = max(most, n_running)
        if threading.current_thread() is not threading.main_thread():
            meet.wait(timeout=20)  # four, or it fails
        with lock:
            n_running -= 1
        return square(x)

    with ThreadPoolExecutor(4) as pool:
        for noisy in (False, True):
            functions = (None, slow) if noisy else (slow, None)
            step = step_of(model_of(*functions), executor=pool, n_parallel=4)
            most, position = 0, np.zeros(2)
            step.target.propose_all([position + k for k in range(4)], step.rng)
            assert most == 4
        own = model_of(None, slow, noisy={"executor": pool})
        step = step_of(own, n_parallel=4)
        step.target.propose_all([position + k for k in range(4)], step.rng)


def test_workers_begin_while_partners_still_move(monkeypatch):
    begun, calls, go = threading.Event(), [], Partner.go

    def asked(x):
        begun.set()
        calls.append(x)
        return square(x)

    def patient(self, *arguments):
        moved.append(self)
        if len(moved) == 1:
            begun.clear()
        elif len(moved) == 3:
            assert begun.wait(timeout=20)
        return go(self, *arguments)

    monkeypatch.setattr(Partner, "go", patient)
    moved: list = []
    with ThreadPoolExecutor(1) as pool:
        model = model_of(asked, None)
        calls.clear()
        _, statistics = chain(model, n=20, executor=pool, n_parallel=8)
    assert len(moved) >= 3
    # What has begun is not evaluated again, and counted; of the next sweep nobody has asked.
    assert len(calls) == column(statistics, "kmc_n_evaluations").sum() + 8


def test_statistics_say_where_evaluations_were_made():
    _, statistics = chain(model_of(), n=41, n_parallel=8)
    counts, moves = column(statistics, "kmc_n_evaluations"), column(statistics, "kmc_move")
    assert counts[0] == 2 and (counts[1::8] == 8).all()  # the start's, and one alone
    alone = moves[1:] == MoveKind.RANDOM_WALK
    assert counts[1:].sum() <= 40 + alone.sum()
    assert (moves == MoveKind.EXCHANGE).mean() > 0.8
    assert column(statistics, "kmc_accepted").mean() > 0.5


class Workers:
    """An executor that says how many cores its workers have, as Dask's client does."""

    def __init__(self, *cores):
        self.cores = cores

    def ncores(self):
        return dict(enumerate(self.cores))

    def submit(self, function, *arguments):
        raise AssertionError


@pytest.mark.parametrize(
    ("make", "options", "n"),
    [
        (dict, {}, 1),
        (dict, {"executor": lambda: ThreadPoolExecutor(3)}, 3),
        (dict, {"executor": ThreadPoolExecutor(3), "n_parallel": 2}, 2),
        (dict, {"executor": Workers(2, 3)}, 5),
        (lambda: {"options": {"executor": lambda: ThreadPoolExecutor(5)}}, {}, 5),
        (lambda: {"options": {"executor": Executor()}}, {}, 1),  # doesn't say
        (lambda: {"noisy": {"executor": lambda: ThreadPoolExecutor(6), "n_replicates": 2}}, {}, 3),
        (
            lambda: {"noisy": {"n_replicates": 4, "correlation": 0.5}},
            {"executor": lambda: ThreadPoolExecutor(3)},
            1,
        ),
    ],
)
def test_the_number_follows_the_workers(make, options, n):
    assert step_of(model_of(**make()), **options).n_parallel == n


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_parallel": 0}, ValueError, "n_parallel=0"),
        ({"n_parallel": 2.0}, ValueError, "n_parallel=2.0"),
        ({"executor": 4}, TypeError, "executor"),
        ({"executor": Workers()}, ValueError, "executor has no workers: pass n_parallel="),
        ({"executor": Executor()}, ValueError, "doesn't say how many workers.*pass n_parallel="),
    ],
)
def test_bad_arguments_are_named(options, error, message):
    with pytest.raises(error, match=message):
        step_of(model_of(), **options)


def test_nothing_runs_on_the_executor():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    with pytest.raises(ValueError, match="nothing in the model runs on one. Make a kmc.BlackBox"):
        step_of(model, executor=ThreadPoolExecutor(2))


def test_an_executor_that_ends_in_the_middle():
    pool, model = ThreadPoolExecutor(2), model_of()
    step = step_of(model, executor=pool)
    point, _ = run(step, model.initial_point(), 3)
    pool.shutdown()
    # Places of the next sweep may be evaluated already; the estimates there are not.
    message = "got no result of its executor: .*shutdown"
    with pytest.raises((BlackBoxError, EstimatorError), match=message):
        run(step, point, 3)


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def locked(x, rng):
        with lock:
            return square(x)

    with ProcessPoolExecutor(1) as pool:
        step = step_of(model_of(None, locked), executor=pool, n_parallel=2)
        with pytest.raises(EstimatorError, match="'noisy' got no result.*pickle.*open files"):
            run(step, step.target.model.initial_point(), 3)


def test_a_failure_in_a_worker_has_the_parameters():
    def failing(x):
        if x[0] != 0.0:
            raise ArithmeticError("no solution")
        return square(x)

    with ThreadPoolExecutor(2) as pool, pytest.raises(BlackBoxError) as caught:
        chain(model_of(failing, None), executor=pool)
    assert "no solution" in str(caught.value) and "Parameters: x=[" in str(caught.value)
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_extras_are_those_of_the_draw():
    def with_extras(x):
        return square(x), {"twice": 2.0 * x}

    def noisy(x, rng):
        noise = rng.standard_normal()
        return 0.3 * noise, {"noise": noise}

    options = {"extras": {"twice": 2}}, {"extras": {"noise": ()}}
    model = model_of(with_extras, noisy, *options)
    step = step_of(model, n_parallel=4)
    for point, statistics in iterate(step, model.initial_point(), 30):
        np.testing.assert_array_equal(statistics["kmc_extra_twice"], 2.0 * point["x"])
        noise = statistics["kmc_extra_noise"]
        assert statistics["kmc_loglik"] == pytest.approx(0.3 * noise)


def chain_beside_another(depends, n=41, **options):
    """Number of calls of a black box that `depends` on another step's variable, or not."""
    n_calls = 0

    def counted(x, z):
        nonlocal n_calls
        n_calls += 1
        return square(x) - 0.1 * z**2

    with pm.Model() as model:
        x, z = pm.Normal("x", shape=2), pm.Normal("z")
        pm.Potential("p", kmc.BlackBox("counted", counted, x, z if depends else 0.0))
        pm.Normal("y", x.sum() + z, 1.0, observed=0.5)
        options = {"surrogate": surrogate(), "tune": False, "n_parallel": 4} | options
        step = step_of_x = kmc.KMC([x], **options)
        step = pm.CompoundStep([step_of_x, pm.Metropolis([z], tune=False, rng=2)])
    step_of_x.set_rng(np.random.default_rng(1))
    log_density = model.compile_logp()
    point, n_before = model.initial_point(), n_calls
    for _ in range(n):
        point, _ = step.step(point)
        assert step_of_x.target.current(point).log_density == pytest.approx(log_density(point))
    return n_calls - n_before


def test_what_another_step_moves_is_evaluated_anew():
    """But no black box that doesn't depend on it is called again."""
    alone = chain_beside_another(depends=False)
    assert 41 <= alone <= 50
    assert chain_beside_another(depends=True) > 1.5 * alone


@pytest.mark.parametrize("is_shared", [False, True])
def test_near_partners_end_where_another_step_moves_the_same_variable(is_shared, monkeypatch):
    """They and x are exchangeable while exchanges alone move x: variances were .77 for 1."""
    monkeypatch.setattr(kmc_step, "RANDOM_WALKS", (0.5, 0.5))
    with model_of(options={}, estimator=None) as model:
        z = pm.Normal("z")
    moved = [model["x"]] if is_shared else [z]
    options = {"surrogate": surrogate(), "tune": False, "n_parallel": 8, "model": model}
    step = kmc.KMC([model["x"]], **options)
    step.set_rng(np.random.default_rng(1))
    other = kmc.AdaptiveMetropolis(moved, tune=False, model=model, rng=3)
    point, n_near = model.initial_point(), 0
    for _ in range(60):
        point, _ = step.step(point)
        point, (found,) = other.step(point)
        if step.adapted.sweeps is not None:
            waiting = step.adapted.sweeps.waiting
            n_near += sum(isinstance(partner, NearPartner) for partner in waiting)
    assert step.adapted.sweeps.is_alone == (not is_shared)
    assert (n_near < 30) == is_shared


@pytest.mark.parametrize("depends", [False, True])
def test_what_has_begun_is_kept_where_it_is_still_of_use(depends):
    """What is begun for another place of the other step's variable isn't: it doesn't pile up."""
    alone = chain_beside_another(depends)
    with ThreadPoolExecutor(2) as pool:
        executor = LazyExecutor(pool)
        n_calls = chain_beside_another(depends, executor=executor)
        n_begun = sum(map(len, executor._begun.values()))
    assert n_begun <= 4
    assert n_calls <= (2 * alone if depends else alone + 4)


def test_a_store_on_an_executor_makes_no_evaluation_twice(tmp_path):
    """What it keeps before it is asked for must not make the chain give up what else has begun."""
    places = []

    def function(x):
        places.append(x.tobytes())
        time.sleep(0.003)
        return square(x)

    with ThreadPoolExecutor(2) as pool:
        store = kmc.EvaluationStore(tmp_path / "store.db")
        model = model_of(function, None, {"store": store, "executor": pool})
        n_checks = len(places) - len(set(places))  # that the function always returns the same
        chain(model, 60, n_parallel=4)
    assert len(places) - len(set(places)) == n_checks
    assert len(store) == len(set(places))


def test_what_the_last_chain_has_begun_is_given_up():
    with ThreadPoolExecutor(2) as pool:
        step = step_of(model_of(square, None), executor=pool, n_parallel=4)
        point, _ = run(step, step.target.model.initial_point(), 3)
        begun = [future for some in step.executor._begun.values() for future in some]
        step.set_rng(np.random.default_rng(3))
        assert len(begun) == 4 and not step.executor._begun


def test_a_surrogate_that_follows_other_steps_has_no_partners():
    step = step_of(model_of(), executor=Workers(2))
    step.posterior = SimpleNamespace(given={"z": 0.0})
    assert step._checked_number(None) == 1
    with pytest.raises(ValueError, match=r"n_parallel=2 .*\['z'\]"):
        step._checked_number(2)


def test_a_chain_goes_on_in_the_middle_of_a_sweep():
    model = model_of()
    step, other = step_of(model, n_parallel=8), step_of(model, n_parallel=8)
    point, _ = run(step, model.initial_point(), 5)
    other.sampling_state = step.sampling_state
    ends = [column(run(each, point, 20)[1], "model_logp") for each in (step, other)]
    np.testing.assert_array_equal(*ends)


def test_chains_of_other_processes_are_the_same():
    model, found = model_of(), []
    for options in ({"cores": 1}, {"cores": 2, "mp_ctx": "fork"}):
        with model:
            pool = lambda: ThreadPoolExecutor(2)  # noqa: E731
            step = kmc.KMC(surrogate=surrogate(), tune=False, executor=pool)
            quiet = ONE_CHAIN | {"chains": 2} | options
            found.append(pm.sample(step=step, draws=12, tune=0, random_seed=3, **quiet))
    np.testing.assert_array_equal(found[1].posterior["x"], found[0].posterior["x"])


def test_a_step_that_was_pickled_makes_the_same_draws():
    """As in spawned processes; a pool, and what has begun on it, stay behind."""
    model = model_of()
    step = step_of(model, n_parallel=4, executor=lambda: ThreadPoolExecutor(2))
    point, _ = run(step, model.initial_point(), 5)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    ends = []
    for each in (step, copy):
        each.set_rng(np.random.default_rng(4))
        ends.append(column(run(each, point, 20)[1], "model_logp"))
    assert len(set(ends[0])) > 5
    np.testing.assert_array_equal(*ends)
