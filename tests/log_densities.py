"""Log densities that surrogates are fitted to, and errors of the fits."""

import numpy as np

from pymc_kmc.surrogates import LogDensityGP


class Gaussian:
    """A correlated one far from the origin."""

    def __init__(self, d, seed=0, mean=None):
        rng = np.random.default_rng(seed)
        root = rng.standard_normal((d, d))
        self.d, self.covariance = d, root @ root.T + 0.1 * np.eye(d)
        self.mean = 10.0 * rng.standard_normal(d) if mean is None else mean
        self.root = np.linalg.cholesky(self.covariance)
        self.precision = np.linalg.inv(self.covariance)

    def draws(self, n, seed):
        return self.mean + np.random.default_rng(seed).standard_normal((n, self.d)) @ self.root.T

    def log_density(self, X):
        return 3.0 - 0.5 * np.einsum("ni,ij,nj->n", X - self.mean, self.precision, X - self.mean)

    def gradient(self, X):
        return -(X - self.mean) @ self.precision


class Banana:
    """x1 ~ N(0, 9), x2 | x1 ~ N((x1^2 - 9) / 5, 1)."""

    d = 2

    def draws(self, n, seed):
        rng = np.random.default_rng(seed)
        x = 3 * rng.standard_normal(n)
        return np.stack([x, 0.2 * (x**2 - 9) + rng.standard_normal(n)], axis=1)

    def log_density(self, X):
        return -0.5 * X[:, 0] ** 2 / 9 - 0.5 * (X[:, 1] - 0.2 * (X[:, 0] ** 2 - 9)) ** 2

    def gradient(self, X):
        residual = X[:, 1] - 0.2 * (X[:, 0] ** 2 - 9)
        return np.stack([-X[:, 0] / 9 + 0.4 * X[:, 0] * residual, -residual], axis=1)


def wavy(d):
    """A log density without symmetries, in any dimension."""
    frequencies = 1.0 + 0.3 * np.arange(d)
    return lambda X: -0.5 * (X**2).sum(axis=1) + np.sin(X * frequencies).sum(axis=1)


def fitted(d, kernel="gaussian", n=300, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, d))
    return LogDensityGP(kernels=(kernel,), rng=0).fit(X, wavy(d)(X), reference=X)


def relative_error(surrogate, problem, X):
    """Mean squared error of the gradient, relative to its mean square."""
    true = problem.gradient(X)
    return ((surrogate.gradient(X) - true) ** 2).sum() / (true**2).sum()


def distances(surrogate, X):
    """|z| of the surrogate's coordinates."""
    p = surrogate.parameters_
    return np.linalg.norm((np.atleast_2d(X) - p.centre) @ p.whitening.T, axis=1)
