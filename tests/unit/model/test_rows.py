"""Functions of many points at a time, as calls of NumPy with the numbers of PyTensor."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.link.basic import PerformLinker
from pytensor.raise_op import Assert
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import Elemwise

from pymc_kmc.model import rows
from pymc_kmc.model.rows import REWRITES, Columns, NumPyLinker, function, of_rows, with_slices


def test_sums_and_products_of_many_are_made_of_two():
    """PyTensor calls a Python function for each element of larger ones."""
    x = pt.dvector("x")
    a, b, c = x[0], x[1], x[2]
    function = of_rows([x], [a + pt.exp(b) + c**2 + a * b * pt.sin(c)])
    points = np.random.default_rng(0).standard_normal((4, 3))
    a, b, c = points.T
    expected = a + np.exp(b) + c**2 + a * b * np.sin(c)
    np.testing.assert_allclose(function(points)[0], expected, rtol=1e-12)
    nodes = [node for node in function.maker.fgraph.apply_nodes if isinstance(node.op, Elemwise)]
    sizes = [len(node.inputs) for node in nodes if isinstance(node.op.scalar_op, Add | Mul)]
    assert sizes and set(sizes) == {2}


def test_only_checks_of_the_model_are_left():
    """PyTensor checks the numbers of rows too, a third of the time of simple densities."""
    x, y = pt.dscalar("x"), pt.dscalar("y")
    own = Assert("x is negative")(x, x > 0)
    f = of_rows([x, y], [own, pytensor.grad(pt.sqr(x) + y, y)])
    messages = {node.op.msg for node in f.maker.fgraph.apply_nodes if isinstance(node.op, Assert)}
    assert messages == {"x is negative"}


def test_what_does_not_depend_on_a_point_has_rows_too():
    x = pt.dvector("x")
    function = of_rows([x], [pt.constant(2.0)])
    np.testing.assert_array_equal(function(np.zeros((3, 2)))[0], [2.0, 2.0, 2.0])


def test_a_parameter_out_of_its_range_fails_its_own_row_alone():
    sd = pt.dvector("sd")
    log_density = pm.logp(pm.Normal.dist(0.0, sd), np.ones(2)).sum()
    slopes = pytensor.grad(log_density, sd)
    function = of_rows([sd], [log_density, slopes])
    points = np.array([[1.0, 2.0], [0.0, 1.0], [np.nan, 1.0], [3.0, 1.0]])
    values, gradients = function(points)
    assert list(np.isfinite(values)) == [True, False, False, True]
    for i in (0, 3):
        (alone, slope) = function(points[[i]])
        assert values[i] == alone[0]
        np.testing.assert_array_equal(gradients[i], slope[0])


def test_what_cannot_be_vectorized_is_evaluated_point_by_point(monkeypatch):
    """As a CAR's sparse matrix; an error of PyTensor's."""

    def fail(*arguments):
        raise ValueError("axis 0 is out of bounds")

    x, y = pt.dvector("x"), pt.dscalar("y")
    outputs = [x * y, x.sum() + y, pt.constant(2.0)]
    points = np.random.default_rng(0).standard_normal((4, 3)), np.arange(4.0)
    expected = of_rows([x, y], outputs)(*points)
    monkeypatch.setattr(rows, "vectorize_graph", fail)
    function = of_rows([x, y], outputs)
    for found, right in zip(function(*points), expected, strict=True):
        np.testing.assert_allclose(found, right)
    assert [v.shape for v in function(points[0][:0], points[1][:0])] == [(0, 0), (0,), (0,)]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_arrays_come_back(n):
    columns = Columns([(), (2, 3), (0,), (2,)])
    X = np.arange(9.0 * n).reshape(n, 9)
    arrays = columns.split(X)
    assert [array.shape for array in arrays] == [(n,), (n, 2, 3), (n, 0), (n, 2)]
    np.testing.assert_array_equal(columns.join(arrays), X)


def test_arrays_have_their_own_dtypes():
    columns = Columns([(), (2,)], ["float32", "float64"])
    arrays = columns.split(np.full((4, 3), np.pi))
    assert [array.dtype.name for array in arrays] == ["float32", "float64"]
    assert columns.join(arrays).dtype == np.float64


def test_shared_variables_are_followed_in_one_call(monkeypatch):
    monkeypatch.setattr(rows, "_row_by_row", lambda *arguments: pytest.fail("row by row"))
    x, shared = pt.dvector("x"), pytensor.shared(np.array([1.0, 2.0]))
    sd = pt.exp(shared[1])
    function = of_rows([x], [pm.logp(pm.Normal.dist(shared[0], sd), x).sum()])
    points = np.random.default_rng(0).standard_normal((3, 2))
    for mean, log_sd in ((1.0, 2.0), (-1.0, 0.5)):
        shared.set_value(np.array([mean, log_sd]))
        z = (points - mean) / np.exp(log_sd)
        expected = np.sum(-0.5 * z**2 - log_sd - 0.5 * np.log(2 * np.pi), axis=1)
        np.testing.assert_allclose(function(points)[0], expected, rtol=1e-12)


x, i, A = pt.dvector("x"), pt.lvector("i"), pt.dmatrix("A")
GRAPHS = {
    "elements": pt.switch(x > 0, pt.log1p(pt.abs(x)), pt.exp(x) / 2),
    "no function in NumPy": pt.gammaln(pt.abs(x) + 1) + pt.sigmoid(x) + pt.clip(x, -0.5, 0.5),
    "integers to floats": pt.sqrt(pt.abs(i)) + i / 2,
    "casts": (x > 0).astype("int8") + i,
    "sums": pt.stack([A.sum(), A.sum(axis=0)[0], A.sum(axis=(0, 1)), A.max(axis=1)[1]]),
    "all": pt.all(A > -10, axis=0) & pt.any(A > 1, axis=0),
    "axes": (A.T[:, None] * A.dimshuffle(1, "x", 0)).sum(axis=2) + A.shape[0],
    "a column": A[:, :1].dimshuffle(0) + x[: A.shape[0]],
    "parts": pt.set_subtensor(x[1:], x[:-1] ** 2)[::-1] + pt.inc_subtensor(x[0], 1.0),
    "algebra": pt.linalg.solve(A @ A.T + pt.eye(A.shape[0]), x[: A.shape[0]]),
    "several outputs": pt.sum(pt.linalg.eigh(A @ A.T + pt.diag(pt.arange(3.0)))[0]) + x[0],
    "a gradient": pytensor.grad(pt.sum(pt.softplus(A) @ x[: A.shape[1]]) ** 2, A),
}


PARTS = {
    "stack": pt.stack([A[k] for k in range(3)]),
    "falling": pt.stack([A[k] for k in (2, 1, 0)]),
    "last axis": pt.stack([A[k] for k in range(3)], axis=-1),
    "columns": pt.stack([A[:, k] for k in (1, 2)]),
    "numbers": pt.stack([A[1, k] for k in (1, 2, 3)]),
    "joined": pt.concatenate([A[k] for k in range(3)]),
    "not successive": pt.stack([A[:, k] for k in (0, 2, 1)], axis=1),
}
NO_PARTS = {
    "of slices": pt.concatenate([A[:, k : k + 1] for k in range(3)], axis=1),
    "of two variables": pt.stack([A[0], 2.0 * A[1]]),
    "twice the same": pt.stack([A[k] for k in (0, 1, 1)]),
    "from the end": pt.stack([A[k] for k in (-2, -1, 0)]),
}


@pytest.mark.parametrize("name", [*PARTS, *NO_PARTS])
def test_joined_entries_are_a_part(name):
    joined = (PARTS | NO_PARTS)[name]
    found = with_slices(joined)
    assert isinstance(found.owner.op, Join | MakeVector) == (name in NO_PARTS)
    both = function([A], [joined, found])(np.random.default_rng(0).standard_normal((3, 4)))
    np.testing.assert_array_equal(*both)


def test_all_rows_are_split():
    halves = pt.split(x, pt.as_tensor([1, 3]), n_splits=2, axis=0)
    X = np.random.default_rng(0).standard_normal((5, 4))
    for one, other in zip(of_rows([x], halves)(X), (X[:, :1], X[:, 1:]), strict=True):
        np.testing.assert_array_equal(one, other)


def compiled(name):
    modes = [Mode(linker=linker(), optimizer=REWRITES) for linker in (PerformLinker, NumPyLinker)]
    return [
        pytensor.function([x, i, A], [GRAPHS[name], x], mode=mode, on_unused_input="ignore")
        for mode in modes
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_numbers_are_those_of_pytensor(name):
    theirs, ours = compiled(name)
    rng = np.random.default_rng(0)
    for _ in range(2):
        arguments = rng.standard_normal(4), rng.integers(-3, 4, 4), rng.standard_normal((3, 4))
        for one, other in zip(ours(*arguments), theirs(*arguments), strict=True):
            assert isinstance(one, np.ndarray) and one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_shared_values_may_change():
    shared = pytensor.shared(np.array([1.0, 2.0]))
    mode = Mode(linker=NumPyLinker(), optimizer=REWRITES)
    function = pytensor.function([x], x * shared, mode=mode)
    np.testing.assert_array_equal(function([3.0, 3.0]), [3.0, 6.0])
    shared.set_value(np.array([0.0, -1.0]))
    np.testing.assert_array_equal(function([3.0, 3.0]), [0.0, -3.0])


def test_results_are_not_those_of_the_last_call():
    """An array that is written into again would change what was returned before."""
    _, ours = compiled("parts")
    arguments = np.arange(4.0), np.arange(4), np.ones((3, 4))
    first, given = ours(*arguments)
    kept = first.copy()
    given += 1.0
    ours(2.0 * np.arange(4.0), *arguments[1:])
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(arguments[0], np.arange(4.0))


def test_overflow_is_no_warning():
    _, ours = compiled("elements")
    with np.errstate(all="raise"):
        value = ours(np.array([-np.inf, np.nan, 1e3, 0.0]), np.zeros(4, int), np.ones((3, 4)))[0]
    assert np.isnan(value[1])
