"""The predictions of an exact Gaussian process at points, and their gradient."""

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import blas

# Number of rows from which on products with a triangle are faster than those with all its zeros.
FEWEST_ROWS = 8


class Prediction(NamedTuple):
    """Predicted outputs at points: means (k, m), and factors (k,) of the outputs' covariance."""

    mean: np.ndarray
    variance: np.ndarray
    process: Any
    Z: np.ndarray
    parts: tuple

    def pullback(self, of_mean, of_variance):
        """Return the gradient (k, d) of ``sum(of_mean * mean) + of_variance * variance``."""
        process, Z = self.process, self.Z
        parameters = process.hyperparameters_
        (inner, weighted, gaussian), (norms, weighted_norms), whitened = self.parts
        relevances, precisions = parameters.relevances, np.exp(-2.0 * parameters.log_lengths)
        # Derivative by k, of both parts.
        by_k = of_mean @ process.weights_.T
        if of_variance.any():
            solved = whitened_rows(whitened, process.inverse_factor_, again=True)
            by_k -= 2.0 * of_variance[:, None] * solved
        by_gaussian = by_k * gaussian
        result = (by_k * parameters.trend_slope(inner)) @ process.Z_
        result += relevances * ((by_k * parameters.bend_slope(weighted)) @ process.Z_)
        result += precisions * (by_gaussian @ process.Z_ - by_gaussian.sum(axis=1)[:, None] * Z)
        if parameters.extension is not None:
            axes = process.axes(process.extension)
            points = Z @ axes.T, process.U_
            result += parameters.extension.pullback(*points, by_k, of_variance) @ axes
        slopes = np.outer(parameters.trend_slope(norms), np.ones(Z.shape[1]))
        slopes += np.outer(parameters.bend_slope(weighted_norms), relevances)
        result += 2.0 * of_variance[:, None] * slopes * Z
        return result @ process.whitening


def whitened_rows(A, inverse_factor, again=False):
    """Return rows (k, n) times the transposed inverse factor, untransposed if `again`."""
    if len(A) < FEWEST_ROWS:
        return A @ (inverse_factor if again else inverse_factor.T)
    return blas.dtrmm(1.0, inverse_factor, A.T, lower=1, trans_a=int(again)).T
