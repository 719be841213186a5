"""Changes of variables, linear and triangular, and maps from mode to mode."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kmc.numerics.linear_algebra import cholesky_factor
from pymc_kmc.numerics.samples import shrunk_covariance


class Coordinates:
    """A linear change of variables, u = A (x - origin), with an invertible `matrix` A (d, d)."""

    def __init__(self, origin, matrix):
        self.origin = np.ascontiguousarray(origin, dtype=np.float64)
        self.matrix = np.ascontiguousarray(matrix, dtype=np.float64)
        self.inverse = np.ascontiguousarray(np.linalg.inv(self.matrix))

    @classmethod
    def identity(cls, n_dimensions):
        return cls(np.zeros(n_dimensions), np.eye(n_dimensions))

    def forward(self, X):
        """Return u of x, shapes (d,) or (n, d); `backward` is the inverse."""
        return (X - self.origin) @ self.matrix.T

    def backward(self, U):
        return self.origin + U @ self.inverse.T

    def log_volume(self, X):
        """Return log |dx / du|, the same for all X."""
        return -float(np.linalg.slogdet(self.matrix)[1])

    def backward_gradient(self, gradients):
        return gradients @ self.matrix


class Identity:
    """The identity warp: one object, also after copying and in other processes."""

    def __reduce__(self):
        return "IDENTITY"

    def forward(self, X):
        return X

    def backward(self, Y):
        return Y

    def log_volume(self, X):
        return 0.0


IDENTITY = Identity()


class ScaleWarp(NamedTuple):
    """A triangular map that divides the driven coordinates by scales that drivers determine.

    With drivers P among the others O, y_i = (x_i - b_i - B_i' x_O) exp(-s_i(x_P)) for the driven
    coordinates i; the others are unchanged. The log scales s_i are linear in the drivers, within
    bounds.

    Attributes
    ----------
    drivers, driven, others : ndarray of int, shapes (p,), (q,) and (d - q,)
        Indices. The others are all that aren't driven, drivers included.
    centre : ndarray, shape (d,)
    location, location_slopes : ndarray, shapes (q,) and (q, d - q)
    scale_slopes : ndarray, shape (q, p)
        Slopes of the log scales in the drivers.
    lowest, highest : ndarray, shape (q,)
        Bounds of the log scales.
    """

    drivers: np.ndarray
    driven: np.ndarray
    others: np.ndarray
    centre: np.ndarray
    location: np.ndarray
    location_slopes: np.ndarray
    scale_slopes: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray

    def log_scales(self, X):
        """Return the driven coordinates' log scales, (q,) or (n, q), at x or y, (d,) or (n, d)."""
        u = X[..., self.drivers] - self.centre[self.drivers]
        return np.clip(u @ self.scale_slopes.T, self.lowest, self.highest)

    def _location_and_scale(self, X):
        u = X[..., self.others] - self.centre[self.others]
        return self.location + u @ self.location_slopes.T, np.exp(self.log_scales(X))

    def forward(self, X):
        """Return y of x, shapes (d,) or (n, d); `backward` is the inverse."""
        location, scale = self._location_and_scale(X)
        Y = np.array(X, dtype=np.float64)
        Y[..., self.driven] = (Y[..., self.driven] - location) / scale
        return Y

    def backward(self, Y):
        location, scale = self._location_and_scale(Y)
        X = np.array(Y, dtype=np.float64)
        X[..., self.driven] = location + X[..., self.driven] * scale
        return X

    def log_volume(self, X):
        """Return log |dx / dy| = sum_i s_i(x_P) at x or y, (d,) or (n, d): a float or (n,)."""
        return self.log_scales(X).sum(axis=-1)


# Fewest draws a dimension whose mean and covariance replace a mode's maximum and curvature.
DRAWS_A_DIMENSION = 8


class ModeMaps:
    """Maps from each of some modes to the others; :mod:`pymc_kmc.moves.learned` has the equations.

    The modes have `centres` (k, d) and `covariances` (k, d, d).
    """

    def __init__(self, centres, covariances):
        self.centres = np.asarray(centres)
        self.factors = np.array([cholesky_factor(covariance) for covariance in covariances])
        identity = np.eye(self.centres.shape[1])
        self.whitenings = np.array(
            [solve_triangular(L, identity, lower=True) for L in self.factors]
        )
        diagonals = np.diagonal(self.factors, axis1=1, axis2=2)
        self.log_volumes = np.log(diagonals).sum(axis=1)

    @classmethod
    def between(cls, modes, draws):
        """Return the maps between modes, or None for fewer than two modes.

        A mode has a maximum `x` (d,) and the `covariance` (d, d) of its curvature. If many of the
        draws (n, d) belong to it, their mean and covariance are used in place of these.
        """
        if len(modes) < 2:
            return None
        centres = [mode.x for mode in modes]
        covariances = [mode.covariance for mode in modes]
        nearest = cls(centres, covariances).log_responsibilities(draws).argmax(axis=1)
        for i in range(len(modes)):
            members = draws[nearest == i]
            if len(members) >= DRAWS_A_DIMENSION * draws.shape[1]:
                centres[i], covariances[i] = members.mean(axis=0), shrunk_covariance(members)
        return cls(centres, covariances)

    def log_responsibilities(self, X):
        """Return the log probabilities (n, k) of the modes at points (n, d)."""
        places = np.einsum("kij,nkj->nki", self.whitenings, X[:, None, :] - self.centres)
        log_densities = -0.5 * np.sum(places**2, axis=2) - self.log_volumes
        return log_densities - np.logaddexp.reduce(log_densities, axis=1, keepdims=True)

    def jump(self, X, rng):
        """Return points (n, d) moved to other modes, and log ratios (n,) without the target's."""
        n, rows = len(self.centres), np.arange(len(X))
        log_r = self.log_responsibilities(X)
        origin = np.argmax(log_r + rng.gumbel(size=log_r.shape), axis=1)
        end = (origin + rng.integers(1, n, size=len(X))) % n
        new = np.empty_like(X)
        for i, j in {*zip(origin, end, strict=True)}:
            chosen = (origin == i) & (end == j)
            places = (X[chosen] - self.centres[i]) @ self.whitenings[i].T
            new[chosen] = self.centres[j] + places @ self.factors[j].T
        log_ratio = self.log_responsibilities(new)[rows, end] - log_r[rows, origin]
        return new, log_ratio + self.log_volumes[end] - self.log_volumes[origin]
