"""Sums over points for the score-matching systems of random features."""

import copy
import math

import numpy as np

from pymc_kmc.numerics.checks import CHUNK_ENTRIES
from pymc_kmc.surrogates.base_density import GaussianBase, gaussian_base, no_base


class ScoreMatchingSums:
    """Weighted sums over points for the system of Proposition 2, with any base density.

    The proposition is that of Strathmann et al. (2015). Positions have the `origin` (d,) taken off,
    by default the mean of X, lest their squares lose digits.
    """

    SUMS = ("total_weight", "x", "xx", "cosines", "sines", "sines_x", "_sines_sines")

    def __init__(self, omega, phase, X, weights, origin=None):
        d, m = omega.shape
        self.omega, self.phase = omega, phase
        self.total_weight = 0.0
        self.origin = X[weights > 0].mean(axis=0) if origin is None else origin
        self.x = np.zeros(d)
        self.xx = np.zeros((d, d))
        self.cosines = np.zeros(m)
        self.sines = np.zeros(m)
        self.sines_x = np.zeros((m, d))
        self._sines_sines = np.zeros((m, m))
        rows = max(1, CHUNK_ENTRIES // m)
        for i in range(0, len(X), rows):
            self.add(X[i : i + rows], weights[i : i + rows])

    def add(self, X, weights):
        """Add points X (n, d) in place."""
        angles = X @ self.omega + self.phase
        sines = np.sin(angles)
        centred = X - self.origin
        self.total_weight += weights.sum()
        self.x += weights @ centred
        self.xx += (centred.T * weights) @ centred
        self.cosines += weights @ np.cos(angles)
        self.sines += weights @ sines
        self.sines_x += (sines.T * weights) @ centred
        rows = np.sqrt(weights)[:, None] * sines
        self._sines_sines += rows.T @ rows

    def second_moment(self):
        """Return W C (m, m), a fresh array."""
        m = len(self.phase)
        return (2.0 / m) * self._sines_sines * (self.omega.T @ self.omega)

    def right_hand_side(self, base):
        """Return W b (m,)."""
        scale = math.sqrt(2.0 / len(self.phase))
        b = self.cosines * (self.omega**2).sum(axis=0)
        offset = base.mean - self.origin
        slopes = (self.sines_x - np.outer(self.sines, offset)) @ base.precision
        return scale * (b - np.einsum("am,ma->m", self.omega, slopes))

    def base(self, kind):
        """Return the base density for the argument ``kind``, from the points' moments."""
        if isinstance(kind, GaussianBase):
            return kind
        if kind is None:
            return no_base(len(self.origin))
        mean = self.x / self.total_weight
        covariance = self.xx / self.total_weight - np.outer(mean, mean)
        return gaussian_base(mean + self.origin, covariance, self.total_weight)

    def __add__(self, part):
        """Return the sums over these points and those of ``part``, of one basis and origin."""
        total = copy.copy(self)
        for name in self.SUMS:
            setattr(total, name, getattr(self, name) + getattr(part, name))
        return total
