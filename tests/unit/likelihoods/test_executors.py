"""Replicates on executors: the draws don't depend on them, errors come back, nothing hangs."""

import multiprocessing
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.executors import ExecutorError, Failure, LazyExecutor, TimeLimitError
from pymc_kmc.likelihoods.noise_schemes import Normals, Seeds
from pymc_kmc.likelihoods.replicates import MOST_TASKS, Replicates
from tests.models import NoisyEstimator
from tests.targets import column, metropolis_chain, sample

ROOT = Path(__file__).parents[3]
# The pools of these tests are of threads, or forked: spawned workers import PyMC, in seconds.
two_threads = partial(ThreadPoolExecutor, 2)
fork = multiprocessing.get_context("fork")
one_process, two_processes = (partial(ProcessPoolExecutor, n, mp_context=fork) for n in (1, 2))


def estimates(task, executor=None, *, n=6, timeout=None, noise=None):
    """Results of `n` replicates at x = .5."""
    noise = noise or Seeds()
    replicates = Replicates(task, noise, executor, timeout)
    return replicates(noise.draw(n, np.random.default_rng(3)), [np.asarray(0.5)])


@pytest.fixture(scope="module")
def processes():
    with two_processes() as executor:
        yield executor


@pytest.fixture
def dask():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        yield client.get_executor()


def model_on(executor, **options):
    shift = 0.25  # a closure

    def estimator(x, rng):
        return NoisyEstimator(2.0)(x, rng) + shift

    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential(
            "loglik", estimator, x, n_replicates=4, executor=executor, **options
        )
    return model


def draws_of(model):
    x, statistics = metropolis_chain(model, n=60, seed=1)
    return x.tolist(), column(statistics, "kmc_loglik").tolist()


@pytest.fixture(scope="module")
def serial_draws():
    return draws_of(model_on(None))


@pytest.mark.parametrize("kind", ["threads", "processes", "dask", "function"])
def test_the_draws_do_not_depend_on_the_executor(kind, request, serial_draws):
    if kind in ("processes", "dask"):
        assert draws_of(model_on(request.getfixturevalue(kind))) == serial_draws
    elif kind == "threads":
        with two_threads() as executor:
            assert draws_of(model_on(executor)) == serial_draws
    else:
        assert draws_of(model_on(two_threads)) == serial_draws


def test_nor_do_they_with_normal_numbers_in_one_task_or_in_many(processes):
    def task(x, u):
        return x + u.sum()

    noise = Normals(3)
    for n in (1, MOST_TASKS + 1, 3 * MOST_TASKS):
        here = estimates(task, n=n, noise=noise)
        assert len(here) == n
        assert estimates(task, processes, n=n, noise=noise) == here


@pytest.mark.one_line
def test_pm_sample_makes_one_executor_in_each_process_that_needs_it():
    with model_on(partial(ThreadPoolExecutor, 2)):
        step = kmc.AdaptiveMetropolis()
        run = partial(sample, step, draws=20, tune=20, chains=2)
        one_core = run(cores=1).posterior["x"].values
        draws = run(cores=2, mp_ctx="fork").posterior["x"].values
    np.testing.assert_array_equal(draws, one_core)


def test_the_function_is_called_once_a_process(tmp_path):
    def make():
        (tmp_path / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        return two_threads()

    executor = LazyExecutor(make)
    assert not list(tmp_path.iterdir())
    for _ in range(3):
        assert executor.submit(os.getpid).result() == os.getpid()
    assert len(list(tmp_path.iterdir())) == 1
    process = multiprocessing.get_context("fork").Process(
        target=lambda: [executor.submit(os.getpid).result() for _ in range(2)]
    )
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 2
    copied = cloudpickle.loads(cloudpickle.dumps(executor))
    assert copied.submit(os.getpid).result() == os.getpid()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_class_of_executors_is_a_function():
    assert estimates(lambda x, rng: x, ThreadPoolExecutor) == [0.5] * 6


def in_a_daemon(function):
    """The exception of `function` in a process like those of pm.sample, as text."""
    receive, send = multiprocessing.Pipe(duplex=False)

    def target():
        try:
            function()
            send.send("nothing")
        except Exception as error:
            send.send(f"{type(error).__name__}: {error}")

    process = multiprocessing.get_context("fork").Process(target=target, daemon=True)
    process.start()
    assert receive.poll(20)
    process.join(20)
    assert process.exitcode == 0
    return receive.recv()


def test_an_executor_of_another_process(processes):
    replicates = Replicates(lambda x, rng: 0.0, Seeds(), processes)
    replicates(np.arange(2), [])  # it runs here
    message = in_a_daemon(partial(replicates, np.arange(2), []))
    assert message.startswith("ExecutorError") and "cores=1" in message
    message = in_a_daemon(partial(pickle.loads(cloudpickle.dumps(replicates)), np.arange(2), []))
    assert message.startswith("ExecutorError") and "executor=lambda" in message


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_processes_of_pm_sample_cannot_start_others(start_method):
    make = partial(ProcessPoolExecutor, 1, mp_context=multiprocessing.get_context(start_method))
    message = in_a_daemon(partial(estimates, lambda x, rng: 0.0, make))
    assert message.startswith("ExecutorError") and "Use pm.sample(cores=1)" in message


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"executor": 3}, TypeError, "executor must have the interface .* got 3 of type int"),
        ({"executor": two_threads, "timeout": 0}, ValueError, "timeout must be .* got 0"),
        ({"executor": two_threads, "timeout": "1"}, ValueError, "timeout must be .* got '1'"),
        ({"executor": two_threads, "timeout": np.nan}, ValueError, "timeout must be .* got nan"),
        ({"timeout": 2.0}, ValueError, "timeout=2.0 needs executor="),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Replicates(lambda x, rng: 0.0, Seeds(), **arguments)


def test_building_a_model_needs_no_executor():
    """The look at the initial point is one estimate, here."""
    made = []
    with pm.Model():
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential(
            "loglik", lambda x, rng: 0.0, x, n_replicates=8, executor=lambda: made.append(1)
        )
    assert not made


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


def failing(x, rng):
    raise ZeroDivisionError("solver failed")


def failing_unpicklably(x, rng):
    raise Unpicklable("this", "that")


def test_what_the_task_raises_comes_back_with_its_frames(processes):
    for executor in (None, processes):
        failure = estimates(failing, executor)
        assert isinstance(failure, Failure) and failure.row == 0
        assert isinstance(failure.error, ZeroDivisionError)
    failure = estimates(failing_unpicklably, processes)
    assert str(failure.error) == "Unpicklable: this and that"


def test_the_first_failure_is_returned_whatever_the_executor(processes):
    def task(x, rng):
        if rng.uniform() < 0.02:
            raise ValueError
        return 0.0

    n = 3 * MOST_TASKS
    expected = estimates(task, n=n).row
    assert expected > 5
    assert estimates(task, processes, n=n).row == expected


def potential_failing_on(executor, estimator, **options):
    """The Op of a potential whose estimator is called where x > .5; the model starts at 0."""

    def guarded(x, rng):
        return estimator(x, rng) if x > 0.5 else 0.0

    with pm.Model():
        x = pm.Normal("x")
        potential = kmc.PseudoMarginalPotential("loglik", guarded, x, executor=executor, **options)
    return potential.owner.op


@pytest.mark.parametrize("task", [failing, failing_unpicklably])
def test_the_users_exception_says_how_to_reproduce_it(task, processes):
    op = potential_failing_on(processes, task, n_replicates=2)
    with pytest.raises(kmc.EstimatorError) as caught:
        op.evaluate(np.array([5, 6]), 1.5)
    message = str(caught.value)
    assert "x=1.5" in message and "PCG64(5)" in message
    assert f"in {task.__name__}" in message  # the user's frames
    assert caught.value.noise == 5
    expected = ZeroDivisionError if task is failing else RuntimeError
    assert isinstance(caught.value.__cause__, expected)


def test_a_worker_that_dies_and_the_pool_after_it():
    op = potential_failing_on(two_processes, lambda x, rng: os._exit(1), n_replicates=2)
    with pytest.raises(kmc.EstimatorError, match="BrokenProcessPool") as caught:
        op.evaluate(np.array([5, 6]), 1.5)
    message = str(caught.value)
    assert "x=1.5" in message and "PCG64(5)" in message and "too little memory" in message
    assert isinstance(caught.value.__cause__, BrokenProcessPool)
    np.testing.assert_array_equal(caught.value.noise, [5, 6])
    assert op.evaluate(np.array([5, 6]), 0.0) == 0.0  # in a new pool


def test_what_a_dead_worker_lost_is_evaluated_again(tmp_path):
    """Once, with the same noise; what was there is kept, also what was not yet asked for."""

    def task(x, rng):
        value = rng.standard_normal()
        with (tmp_path / str(value)).open("a") as calls:
            calls.write(".")
        if value == expected[9] and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return value

    expected = estimates(lambda x, rng: rng.standard_normal(), n=20)
    assert estimates(task, one_process, n=20) == expected
    counts = [len((tmp_path / str(value)).read_text()) for value in expected]
    assert counts == 9 * [1] + [2] + 10 * [1]


def test_a_dead_pool_that_was_given_stays_dead():
    with two_processes() as executor:
        for _ in range(2):
            with pytest.raises(ExecutorError, match="BrokenProcessPool.*executor=lambda"):
                estimates(lambda x, rng: os._exit(1), executor)


def test_a_task_that_hangs_is_given_up_and_its_process_ended():
    before = set(multiprocessing.active_children())
    begin = time.monotonic()
    with pytest.raises(ExecutorError, match="longer than timeout=0.3 seconds"):
        estimates(lambda x, rng: time.sleep(60), two_processes, timeout=0.3)
    # The executor's own thread waits for them too; one of the two learns of an end a little later.
    while set(multiprocessing.active_children()) - before:
        assert time.monotonic() - begin < 20
        time.sleep(0.01)


def test_a_hanging_pool_that_was_given_is_not_touched():
    stop = threading.Event()
    with two_threads() as executor:
        with pytest.raises(ExecutorError, match="give the function a time limit"):
            estimates(lambda x, rng: stop.wait(60), executor, timeout=0.1)
        stop.set()
        assert executor.submit(len, "abc").result(20) == 3


class Submitting:
    """An executor whose futures end as they are told to."""

    def __init__(self, end):
        self.end, self.futures = end, []

    def submit(self, *task):
        future = Future()
        self.end(future, len(self.futures))
        self.futures.append(future)
        return future


def test_cancelled_and_failed_futures():
    with pytest.raises(ExecutorError, match="CancelledError"):
        estimates(failing, Submitting(lambda future, i: future.cancel()))
    # Not this package's timeout.
    failed = Submitting(lambda future, i: future.set_exception(TimeoutError("scheduler lost")))
    for timeout in (None, 60.0):
        with pytest.raises(ExecutorError, match="TimeoutError: scheduler lost"):
            estimates(failing, failed, timeout=timeout)
    with pytest.raises(ExecutorError, match=r"executor\(\) returned 3 of type int"):
        estimates(failing, lambda: 3)


def test_an_estimator_that_cannot_travel(processes):
    lock = threading.Lock()
    with pytest.raises(ExecutorError, match="TypeError: cannot pickle"):
        estimates(lambda x, rng: float(lock.locked()), processes)
    with two_threads() as executor:
        assert estimates(lambda x, rng: float(lock.locked()), executor) == [0.0] * 6


class NotThere:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return __import__, ("a_module_that_the_worker_lacks",)


def test_what_a_worker_cannot_import_is_named_and_leaves_the_pool_alive(processes):
    missing = NotThere()
    with pytest.raises(ExecutorError, match="ModuleNotFoundError.*a_module_that_the_worker_lacks"):
        estimates(lambda x, rng: missing, processes)
    assert estimates(lambda x, rng: x, processes) == [0.5] * 6


def test_an_interrupt_leaves_nothing_pending():
    def end(future, i):
        if i == 0:
            future.set_exception(KeyboardInterrupt())

    executor = Submitting(end)
    with pytest.raises(KeyboardInterrupt):
        estimates(failing, executor)
    assert len(executor.futures) == 6
    assert all(future.done() for future in executor.futures)


def test_an_interrupt_returns_the_draws_so_far():
    n_tasks = 0

    def end(future, i):
        nonlocal n_tasks
        n_tasks += 1
        future.set_exception(KeyboardInterrupt()) if n_tasks > 120 else future.set_result(
            ([0.0], 0.0)
        )

    with pm.Model():
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential(
            "loglik", lambda x, rng: 0.0, x, n_replicates=2, executor=Submitting(end)
        )
        idata = sample(kmc.AdaptiveMetropolis(), draws=500, tune=20)
    assert 10 < idata.posterior.sizes["draw"] < 60


SCRIPT = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import numpy as np
from pymc_kmc.likelihoods.noise_schemes import Seeds
from pymc_kmc.likelihoods.executors import ExecutorError
from pymc_kmc.likelihoods.replicates import Replicates

fork = multiprocessing.get_context("fork")
rows = np.arange(4)
def pool(): return ProcessPoolExecutor(2, mp_context=fork)
def work(rng): return rng.standard_normal()
for executor in (pool, pool(), lambda: ThreadPoolExecutor(2), None):
    kept = Replicates(work, Seeds(), executor)
    print(len(kept(rows, [])))
def hang(rng): time.sleep(600)
try:
    Replicates(hang, Seeds(), pool, timeout=0.2)(rows, [])
except ExecutorError as error:
    print(error)
# Given as an instance: Python would wait for its processes for ever.
given = pool()
try:
    Replicates(hang, Seeds(), given, timeout=0.2)(rows, [])
except ExecutorError as error:
    assert "killed when Python ends" in str(error), error
print("end")
"""


def test_nothing_hangs_when_the_interpreter_exits():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == ["4"] * 4
    assert done.stdout.splitlines()[-1] == "end"
    assert "Traceback" not in done.stderr


def test_threads_that_take_too_long_are_explained():
    """They can't be stopped; the message says what can."""
    rows, ended = np.arange(2), threading.Event()

    def wait(rng):
        ended.wait(30.0)

    for executor in (ThreadPoolExecutor(2), lambda: ThreadPoolExecutor(2)):
        with pytest.raises(ExecutorError, match=r"Threads can't be stopped.*ProcessPoolExecutor"):
            Replicates(wait, Seeds(), executor, timeout=0.05)(rows, [])
    ended.set()


def test_what_has_begun_is_not_called_again():
    calls, gate = [], threading.Event()

    def task(values):
        gate.wait(5)
        calls.append(float(values[0]))
        return 2 * values[0]

    one, two, three = (([np.array(value)],) for value in (1.0, 2.0, 3.0))
    with ThreadPoolExecutor(1) as pool:
        executor = LazyExecutor(pool)
        executor.begin(task, [one, two, one, three])
        gate.set()
        assert [found.result for found in executor.results(task, [two, one])] == [4.0, 2.0]
        assert [found.result for found in executor.results(task, [one, two])] == [2.0, 4.0]
        assert sorted(calls) == [1.0, 1.0, 2.0, 2.0, 3.0]


def test_what_nobody_asked_for_is_cancelled():
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        executor = LazyExecutor(pool)
        executor.begin(lambda value: gate.wait(5), [(value,) for value in range(3)])
        futures = [future for begun in executor._begun.values() for future in begun]
        executor.abandon()
        gate.set()
        assert [future.cancelled() for future in futures][1:] == [True, True]


def test_what_a_store_keeps_does_not_count_among_what_has_begun():
    """Its results are found there, and what else has begun is still wanted."""
    kept, wanted = [((value,),) for value in (-1, -2)], [((-3,),)]
    arrived = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        executor = LazyExecutor(pool)
        executor.begin(min, kept, lambda *found: arrived.put(found))
        executor.begin(min, wanted)
        assert [arrived.get(timeout=5)[0] for _ in kept] == kept
        pool.submit(int).result(5)  # the thread has left the functions that tell of a result
        executor.abandon(most=1)
        assert [futures[0].result(5).result for futures in executor._begun.values()] == [-3]
        executor.abandon(most=0)
        assert not executor._begun


def test_results_that_are_all_there_cancel_nothing_when_they_are_dropped():
    """The next of other calls is still wanted, and the pool is good for it."""
    made = []

    def pool():
        made.append(ThreadPoolExecutor(1))
        return made[-1]

    executor = LazyExecutor(pool)
    gate = threading.Event()
    results = executor.results(abs, [(-1,), (-2,)])
    assert [next(results).result, next(results).result] == [1, 2]
    executor.begin(lambda value: gate.wait(5) and value, [(3,)])
    ((future,),) = executor._begun.values()
    results.close()
    gate.set()
    assert future.result(5).result == 3
    assert len(made) == 1
    executor.forget()


def test_a_call_that_was_cancelled_is_made_when_it_is_asked_for(dask):
    executor = LazyExecutor(dask)
    for value in range(20):
        calls = [(-value - share,) for share in (0.0, 0.2, 0.4, 0.6)]  # more than workers
        executor.begin(abs, calls)
        executor.abandon()
        found = executor.results(abs, calls)
        assert [result for result, _ in found] == [-call for (call,) in calls]


def test_an_executor_that_cannot_begin_says_so_when_asked():
    executor = LazyExecutor(lambda: 3)
    executor.begin(len, [("a",)])
    with pytest.raises(ExecutorError, match="no submit"):
        list(executor.results(len, [("a",)]))


@pytest.mark.parametrize("ends", ["the time is up", "no more is needed"])
def test_a_pool_that_is_killed_dies_quietly(ends, monkeypatch):
    """A thread of the pool fails visibly where it finds a future that was cancelled."""
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    # Other tests' pools may still have threads.
    others, executor = set(threading.enumerate()), LazyExecutor(two_processes)
    executor.submit(abs, 0).result()
    its_own = set(threading.enumerate()) - others
    results = executor.results(time.sleep, [(0,), *30 * [(60,)]], 0.3, True)
    assert next(results).result is None
    if ends == "the time is up":
        with pytest.raises(TimeLimitError, match="took longer than timeout=0.3 seconds"):
            next(results)
    else:
        results.close()
    for thread in its_own:
        if "Executor" in type(thread).__name__:
            thread.join(10.0)
            assert not thread.is_alive()
    assert not failures


class OfDask:
    """A client of a cluster with workers of two and three threads."""

    def ncores(self):
        return {"a": 2, "b": 3}


def test_an_executor_tells_its_workers():
    with ThreadPoolExecutor(3) as pool:
        assert LazyExecutor(pool).n_workers == 3
    for attributes, n in (({"num_workers": 7}, 7), ({"_client": OfDask()}, 5), ({}, None)):
        made = SimpleNamespace(submit=None, **attributes)
        assert LazyExecutor(made).n_workers == n


def test_an_executor_that_cannot_be_made_fails_at_its_first_task():
    executor = LazyExecutor(lambda: 1 / 0)
    with pytest.raises(ExecutorError, match="ZeroDivisionError"):
        list(executor.results(abs, [(1,)]))
