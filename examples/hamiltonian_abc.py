"""Hamiltonian ABC, the gradient-based rival, on a posterior that quadrature gives exactly.

Hamiltonian ABC (Meeds, Leenders and Welling, 2015) follows gradients of a Gaussian synthetic
likelihood, which it estimates by simulating on both sides of the current point with the same random
numbers. Nothing corrects its steps: noise in the gradients widens the draws, and only smaller steps
cure that, which cost more simulations.

    python examples/hamiltonian_abc.py                  # a minute or two, or
    python examples/hamiltonian_abc.py --quick          # a few iterations, to see it run

The problem is the ten-dimensional skew-normal of Strathmann et al. (2015, section D.4):

    theta ~ N(0, 25 I)
    y_j   ~ theta + skew-normal(0, I, alpha),  alpha = (10, ..., 10),  j = 1, ..., 10
    kernel exp(-|mean(y) - mean(y*)|^2 / (2 epsilon^2)),  epsilon = .55

Along alpha, y_j is nearly half-normal; at right angles to it, it is standard normal, for which the
ABC posterior has a closed form. What remains is an integral in one dimension.

`examples/benchmarks/abc.py` compares its cost with that of the samplers of this package.

References
----------
T. Chen, E. Fox and C. Guestrin (2014). Stochastic gradient Hamiltonian Monte Carlo. ICML.
E. Meeds, R. Leenders and M. Welling (2015). Hamiltonian ABC. UAI.
J. C. Spall (1992). Multivariate stochastic approximation using a simultaneous perturbation gradient
    approximation. IEEE Transactions on Automatic Control 37.
H. Strathmann, D. Sejdinovic, S. Livingstone, Z. Szabo and A. Gretton (2015). Gradient-free
    Hamiltonian Monte Carlo with efficient kernel exponential families. NeurIPS 28.
"""

import argparse
from typing import NamedTuple

import numpy as np
import pymc as pm
from scipy.special import dawsn

import pymc_kmc as kmc

N_DIMENSIONS, N_OBSERVATIONS = 10, 10
ALPHA = np.full(N_DIMENSIONS, 10.0)
THETA = np.full(N_DIMENSIONS, 10.0)  # what the observed data are simulated with
EPSILON, PRIOR_SD = 0.55, 5.0
DATA_SEED = 1
# The unit vector along alpha, and the correlation of y along it with the hidden half-normal.
AXIS = ALPHA / np.linalg.norm(ALPHA)
DELTA = np.linalg.norm(ALPHA) / np.hypot(1.0, np.linalg.norm(ALPHA))


# The problem


def simulator(theta, rng, size):
    """Return data sets, shape (size, 10, 10).

    If z is standard normal and w too, z with the sign of alpha' z - w is skew-normal (Azzalini and
    Dalla Valle, 1996, proposition 1).
    """
    z = rng.standard_normal((size, N_OBSERVATIONS, N_DIMENSIONS))
    flipped = z @ ALPHA < rng.standard_normal((size, N_OBSERVATIONS))
    z[flipped] *= -1.0
    z += theta
    return z


def summary(data):
    """The mean of each data set, shape (size, 10)."""
    return data.mean(axis=1)


def observed_data():
    """The observed data set, shape (10, 10)."""
    return simulator(THETA, np.random.default_rng(DATA_SEED), 1)[0]


def build_model(n_simulations=10, simulator=simulator):
    """The PyMC model; its likelihood is ABC's, estimated."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, PRIOR_SD, shape=N_DIMENSIONS)
        kmc.ABCPotential(
            "likelihood",
            simulator,
            theta,
            observed=observed_data(),
            summary=summary,
            epsilon=EPSILON,
            n_simulations=n_simulations,
        )
    return model


class Moments(NamedTuple):
    """Exact moments of a posterior: mean, shape (d,), and covariance, shape (d, d)."""

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def sd(self):
        return np.sqrt(np.diag(self.covariance))


def exact_posterior():
    """The ABC posterior's moments.

    The kernel adds N(0, epsilon^2 I) to the summary. Across the axis all is Gaussian.
    """
    observed = observed_data().mean(axis=0)
    variance = 1.0 / N_OBSERVATIONS + EPSILON**2
    across = 1.0 / (1.0 / PRIOR_SD**2 + 1.0 / variance)
    theta, weights = posterior_along_axis()
    mean = weights @ theta
    along = weights @ (theta - mean) ** 2
    projection = np.outer(AXIS, AXIS)
    rest = np.eye(N_DIMENSIONS) - projection
    return Moments(
        mean * AXIS + rest @ observed * across / variance, along * projection + across * rest
    )


def posterior_along_axis():
    """The ABC posterior of the parameters' coordinate along the axis, on a grid.

    The summary's characteristic function is known, and its density is a Fourier integral.

    Returns
    -------
    theta, weights : numpy.ndarray, shape (3001,)
        The coordinate, in ascending order, and its probabilities.
    """
    observed = AXIS @ observed_data().mean(axis=0)
    theta = observed + np.linspace(-5.0, 4.0, 3001)  # the summary's density is nil elsewhere
    weights = _density_along_axis(observed - theta) * np.exp(-0.5 * (theta / PRIOR_SD) ** 2)
    return theta, weights / weights.sum()


def _density_along_axis(x):
    """Density of the summary along the axis for theta = 0, the kernel's noise included."""
    t = np.linspace(0.0, 40.0, 4001)  # exp(-epsilon^2 40^2 / 2) is 1e-105
    u = t / N_OBSERVATIONS
    # E exp(i u y), with erfi written as Dawson's function (Azzalini, 1985).
    imaginary = 2.0 / np.sqrt(np.pi) * dawsn(DELTA * u / np.sqrt(2.0))
    one = np.exp(-0.5 * u**2) + 1j * np.exp(-0.5 * (1.0 - DELTA**2) * u**2) * imaginary
    all_of_them = one**N_OBSERVATIONS * np.exp(-0.5 * (EPSILON * t) ** 2)
    all_of_them[0] *= 0.5  # the trapezoidal rule; the other end is nil
    waves = np.exp(-1j * np.outer(x, t))
    return np.real(waves @ all_of_them) * (t[1] - t[0]) / np.pi


# The sampler


class HamiltonianABC:
    """Stochastic-gradient Hamiltonian Monte Carlo on a Gaussian synthetic likelihood.

    With :math:`U(theta) = |theta|^2 / (2 prior_sd^2) - log N(s* | m, S + epsilon^2 I)`, where m and
    S are the moments of simulated summaries and *s\\* is the observed one*, an iteration is

        v <- (1 - friction) v - step_size^2 g + N(0, 2 friction step_size^2 I)
        theta <- theta + v

    (Chen, Fox and Guestrin, 2014, equation 15, the noise of the gradient not allowed for). The
    gradient g is a mean of central differences along random directions of signs (Spall, 1992), the
    same random numbers on both sides (Meeds et al., 2015, section 4).

    Parameters
    ----------
    n_simulations : int
        Data sets for each value of U.
    n_directions : int
        Central differences a gradient. It costs 2 n_directions n_simulations data sets.
    step_size : float
    friction : float
        Share of the velocity that is lost in a step.
    """

    # Half the distance of the two points of a difference; U is quadratic here, where any will do.
    HALF_WIDTH = 0.1

    def __init__(self, n_simulations=10, n_directions=1, step_size=0.05, friction=0.1):
        self.n_simulations = n_simulations
        self.n_directions = n_directions
        self.step_size = step_size
        self.friction = friction
        self.observed = observed_data().mean(axis=0)

    @property
    def simulations_an_iteration(self):
        return 2 * self.n_directions * self.n_simulations

    def potential_energy(self, theta, rng):
        """Estimate U(theta)."""
        summaries = summary(simulator(theta, rng, self.n_simulations))
        covariance = np.cov(summaries, rowvar=False) + EPSILON**2 * np.eye(N_DIMENSIONS)
        difference = self.observed - summaries.mean(axis=0)
        _, log_determinant = np.linalg.slogdet(covariance)
        misfit = difference @ np.linalg.solve(covariance, difference)
        return 0.5 * (misfit + log_determinant + theta @ theta / PRIOR_SD**2)

    def gradient(self, theta, rng):
        """Estimate the gradient of U at theta."""
        total = np.zeros(N_DIMENSIONS)
        for _ in range(self.n_directions):
            signs = rng.choice((-1.0, 1.0), N_DIMENSIONS)
            seed = rng.integers(2**63)
            ends = [
                self.potential_energy(
                    theta + side * self.HALF_WIDTH * signs, np.random.default_rng(seed)
                )
                for side in (1.0, -1.0)
            ]
            total += (ends[0] - ends[1]) / (2.0 * self.HALF_WIDTH) * signs
        return total / self.n_directions

    def sample(self, start, n, rng):
        """Return n draws, shape (n, d)."""
        theta = np.array(start, dtype=float)
        velocity = self.step_size * rng.standard_normal(N_DIMENSIONS)
        noise = self.step_size * np.sqrt(2.0 * self.friction)
        draws = np.empty((n, N_DIMENSIONS))
        for i in range(n):
            velocity *= 1.0 - self.friction
            velocity -= self.step_size**2 * self.gradient(theta, rng)
            velocity += noise * rng.standard_normal(N_DIMENSIONS)
            theta = theta + velocity
            draws[i] = theta
        return draws


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description="Hamiltonian ABC on a ten-dimensional skew-normal, beside the exact posterior.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--step-sizes", default="0.2,0.1,0.05", help="comma-separated")
    parser.add_argument("--simulations", type=int, default=10, help="data sets a value")
    parser.add_argument("--directions", type=int, default=1, help="differences a gradient")
    parser.add_argument("--draws", type=int, default=20_000, help="after a tenth as many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few iterations only")
    options = parser.parse_args(arguments)
    if options.quick:
        options.draws = 500
    options.step_sizes = [float(size) for size in options.step_sizes.split(",")]
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    exact = exact_posterior()
    print(f"{'':>12} {'mean error':>11} {'sd':>7} {'sd / exact':>11}")
    print(f"{'exact':>12} {0.0:11.3f} {exact.sd.mean():7.3f} {1.0:11.2f}")
    for step_size in options.step_sizes:
        sampler = HamiltonianABC(options.simulations, options.directions, step_size)
        rng = np.random.default_rng(options.seed)
        draws = sampler.sample(THETA, options.draws + options.draws // 10, rng)
        draws = draws[-options.draws :]
        error = np.abs(draws.mean(axis=0) - exact.mean).mean()
        sd = draws.std(axis=0)
        ratio = (sd / exact.sd).mean()
        print(f"{f'step {step_size:g}':>12} {error:11.3f} {sd.mean():7.3f} {ratio:11.2f}")
    print(f"{sampler.simulations_an_iteration} simulated data sets an iteration.")


if __name__ == "__main__":
    main()
