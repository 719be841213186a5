"""A curve with two parameters, to be learned once; its moments by summation on a grid."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pymc as pm

import pymc_kmc as kmc
from pymc_kmc.learning.emulated_density import EmulatedDensity
from pymc_kmc.learning.emulator import NodeEmulator
from pymc_kmc.model.opaque import OpaqueModel
from pymc_kmc.numerics.coordinates import Coordinates

TIMES = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
OBSERVED = 3.0 * np.exp(-0.7 * TIMES) + np.array([0.1, -0.05, 0.08, -0.1, 0.02])


def decay(size, rate):
    return size * np.exp(-rate * TIMES)


def log_likelihood(size, rate):
    return -0.5 * np.sum((OBSERVED - decay(size, rate)) ** 2) / 0.01


def curve(function=decay):
    """The curve is opaque, the noise's scale known."""
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        mean = kmc.BlackBox("curve", function, size, rate, shape=(5,))
        pm.Normal("y", mean, 0.1, observed=OBSERVED)
    return model


def scalar(function=log_likelihood):
    """The same posterior, its log likelihood an opaque number, less a constant."""
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        pm.Potential("p", kmc.BlackBox("loglik", function, size, rate))
    return model


def on_grid(n=400):
    """Places (n * n, 2) of log size and log rate, and their posterior probabilities."""
    a, b = np.meshgrid(np.linspace(0.5, 1.7, n), np.linspace(-1.2, 0.5, n), indexing="ij")
    size, rate = np.exp(a)[..., None], np.exp(b)[..., None]
    log_density = -0.5 * ((OBSERVED - size * np.exp(-rate * TIMES)) ** 2).sum(axis=-1) / 0.01
    log_density += -0.5 * a**2 - 0.5 * b**2
    weights = np.exp(log_density - log_density.max())
    return np.column_stack([a.ravel(), b.ravel()]), (weights / weights.sum()).ravel()


@cache
def learned_curve():
    """What is learned of the curve, once a process."""
    return kmc.learn(curve(), progressbar=False)


@cache
def learned_number():
    """The same of the log likelihood."""
    return kmc.learn(scalar(), progressbar=False)


def emulated(posterior, model):
    """A LearnedPosterior's emulated log density, without what is compiled for chains."""
    d = len(posterior.names)
    return EmulatedDensity(model, posterior, Coordinates(np.zeros(d), np.eye(d)))


def density_of(model):
    """A density with emulators that were fitted to forty places, rightly or not."""
    opaque = OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(0))
    d, rng = opaque.n_dimensions, np.random.default_rng(1)
    X = rng.normal(size=(40, d))
    evaluations = opaque.evaluate(X)
    emulators = [NodeEmulator(node).fit(evaluations, X, opaque.inputs(X)) for node in opaque.nodes]
    coordinates = Coordinates(rng.normal(size=d), np.eye(d) + 0.3 * rng.normal(size=(d, d)))
    names = tuple(variable.name for variable in opaque.variables)
    states = tuple(emulator.state for emulator in emulators)
    learned = SimpleNamespace(names=names, emulators=states, noise=0.0, structure=None, region=None)
    return EmulatedDensity(model, learned, coordinates)
