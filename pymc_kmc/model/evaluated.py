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
    outputs : ndarray, shape (n, k)
        All that opaque nodes returned; NaN where a black box has rejected the place.
    log_densities : ndarray, shape (n,)
        Of the model; -inf where a chain would reject the place.
    seconds : ndarray, shape (n,)
        That an evaluation took; of a batch that ran at once, the mean.
    """

    names: tuple
    X: np.ndarray
    outputs: np.ndarray
    log_densities: np.ndarray
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

    @property
    def X(self):
        """Unconstrained positions (n, d)."""
        return np.reshape(self._X, (len(self), self._shapes[0]))

    @property
    def outputs(self):
        """All that opaque nodes returned, (n, k)."""
        return np.reshape(self._outputs, (len(self), self._shapes[1]))

    @property
    def seconds(self):
        """That each evaluation took, (n,)."""
        return np.array(self._seconds, dtype=float)

    def remember(self, X, outputs, seconds):
        """Begin with evaluations (n, d), (n, k) and (n,) of the same nodes."""
        X = np.ascontiguousarray(X, dtype=float)
        for x, output, each in zip(X, outputs, seconds, strict=True):
            self.add(x[None], output[None], each)

    def find(self, X):
        """Return the outputs (n, m) of points (n, d), and which of them are remembered, (n,)."""
        outputs = np.full((len(X), self._shapes[1]), np.nan)
        is_known = np.zeros(len(X), dtype=bool)
        for i, x in enumerate(X):
            found = self._known.get(x.tobytes())
            if found is not None:
                outputs[i], is_known[i] = found, True
        return outputs, is_known

    def add(self, X, outputs, seconds, is_known=True):
        """Add evaluations (n, d) and (n, k) that took so many seconds each.

        Those that are known aren't evaluated again.
        """
        if is_known:
            self._known |= {x.tobytes(): row for x, row in zip(X, outputs, strict=True)}
        self._X += list(X)
        self._outputs += list(outputs)
        self._seconds += len(X) * [seconds]

    def seconds_at(self, X):
        """Return the seconds (n,) of evaluations at points (n, d); NaN where there were none."""
        found = {x.tobytes(): seconds for x, seconds in zip(self._X, self._seconds, strict=True)}
        return np.array([found.get(x.tobytes(), np.nan) for x in X], dtype=float)
