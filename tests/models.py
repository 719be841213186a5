"""Small models with known answers. At module level: spawned chains import them."""

import numpy as np
import pymc as pm

import pymc_kmc as kmc

# x ~ N(0, 1), one observation 1 with variance .25.
OBSERVATION, VARIANCE = 1.0, 0.25
POSTERIOR_MEAN, POSTERIOR_SD = 0.8, 0.2**0.5


def log_likelihood(x):
    return -0.5 * (OBSERVATION - x) ** 2 / VARIANCE


class NoisyEstimator:
    """Log of an unbiased, log-normal estimate of the toy's likelihood.

    Parameters
    ----------
    variance : float
        Of the log estimate.
    heteroscedastic : bool
        Let the variance grow with the parameter, from 0 to twice `variance`.
    """

    def __init__(self, variance, heteroscedastic=False):
        self.variance = variance
        self.heteroscedastic = heteroscedastic
        self.n_calls = 0

    def __call__(self, x, rng):
        self.n_calls += 1
        variance = self.variance
        if self.heteroscedastic:
            variance = variance * 2.0 / (1.0 + np.exp(-4.0 * (x - POSTERIOR_MEAN)))
        noise = np.sqrt(variance) * rng.standard_normal() - 0.5 * variance
        return log_likelihood(x) + noise


class FailingEstimator:
    """A log likelihood of N(x, 1) at 0 that raises, or returns a bad value, where x exceeds .5.

    Parameters
    ----------
    value : object, optional
        The bad value.
    """

    def __init__(self, value=None):
        self.value = value

    def __call__(self, x, rng):
        noise = rng.standard_normal()
        if x > 0.5:
            if self.value is None:
                raise ZeroDivisionError(f"solver failed, noise {noise!r}")
            return self.value
        return -0.5 * x**2


def noisy_gaussian(variance, heteroscedastic=False, companion=False):
    """The Gaussian toy; a companion is a second variable, z ~ N(x / 2, 1)."""
    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", NoisyEstimator(variance, heteroscedastic), x)
        if companion:
            pm.Normal("z", x / 2, 1.0)
    return model


def gaussian(companion=False):
    """The toy with its exact likelihood: it has a gradient."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("y", x, VARIANCE**0.5, observed=OBSERVATION)
        if companion:
            pm.Normal("z", x / 2, 1.0)
    return model


def constrained():
    """A model with three transforms, whose variables are independent."""
    with pm.Model() as model:
        pm.HalfNormal("scale", 2.0)
        pm.Dirichlet("weights", np.array([2.0, 3.0, 5.0]))
        pm.Uniform("u", -1.0, 3.0)
    return model
