"""What goes wrong while learning: an answer, or an error in words that has all evaluations."""

import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning import learning_run
from pymc_kmc.learning.emulator import NodeEmulator
from pymc_kmc.learning.rounds import Rounds
from pymc_kmc.model.opaque import OpaqueModel
from tests.evaluations import evaluations_of
from tests.learned import OBSERVED, curve, decay, learned_curve, log_likelihood, on_grid, scalar

QUIET = {"progressbar": False}
# Rate from which on nothing is possible: four standard deviations above the posterior's mean.
LARGEST_RATE = 1.2


class Faulty:
    """A function that has a fault at its n-th call in a process."""

    def __init__(self, function, n, fault):
        self.function, self.n, self.fault, self.calls = function, n, fault, 0

    def __call__(self, *values, **noise):
        self.calls += 1
        return self.fault() if self.calls == self.n else self.function(*values, **noise)


def assert_right(learned):
    """Means within a fifth of a standard deviation."""
    X, probabilities = on_grid()
    mean = probabilities @ X
    sd = np.sqrt(probabilities @ (X - mean) ** 2)
    assert np.all(np.abs(learned.positions.mean(axis=0) - mean) < 0.2 * sd)


def estimated(bad):
    def estimator(size, rate, rng):
        noise = 0.1 * rng.standard_normal()
        return bad if rate > LARGEST_RATE else log_likelihood(size, rate) + noise

    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1, initval=1), pm.LogNormal("rate", 0, 1, initval=1)
        kmc.PseudoMarginalPotential("p", estimator, size, rate)
    return model


def beside_a_black_box(bad):
    with curve() as model:
        pm.Potential("bad", pm.math.switch(model["rate"] > LARGEST_RATE, bad, 0.0))
    return model


def without_a_black_box(bad):
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1, initval=1), pm.LogNormal("rate", 0, 1, initval=1)
        pm.Potential("bad", pm.math.switch(rate > LARGEST_RATE, bad, 0.0))
        mean = size * pm.math.exp(-rate * np.array([0.0, 0.5, 1.0, 2.0, 4.0]))
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    return model


@pytest.mark.parametrize(
    ("build", "bad"),
    [
        (estimated, np.nan),
        (beside_a_black_box, np.inf),
        (without_a_black_box, np.inf),
    ],
)
def test_what_a_chain_would_reject_is_impossible_and_told(build, bad):
    model = build(bad)
    message = f"log density was {bad} where it was evaluated .*rate="
    with pytest.warns(UserWarning, match=message) as told:
        learned = kmc.learn(model, **QUIET)
    assert sum("log density was" in str(warning.message) for warning in told) == 1
    assert learned.has_converged
    assert_right(learned)


# While searches are made, and in a round.
@pytest.mark.parametrize(
    ("make", "function", "n", "fault", "expected"),
    [
        (curve, decay, 30, lambda: np.zeros(3), "real numbers of shape .*an array of shape"),
        (curve, decay, 30, lambda: sys.exit(3), "raised SystemExit: 3"),
        (scalar, log_likelihood, 50, lambda: "no", "must return real numbers"),
    ],
)
def test_a_wrong_result_late(make, function, n, fault, expected):
    model = make(Faulty(function, n, fault))
    with pytest.raises(kmc.BlackBoxError, match=expected) as caught:
        kmc.learn(model, **QUIET)
    # The black box is tried out twice when it is made.
    assert len(caught.value.evaluations) == n - 3


def pool():
    return ProcessPoolExecutor(2, mp_context=get_context("fork"))


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    threading.Event().wait(600.0)


@pytest.mark.exactness
@pytest.mark.parametrize(
    ("fault", "options", "expected"),
    [
        (kill, {}, "process in the process pool was terminated abruptly"),
        (hang, {"executor": pool, "timeout": 0.5}, "took longer than timeout=0.5 seconds"),
    ],
)
def test_a_worker_that_is_lost(fault, options, expected, monkeypatch):
    """Evaluations before are kept, and no thread of the pool fails visibly.

    The pool whose worker is killed is a given one, which can't be made anew.
    """
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        function = Faulty(decay, 6, fault)  # in a worker: two calls are made here before
        mean = kmc.BlackBox("curve", function, size, rate, shape=(5,), **options)
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    with pytest.raises(kmc.BlackBoxError, match=expected) as caught:
        kmc.learn(model, executor=None if options else pool(), **QUIET)
    assert len(caught.value.evaluations) > 0
    for thread in threading.enumerate():
        if "Executor" in type(thread).__name__:  # the pool's manager
            thread.join(10.0)
    assert not failures


def interrupted_in_compiled_code(self, learned):
    """What Python makes of Ctrl-C in a function of numba's."""
    if learned.composite is None:
        return in_a_round(self, learned)
    raise SystemError("returned NULL without setting an exception") from KeyboardInterrupt()


in_a_round = Rounds.next


def test_an_interrupt_in_compiled_code_is_one(monkeypatch):
    monkeypatch.setattr(Rounds, "next", interrupted_in_compiled_code)
    with pytest.warns(UserWarning, match="Learning was interrupted"):
        learned = kmc.learn(curve(), **QUIET)
    assert not learned.has_converged


def test_an_interrupt_at_the_end_has_all_evaluations(monkeypatch):
    def interrupted(*arguments):
        raise SystemError("returned NULL without setting an exception") from KeyboardInterrupt()

    monkeypatch.setattr(learning_run, "_posterior", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        kmc.learn(curve(), **QUIET)
    assert len(caught.value.evaluations) > 30


def test_an_interrupt_of_a_step_that_learns_by_itself_is_not_swallowed(monkeypatch):
    """Nobody has asked for what was learned: pm.sample mustn't begin after Ctrl-C."""
    monkeypatch.setattr(Rounds, "next", interrupted_in_compiled_code)
    with curve(), pytest.raises(KeyboardInterrupt) as caught:
        kmc.KMC(n_landmarks=20)
    assert len(caught.value.evaluations) > 20


@pytest.mark.parametrize("make", [curve, scalar])
def test_too_few_evaluations_to_begin_are_refused(make):
    with pytest.raises(ValueError, match="max_evaluations=19 must be 20 at least"):
        kmc.learn(make(), max_evaluations=19, **QUIET)


def test_evaluations_of_a_function_that_has_changed_are_refused(tmp_path):
    learned_curve().to_netcdf(tmp_path / "learned.nc")
    earlier = kmc.LearnedPosterior.from_netcdf(tmp_path / "learned.nc")
    calls = []

    def changed(size, rate):
        calls.append(size)
        return 1.001 * decay(size, rate)

    model = curve(changed)
    calls.clear()
    with pytest.raises(ValueError, match="evaluations are of another model.*opaque output 0 was"):
        kmc.learn(model, evaluations=earlier, **QUIET)
    assert len(calls) == 1


def test_outputs_that_were_positive_so_far_may_be_negative():
    """Where their logarithms were emulated."""
    model = curve()
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    X = 0.3 * np.random.default_rng(1).standard_normal((30, 2))
    outputs, emulator = opaque.evaluate(X).outputs, NodeEmulator(opaque.nodes[0])

    def fit(outputs):
        values = opaque.log_density(X, outputs)[0]
        emulator.fit(evaluations_of(X, outputs, values, opaque.inputs(X)), X, opaque.inputs(X))

    fit(outputs)
    assert emulator.is_log
    fit(outputs - 0.5)
    assert not emulator.is_log
    assert np.isfinite(emulator.predict(X, opaque.inputs(X)).outputs).all()
