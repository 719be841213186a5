"""Graphs as calls of NumPy: the same numbers as PyTensor's own linker for Python."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.link.basic import PerformLinker

from pymc_kmc.model.numpy_linker import NumPyLinker
from pymc_kmc.model.rows import REWRITES

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
