"""The benchmark's yardsticks are what its table calls them."""

import numpy as np
import pytest

pytest.importorskip("threadpoolctl")  # of the extra `bench`
from examples.benchmarks import glass  # noqa: E402

pytestmark = pytest.mark.documentation


def test_squared_mmd_compares_draws_with_the_reference():
    reference = glass.load_reference()
    draws = reference["draws"].astype(float)
    near, far = (glass.squared_mmd(x, reference) for x in (draws, draws + reference["sd"]))
    assert abs(near) < 0.05 * far


def test_reference_agrees_with_itself():
    reference = glass.load_reference()
    covariance = reference["moment_2"] - np.outer(reference["mean"], reference["mean"])
    np.testing.assert_allclose(reference["moment_1"], reference["mean"], atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), reference["sd"], rtol=0.03)
    assert reference["draws"].shape == (200, 9)
