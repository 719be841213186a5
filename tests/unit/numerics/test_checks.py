"""Checks of arguments."""

import numpy as np
import pytest

from pymc_kmc.numerics.checks import check_covariance, check_interval


def test_intervals():
    assert check_interval("step_size", 0.1, 0.0) == (0.1, 0.1)
    assert check_interval("n_leapfrog", (2, 7), 1, integer=True) == (2, 7)
    assert check_interval("n_leapfrog", None, 1, integer=True) is None


@pytest.mark.parametrize(
    "covariance",
    [
        [[1e-9, 9e-10], [-9e-10, 1e-9]],
        [[np.inf, 0.0], [0.0, np.inf]],
        [[1.0, np.nan], [np.nan, 1.0]],
        [[1e-30, 2e-30], [2e-30, 1e-30]],
        [[1.0, 0.0], [0.0, 0.0]],
    ],
)
def test_what_is_no_covariance_is_refused(covariance):
    with pytest.raises(ValueError, match="covariance must be finite, symmetric and positive"):
        check_covariance(np.array(covariance), 2)


def test_covariances_may_have_any_units():
    correlation = np.array([[1.0, -0.99, 0.5], [-0.99, 1.0, -0.5], [0.5, -0.5, 1.0]])
    for exponents in ([0, 0, 0], [-12, 0, 12], [-150, -75, 150]):
        sd = 10.0 ** np.array(exponents)
        check_covariance(correlation * np.outer(sd, sd), 3)
