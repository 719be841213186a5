"""Small models to be learned once."""

import numpy as np
import pymc as pm

import pymc_kmc as kmc

TIMES = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
OBSERVED = 3.0 * np.exp(-0.7 * TIMES) + np.array([0.1, -0.05, 0.08, -0.1, 0.02])


def decay(size, rate):
    return size * np.exp(-rate * TIMES)


def log_likelihood(size, rate):
    return -0.5 * np.sum((OBSERVED - decay(size, rate)) ** 2) / 0.01


def curve(function=decay):
    """A curve with two parameters, the noise's scale known."""
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        mean = kmc.BlackBox("curve", function, size, rate, shape=(5,))
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    return model
