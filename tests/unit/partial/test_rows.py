"""Rows of arrays, data frames, tuples and dictionaries."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from pymc_kmc.partial.paths import n_rows, take

ARRAY = np.arange(12.0).reshape(6, 2)
FRAME = pd.DataFrame({"a": np.arange(6)}, index=list("uvwxyz"))


@pytest.mark.parametrize(
    "data", [ARRAY, FRAME, FRAME["a"], (ARRAY, FRAME), {"x": ARRAY, "y": (FRAME, ARRAY[:, 0])}]
)
def test_a_beginning_of_a_permutation_is_a_subset(data):
    """The first two rows of four rows in random order are two of these rows."""
    assert n_rows(data) == 6
    subset = take(take(data, np.array([4, 0, 3, 1])), slice(2))
    assert type(subset) is type(data)
    assert n_rows(subset) == 2
    leaf = subset
    while isinstance(leaf, dict | tuple):
        leaf = leaf["x"] if isinstance(leaf, dict) else leaf[0]
    expected = ARRAY[[4, 0]] if isinstance(leaf, np.ndarray) else [4, 0]
    np.testing.assert_array_equal(np.squeeze(leaf), np.squeeze(expected))


def test_sparse_matrices():
    data = sparse.csr_array(ARRAY)
    assert n_rows(data) == 6
    np.testing.assert_array_equal(take(data, np.array([5, 1])).toarray(), ARRAY[[5, 1]])


def test_a_subset_of_a_memory_map_is_an_array(tmp_path):
    data = np.memmap(tmp_path / "data", dtype=float, mode="w+", shape=(6, 2))
    data[:] = ARRAY
    subset = take(data, np.array([2, 0]))
    assert type(subset) is np.ndarray
    np.testing.assert_array_equal(subset, ARRAY[[2, 0]])


def test_masks_and_names_of_arrays_stay():
    masked = np.ma.masked_less(ARRAY, 4.0)
    subset = take(take(masked, np.array([2, 0])), slice(2))
    np.testing.assert_array_equal(subset.mask, [[False, False], [True, True]])
    records = np.rec.fromarrays(ARRAY.T, names="a, b")
    np.testing.assert_array_equal(take(records, np.array([2, 0])).b, [5.0, 1.0])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([1.0, 2.0], TypeError, "got list. Use numpy.asarray"),
        (3.0, TypeError, "got float"),
        (np.array(3.0), TypeError, "got ndarray"),
        (np.empty((0, 2)), ValueError, "no rows"),
        ((), ValueError, "empty"),
        ((ARRAY, ARRAY[:3]), ValueError, r"\[6, 3\] rows"),
    ],
)
def test_bad_data(data, error, message):
    with pytest.raises(error, match=message):
        n_rows(data)
