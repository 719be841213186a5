import numpy as np
import pytest

from pymc_kmc.model.columns import Columns


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
