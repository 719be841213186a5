"""Evaluations as a model would have recorded them."""

import numpy as np

from pymc_kmc.model.evaluations import Evaluations


def evaluations_of(X, outputs, log_densities, inputs=None):
    """The record of places (n, d), which are the opaque inputs too, unless others are given."""
    names = tuple(f"x{i}" for i in range(X.shape[1]))
    inputs = X if inputs is None else inputs
    return Evaluations(names, X, inputs, outputs, log_densities, np.zeros(len(X)))
