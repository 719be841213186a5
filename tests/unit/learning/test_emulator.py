"""When an emulator's covariance is extended, and that it is the same again."""

import numpy as np
import pytest

from pymc_kmc.learning import emulator as emulators
from pymc_kmc.learning.emulator import FEWEST_EXTENDED, SHALLOW, NodeEmulator
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.model.structure import OpaqueNode
from tests.evaluations import evaluations_of

D = 4
TERM = OpaqueNode(
    "term", 1, True, False, slice(0, D), slice(0, 1), np.arange(D), (), slice(0, 1), np.ones(1)
)
NOISY_TERM = TERM._replace(is_noisy=True)


def normal(X):
    return -0.5 * (X**2).sum(axis=1)


def mixture(X):
    """Radial terms gain a tenth of a nat a value."""
    ends = [-0.5 * ((X - mean) ** 2).sum(axis=1) for mean in (-1.0, 1.0)]
    return np.logaddexp(*ends)


def separate(X):
    return -0.25 * (X**2).sum(axis=1) + np.tanh(4.0 * X).sum(axis=1)


def heavy(X):
    return -4.5 * np.log1p((X**2).sum(axis=1) / 5.0)


def emulated(function, n, grows=True):
    rng = np.random.default_rng(0)
    X, draws = rng.standard_t(5.0, size=(n, D)), rng.normal(size=(64, D))
    values = function(X)
    emulator = NodeEmulator(TERM, grows=grows)
    return emulator.fit(evaluations_of(X, values[:, None], values), draws, draws)


@pytest.mark.parametrize(
    ("function", "extension"),
    [(normal, None), (mixture, None), (separate, "additive"), (heavy, "radial")],
)
def test_a_covariance_is_extended_where_that_tells_more(function, extension):
    assert emulated(function, FEWEST_EXTENDED + 50).process.extension == extension


@pytest.mark.parametrize("function", [mixture, heavy])
def test_what_competes_on_some_values_is_fitted_to_all(function, monkeypatch):
    usual = emulated(function, 240)
    monkeypatch.setattr(emulators, "MOST_COMPARED", FEWEST_EXTENDED + 20)
    sizes, fit = [], emulators.ExactGP.fit

    def counted(self, X, *args):
        sizes.append(len(X))
        return fit(self, X, *args)

    monkeypatch.setattr(emulators.ExactGP, "fit", counted)
    found = emulated(function, 240)
    assert set(sizes[:-1]) == {FEWEST_EXTENDED + 20} and sizes[-1] == 240
    assert found.space == usual.space and found.process.extension == usual.process.extension
    # Where less than .3 nats a value are missing predictions are as good.
    assert found.process.log_evidence_ > usual.process.log_evidence_ - 0.3 * 240


def without_a_quarter(X, values, monkeypatch):
    """Emulators of all values, of some alone, and of these by what was known of all.

    Besides, where the last one's searches began: processes.
    """
    draws, kept = np.random.default_rng(1).normal(size=(64, D)), np.arange(len(X)) % 4 > 0
    whole = evaluations_of(X, values[:, None], values)
    every = NodeEmulator(TERM, grows=True).fit(whole, draws, draws)
    alone = NodeEmulator(TERM, grows=True).fit(whole[kept], draws, draws)
    begun, fit = [], emulators.ExactGP.fit

    def noted(self, X, Y, noise, last, *settings):
        begun.append(last)
        return fit(self, X, Y, noise, last, *settings)

    monkeypatch.setattr(emulators.ExactGP, "fit", noted)
    some = every.for_some().fit(whole[kept], draws, draws)
    return every, alone, some, begun


@pytest.mark.parametrize("function", [separate, heavy])
def test_some_values_are_fitted_from_what_was_right_for_all(function, monkeypatch):
    X = np.random.default_rng(0).standard_t(5.0, size=(200, D))
    every, alone, some, begun = without_a_quarter(X, function(X), monkeypatch)
    assert some.space == alone.space == every.space
    assert some.process.extension == alone.process.extension is not None
    assert some.process.log_evidence_ > alone.process.log_evidence_ - 0.5
    # All forms and two starts of each would be six searches at least.
    assert len(begun) <= 2 and every.process in begun and None not in begun


def test_some_values_may_be_better_in_another_transform(monkeypatch):
    # A quarter is rightly compressed, and decides for all; the others aren't.
    X = np.random.default_rng(0).normal(size=(60, D))
    is_left_out = np.arange(60) % 4 == 0
    X *= np.where(is_left_out, 2.8, 2.0)[:, None]
    values, k = normal(X), COMPRESSION_DEPTH * D
    values = np.where(is_left_out & (values < -k), -k * np.exp(-values / k - 1.0), values)
    every, alone, some, begun = without_a_quarter(X, values, monkeypatch)
    assert every.space[1] == "compressed" and len(begun) == 2
    assert some.space[1] == alone.space[1] == "none"
    assert some.process.log_evidence_ > alone.process.log_evidence_ - 0.5


def test_some_values_that_have_no_form_in_common_are_searched_anew():
    X = np.random.default_rng(0).normal(size=(40, D))
    evaluations = evaluations_of(X, normal(X)[:, None], normal(X))
    some = NodeEmulator(TERM, grows=True).fit(evaluations, X, X).for_some()
    some._starts = [
        (("log inputs", "none", False), some._starts[0][1])
    ]  # inputs that were positive
    some.fit(evaluations, X, X)
    np.testing.assert_allclose(some.predict(X, X).outputs[:, 0], normal(X), atol=0.1)


def test_some_values_are_of_all_heights():
    heights = np.random.default_rng(0).normal(size=1000)
    rows = emulators.at_all_heights(heights, 11)
    assert len(set(rows)) == 11
    assert np.diff(np.argsort(np.argsort(-heights))[rows]).max() <= 100
    assert {heights.argmax(), heights.argmin()} <= set(rows)


@pytest.mark.parametrize(("n", "grows"), [(FEWEST_EXTENDED - 20, True), (200, False)])
def test_few_values_and_searches_have_no_extension(n, grows):
    assert emulated(heavy, n, grows).process.extension is None


@pytest.mark.parametrize("function", [normal, separate, heavy])
def test_an_emulator_restored_predicts_the_same(function):
    emulator = emulated(function, FEWEST_EXTENDED + 50)
    again = NodeEmulator.restored(TERM, emulator.state)
    X = np.random.default_rng(1).normal(size=(5, D))
    np.testing.assert_array_equal(again.predict(X, X).outputs, emulator.predict(X, X).outputs)
    assert again.process.extension == emulator.process.extension


def with_a_cliff(X):
    """A ridge that rises to a cliff, which values near the best say nothing of."""
    return 4.0 * X[:, 0] - 0.5 * (X[:, 1:] ** 2).sum(axis=1) - 60.0 * (X[:, 0] > 2.5)


def averaged(function, deep, node=NOISY_TERM, averages=True):
    """Return the emulator of 150 values and those at deep places, and all places and values."""
    rng = np.random.default_rng(0)
    near, draws = rng.normal(size=(150, D)), rng.normal(size=(64, D))
    X = np.vstack([near, deep])
    values = function(X) + 0.5 * rng.standard_normal(len(X))
    emulator = NodeEmulator(node, grows=True)
    emulator.fit(evaluations_of(X, values[:, None], values), draws, draws, averages=averages)
    return emulator, X, values


def all_round(n=60):
    """Places some hundred nats deep in a standard normal density."""
    Z = np.random.default_rng(1).normal(size=(n, D))
    return 14.0 * Z / np.linalg.norm(Z, axis=1)[:, None]


@pytest.mark.parametrize("failed", [-np.inf, np.nan])
def test_a_search_may_begin_where_an_estimate_fails(failed):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, D))
    values = normal(X)
    values[7] = failed
    evaluations, draws = evaluations_of(X, values[:, None], values), X[:20]
    found = NodeEmulator(NOISY_TERM).fit(evaluations, draws, draws, top=7)
    np.testing.assert_allclose(found.predict(draws, draws).outputs[:7, 0], values[:7], atol=0.5)


def test_failed_estimates_alone_have_a_fit():
    """A jackknife may leave out all others."""
    X, failed = np.random.default_rng(0).normal(size=(20, D)), np.full(20, -np.inf)
    emulator = NodeEmulator(NOISY_TERM, grows=True)
    emulator.fit(evaluations_of(X, failed[:, None], failed), X, X, averages=True)
    assert np.isfinite(emulator.predict(X, X).outputs).all()


def test_deep_values_are_left_out_where_noise_is_averaged():
    emulator, _, values = averaged(normal, all_round())
    is_shallow = values > values.max() - SHALLOW * COMPRESSION_DEPTH * D
    np.testing.assert_array_equal(emulator.usable, is_shallow)
    assert is_shallow.sum() == 150
    left_out = np.isnan(emulator.leave_one_out()[0][:, 0])
    np.testing.assert_array_equal(left_out, ~is_shallow)


def test_deep_values_are_fitted_elsewhere():
    for node, averages in ((NOISY_TERM, False), (TERM, True)):
        emulator, _, values = averaged(normal, all_round(), node, averages)
        assert len(emulator.process.Z_) == len(values)


def test_deep_values_are_fitted_where_there_are_few_others():
    emulator, values = NodeEmulator(NOISY_TERM), -np.linspace(0.0, 1000.0, 200)
    # Four times the fifteen coefficients of a quadratic.
    assert np.sum(values >= emulator._floor(values)) == 60


def test_a_deep_value_that_the_others_say_is_high_is_fitted():
    behind = np.random.default_rng(1).normal(size=(30, D)) * [0.1, 1, 1, 1] + [3.5, 0, 0, 0]
    emulator, X, values = averaged(with_a_cliff, behind)
    assert emulator.usable[150:].any()
    floor = values.max() - SHALLOW * COMPRESSION_DEPTH * D
    np.testing.assert_array_less(emulator.predict(X[150:], X[150:]).outputs[:, 0], floor)


def two_boxes():
    """Two nodes of one function of two positive inputs, their evaluations, and log inputs."""
    rng, both = np.random.default_rng(0), []
    for k in (0, 1):
        places = slice(2 * k, 2 * k + 2), slice(3 * k, 3 * k + 3), np.arange(3 * k, 3 * k + 3)
        both.append(OpaqueNode(f"box {k}", 3, False, False, *places, (3,), slice(3 * k, 3 * k + 3)))
    logs = rng.normal(size=(15, 4)) + [0.0, 0.0, 1.5, 1.5]
    outputs = np.hstack([curve(logs[:, :2]), curve(logs[:, 2:])])
    X = rng.normal(size=(15, 6))
    return both, evaluations_of(X, outputs, np.zeros(15), np.exp(logs)), logs


def curve(logs):
    return np.stack([np.sin(logs[:, 0]), logs[:, 1], np.tanh(logs.sum(axis=1))], axis=1)


def test_nodes_of_one_function_learn_from_each_other():
    """Each box's emulator is right where only the other one was evaluated."""
    (first, second), evaluations, logs = two_boxes()
    emulator = NodeEmulator(first, grows=True, alike=[first, second])
    emulator.fit(evaluations, evaluations.X, evaluations.inputs)
    assert emulator.space[0] == "log inputs"
    other = emulator.shared(second)
    inputs = evaluations.inputs[:, [2, 3, 0, 1]]
    predicted = other.predict(evaluations.X, inputs).outputs
    np.testing.assert_allclose(predicted, curve(logs[:, :2]), atol=1e-2)
    of_first = emulator.predict(evaluations.X, inputs).outputs
    np.testing.assert_allclose(of_first, curve(logs[:, 2:]), atol=1e-2)
    again = NodeEmulator.restored(second, other.state).predict(evaluations.X, inputs).outputs
    np.testing.assert_allclose(again, predicted, atol=1e-9)
    held_out, variance = other.leave_one_out(evaluations)
    assert held_out.shape == (15, 3)
    assert np.isfinite(variance).all()
