"""A record of evaluations: nothing that was paid for is lost, or paid for twice."""

from typing import NamedTuple

import numpy as np


class Evaluated(NamedTuple):
    """Evaluations of a model's opaque nodes, as plain arrays.

    Attributes
    ----------
    names : tuple of str
        Names of the value variables.
    X : ndarray, shape (n, d)
        Unconstrained positions.
    outputs : ndarray, shape (n, m)
        NaN where a black box has rejected the place.
    seconds : ndarray, shape (n,)
        That an evaluation took; of a batch that ran at once, the mean.
    """

    names: tuple
    X: np.ndarray
    outputs: np.ndarray
    seconds: np.ndarray

    def __len__(self):
        return len(self.X)

    def __repr__(self):
        names = ", ".join(self.names)
        return f"Evaluated({len(self)} evaluations, {self.outputs.shape[1]} outputs each: {names})"


class EvaluationLog:
    """Evaluations in the order in which they were made.

    Parameters
    ----------
    n_dimensions : int
    n_outputs : int
    """

    def __init__(self, n_dimensions, n_outputs):
        self._shapes = n_dimensions, n_outputs
        self._X, self._outputs, self._seconds = [], [], []
        self._known = {}

    def __len__(self):
        return len(self._X)

    def remember(self, earlier):
        """Begin with an :class:`Evaluated` of the same nodes: it isn't evaluated again."""
        X = np.ascontiguousarray(earlier.X, dtype=float)
        for x, output, seconds in zip(X, earlier.outputs, earlier.seconds, strict=True):
            self.add(x[None], output[None], seconds)
            self._known[x.tobytes()] = output

    def find(self, X):
        """Return the outputs (n, m) of points (n, d), and which of them are remembered, (n,)."""
        outputs = np.full((len(X), self._shapes[1]), np.nan)
        is_known = np.zeros(len(X), dtype=bool)
        for i, x in enumerate(X):
            found = self._known.get(x.tobytes())
            if found is not None:
                outputs[i], is_known[i] = found, True
        return outputs, is_known

    def add(self, X, outputs, seconds):
        """Add evaluations (n, d) and (n, m) that took so many seconds each."""
        self._X += list(X)
        self._outputs += list(outputs)
        self._seconds += len(X) * [seconds]

    def seconds_at(self, X):
        """Return the seconds (n,) of evaluations at points (n, d); NaN where there were none."""
        found = {x.tobytes(): seconds for x, seconds in zip(self._X, self._seconds, strict=True)}
        return np.array([found.get(x.tobytes(), np.nan) for x in X], dtype=float)

    def evaluated(self, names) -> Evaluated:
        """Return what was added."""
        n_dimensions, n_outputs = self._shapes
        return Evaluated(
            tuple(names),
            np.reshape(self._X, (len(self), n_dimensions)),
            np.reshape(self._outputs, (len(self), n_outputs)),
            np.array(self._seconds, dtype=float),
        )
