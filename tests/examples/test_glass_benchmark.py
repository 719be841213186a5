"""The benchmark's yardsticks are what its table calls them."""

import numpy as np
import pytest

pytest.importorskip("threadpoolctl")  # of the extra `bench`
from examples.benchmarks import glass  # noqa: E402


def test_squared_mmd_is_that_of_the_cubic_kernel():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(20, 3)), rng.normal(1, 2, size=(30, 3))

    def mean_kernel(a, b):
        return np.mean((1 + a @ b.T) ** 3)

    reference = {
        "moment_1": z.mean(axis=0),
        "moment_2": np.mean(z[:, :, None] * z[:, None, :], axis=0),
        "moment_3": np.einsum("ni,nj,nk->ijk", z, z, z) / len(z),
    }
    expected = mean_kernel(x, x) - 2 * mean_kernel(x, z) + mean_kernel(z, z)
    assert glass.squared_mmd(x, reference) == pytest.approx(expected, rel=1e-10)


def test_reference_agrees_with_itself():
    reference = glass.load_reference()
    covariance = reference["moment_2"] - np.outer(reference["mean"], reference["mean"])
    np.testing.assert_allclose(reference["moment_1"], reference["mean"], atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), reference["sd"], rtol=0.03)
    assert reference["draws"].shape == (200, 9)
