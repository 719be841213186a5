"""Black boxes behind a UM-Bridge server: a real one, on the loopback interface."""

import builtins
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.um_bridge import ServerModel
from tests import servers
from tests.targets import sample

pytest.importorskip("umbridge")
ROOT = Path(__file__).parents[3]


def server_on(port):
    command = [sys.executable, "-m", "tests.servers", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    servers.wait_for(port, lambda: process.poll() is None)
    return process


@pytest.fixture(scope="module")
def url():
    port = servers.free_port()
    process = server_on(port)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def model_of(url, name="line", **options):
    """A model of two params, whose result is linear in the first."""
    with pm.Model() as model:
        ab = pm.Normal("ab", shape=2)
        y = kmc.umbridge(url, name, ab, [3.0], **options)
        pm.Normal("y", y[0], 0.5, observed=2.0)
    return model


def call(model, *ab):
    """The black box's result, which `on_error` may make an error."""
    (box,) = kmc.black_boxes(model)
    return box.evaluate(np.array(ab), np.array([3.0]))


def test_sizes_are_the_server_s(url):
    with pm.Model():
        a, b, c = pm.Normal("a"), pm.Normal("b"), pm.Normal("c", shape=(1, 1))
        y = kmc.umbridge(f"{url}/", "line", a, b, c)
        longer = kmc.umbridge(url, "line", a, b, c, config={"n": 3}, name="longer")
    assert (y.type.shape, longer.type.shape) == ((4,), (5,))
    assert (y.name, longer.name) == ("line", "longer")
    at = {a: 1.0, b: 2.0, c: [[3.0]]}
    np.testing.assert_array_equal(y.eval(at), [7, 1, 3, 6])
    np.testing.assert_array_equal(longer.eval(at), [7, 1, 3, 6, 9])


@pytest.mark.parametrize("sizes", [(1, 2), (3,), (2,), (2, 1, 1)])
def test_params_that_do_not_fill_the_blocks(url, sizes):
    with pm.Model():
        params = [pm.Normal(f"p{i}", shape=size) for i, size in enumerate(sizes)]
        with pytest.raises(TypeError, match=rf"'line' takes .*\[2, 1\].* of \[{sizes[0]}.*{url}"):
            kmc.umbridge(url, "line", *params)


def test_learning_and_chains_ask_the_server(url):
    model = model_of(url)
    learned = kmc.learn(model, random_seed=1, progressbar=False)
    # y[0] = a + 3 b, seen with standard deviation .5.
    gain = np.array([1.0, 3.0]) / (10 + 0.25)
    means = learned.summary()["mean"].to_numpy(dtype=float)
    np.testing.assert_allclose(means, 2.0 * gain, atol=0.05)
    with model:
        idata = sample(kmc.KMC(learned), draws=200, tune=10, chains=2)
    assert np.abs(idata.posterior["ab"].mean(("chain", "draw")) - 2.0 * gain).max() < 0.2


def test_it_travels_to_processes(url):
    with model_of(url):
        step = kmc.AdaptiveMetropolis()
        run = partial(sample, step, draws=10, tune=10, chains=2)
        here = run(cores=1).posterior["ab"]
        np.testing.assert_array_equal(run(cores=2, mp_ctx="fork").posterior["ab"], here)


def test_an_executor_and_a_store(url, tmp_path):
    path = str(tmp_path / "line.db")
    made = []

    def two_threads():
        made.append(ThreadPoolExecutor(2))
        return made[-1]

    model = model_of(url, store=path, executor=two_threads)
    (box,) = kmc.black_boxes(model)
    outputs, succeeded = box.evaluate_many([np.arange(6.0).reshape(3, 2), np.full((3, 1), 3.0)])
    np.testing.assert_array_equal(outputs[:, 0], [3, 11, 19])
    assert succeeded.all() and len(kmc.EvaluationStore(path)) == 4 and len(made) == 1


def test_what_is_stored_needs_no_server(tmp_path):
    port = servers.free_port()
    process = server_on(port)
    model = model_of(f"http://127.0.0.1:{port}", store=tmp_path / "line.db", on_error="reject")
    first = call(model, 1.0, 2.0)
    process.kill()
    process.wait()
    (box,) = kmc.black_boxes(model)
    box._cache.clear()
    np.testing.assert_array_equal(call(model, 1.0, 2.0)[0], first[0])
    # A server that is down isn't a matter of the parameters.
    with pytest.raises(
        kmc.BlackBoxError, match=rf"'line' got no result: the model 'line' of .*:{port}.*refused"
    ):
        call(model, 1.0, 3.0)
    assert box.n_rejected == 0


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        (1, r"returned \d of 4 values that aren't finite, nan first"),
        (2, "'moody' of .*127.* failed: .*InvalidOutput.*Model declared 2 but returned 1"),
        (3, "'moody' of .*127.* answered '500 .* Its log may say more"),
    ],
)
def test_what_a_model_does_wrong(url, mood, message):
    with pytest.raises(kmc.BlackBoxError, match=message):
        call(model_of(url, "moody"), mood, 2.0)
    model = model_of(url, "moody", on_error="reject")
    with pytest.warns(UserWarning, match=message):
        assert not call(model, mood, 2.0)[1]


def test_an_impossible_value_is_passed_on(url):
    outputs, _ = call(model_of(url, "moody"), 5, 2.0)
    np.testing.assert_array_equal(outputs, [0, 1, 1, -np.inf])


def test_a_slow_server_is_no_reason_to_reject(url):
    model = model_of(url, "moody", timeout=0.5, on_error="reject")
    np.testing.assert_array_equal(call(model, 6.0, 2.0)[0], [12, 6, 3, 6])
    with pytest.raises(kmc.BlackBoxError, match=r"'moody' of .*127.* took longer than timeout=0.5"):
        call(model, 4.0, 2.0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "lime"}, ValueError, r"model_name='lime' isn't .*127.*\['line', 'moody'\]"),
        ({"url": "localhost:1"}, ValueError, "url='localhost:1' must be an address"),
        ({"url": 1}, ValueError, "url=1 must be an address"),
        (
            {"url": "http://127.0.0.1:1"},
            ConnectionError,
            r"'http://127.0.0.1:1' can't be reached: \[.*refused",
        ),
        ({"config": {"n": {1}}}, TypeError, r"config=\{'n': \{1\}\} must be a dict"),
        ({"config": 3}, TypeError, "config=3 must be a dict"),
        ({"timeout": 0}, ValueError, "timeout must be a positive number of seconds, got 0"),
    ],
)
def test_bad_arguments(url, options, error, message):
    with pytest.raises(error, match=message):
        model_of(**{"url": url} | options)


def test_another_kind_of_server(url):
    with pytest.raises(ConnectionError, match="answered '404: Not Found'"):
        model_of(f"{url}/elsewhere")


def test_without_the_package(monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "umbridge":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'pymc-kmc\[umbridge\]'"):
        ServerModel("http://127.0.0.1:1", "line", None, None)


def test_the_function_pickles(url):
    function = cloudpickle.loads(cloudpickle.dumps(ServerModel(url, "line", {"n": 1}, 10.0)))
    np.testing.assert_array_equal(function(np.array([1.0, 2.0]), 3), [7, 1, 3])
