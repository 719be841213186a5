"""What the benchmark of own costs says of memory."""

import numpy as np
import pytest

from examples.benchmarks.overhead import fit_memory

pytestmark = pytest.mark.documentation


def test_memory_of_a_fit():
    """A fit's matrices have a row a value: twice the values take about twice the memory."""
    rng = np.random.default_rng(1)
    kept, most = fit_memory(3, 300, rng)
    more_kept, more = fit_memory(3, 1200, rng)
    assert 0.01 < kept < most
    assert 2 * most < more < 8 * most
    assert more_kept < more
