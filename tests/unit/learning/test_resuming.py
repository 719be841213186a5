"""No evaluation is lost where learning fails, and none is made again."""

import warnings
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning.posterior import LearnedPosterior
from pymc_kmc.learning.resuming import of_store, remember
from pymc_kmc.model.opaque import OpaqueModel, StructureError
from tests.learned import (
    OBSERVED,
    TIMES,
    curve,
    decay,
    learned_curve,
    learned_number,
    log_likelihood,
    scalar,
)

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
    assert repr(caught.value.evaluations).startswith("Evaluations(7, ")
    assert "made: 7;" in caught.value.__notes__[0]


@pytest.mark.exactness
def test_another_seed_uses_what_was_evaluated():
    failing = Failing(log_likelihood, FAILS_AT, ValueError("no"))
    model = scalar(failing)
    with pytest.raises(kmc.BlackBoxError) as caught:
        kmc.learn(model, **QUIET)
    kept = caught.value.evaluations
    with pytest.warns(UserWarning, match="max_evaluations"):
        learned = kmc.learn(model, evaluations=kept, random_seed=3, max_evaluations=16, **QUIET)
    np.testing.assert_array_equal(learned.evaluations.X[: len(kept)], kept.X)


def test_learning_goes_on_from_the_evaluations_of_what_was_learned():
    first, calls = learned_curve(), []

    def counted(size, rate):
        calls.append((size, rate))
        return decay(size, rate)

    model = curve(counted)
    calls.clear()
    again = kmc.learn(model, evaluations=first.evaluations, **QUIET)
    np.testing.assert_array_equal(again.positions, first.positions)
    assert again.n_evaluations == 0 and not calls
    more = kmc.learn(model, evaluations=first.evaluations, random_seed=3, **QUIET)
    np.testing.assert_array_equal(more.evaluations.X[: len(first.evaluations)], first.evaluations.X)
    assert len(calls) == more.n_evaluations < 60


def test_another_limit_uses_what_was_evaluated():
    """With the same seed searches are shorter and end elsewhere: what they need is evaluated."""
    first = learned_curve().evaluations
    learned = kmc.learn(curve(), evaluations=first, max_evaluations=20, **QUIET)
    assert (learned.evaluations.rows(first.X) >= 0).all()
    assert learned.has_converged


def test_under_another_prior_outputs_stay_and_log_densities_do_not():
    first = learned_curve().evaluations
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 1, 1), pm.LogNormal("rate", 0, 1)
        mean = kmc.BlackBox("curve", decay, size, rate, shape=(5,))
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    found = opaque.remember(first)
    np.testing.assert_array_equal(found.outputs, first.outputs)
    change = 0.5 * first.X[:, 0] ** 2 - 0.5 * (first.X[:, 0] - 1.0) ** 2
    np.testing.assert_allclose(found.log_densities - first.log_densities, change)
    assert opaque.n_evaluations == 0


def test_evaluations_must_be_of_the_model():
    with pytest.raises(kmc.BlackBoxError) as caught:
        kmc.learn(scalar(Failing(log_likelihood, FAILS_AT, ValueError("no"))), **QUIET)
    with pytest.raises(ValueError, match="5"):
        kmc.learn(curve(), evaluations=caught.value.evaluations, **QUIET)
    with pytest.raises(TypeError, match="evaluations"):
        kmc.learn(curve(), evaluations=3)
    none = learned_curve().evaluations[:0]
    with pytest.raises(ValueError, match="evaluations=.* has none: leave evaluations= out"):
        kmc.learn(curve(), evaluations=none, **QUIET)


def of_prior(prior, scale=None, observed=OBSERVED):
    """A model of a curve whose size is `scale` times a variable, and evaluations of it."""
    with pm.Model() as model:
        size, rate = prior("size"), pm.LogNormal("rate", 0, 1)
        mean = kmc.BlackBox(
            "curve", decay, size if scale is None else scale * size, rate, shape=(5,)
        )
        pm.Normal("y", mean, 0.1, observed=observed)
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    return model, opaque.evaluate(np.random.default_rng(1).standard_normal((40, 2)))


def bounded(top):
    return partial(pm.Uniform, lower=0.0, upper=top)


@pytest.mark.parametrize("changed", [(bounded(20.0), None), (bounded(5.0), 1.01)])
def test_evaluations_whose_places_are_other_inputs_now_are_refused(changed):
    """The same unconstrained values, under other bounds or another factor: silently wrong."""
    _, earlier = of_prior(bounded(5.0))
    model, _ = of_prior(*changed)
    with pytest.raises(ValueError, match="an input of curve was .*EvaluationStore"):
        kmc.learn(model, evaluations=earlier, random_seed=2, **QUIET)


def test_evaluations_under_other_bounds_start_from_a_store(tmp_path):
    old, earlier = of_prior(bounded(5.0))
    model, _ = of_prior(bounded(20.0))
    store = kmc.EvaluationStore(tmp_path / "earlier.db")
    store.add("curve", earlier.variables(old), earlier.outputs)
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    found = of_store(store, opaque, 100)
    assert len(found) == 40
    np.testing.assert_allclose(found.inputs, earlier.inputs, rtol=1e-9)


def clipped(mean=0.0):
    """A model whose log density is finite where its black box is not."""
    with pm.Model() as model:
        box = kmc.BlackBox("f", lambda a: -np.inf if a > 0.8 else -(a**2), pm.Normal("a", mean))
        pm.Potential("l", pm.math.maximum(box, -4.0))
    return OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))


def test_what_became_one_number_is_one_for_the_next_call():
    X, first, again = np.array([[0.5], [1.0]]), clipped(), clipped()
    with pytest.raises(StructureError):
        first.evaluate(X)
    found = remember(first.evaluations, again, X + 1.0, 20)
    assert again.is_whole and found.is_whole
    np.testing.assert_allclose(found.log_densities, first.evaluations.log_densities)
    with pytest.raises(ValueError, match="another model"):
        remember(first.evaluations, clipped(0.5), X + 1.0, 20)


@pytest.mark.parametrize("data", [1.0, -0.5])
def test_estimates_of_other_data_are_noticed(data):
    """Noise hid that they had changed: posteriors between the two were said to be learned."""

    def estimated(data):
        def estimator(a, rng):
            return -2.0 * (a - data) ** 2 + 0.7 * rng.standard_normal()

        with pm.Model() as model:
            kmc.PseudoMarginalPotential("l", estimator, pm.Normal("a", 0, 2))
        return OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))

    first = estimated(1.0).evaluate(np.linspace(-1.0, 3.0, 24)[:, None])
    emulated = SimpleNamespace(held_out=-2.0 * (first.X[:, 0] - 1.0) ** 2)
    learned = MagicMock(LearnedPosterior, evaluations=first, emulated=emulated, noise=0.7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        found = remember(learned, estimated(data), first.X[:4], 20)
    assert len(found) == 24
    told = [str(w.message) for w in caught if "may be of another model" in str(w.message)]
    assert len(told) == (data != 1.0)


@pytest.mark.parametrize("changed", [{}, {"prior": (3.0, 0.5)}, {"data": 2.0}])
def test_evaluations_of_a_simulator_hold_for_one_prior_and_the_same_data(changed):
    """Its log densities have both, and the noise hides them: other ones were taken silently."""

    def simulate(rng, a, size):
        return rng.normal(a, 1.0, 30)

    def simulated(prior=(0.0, 2.0), data=1.0):
        observed = np.random.default_rng(0).normal(data, 1.0, 30)
        with pm.Model() as model:
            a = pm.Normal("a", *prior)
            pm.Simulator("s", simulate, a, sum_stat="mean", epsilon=0.2, observed=observed)
        return OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))

    first = simulated().evaluate(np.linspace(-2.0, 4.0, 40)[:, None])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        assert len(remember(first, simulated(**changed), first.X[:4] + 0.1, 20)) == 40
    told = [str(w.message) for w in caught if "may be of another model" in str(w.message)]
    assert len(told) == len(changed)


def test_exact_outputs_beside_estimates_are_compared():
    def beside(constant):
        with pm.Model() as model:
            a = pm.Normal("a")
            pm.Normal("y", kmc.BlackBox("f", lambda a: constant + a, a), observed=0.5)
            kmc.PseudoMarginalPotential("l", lambda a, rng: rng.standard_normal() - a**2, a)
        return OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))

    first = beside(1.0).evaluate(np.linspace(-1.0, 3.0, 9)[:, None])
    emulated = SimpleNamespace(held_out=first.log_densities)
    learned = MagicMock(LearnedPosterior, evaluations=first, emulated=emulated, noise=1.0)
    remember(learned, beside(1.0), first.X[:4], 20)
    with pytest.raises(ValueError, match="another model"):
        remember(learned, beside(1.5), first.X[:4], 20)


@pytest.mark.parametrize("observed", [OBSERVED, OBSERVED + 0.1])
def test_the_same_way_is_taken_with_the_same_log_densities_alone(observed):
    """With the same seed, but other data, learning begins with all earlier evaluations."""
    _, earlier = of_prior(pm.LogNormal)
    model, _ = of_prior(pm.LogNormal, observed=observed)
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    found = remember(earlier, opaque, earlier.X[:4], 20)
    if observed is OBSERVED:
        assert found is None
    else:
        np.testing.assert_array_equal(found.X, earlier.X)


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
    found = first.evaluate(X).outputs
    calls = []

    def counted(size, rate):
        calls.append((size, rate))
        return size * np.exp(-rate * TIMES)

    again = model(counted)
    again.remember(first.evaluations)
    calls.clear()
    more = np.vstack([X[:2], X[:1] + 1.0, X[2:]])
    expected = first.evaluate(more).outputs
    np.testing.assert_array_equal(again.evaluate(more).outputs, expected)
    np.testing.assert_array_equal(np.delete(expected, 2, axis=0), found)
    assert len(calls) == 1
    assert again.n_evaluations == 1
    assert len(again.evaluations) == 5


def of_times(kind, times, calls=()):
    """A model of a curve at `times`, data or a constant."""

    def curve_at(size, times):
        calls.append(size)
        return size * np.exp(-times)

    calls = [] if calls == () else calls
    with pm.Model() as model:
        given = {"data": lambda: pm.Data("t", times), "constant": lambda: times}
        given["expression"] = lambda: 2.0 * pm.Data("t", times / 2.0)
        size = pm.LogNormal("size")
        mean = kmc.BlackBox("curve", curve_at, size, given[kind](), shape=(5,))
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    return model


@pytest.mark.parametrize("kind", ["data", "constant", "expression"])
def test_evaluations_of_other_data_given_to_a_black_box_are_refused(kind):
    """Data aren't among the inputs that places are compared by: the best one is evaluated."""
    first = of_times(kind, TIMES)
    opaque = OpaqueModel(first.continuous_value_vars, first, np.random.default_rng(0))
    earlier = opaque.evaluate(np.random.default_rng(1).standard_normal((20, 1)))
    with pytest.raises(ValueError, match="of another model: .* opaque output"):
        kmc.learn(of_times(kind, TIMES + 0.5), evaluations=earlier, random_seed=2, **QUIET)
    calls = []
    same = of_times(kind, TIMES, calls)
    calls.clear()
    opaque = OpaqueModel(same.continuous_value_vars, same, np.random.default_rng(0))
    found = remember(earlier, opaque, earlier.X[:1] + 1.0, 20)
    assert len(calls) == 1 and len(found) == 20


# Stores


def counted_curve(calls, path, prior=0.0, sigma=None):
    """The model of a curve that lists its calls and keeps them in a store."""

    def counted(size, rate):
        calls.append((size, rate))
        return decay(size, rate)

    with pm.Model() as model:
        size, rate = pm.LogNormal("size", prior, 1), pm.LogNormal("rate", 0, 1)
        if sigma is not None:
            sigma = pm.HalfNormal("sigma", sigma)
        mean = kmc.BlackBox("curve", counted, size, rate, shape=(5,), store=path)
        pm.Normal("y", mean, 0.1 if sigma is None else sigma, observed=OBSERVED)
    return model


def test_learning_again_with_a_store_evaluates_nothing(tmp_path):
    calls, found = [], []
    for _ in range(2):
        model = counted_curve(calls, tmp_path / "a.db")
        found.append(kmc.learn(model, **QUIET))
        n = len(calls)
    assert n == len(calls) == found[0].n_evaluations + 2
    np.testing.assert_array_equal(found[0].positions, found[1].positions)


@pytest.mark.exactness
def test_another_prior_and_a_new_variable_start_from_a_store(tmp_path):
    calls = []
    kmc.learn(counted_curve(calls, tmp_path / "a.db"), **QUIET)
    alone = kmc.learn(counted_curve([], None, 0.5, 0.2), **QUIET)
    model = counted_curve(calls, tmp_path / "a.db", 0.5, 0.2)
    store = kmc.EvaluationStore(tmp_path / "a.db")
    calls.clear()
    n = len(store)
    learned = kmc.learn(model, evaluations=store, **QUIET)
    # A draw may be proposed in two rounds: it is evaluated once.
    n_distinct = len(np.unique(learned.evaluations.X, axis=0))
    assert n_distinct == n + learned.n_evaluations == n + len(calls)
    assert learned.has_converged and len(calls) < alone.n_evaluations
    kept = learned.evaluations[slice(0, n)]
    inside = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    np.testing.assert_allclose(inside.evaluate(kept.X).outputs, kept.outputs, rtol=1e-9)


def test_a_table_is_a_start_and_the_best_of_many_are_taken(tmp_path):
    store, rng = kmc.EvaluationStore(tmp_path / "a.db"), np.random.default_rng(0)
    size, rate = np.exp(rng.normal(size=(2, 500)))
    outputs = [decay(*place) for place in zip(size, rate, strict=True)]
    store.add("curve", {"size": size, "rate": rate}, outputs)
    model = counted_curve([], None)
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    found = of_store(store, opaque, 100)
    every = of_store(store, opaque, 500)
    assert len(found) == 100 and len(every) == 500
    assert found.log_densities.max() == every.log_densities.max()
    best = np.sort(every.log_densities)[-50:]
    assert np.isin(best, found.log_densities).all()
    np.testing.assert_allclose(every.X, np.log([size, rate]).T, atol=1e-12)
    assert kmc.learn(model, evaluations=store, **QUIET).has_converged


def test_evaluations_of_a_smaller_constant_in_a_store_are_none_of_the_model(tmp_path):
    """However large the constants are that others had."""
    store, x = kmc.EvaluationStore(tmp_path / "a.db"), np.linspace(-1.0, 1.0, 5)
    for c in (1.0, 2.0, 1e8):
        store.add("f", {"x": x, "c": np.full(5, c)}, c * x)
    with pm.Model() as model:
        box = kmc.BlackBox("f", lambda x, c: c * x, pm.Normal("x"), 1.0)
        pm.Normal("y", box, observed=0.5)
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(of_store(store, opaque, 20).X[:, 0]), x)


def test_estimates_in_a_store_are_a_start(tmp_path):
    def estimator(x, rng):
        return -0.5 * x**2 + 0.1 * rng.normal()

    with pm.Model() as model:
        x = pm.Normal("x", 0, 3)
        kmc.PseudoMarginalPotential("l", estimator, x, n_replicates=2, store=tmp_path / "a.db")
        pm.sample(step=kmc.AdaptiveMetropolis(), tune=20, draws=20, chains=1, progressbar=False)
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    store = kmc.EvaluationStore(tmp_path / "a.db")
    found = of_store(store, opaque, 100)
    np.testing.assert_allclose(found.outputs[:, 0], -0.5 * found.X[:, 0] ** 2, atol=0.5)
    assert len(found) > 35


def test_a_store_of_other_functions_is_no_start(tmp_path):
    store = kmc.EvaluationStore(tmp_path / "a.db")
    with pytest.raises(ValueError, match="none of 'curve'.*'size', 'rate'.*leave evaluations= out"):
        kmc.learn(counted_curve([], None), evaluations=store, **QUIET)
    store.add("curve", {"size": [1.0], "rate": [1.0]}, [decay(1.0, 1.0)])
    with pm.Model() as model:
        size, rate = pm.Normal("s"), pm.LogNormal("rate", 0, 1)
        mean = kmc.BlackBox("curve", decay, pm.math.exp(size) + 1.0, rate, shape=(5,))
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    with pytest.raises(ValueError, match="must be variables of the model"):
        kmc.learn(model, evaluations=store, **QUIET)
    with model:
        pm.Potential("p", kmc.BlackBox("g", np.sin, rate))
    with pytest.raises(ValueError, match="one opaque node.*'curve'"):
        kmc.learn(model, evaluations=store, **QUIET)
