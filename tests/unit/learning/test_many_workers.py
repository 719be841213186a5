"""Learning with many workers: few batches in sequence, and the same ones on any executor."""

import os
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning.modes import Mode
from pymc_kmc.learning.multistart import MultiStart
from pymc_kmc.learning.search import search, side_by_side
from pymc_kmc.learning.trust_region import RADII, TrustRegion
from pymc_kmc.model.opaque import OpaqueModel
from tests.opaque_numbers import number

AWAY = 4.0


def two_modes(x):
    """Unit Gaussians at -AWAY and AWAY."""
    return np.logaddexp(*(-0.5 * np.sum((x - [sign * AWAY, 0.0]) ** 2) for sign in (-1, 1)))


def opaque(function, d, n_parallel):
    """The OpaqueModel of a number, and a list that gets the sizes of its batches."""
    model = number(function, d)
    found = OpaqueModel(
        model.continuous_value_vars, model, np.random.default_rng(0), n_parallel=n_parallel
    )
    sizes, evaluate = [], found.evaluate

    def counted(X):
        sizes.append(len(X))
        return evaluate(X)

    found.evaluate = counted
    return found, sizes


def curve(x):
    return np.exp(x[0]) + x[1] * np.arange(4)


def learned(n_parallel=None, executor=None, function=curve, **options):
    with pm.Model():
        x = pm.Normal("x", 0, 2, shape=2)
        pm.Normal("y", kmc.BlackBox("curve", function, x, shape=(4,)), 0.5, observed=np.ones(4))
        options = {"max_evaluations": 48, "progressbar": False} | options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kmc.learn(n_parallel=n_parallel, executor=executor, **options)


def test_what_is_learned_depends_on_n_parallel_alone():
    """Not on the executor; by default n_parallel is the number of its workers."""
    expected = learned(16)
    with ThreadPoolExecutor(3) as few, ThreadPoolExecutor(16) as many:
        for found in (learned(16, few), learned(None, many)):
            np.testing.assert_array_equal(found.positions, expected.positions)
    assert len(learned().evaluations) != len(expected.evaluations)


def test_what_is_learned_does_not_depend_on_workers_that_die(tmp_path):
    """A process dies in its twentieth call, the first one of them."""
    parent, n_calls = os.getpid(), 0

    def deadly(x):
        nonlocal n_calls
        n_calls += os.getpid() != parent
        if n_calls == 20 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return curve(x)

    pool = partial(ProcessPoolExecutor, 2, get_context("fork"))
    found = learned(16, pool, function=deadly)
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(found.positions, learned(16).positions)


class NoWorkers:
    """An executor whose workers have yet to come, as Dask's client may be."""

    def submit(self, function, *arguments):
        raise AssertionError

    def ncores(self):
        return {}


def test_an_executor_without_workers_is_named():
    with pytest.raises(ValueError, match="executor has no workers: pass n_parallel="):
        learned(None, NoWorkers())


def test_an_executor_that_ends_in_the_middle():
    with ThreadPoolExecutor(2) as pool:
        n_calls = 0

        def ending(x):
            nonlocal n_calls
            n_calls += 1
            if n_calls == 12:
                pool.shutdown(wait=False)
            return curve(x)

        with pytest.raises(kmc.BlackBoxError, match="shutdown Leave the executor open") as caught:
            learned(4, pool, function=ending)
    assert len(caught.value.evaluations) > 8


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return curve(x)

    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(kmc.BlackBoxError, match="'curve' got no result.*pickle.*open files"):
            learned(4, pool, function=locked)


def test_a_round_is_no_larger_than_its_draws_allow():
    found = learned(batch_size=1000, max_evaluations=None)
    assert found.has_converged
    assert len(found.evaluations) < 1000


def test_searches_at_once_find_all_modes_in_few_batches():
    found, n_batches = {}, {}
    for n_parallel in (1, 32):
        model, sizes = opaque(two_modes, 2, n_parallel)
        multistart = MultiStart(model, 4, 400, np.random.default_rng(0))
        multistart.state(None, lambda evaluations: None)
        found[n_parallel] = {np.sign(mode.x[0]) for mode in multistart.modes}
        n_batches[n_parallel] = len(sizes)
        assert max(sizes[1:]) <= n_parallel
    assert found[1] == found[32] == {-1, 1}
    assert max(sizes[1:]) == 6 * 3  # searches, and places of each: one more than dimensions
    assert n_batches[32] < n_batches[1] / 3


def test_a_search_asks_for_several_places_and_climbs_in_fewer_steps():
    steps = {}
    for n in (1, 6):
        model, _ = opaque(lambda x: -0.5 * x @ x, 3, n)
        x = np.array([9.0, -6.0, 4.0])
        evaluations = model.evaluate(x[None])
        value, covariance = evaluations.log_densities[0], np.eye(3)
        region = TrustRegion(model, Mode(x, value, covariance), np.random.default_rng(1))
        steps[n] = 0
        while not region.has_ended:
            step = region.next(evaluations, n)
            assert step.X.shape == (n, 3) and len(np.unique(step.X, axis=0)) == n
            assert len(step.rises) <= min(n, len(RADII))
            new = model.evaluate(step.X)
            region.learn(step, evaluations, new.log_densities, len(evaluations))
            evaluations, steps[n] = evaluations.joined(new), steps[n] + 1
        assert region.n_evaluations == len(evaluations) - 1
        # By its own evaluations alone it has climbed to the best of them.
        assert (
            region.log_density
            == evaluations.log_densities.max()
            > -1.0 + model.values(np.zeros((1, 3)), np.zeros((1, 1)))
        )
    assert steps[6] < steps[1] / 2


def test_a_search_that_another_leaves_far_below_is_given_up(monkeypatch):
    model, _ = opaque(lambda x: -0.5 * x @ x, 2, 32)
    multistart = MultiStart(model, 4, 400, np.random.default_rng(0))
    X = np.array([[9.0, 9.0], [1.0, 0.0]])
    multistart.evaluations = model.evaluate(X)
    multistart.n_dispersed, multistart.say = 2, lambda evaluations: None
    asked = []

    def is_hopeless(self, height, n_left):
        asked.append(height)
        return self.log_density < height

    monkeypatch.setattr(TrustRegion, "is_hopeless", is_hopeless)
    values = multistart.evaluations.log_densities
    pairs = zip(X, multistart.evaluations.log_densities, strict=True)
    rng = np.random.default_rng(0)
    regions = [TrustRegion(model, Mode(x, value, np.eye(2)), rng) for x, value in pairs]
    (low, _), _ = multistart._search(regions)
    assert asked[:2] == [values[1], values[1]]
    np.testing.assert_array_equal(low.x, X[0])


def test_searches_for_outputs_share_the_workers():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 2, shape=2)
        pm.Normal("y", kmc.BlackBox("curve", lambda x: np.exp(x), x, shape=(2,)), observed=[1, 2])
    found = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    sizes = []

    def evaluate(X):
        sizes.append(len(X))
        return found.evaluate(X).outputs

    rngs = np.random.default_rng(1).spawn(2)
    starts = np.array([[-2.0, 1.5], [3.0, -2.0]])
    searches = [
        search(found, start, np.ones(2), rng, 60) for start, rng in zip(starts, rngs, strict=True)
    ]
    for X, outputs, fitted in side_by_side(searches, evaluate, n_parallel=12):
        np.testing.assert_array_equal(outputs, found.evaluate(X).outputs)
        np.testing.assert_allclose(np.exp(fitted.x), [1.0, 2.0], atol=1.0)
    # Of six points that each may ask for a step takes five: three radii, and one a variable beside.
    assert sizes[0] == 6 and set(sizes[1:]) <= {5, 10}


@pytest.mark.parametrize("n_parallel", [0, -1, 2.5, "many"])
def test_bad_numbers_are_named(n_parallel):
    with pytest.raises((TypeError, ValueError), match="n_parallel"):
        learned(n_parallel)
