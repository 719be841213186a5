"""Targets with known moments, for benchmarks: a banana and a rotated Gaussian.

Each is a :class:`Target`: the density, its gradient and exact draws in NumPy, and the same density
as a PyMC model with one variable, ``x``. The model's density is a `pymc.Potential` on a flat prior,
so that a step's unconstrained coordinates are x itself.

    python -m examples.benchmarks.targets      # checks each target against itself
"""

import argparse
import dataclasses
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt


@dataclasses.dataclass(frozen=True)
class Target:
    """A density on R^d whose moments are known.

    Attributes
    ----------
    name : str
    mean, sd : ndarray, shape (d,)
        Exact, of each coordinate.
    standardise : callable
        To the natural coordinates, which are independent and standard normal: (..., d) to (..., d).
        Volume-preserving up to a constant factor.
    from_standard : callable
        The inverse of `standardise`.
    pullback : callable
        ``pullback(x, v)`` is J'v with J the Jacobian of `standardise` at x; both (..., d).
    symbolic : callable
        `standardise` for a PyTensor vector.
    """

    name: str
    mean: np.ndarray
    sd: np.ndarray
    standardise: Callable
    from_standard: Callable
    pullback: Callable
    symbolic: Callable

    @property
    def dimension(self):
        return len(self.mean)

    def log_density(self, x):
        """Log density up to a constant, (..., d) to (...)."""
        return -0.5 * np.sum(self.standardise(x) ** 2, axis=-1)

    def gradient(self, x):
        """Gradient of the log density, (..., d) to (..., d)."""
        return -self.pullback(x, self.standardise(x))

    def sample(self, n, rng):
        """Independent draws, (n, d)."""
        return self.from_standard(rng.standard_normal((n, self.dimension)))

    def model(self):
        """The target as a PyMC model of one variable, x."""
        with pm.Model() as model:
            x = pm.Flat("x", shape=self.dimension)
            pm.Potential("log_density", -0.5 * pt.sum(self.symbolic(x) ** 2))
        return model


def banana(b=0.03, v=100.0, dimension=8):
    """The banana B(b, v): N(0, diag(v, 1, ..., 1)), twisted by x_2 <- x_2 + b (x_1^2 - v).

    Haario, H., Saksman, E. and Tamminen, J. (1999). Adaptive proposal distribution for random walk
    Metropolis algorithm. *Computational Statistics* 14, 375-395.
    """
    width = np.sqrt(v)

    def standardise(x):
        z = np.array(x, dtype=float)
        z[..., 1] -= b * (z[..., 0] ** 2 - v)
        z[..., 0] /= width
        return z

    def from_standard(z):
        x = np.array(z, dtype=float)
        x[..., 0] *= width
        x[..., 1] += b * (x[..., 0] ** 2 - v)
        return x

    def pullback(x, vector):
        out = np.array(vector, dtype=float)
        out[..., 0] = vector[..., 0] / width - 2.0 * b * x[..., 0] * vector[..., 1]
        return out

    def symbolic(x):
        twisted = x[1] - b * (x[0] ** 2 - v)
        return pt.concatenate([pt.stack([x[0] / width, twisted]), x[2:]])

    sd = np.ones(dimension)
    sd[0] = width
    sd[1] = np.sqrt(1.0 + 2.0 * (b * v) ** 2)  # var(x_1^2) = 2 v^2
    return Target(
        name=f"banana({b:g}, {v:g}), {dimension}-d",
        mean=np.zeros(dimension),
        sd=sd,
        standardise=standardise,
        from_standard=from_standard,
        pullback=pullback,
        symbolic=symbolic,
    )


def rotated_gaussian(dimension=10, seed=3):
    """N(0, Q diag(eigenvalues) Q'), eigenvalues from Gamma(1, 1), Q uniform on the rotations.

    Sejdinovic, D., Strathmann, H., Lomeli, M., Andrieu, C. and Gretton, A. (2014). Kernel adaptive
    Metropolis-Hastings. *ICML* 31.

    In 10 dimensions seed 3 has a smallest eigenvalue, .07, near the median over seeds; with seed 0
    the condition number is 3000.
    """
    rng = np.random.default_rng(seed)
    eigenvalues = rng.gamma(1.0, 1.0, size=dimension)
    Q, R = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    Q = Q * np.sign(np.diag(R))
    whiten = (Q / np.sqrt(eigenvalues)).T
    colour = Q * np.sqrt(eigenvalues)
    return Target(
        name=f"rotated Gaussian, {dimension}-d",
        mean=np.zeros(dimension),
        sd=np.sqrt(np.sum(colour**2, axis=1)),
        standardise=lambda x: np.asarray(x) @ whiten.T,
        from_standard=lambda z: np.asarray(z) @ colour.T,
        pullback=lambda x, vector: np.asarray(vector) @ whiten,
        symbolic=lambda x: pt.dot(pt.constant(whiten), x),
    )


TARGETS = {
    "banana": banana,
    "strong-banana": lambda: banana(0.1),
    "gaussian": rotated_gaussian,
    "ill-conditioned": lambda: rotated_gaussian(seed=0),
    "gaussian-20": lambda: rotated_gaussian(20),
}


def markdown(header, rows):
    """A Markdown table; cells are strings."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def check(target, rng, n=200_000):
    """Largest errors of: gradient, symbolic density, mean and sd of draws (the latter in sds)."""
    x = target.sample(n, rng)
    point, step = x[0], 1e-6 * np.eye(target.dimension)
    numeric = (target.log_density(point + step) - target.log_density(point - step)) / 2e-6
    log_density = target.model().compile_logp()({"x": point}) - target.log_density(point)
    return [
        np.max(np.abs(numeric - target.gradient(point)) / (1.0 + np.abs(numeric))),
        abs(float(log_density)),
        np.max(np.abs(x.mean(axis=0) - target.mean) / target.sd),
        np.max(np.abs(x.std(axis=0) / target.sd - 1.0)),
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Check the targets against themselves.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    header = ["target", "gradient", "density in PyMC", "mean of draws / sd", "sd of draws / sd - 1"]
    rows = []
    for make in TARGETS.values():
        target = make()
        rows.append([target.name, *(f"{error:.1e}" for error in check(target, rng))])
    print("Largest errors; the last two are Monte Carlo errors of 200,000 draws.\n")
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
