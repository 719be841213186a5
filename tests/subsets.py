"""A conjugate model whose partial posteriors are sampled exactly."""

import functools

import numpy as np
import pymc as pm

# Prior theta ~ N(0, PRIOR_SD^2), data y ~ N(theta, 1): small subsets have a large bias towards 0.
PRIOR_SD = 0.25


@functools.cache
def template():
    with pm.Model() as model:
        pm.Normal("theta", 0.0, PRIOR_SD)
    return model


class Conjugate:
    """Model, exact sampler and functional; an object of its own for each test.

    Parameters
    ----------
    n_draws : int
        Independent draws a run, in one chain.
    """

    def __init__(self, n_draws=3):
        self.n_draws = n_draws
        self.subsets = []

    def build(self, subset):
        self.subsets.append(np.asarray(subset))
        return template()

    def sample(self, model, random_seed):
        mean, sd = exact(self.subsets[-1])
        rng = np.random.default_rng(random_seed)
        return {"theta": rng.normal(mean, sd, (1, self.n_draws))}

    @staticmethod
    def functional(draws):
        return draws["theta"].mean()


def exact(subset):
    """Return the posterior's mean and standard deviation."""
    precision = len(subset) + PRIOR_SD**-2
    return np.sum(subset) / precision, precision**-0.5


def normal_data(n, seed=1):
    return np.random.default_rng(seed).normal(1.0, 1.0, n)
