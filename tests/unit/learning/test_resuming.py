"""No evaluation is lost where learning fails, and none is made again."""

import numpy as np
import pytest

import pymc_kmc as kmc
from pymc_kmc.model.opaque import OpaqueModel
from tests.learned import TIMES, curve, decay, learned_curve, learned_number, log_likelihood, scalar

FAILS_AT = 30
QUIET = {"progressbar": False}


class Failing:
    """A function that fails at its n-th call, and never again."""

    def __init__(self, function, n, error):
        self.function, self.n, self.error, self.calls = function, n, error, 0

    def __call__(self, *values):
        self.calls += 1
        if self.calls == self.n:
            raise self.error
        return self.function(*values)


KINDS = {
    "outputs": (curve, decay, learned_curve),
    "number": (scalar, log_likelihood, learned_number),
}


# While arriving, and in a round.
@pytest.mark.parametrize(("kind", "n"), [("outputs", 8), ("number", 31)])
def test_learning_goes_on_after_an_exception(kind, n):
    make, function, learned_whole = KINDS[kind]
    whole = learned_whole()
    # The black box is tried out twice when it is made.
    failing = Failing(function, n + 2, ValueError("no solution"))
    model = make(failing)
    with pytest.raises(kmc.BlackBoxError, match="no solution") as caught:
        kmc.learn(model, **QUIET)
    assert len(caught.value.evaluations) == n - 1  # also those of the batch in which it failed
    (note,) = caught.value.__notes__
    assert f"Evaluations made: {n - 1};" in note
    assert "evaluations=error.evaluations" in note
    learned = kmc.learn(model, evaluations=caught.value.evaluations, **QUIET)
    np.testing.assert_array_equal(learned.positions, whole.positions)
    np.testing.assert_array_equal(learned.evaluations.X, whole.evaluations.X)
    # One place was called twice, that of the exception.
    assert failing.calls == 2 + whole.n_evaluations + 1


def test_an_early_interruption_keeps_evaluations():
    with pytest.raises(KeyboardInterrupt) as caught:
        kmc.learn(scalar(Failing(log_likelihood, 10, KeyboardInterrupt())), **QUIET)
    assert len(caught.value.evaluations) == 7
    assert repr(caught.value.evaluations).startswith("Evaluated(7 evaluations, ")
    assert "made: 7;" in caught.value.__notes__[0]


def test_another_seed_uses_what_was_evaluated():
    failing = Failing(log_likelihood, FAILS_AT, ValueError("no"))
    model = scalar(failing)
    with pytest.raises(kmc.BlackBoxError) as caught:
        kmc.learn(model, **QUIET)
    kept = caught.value.evaluations
    with pytest.warns(UserWarning, match="max_evaluations"):
        learned = kmc.learn(model, evaluations=kept, random_seed=3, max_evaluations=16, **QUIET)
    np.testing.assert_array_equal(learned.evaluations.X[: len(kept)], kept.X)


def test_evaluations_must_be_of_the_model():
    with pytest.raises(kmc.BlackBoxError) as caught:
        kmc.learn(scalar(Failing(log_likelihood, FAILS_AT, ValueError("no"))), **QUIET)
    with pytest.raises(ValueError, match="5"):
        kmc.learn(curve(), evaluations=caught.value.evaluations, **QUIET)
    with pytest.raises(TypeError, match="evaluations"):
        kmc.learn(curve(), evaluations=3)


def test_seconds_are_of_each_evaluation():
    learned = learned_curve()
    assert learned.seconds.shape == (len(learned.evaluations),)
    assert np.all(learned.seconds > 0)


def test_a_remembered_place_is_not_evaluated():
    def model(function):
        model = curve(function)
        return OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))

    X = np.random.default_rng(1).standard_normal((4, 2))
    first = model(decay)
    found = first.evaluate(X)
    calls = []

    def counted(size, rate):
        calls.append((size, rate))
        return size * np.exp(-rate * TIMES)

    again = model(counted)
    again.log.remember(first.log.X, first.log.outputs, first.log.seconds)
    calls.clear()
    more = np.vstack([X[:2], X[:1] + 1.0, X[2:]])
    expected = first.evaluate(more)
    np.testing.assert_array_equal(again.evaluate(more), expected)
    np.testing.assert_array_equal(np.delete(expected, 2, axis=0), found)
    assert len(calls) == 1
    assert again.n_evaluations == 1
    assert len(again.log) == 5
