"""Checks of arguments."""

from pymc_kmc.numerics.checks import check_interval


def test_intervals():
    assert check_interval("step_size", 0.1, 0.0) == (0.1, 0.1)
    assert check_interval("n_leapfrog", (2, 7), 1, integer=True) == (2, 7)
    assert check_interval("n_leapfrog", None, 1, integer=True) is None
