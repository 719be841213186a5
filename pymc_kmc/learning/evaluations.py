"""Where the opaque nodes of a model were evaluated, and what came out."""

from typing import NamedTuple

import numpy as np


class Evaluations(NamedTuple):
    """Where the opaque nodes were evaluated.

    Attributes
    ----------
    X : ndarray, shape (n, d)
        Unconstrained positions.
    inputs : ndarray, shape (n, k)
        Of the opaque nodes.
    outputs : ndarray, shape (n, m)
        All that they returned; NaN where a black box failed.
    log_densities : ndarray, shape (n,)
        Of the model; -inf where a black box failed.
    """

    X: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    log_densities: np.ndarray

    def __len__(self):
        return len(self.X)

    @classmethod
    def of(cls, model, X, outputs):
        """Return the evaluations of an :class:`OpaqueModel` at X with these outputs."""
        return cls(X, model.inputs(X), outputs, model.values(X, outputs))

    @classmethod
    def at(cls, model, X):
        """Evaluate an :class:`OpaqueModel` at points (n, d)."""
        return cls.of(model, X, model.evaluate(X))

    def joined(self, other):
        """Return these and others, in this order."""
        return Evaluations(*[np.concatenate(pair) for pair in zip(self, other, strict=True)])
