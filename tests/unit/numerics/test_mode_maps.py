"""Maps between modes."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.numerics.coordinates import ModeMaps

RNG = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 1.0], [0.0, 8.0, -3.0]])
FACTORS = RNG.standard_normal((3, 3, 3)) + 2.0 * np.eye(3)
COVARIANCES = FACTORS @ FACTORS.transpose(0, 2, 1)


def normals(i, n, rng):
    return CENTRES[i] + rng.standard_normal((n, 3)) @ np.linalg.cholesky(COVARIANCES[i]).T


def test_a_jump_keeps_the_place_in_units_of_the_mode():
    maps = ModeMaps(CENTRES, COVARIANCES)
    X = np.vstack([normals(i, 50, RNG) for i in range(3)])
    there, ratio = maps.jump(X, np.random.default_rng(1))
    np.testing.assert_allclose(np.exp(maps.log_responsibilities(X)).sum(axis=1), 1.0)
    distances = []
    for Y in (X, there):
        distances.append(
            [
                np.sum(np.linalg.solve(np.linalg.cholesky(C), (Y - c).T) ** 2, axis=0)
                for c, C in zip(CENTRES, COVARIANCES, strict=True)
            ]
        )
    before, after = np.array(distances)
    # Some mode's distance of the start is another's of the end.
    same = np.isclose(before[:, None], after[None]) & ~np.eye(3, dtype=bool)[:, :, None]
    assert same.any(axis=(0, 1)).all()
    assert np.isfinite(ratio).all()


def test_gaussians_at_the_modes_are_accepted():
    """Of equal masses: their own density's ratio is undone by the jump's, where they are apart."""
    apart = 20.0 * CENTRES
    maps = ModeMaps(apart, COVARIANCES)
    X = np.vstack([normals(i, 50, RNG) - CENTRES[i] + apart[i] for i in range(3)])

    def log_density(Y):
        away = Y[:, None] - apart
        solved = np.linalg.solve(COVARIANCES, away[..., None])[..., 0]
        quadratic = np.einsum("nkd,nkd->nk", away, solved)
        return np.max(-0.5 * quadratic - 0.5 * np.linalg.slogdet(COVARIANCES)[1], axis=1)

    there, ratio = maps.jump(X, np.random.default_rng(1))
    np.testing.assert_allclose(log_density(there) - log_density(X) + ratio, 0.0, atol=1e-8)


@pytest.mark.parametrize("n", [0, 200])
def test_draws_tell_centres_and_covariances_where_they_are_many(n):
    modes = [SimpleNamespace(x=c + 0.3, covariance=np.eye(3)) for c in CENTRES]
    draws = np.vstack([normals(0, 500, RNG), normals(1, n, RNG)])
    maps = ModeMaps.between(modes, draws)
    np.testing.assert_allclose(maps.centres[0], CENTRES[0], atol=0.6)
    assert np.abs(maps.centres[0] - modes[0].x).max() > 0.05
    np.testing.assert_array_equal(maps.centres[2], modes[2].x)
    np.testing.assert_array_equal(maps.factors[2], np.eye(3))
    is_curvature = np.array_equal(maps.factors[1], np.eye(3))
    assert is_curvature == (n == 0)


def test_one_mode_has_no_maps():
    assert ModeMaps.between([SimpleNamespace(x=np.zeros(2), covariance=np.eye(2))], None) is None
    assert ModeMaps.between([], np.zeros((0, 2))) is None
