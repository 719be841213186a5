"""Landmarks: which are chosen, and that they stand for all points."""

import numpy as np
import pytest

from pymc_kmc.surrogates.kernels import (
    GAUSSIAN,
    KERNELS,
    pivoted_cholesky,
    select_landmarks,
    squared_distances,
)

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_landmarks(kernel):
    points = RNG.standard_normal((30, 2))
    points = np.vstack([points, points[:10]])  # no use for a point twice
    indices, features = select_landmarks(points, np.ones(40), 40, kernel)
    assert len(set(indices)) == len(indices) <= 30
    assert len(np.unique(points[indices], axis=0)) == len(indices)
    gram = kernel.values(squared_distances(points, points))
    np.testing.assert_allclose(features @ features.T, gram, atol=1e-4)
    few, _ = select_landmarks(points, np.ones(40), 5, kernel)
    np.testing.assert_array_equal(few, indices[:5])


def test_heavy_points_are_landmarks_first():
    points = RNG.standard_normal((30, 2))
    indices, _ = select_landmarks(points, np.where(np.arange(30) == 7, 100.0, 1.0), 3, GAUSSIAN)
    assert indices[0] == 7


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_fewer_landmarks_are_the_nystrom_approximation(kernel):
    rng = np.random.default_rng(3)
    points, weights = rng.standard_normal((60, 3)), rng.uniform(0.1, 1.0, 60)
    indices, features = select_landmarks(points, weights, 10, kernel)
    matrix = kernel.values(squared_distances(points, points))
    cross = matrix[:, indices]
    nystrom = cross @ np.linalg.solve(matrix[np.ix_(indices, indices)], cross.T)
    np.testing.assert_allclose(features @ features.T, nystrom, atol=1e-9)
    np.testing.assert_allclose(np.triu(features[indices], 1), 0.0, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_factorisation_stops_at_its_tolerance_or_its_last_pivot(kernel):
    """With more pivots than the factor has room for at first."""
    points = np.random.default_rng(2).standard_normal((200, 3))
    matrix = kernel.values(squared_distances(points, points))
    pivots, R = pivoted_cholesky(points, kernel, tolerance=1e-4)
    assert 64 < len(pivots) < 200
    residual = np.diag(matrix - R.T @ R)
    assert -1e-12 < residual.min() and residual.max() <= 1e-4
    few, part = pivoted_cholesky(points, kernel, n=7, tolerance=1e-4)
    np.testing.assert_array_equal(few, pivots[:7])
    np.testing.assert_array_equal(part, R[:7])
