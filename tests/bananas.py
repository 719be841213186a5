"""The banana: a curved target with exact draws, and with all moments known."""

from typing import NamedTuple

import numpy as np
import pymc as pm


class Banana(NamedTuple):
    """x_1 ~ N(0, spread^2), x_2 | x_1 ~ N(bend (x_1^2 - spread^2), 1), all others N(0, 1).

    Positions have any number of coordinates from 2 on.
    """

    spread: float = 3.0
    bend: float = 0.3

    def ridge(self, x1):
        """Return the mean of x_2 given x_1."""
        return self.bend * (x1**2 - self.spread**2)

    def log_density(self, X):
        """Return the log density, not normalised, at X (..., d); shape (...)."""
        return -0.5 * np.sum(self.standardised(X) ** 2, axis=-1)

    def gradient(self, X):
        """Return the gradient of the log density at X (..., d); the same shape."""
        X = np.asarray(X, dtype=float)
        gradient = -X
        gradient[..., 1] = self.ridge(X[..., 0]) - X[..., 1]
        gradient[..., 0] = -X[..., 0] / self.spread**2
        gradient[..., 0] -= 2.0 * self.bend * X[..., 0] * gradient[..., 1]
        return gradient

    def standardised(self, X):
        """Return independent standard normals of draws X (..., d); the same shape."""
        z = np.array(X, dtype=float)
        z[..., 1] -= self.ridge(z[..., 0])
        z[..., 0] /= self.spread
        return z

    def draws(self, n, rng, d=2):
        """Return independent draws, shape (n, d)."""
        x1 = self.spread * rng.standard_normal(n)
        others = rng.standard_normal((n, d - 1))
        others[:, 0] += self.ridge(x1)
        return np.column_stack([x1, others])

    def model(self):
        """Return a model of scalars x and y, the first two coordinates."""
        with pm.Model() as model:
            x = pm.Normal("x", 0.0, self.spread)
            pm.Normal("y", self.ridge(x), 1.0)
        return model
