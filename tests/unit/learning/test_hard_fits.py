"""No fit raises, whatever was evaluated: predictions are finite, or the last fit is kept."""

import numpy as np
import pytest

from pymc_kmc.learning.emulator import FEWEST_EXTENDED, NodeEmulator
from pymc_kmc.model.structure import OpaqueNode
from pymc_kmc.numerics.linear_algebra import cholesky_factor
from pymc_kmc.numerics.samples import shrunk
from pymc_kmc.surrogates.covariance import EXTENSIONS, Hyperparameters
from pymc_kmc.surrogates.exact_gp import ExactGP, LinAlgError
from tests.evaluations import evaluations_of

# A first fit, and one to as many more, whose covariance may be extended.
D, N = 3, FEWEST_EXTENDED // 2 + 5
TERM = OpaqueNode(
    "term", 1, True, False, slice(0, D), slice(0, 1), np.arange(D), (), weights=np.ones(1)
)
NODES = {
    "term": TERM,
    "noisy term": TERM._replace(is_noisy=True),
    "outputs": TERM._replace(
        is_term=False, n_outputs=2, outputs=slice(0, 2), shape=(2,), returned=slice(0, 2)
    ),
}


def ordinary(n=N, scale=1.0):
    """Places, and outputs there, the first of which may be a log density."""
    X = scale * np.random.default_rng(0).normal(size=(n, D))
    return X, np.column_stack([-0.5 * (X**2).sum(axis=1), 2.0 + np.sin(X[:, 0])])


def with_values(*values):
    """The first outputs are these."""
    X, Y = ordinary()
    Y[: len(values)] = np.array(values)[:, None]
    return X, Y


def all_values(value):
    X, Y = ordinary()
    return X, np.full_like(Y, value)


def repeated():
    X, Y = ordinary()
    return np.repeat(X[:11], 5, axis=0), np.repeat(Y[:11], 5, axis=0)


def contradictory():
    X, Y = ordinary()
    return np.repeat(X[:1], N, axis=0), Y


def collinear():
    X, Y = ordinary()
    return X[:, :1] * np.array([1.0, 2.0, -3.0]), Y


def constant_column():
    X, Y = ordinary()
    X[:, 1] = 7.0
    return X, Y


def far_apart():
    """As of a hidden Markov model: deep values, some places far from the others."""
    X, Y = ordinary()
    X[::2] *= 1e-6
    Y[1::2] *= 1e4
    return X, Y


HARD = {
    "1e300": lambda: with_values(1e300, 0.0),
    "-1e300": lambda: with_values(-1e300, 0.0),
    "all 1e300": lambda: all_values(1e300),
    "all equal": lambda: all_values(-3.0),
    "all 0": lambda: all_values(0.0),
    "-inf": lambda: with_values(-np.inf, -np.inf, 0.0),
    "all -inf": lambda: all_values(-np.inf),
    "all NaN": lambda: all_values(np.nan),
    "NaN and infinities": lambda: with_values(np.nan, np.inf, -np.inf),
    "all but one -inf": lambda: with_values(*[-np.inf] * (N - 1)),
    "repeated": repeated,
    "contradictory": contradictory,
    "collinear": collinear,
    "constant column": constant_column,
    "far apart": far_apart,
    "far places": lambda: ordinary(scale=1e150),
    "close places": lambda: ordinary(scale=1e-150),
    "one": lambda: ordinary(1),
    "two": lambda: ordinary(2),
}
DRAWS = {
    "ordinary": lambda X: ordinary(40)[0],
    "those": lambda X: X,
    "one": lambda X: X[:1],
    "equal": lambda X: np.repeat(X[:1], 40, axis=0),
    "tight": lambda X: X[:1] + 1e-12 * ordinary(40)[0],
}


def says_numbers(emulator, X):
    predicted = emulator.predict(X, X)
    assert np.isfinite(predicted.outputs).all() and np.isfinite(predicted.variance).all()
    slopes = np.ones_like(predicted.outputs)
    assert np.isfinite(predicted.prediction.pullback(*reversed(predicted.scale(slopes)))).all()


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize(
    ("hard", "draws"),
    [*[(hard, "those") for hard in HARD], *[("far apart", draws) for draws in DRAWS]],
)
@pytest.mark.parametrize("node", NODES)
def test_no_emulator_raises(node, hard, draws):
    node, (X, Y) = NODES[node], HARD[hard]()
    where = DRAWS[draws](X)
    emulator, nearby = NodeEmulator(node), ordinary(20)[0]
    data = X, Y, np.where(np.isnan(Y[:, 0]), -np.inf, np.minimum(Y[:, 0], 1e300))
    emulator.fit(evaluations_of(*data), where, where)
    says_numbers(emulator, nearby)
    says_numbers(NodeEmulator.restored(node, emulator.state), nearby)
    assert len(emulator.leave_one_out()[0]) == len(X)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("node", NODES)
def test_what_was_fitted_before_is_of_use(node, hard):
    """Evaluations come in addition, and the covariance may be extended."""
    node, (X, Y), (first_X, first_Y) = NODES[node], HARD[hard](), ordinary()
    emulator = NodeEmulator(node, grows=True)
    emulator.fit(evaluations_of(first_X, first_Y, first_Y[:, 0]), first_X, first_X)
    X, Y = np.vstack([first_X, X]), np.vstack([first_Y, Y])
    heights = np.where(np.isnan(Y[:, 0]), -np.inf, Y[:, 0])
    emulator.fit(evaluations_of(X, Y, heights), first_X, first_X, averages=node.is_noisy)
    says_numbers(emulator, ordinary(20)[0])
    assert len(emulator.leave_one_out()[0]) == len(X)


def test_what_cannot_be_fitted_leaves_the_last_fit(monkeypatch):
    def fail(*arguments, **options):
        raise LinAlgError

    X, Y = ordinary()
    emulator = NodeEmulator(TERM, grows=True)
    emulator.fit(evaluations_of(X[:30], Y[:30], Y[:30, 0]), X, X)
    before = emulator.predict(X, X).outputs
    monkeypatch.setattr(ExactGP, "fit", fail)
    emulator.fit(evaluations_of(X, Y, Y[:, 0]), X, X)
    np.testing.assert_array_equal(emulator.predict(X, X).outputs, before)
    left_out, _ = emulator.leave_one_out()
    assert np.isfinite(left_out[:30]).all() and np.isnan(left_out[30:]).all()


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("extension", [None, *EXTENSIONS])
@pytest.mark.parametrize("hard", HARD)
def test_a_process_has_numbers_or_says_that_it_has_none(hard, extension):
    X, Y = HARD[hard]()
    process = ExactGP(np.eye(D), np.zeros(D))
    try:
        process.fit(X, Y, extension=extension)
    except LinAlgError:
        assert not np.isfinite(Y).all() or np.abs(Y).max() > 1e299
        return
    prediction = process.predict(ordinary(20)[0])
    assert np.isfinite(prediction.mean).all() and np.isfinite(prediction.variance).all()


def test_a_loss_that_overflows_has_no_gradient():
    parameters = Hyperparameters.start((0.0, 4.0, 0.0, -7.0), D)
    Z, Y = ordinary(20)
    process = ExactGP(np.eye(D), np.zeros(D))
    with pytest.raises(LinAlgError):
        process.given(1e60 * Z, Y, np.zeros(20), parameters)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e300, -1.0])
@pytest.mark.parametrize("place", [0, 2])
def test_a_factor_is_finite(place, value):
    A = np.eye(3)
    A[place, place] = value
    factor = cholesky_factor(A)
    assert (factor is None) == (value != 1e300)
    assert factor is None or np.isfinite(factor).all()


@pytest.mark.parametrize("hard", HARD)
def test_a_covariance_has_a_factor(hard):
    X, _ = HARD[hard]()
    for places in (X, X[:1], np.repeat(X[:1], 5, axis=0), 1e160 * X):
        factor = cholesky_factor(shrunk(places))
        assert np.isfinite(np.linalg.inv(factor)).all()
