"""Maps between the modes of a distribution, for reversible jumps from one to another."""

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kmc.numerics.linear_algebra import cholesky_factor
from pymc_kmc.numerics.samples import shrunk_covariance

# Draws a dimension in a mode from which on they tell its centre and covariance, not its curvature.
DRAWS_A_DIMENSION = 8


class ModeMaps:
    """Maps from each of some modes to the others; :mod:`pymc_kmc.moves.modes` has the equations.

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
        """Return the maps between modes; None where there is one at most.

        A mode has a place `x` (d,) and the `covariance` (d, d) of its curvature. Where enough of
        the draws (n, d) are in it, they determine its centre and covariance.
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
        """Return logarithms (n, k) of the probabilities of the modes at points (n, d)."""
        places = np.einsum("kij,nkj->nki", self.whitenings, X[:, None, :] - self.centres)
        log_densities = -0.5 * np.sum(places**2, axis=2) - self.log_volumes
        return log_densities - np.logaddexp.reduce(log_densities, axis=1, keepdims=True)

    def jump(self, X, rng):
        """Return points (n, d) taken to other modes, and the jumps' log acceptance ratios (n,).

        These lack the target's part.
        """
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
