"""EvaluationStore: nothing in it is computed again, whatever becomes of the file."""

import multiprocessing
import pickle
import sqlite3
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods import store as store_module
from pymc_kmc.likelihoods.executors import LazyExecutor
from pymc_kmc.likelihoods.store import StoredFunction, pack, unpack
from tests.targets import sample


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.n = function, 0

    def __call__(self, *values, **random):
        self.n += 1
        return self.function(*values, **random)


def line(slope):
    if slope > 2:
        raise ZeroDivisionError("too steep")
    if slope < -2:
        return [slope, np.nan, np.inf]
    return slope * np.arange(3.0)


def box_of(function=line, shape=3, **options):
    """The Op of a black box of one variable, and its model."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 2, initval=0.5)
        value = kmc.BlackBox("f", function, x, shape=shape, **options)
        pm.Normal("y", value, 1.0, observed=np.zeros(shape))
    (op,) = kmc.black_boxes(model)
    return op, model


def of_black_box(function, store):
    return box_of(function, store=store, on_error="reject")[1]


def of_potential(make, takes_size=False, **options):
    """A maker of models of x whose noisy likelihood is made by calls of a function."""

    def model_of(function, store):
        def of_one(x, rng):
            return function(x, rng=rng)

        def of_many(x, rng, size):
            return function(x, rng=rng, size=size)

        simulate = of_many if takes_size else of_one
        with pm.Model() as model:
            make("likelihood", simulate, pm.Normal("x"), store=store, **options)
        return model

    return model_of


def estimate(x, rng):
    return -0.5 * x**2 + rng.normal(-0.5, 1.0)


def simulate(x, rng, size=None):
    return rng.normal(x, 1.0, 3 if size is None else (size, 3))


DATA = {"observed": np.zeros(3)}
MODELS = {
    "black box": (of_black_box, line),
    "estimates": (of_potential(kmc.PseudoMarginalPotential, n_replicates=3), estimate),
    "auto": (of_potential(kmc.PseudoMarginalPotential, n_replicates="auto"), estimate),
    "abc": (of_potential(kmc.ABCPotential, epsilon=1.0, **DATA), simulate),
    "abc at once": (of_potential(kmc.ABCPotential, True, epsilon=1.0, **DATA), simulate),
    "synthetic": (of_potential(kmc.SyntheticLikelihoodPotential, **DATA), simulate),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_calls_nothing_and_draws_the_same(name, tmp_path):
    make, function = MODELS[name]
    found, calls = [], []
    for store in (None, tmp_path / "a.db", tmp_path / "a.db"):
        counted = Counted(function)
        with make(counted, store):
            run = sample(kmc.AdaptiveMetropolis(), 40, 30)
        calls.append(counted.n)
        statistics = run.sample_stats
        kept = [n for n in statistics.data_vars if n not in ("kmc_evaluation_time", "warning")]
        found.append([run.posterior["x"].values, *[statistics[n].values for n in kept]])
    for without, first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(without, first)
        np.testing.assert_array_equal(first, second)
    assert 0 < calls[1] <= calls[0] and calls[2] == 0


# Batches and executors


@pytest.mark.parametrize("options", [{}, {"vectorized": True}, {"executor": None}])
def test_a_batch_computes_what_is_missing(options, tmp_path):
    rows = []

    def function(x):
        rows.extend(np.ravel(x))
        return np.multiply.outer(x, np.arange(3.0))

    options = options | (
        {"executor": partial(ThreadPoolExecutor, 2)} if "executor" in options else {}
    )
    op, _ = box_of(function, store=tmp_path / "a.db", **options)
    x = np.linspace(-1, 1, 6)
    op.evaluate_many([x[::2]])
    rows.clear()
    if op.runs_ahead():
        op.begin([x])
    outputs, _ = op.evaluate_many([x])
    np.testing.assert_array_equal(outputs, np.multiply.outer(x, np.arange(3.0)))
    assert sorted(rows) == sorted(x[1::2])


def test_batches_of_a_store_share_a_pool_and_what_has_begun(tmp_path):
    made, counted = [], Counted(line)

    def pool():
        made.append(ThreadPoolExecutor(2))
        return made[-1]

    op, _ = box_of(counted, store=tmp_path / "a.db", executor=pool)
    counted.n = 0
    batches = np.linspace(-1, 1, 12).reshape(4, 3)
    for batch in batches:
        op.begin([batch])
    for batch in batches:
        op.evaluate_many([batch])
    assert len(made) == 1
    assert counted.n == batches.size
    made[0].shutdown()


def _waited_for(condition, longest=10.0):
    deadline = time.monotonic() + longest
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_has_ended_behind_a_slow_call_is_kept_already(has_begun, tmp_path):
    gate, store = threading.Event(), kmc.EvaluationStore(tmp_path / "a.db")

    def function(x):
        if x == 1:
            gate.wait(20)
        return line(x)

    with ThreadPoolExecutor(2) as pool:
        op, _ = box_of(function, store=store, executor=pool, on_error="reject")
        n, x = len(store), np.array([1.0, 1.5, 2.5, -1.5])
        if has_begun:
            op.begin([x])
        found: list = []
        asked = threading.Thread(target=lambda: found.extend(op.evaluate_many([x])))
        asked.start()
        are_kept = _waited_for(lambda: len(store) == n + 3)
        gate.set()
        asked.join()
    assert are_kept
    assert len(store) == n + 4
    np.testing.assert_array_equal(found[1], [True, True, False, True])
    seconds = {row[0][0].item(): row[3] for row in store.rows("f")}
    assert seconds[1.5] < 0.5 * seconds[1.0]  # of the call, not of the wait


def test_estimates_behind_a_slow_one_are_kept_already(tmp_path):
    gate, store = threading.Event(), kmc.EvaluationStore(tmp_path / "a.db")

    def estimator(x, rng):
        if x == 1:
            gate.wait(20)
        return float(x)

    with pm.Model():
        params = pm.Normal("x")
        op = kmc.PseudoMarginalPotential("f", estimator, params, store=store).owner.op
    rng, n = np.random.default_rng(1), len(store)
    calls = [(op.noise.draw(1, rng), [np.array(value)]) for value in (1.0, 2.0, 3.0)]
    with ThreadPoolExecutor(2) as pool:
        estimates = op.each(calls, LazyExecutor(pool))
        found: list = []
        asked = threading.Thread(target=lambda: found.extend(estimates))
        asked.start()
        are_kept = _waited_for(lambda: len(store) == n + 2)
        gate.set()
        asked.join()
    assert are_kept
    assert found == [1.0, 2.0, 3.0]


def test_a_late_result_does_not_replace_a_time_out(tmp_path):
    """A call went on beyond its time: the run rejected it, and so does one that resumes it."""
    gate, ended = threading.Event(), threading.Event()

    def function(x):
        if x == 1:
            gate.wait(20)
        return line(x)

    store = kmc.EvaluationStore(tmp_path / "a.db")
    with ThreadPoolExecutor(2) as pool:
        options = {"executor": pool, "timeout": 0.2, "on_error": "reject"}
        op, _ = box_of(function, store=store, **options)
        _, succeeded = op.evaluate_many([np.array([1.0, 1.5])])
        gate.set()
        pool.submit(ended.set).result()
    assert succeeded.tolist() == [False, True]
    assert ended.is_set()
    _, again = op.evaluate_many([np.array([1.0])])
    assert again.tolist() == [False]


@pytest.mark.filterwarnings("ignore:The black box")
def test_chains_on_two_cores_write_into_one_file(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    counted = Counted(line)
    options = {"chains": 2, "cores": 2}
    _, model = box_of(counted, store=store, on_error="reject")
    with model:
        first = sample(kmc.AdaptiveMetropolis(), 30, 30, **options)
        n, counted.n = len(store), 0
        # In this process, where calls are counted.
        again = sample(kmc.AdaptiveMetropolis(), 30, 30, chains=2, cores=1)
    np.testing.assert_array_equal(first.posterior["x"], again.posterior["x"])
    assert n > 60 and len(store) == n and counted.n == 0


def _write(path, first):
    function = StoredFunction(path, "f", "results", [("x", ())], ())
    for i in range(30):
        function.write([np.float64(first + i)], (), np.float64(i), 0.0)


def test_processes_that_make_one_file_at_once_write_all(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write, args=(tmp_path / "a.db", 30 * i)) for i in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(kmc.EvaluationStore(tmp_path / "a.db")) == 180


def test_a_file_that_another_process_is_making_is_waited_for(tmp_path):
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, other.execute, ["COMMIT"])
    timer.start()
    assert len(kmc.EvaluationStore(tmp_path / "a.db")) == 0
    timer.join()


def test_a_store_travels_as_its_path_and_threads_share_it(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db", version=3)
    again = pickle.loads(pickle.dumps(store))
    assert vars(again) == {"path": str(tmp_path / "a.db"), "version": "3"}
    thread = threading.Thread(target=_write, args=(again, 0))
    thread.start()
    thread.join()
    assert len(store) == 30


def test_one_store_of_several_functions(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db", version="b")
    with pm.Model():
        x = pm.Normal("x", shape=2)
        kmc.BlackBox("sum", lambda x: x.sum(), x, store=store)
        kmc.PseudoMarginalPotential("noisy", lambda x, rng: rng.normal(), x, store=store)
    first, second = store.functions
    assert (first.name, first.kind, first.shape) == ("sum", "results", ())
    assert (second.name, second.kind, second.n_evaluations) == ("noisy", "log estimates", 1)
    assert first.version == second.version == "b" and first.parameters == (("x", (2,)),)
    assert "1 of 'sum', 1 of 'noisy'" in repr(store)


# Failures


@pytest.mark.filterwarnings("ignore:The black box")
def test_rejections_are_the_same_again(tmp_path):
    x, found = np.array([0.0, 3.0, -3.0, 1.0]), []
    for _ in range(2):
        counted = Counted(line)
        op, _ = box_of(counted, store=tmp_path / "a.db", on_error="reject")
        outputs, succeeded = op.evaluate_many([x])
        found.append((outputs.tobytes(), succeeded.tolist(), op.reasons, str(op.rejections)))
    assert found[0] == found[1] and counted.n == 0
    assert found[0][2] == {"ZeroDivisionError": 1, "not finite": 1}
    frame = kmc.EvaluationStore(tmp_path / "a.db").to_pandas("f")
    assert frame["failure"].str.contains("too steep").sum() == 1


@pytest.mark.filterwarnings("ignore:The black box")
def test_an_error_is_the_same_again_until_its_cause_is_mended(tmp_path):
    options = {"store": tmp_path / "a.db"}
    rejecting, _ = box_of(on_error="reject", **options)
    rejecting.evaluate(np.float64(3.0))
    for _ in range(2):
        op, _ = box_of(**options)
        with pytest.raises(kmc.BlackBoxError, match="too steep"):
            op.evaluate(np.float64(3.0))
    mended, _ = box_of(lambda x: x * np.ones(3), **options)
    np.testing.assert_array_equal(mended.evaluate(np.float64(3.0))[0], [3, 3, 3])


@pytest.mark.filterwarnings("ignore:The black box")
def test_minus_infinity_is_a_value_or_a_failure_as_the_box_says(tmp_path):
    def log_likelihood(x):
        return -np.inf if x > 1 else x

    options = {"shape": (), "store": tmp_path / "a.db"}
    box, _ = box_of(log_likelihood, **options)
    assert box.evaluate(np.float64(2.0)) == (-np.inf, True)
    rejecting, _ = box_of(log_likelihood, on_error="reject", **options)
    assert rejecting.evaluate(np.float64(2.0))[1] is False


@pytest.mark.filterwarnings("ignore:The black box")
def test_a_stopped_call_is_made_again_where_its_time_is_longer(tmp_path):
    def slow(x):
        time.sleep(0.3 * (x > 1))
        return x

    def succeeds(timeout):
        options = {"executor": partial(ThreadPoolExecutor, 2), "timeout": timeout}
        counted = Counted(slow)
        op, _ = box_of(counted, (), store=tmp_path / "a.db", on_error="reject", **options)
        counted.n = 0
        return op.evaluate(np.float64(2.0))[1], counted.n

    assert succeeds(0.1) == (False, 1)
    assert succeeds(0.1) == (False, 0)
    assert succeeds(30.0) == (True, 1)
    assert succeeds(0.1) == (True, 0)


def test_an_interrupted_evaluation_is_not_stored(tmp_path):
    def function(x):
        if x > 1:
            raise KeyboardInterrupt
        return x

    op, _ = box_of(function, (), store=tmp_path / "a.db", on_error="reject")
    with pytest.raises(KeyboardInterrupt):
        op.evaluate(np.float64(2.0))
    assert len(kmc.EvaluationStore(tmp_path / "a.db")) == 1


def test_a_failing_estimator_is_called_again(tmp_path):
    def estimator(x, rng):
        if x > 1:
            raise ValueError("no estimate")
        return x

    for _ in range(2):
        counted = Counted(estimator)
        model = of_potential(kmc.PseudoMarginalPotential)(counted, tmp_path / "a.db")
        counted.n = 0
        with pytest.raises(kmc.EstimatorError, match="no estimate"):
            model.compile_logp()({"x": np.array(2.0)})
        assert counted.n == 1
        assert len(kmc.EvaluationStore(tmp_path / "a.db")) == 1


# Refusals


def another(tmp_path, **changed):
    options = {"x": np.zeros(2), "shape": (3,), "version": None} | changed
    store = kmc.EvaluationStore(tmp_path / "a.db", version=options["version"])
    with pm.Model():
        x = pm.Normal("x", shape=options["x"].shape)
        kmc.BlackBox(
            "f", lambda x: np.zeros(options["shape"]), x, shape=options["shape"], store=store
        )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"version": 2}, ["without a version", "in version '2'"]),
        ({"x": np.zeros(3)}, [r"of x \(2,\)", r"of x \(3,\)"]),
        ({"shape": ()}, [r"of shape \(3,\)", r"of shape \(\)"]),
    ],
)
def test_another_model_is_refused(changed, told, tmp_path):
    another(tmp_path)
    another(tmp_path)
    with pytest.raises(ValueError, match=f"(?s)'f'.*{told[0]}.*{told[1]}"):
        another(tmp_path, **changed)


def test_two_functions_of_one_name_in_a_model_are_refused(tmp_path):
    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.BlackBox("f", np.sin, x, store=tmp_path / "a.db")
        with pytest.raises(ValueError, match="another function 'f'"):
            kmc.BlackBox("f", np.cos, x, store=tmp_path / "a.db")
        kmc.BlackBox("f", np.cos, x)
        kmc.BlackBox("g", np.cos, x, store=tmp_path / "a.db")
    assert len(kmc.EvaluationStore(tmp_path / "a.db")) == 2 and model.free_RVs


def test_two_functions_of_one_name_in_submodels_are_refused(tmp_path):
    def box(name, slope, x, path):
        kmc.BlackBox(name, lambda x: slope * x, x, store=path)

    def potential(name, slope, x, path):
        kmc.PseudoMarginalPotential(name, lambda x, rng: slope * x, x, store=path)

    for i, add in enumerate((box, potential)):
        with pm.Model():
            for slope in (1.0, 2.0):
                with pm.Model(name=f"g{slope}"):
                    path, x = tmp_path / f"{i}.db", pm.Normal("x")
                    if slope == 2:
                        with pytest.raises(ValueError, match="another function 'f'.*'f_2', or a"):
                            add("f", slope, x, path)
                        add("f_2", slope, x, path)
                        path = tmp_path / f"{i}-other.db"
                    add("f", slope, x, path)
        assert len(kmc.EvaluationStore(tmp_path / f"{i}.db")) == 2


def test_another_likelihood_is_refused(tmp_path):
    path = tmp_path / "a.db"
    make = of_potential(kmc.ABCPotential, epsilon=1.0, observed=np.zeros(3))
    make(simulate, path)
    of_potential(kmc.ABCPotential, epsilon=0.5, observed=np.zeros(3))(simulate, path)
    for other in (
        of_potential(kmc.ABCPotential, epsilon=1.0, observed=np.ones(3)),
        of_potential(kmc.ABCPotential, True, epsilon=1.0, observed=np.zeros(3)),
        of_potential(kmc.SyntheticLikelihoodPotential, observed=np.zeros(3)),
    ):
        with pytest.raises(ValueError, match="another 'likelihood'.*distances.*this is"):
            other(simulate, path)


def text_file(path):
    path.write_text("no database, but long enough to be one. " * 50)


def other_program(path):
    sqlite3.connect(path).execute("CREATE TABLE t (a)")


def later_form(path):
    kmc.EvaluationStore(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    store_module._connections.clear()


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (text_file, OSError, "not a database.*another path"),
        (other_program, ValueError, "another program's"),
        (later_form, ValueError, "form 99; this one has form 1"),
        (lambda path: path.mkdir(), OSError, "folder"),
    ],
)
def test_a_file_that_is_no_store_is_refused(make, error, told, tmp_path):
    make(tmp_path / "a.db")
    with pytest.raises(error, match=f"store '.*a.db'.*{told}"):
        kmc.EvaluationStore(tmp_path / "a.db")


def test_an_unwritable_path_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="can't be used.*can be written to"):
        kmc.EvaluationStore(tmp_path / "file" / "a.db")


def test_bad_arguments(tmp_path):
    for path in (3, "", None):
        with pytest.raises(TypeError, match="path"):
            kmc.EvaluationStore(path)
    for version in (1.5, True, [1]):
        with pytest.raises(TypeError, match="version"):
            kmc.EvaluationStore(tmp_path / "a.db", version)
    with pytest.raises(TypeError, match="store of 'f'"):
        box_of(store=3)
    store = kmc.EvaluationStore(tmp_path / "a.db")
    for parameters, outputs in ((3, [1.0]), ({"x": ["a"]}, [1.0]), ({"x": 3.0}, [1.0])):
        with pytest.raises(TypeError, match="parameters"):
            store.add("f", parameters, outputs)
    for parameters, outputs in (({"x": [1.0, 2.0]}, [1.0]), ({}, [1.0])):
        with pytest.raises(ValueError, match="rows"):
            store.add("f", parameters, outputs)
    with pytest.raises(FileNotFoundError, match="other"):
        store.merge(tmp_path / "b.db")
    with pytest.raises(ValueError, match="name='g'"):
        store.to_pandas("g")


# Faults while it is used


def draws_of(path):
    with of_black_box(line, path):
        return sample(kmc.AdaptiveMetropolis(), 40, 30).posterior["x"].values


@pytest.mark.filterwarnings("ignore:The black box")
def test_a_full_disk_is_told_once_and_costs_no_draw(tmp_path):
    expected = draws_of(None)
    store = kmc.EvaluationStore(tmp_path / "a.db")
    connection = store_module._connection(store.path)
    (n,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={n + 1}")
    with pytest.warns(UserWarning, match="full.*goes on without storing") as caught:
        np.testing.assert_array_equal(draws_of(store), expected)
    assert sum("full" in str(each.message) for each in caught) == 1
    assert 5 < len(store) < 70


@pytest.mark.filterwarnings("ignore:The black box")
def test_a_locked_file_is_told_once_and_costs_no_draw(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "LONGEST_WAIT", 0.05)
    expected = draws_of(None)
    store = kmc.EvaluationStore(tmp_path / "a.db")
    op, model = box_of(store=store, on_error="reject")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match="locked.*Another program"):
        box_of(store=store)
    with model, pytest.warns(UserWarning, match="locked") as caught:
        found = sample(kmc.AdaptiveMetropolis(), 40, 30).posterior["x"].values
    np.testing.assert_array_equal(found, expected)
    assert sum("locked" in str(each.message) for each in caught) == 1
    other.execute("COMMIT")


@pytest.mark.filterwarnings("ignore:The black box")
def test_a_damaged_file_is_told_once_and_costs_no_draw(tmp_path):
    expected = draws_of(tmp_path / "a.db")
    store_module._close()
    store_module._connections.clear()
    content = bytearray((tmp_path / "a.db").read_bytes())
    content[4096 * 3 :] = bytes(len(content) - 4096 * 3)  # tables' first pages stay
    (tmp_path / "a.db").write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(draws_of(tmp_path / "a.db"), expected)
    assert sum("The store" in str(each.message) for each in caught) == 1


def test_a_model_built_after_a_fault_is_stored_again(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "LONGEST_WAIT", 0.05)
    store = kmc.EvaluationStore(tmp_path / "a.db")
    op, _ = box_of(store=store)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.warns(UserWarning, match="locked.*until a model is built"):
        op.evaluate_many([[1.0, 2.0]])
    other.execute("COMMIT")
    op, _ = box_of(store=store)
    op.evaluate_many([[-1.0, -2.0]])
    assert len(store) == 3


def test_a_file_deleted_in_use_is_begun_anew(tmp_path):
    path = tmp_path / "a.db"
    old, _ = box_of(np.cos, (), store=path)
    store = kmc.EvaluationStore(path)

    def delete():
        for file in tmp_path.glob("a.db*"):
            file.unlink()

    delete()
    new, _ = box_of(np.sin, (), store=path)
    assert new.evaluate(np.float64(0.5))[0] == np.sin(0.5)
    delete()
    new.evaluate(np.float64(0.7))  # of a model from before
    assert path.exists() and store.to_pandas("f")["x"].tolist() == [0.7]
    delete()
    assert len(store) == 0 and old.evaluate(np.float64(0.7))[0] == np.cos(0.7)


# Tables


def test_arrays_are_unpacked_as_they_were():
    arrays = [
        np.float64(0.1),
        np.arange(6).reshape(2, 3),
        np.zeros((0, 2)),
        np.array([b"\n", b"a"]),
    ]
    for array, again in zip(arrays, unpack(pack(arrays)), strict=True):
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)
    assert unpack(pack([])) == []


def test_a_table_from_elsewhere_is_found(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    x = np.linspace(-1, 1, 5)
    store.add("f", {"x": x}, np.multiply.outer(x, np.arange(3.0)))
    counted = Counted(line)
    op, _ = box_of(counted, store=store)
    counted.n = 0
    assert op.evaluate_many([x])[1].all() and counted.n == 0
    with pytest.raises(ValueError, match=r"another 'f'.*shape \(3,\).*shape \(\)"):
        store.add("f", {"x": x}, x)


def test_a_table_of_a_parameter_with_the_functions_name(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    store.add("f", {"f": [1.0, 2.0], "x": [3.0, 4.0]}, [5.0, 6.0])
    assert store.functions[0].parameters == (("f", ()), ("x", ()))
    np.testing.assert_array_equal(store.to_pandas("f")["outputs"], [5.0, 6.0])


def test_parameters_in_another_order_are_refused(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    store.add("f", {"b": [1.0], "a": [2.0]}, [1.0])
    with pytest.raises(ValueError, match=r"of b \(\), a \(\), .*this is .* of a \(\), b \(\)"):
        store.add("f", {"a": [2.0], "b": [1.0]}, [1.0])
    store.add("f", {"x": [3.0], "y": [4.0]}, [1.0])  # other names are the user's matter


def test_whole_numbers_are_found_however_they_were_written(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    store.add("f", {"n": np.arange(5)}, np.arange(5.0))
    # As versions before wrote it: the key had integers.
    old = pack([np.int64(9)]), pack([])
    row = ("f", store_module._digest([np.int64(9)], []), *old, pack([np.float64(9)]), 0.0, None)
    store._execute("INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    counted = Counted(float)
    with pm.Model():
        op = kmc.BlackBox("f", counted, pm.Poisson("n", 3), store=store).owner.op
    for points in (np.arange(5), np.arange(5.0), [9]):
        np.testing.assert_array_equal(op.evaluate_many([points])[0], points)
    assert counted.n == 0 and len(store) == 6


def test_single_precision_is_found_however_it_was_written(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    x = np.float32([0.1, 0.2])
    store.add("f", {"x": x.astype(float)}, [1.0, 2.0])
    # As versions before wrote it: the key had its type.
    old = pack([np.float32(0.3)]), pack([])
    row = "f", store_module._digest([np.float32(0.3)], []), *old, pack([3.0]), 0.0, None
    store._execute("INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    function = StoredFunction(store, "f", "results", [("x", ())], ())
    found = [function.find([value], ()) for value in (*x, np.float32(0.3))]
    assert found == [[1.0], [2.0], [3.0]]


def test_large_whole_numbers_that_are_one_float_are_told_apart(tmp_path):
    function = StoredFunction(tmp_path / "a.db", "f", "results", [("x", ())], ())
    function.write([np.int64(2**53 + 1)], (), np.float64(1), 0.0)
    assert function.find([np.int64(2**53)], ()) is None
    assert function.find([np.int64(2**53 + 1)], ()) == [1.0]


def test_stores_are_merged(tmp_path):
    first, second = (kmc.EvaluationStore(tmp_path / name) for name in ("a.db", "b.db"))
    first.add("f", {"x": [1.0, 2.0]}, [1.0, 2.0])
    second.add("f", {"x": [2.0, 3.0]}, [-2.0, 3.0])
    second.add("g", {"x": [1.0]}, [1.0])
    first.merge(second)
    first.merge(second.path)
    assert first.to_pandas("f")["outputs"].tolist() == [1.0, 2.0, 3.0]
    assert [each.n_evaluations for each in first.functions] == [3, 1]
    other = kmc.EvaluationStore(tmp_path / "c.db", version=2)
    other.add("f", {"x": [4.0]}, [4.0])
    with pytest.raises(ValueError, match="another 'f'.*without a version.*in version '2'"):
        first.merge(other)
    assert len(first) == 4


def test_exports(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    store.add("f", {"a": [1, 2], "b": np.ones((2, 2))}, np.arange(4.0).reshape(2, 2))
    frame, data = store.to_pandas("f"), store.to_xarray("f")
    columns = ["a", "b[0]", "b[1]", "outputs[0]", "outputs[1]", "seconds", "failure"]
    assert frame.columns.tolist() == columns
    assert frame["outputs[1]"].tolist() == [1.0, 3.0] and frame["seconds"].isna().all()
    np.testing.assert_array_equal(data["outputs"], [[0, 1], [2, 3]])
    assert data["b"].dims == ("evaluation", "b_dim_0")


def test_parameters_named_as_other_columns_are_exported(tmp_path):
    store, x = kmc.EvaluationStore(tmp_path / "a.db"), np.ones((2, 2))
    store.add("f", {"seconds": [1.0, 2.0], "a": [3, 4], "evaluation": x}, [5.0, 6.0])
    columns = ["params[0]", "a", "params[2][0]", "params[2][1]", "outputs", "seconds", "failure"]
    assert store.to_pandas("f").columns.tolist() == columns
    data = store.to_xarray("f")
    assert data["params[0]"].values.tolist() == [1, 2] and data["seconds"].isnull().all()


def test_replicates_of_different_numbers_are_exported(tmp_path):
    function = StoredFunction(tmp_path / "a.db", "f", "log estimates", [("x", ())], ())
    for n in (1, 2):
        function.write([np.float64(n)], [np.arange(n)], np.ones(n), 0.0)
    outputs = kmc.EvaluationStore(tmp_path / "a.db").to_xarray("f")["outputs"]
    np.testing.assert_array_equal(outputs, [[1, np.nan], [1, 1]])
