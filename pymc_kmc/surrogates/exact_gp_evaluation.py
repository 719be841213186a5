r"""The mean of an exact Gaussian process at one point, compiled.

With the coordinates :math:`z = W (x - m)` of a point, and the n places :math:`Z_j` and m columns of
weights B of a fitted :class:`~pymc_kmc.surrogates.exact_gp.ExactGP`, an output is

.. math:: o_k + \sum_j k(z, Z_j) B_{jk},

or its exponential where the process is of logarithms. Several processes share one vector of
numbers: compiled code that takes it serves every model.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import SUM_FLAGS
from pymc_kmc.numerics.jit import njit
from pymc_kmc.surrogates.exact_gp import TREND_VARIANCES

# Largest logarithm of an output.
LARGEST_LOG = 300.0
_C0, _C1, _C2 = TREND_VARIANCES


class Packed(NamedTuple):
    """Several processes, for compiled code.

    Attributes
    ----------
    numbers : ndarray
        One process after the other: m (k,), W (k, k), Z (k, n), precisions and relevances of the
        coordinates (k,), the variances of trend, bend and kernel (3,), B (n, m) and o (m,).
    layout : ndarray of int, shape (n_processes, 5)
        Of each where its numbers begin, k, n, m, and whether it is of logarithms.
    """

    numbers: np.ndarray
    layout: np.ndarray


def packed(processes) -> Packed:
    """Pack processes.

    Parameters
    ----------
    processes : list of tuple
        Of a fitted ExactGP, the scales and the offsets of its outputs (m,), and whether it is of
        their logarithms.
    """
    numbers, layout, begin = [], [], 0
    for process, scales, offset, is_log in processes:
        n, k = process.Z_.shape
        parameters = process.hyperparameters_
        variances = np.exp([2.0 * parameters.log_scale, 2.0 * parameters.log_bend])
        parts = (
            process.centre,
            process.whitening,
            process.Z_.T,
            np.exp(-2.0 * parameters.log_lengths),
            parameters.relevances,
            variances,
            np.exp([parameters.log_variance]),
            process.weights_ * scales,
            offset,
        )
        flat = np.concatenate([np.ravel(part) for part in parts])
        numbers.append(flat)
        layout.append([begin, k, n, process.weights_.shape[1], int(is_log)])
        begin += len(flat)
    return Packed(np.concatenate(numbers), np.array(layout, dtype=np.int64))


@njit(error_model="numpy")
def _parts(numbers, layout, i):
    """Return the arrays of process i."""
    begin, k, n, m = layout[i, 0], layout[i, 1], layout[i, 2], layout[i, 3]
    centre = numbers[begin : begin + k]
    begin += k
    whitening = numbers[begin : begin + k * k].reshape((k, k))
    begin += k * k
    Z = numbers[begin : begin + k * n].reshape((k, n))
    begin += k * n
    precisions = numbers[begin : begin + k]
    begin += k
    relevances = numbers[begin : begin + k]
    begin += k
    variances = numbers[begin : begin + 3]
    begin += 3
    weights = numbers[begin : begin + n * m].reshape((n, m))
    begin += n * m
    return centre, whitening, Z, precisions, relevances, variances, weights, numbers[begin:][:m]


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def outputs_at(x, numbers, layout, i):
    """Return the outputs of process i at a point, and what :func:`pulled_at` needs.

    Parameters
    ----------
    x : ndarray, shape (k,)
    numbers, layout : ndarray
        Of :class:`Packed`.
    i : int

    Returns
    -------
    outputs : ndarray, shape (m,)
    slopes : ndarray, shape (3, n)
        Derivatives of the covariances with the n places by the inner product, by the weighted one,
        and by minus half of the weighted square of the distance.
    """
    centre, whitening, Z, precisions, relevances, variances, weights, offset = _parts(
        numbers, layout, i
    )
    k, n = Z.shape
    slopes = np.zeros((3, n))
    inner, weighted, gaussian = slopes[0], slopes[1], slopes[2]
    for a in range(k):
        z = 0.0
        for b in range(k):
            z += whitening[a, b] * (x[b] - centre[b])
        row, weighted_z, half_precision = Z[a], relevances[a] * z, 0.5 * precisions[a]
        for j in range(n):
            away = z - row[j]
            inner[j] += z * row[j]
            weighted[j] += weighted_z * row[j]
            gaussian[j] -= half_precision * away * away
    exp_in_place(gaussian, np.empty(n), n)
    covariances = np.empty(n)
    for j in range(n):
        t, w, g = inner[j], weighted[j], variances[2] * gaussian[j]
        covariances[j] = variances[0] * (_C0 + (_C1 + _C2 * t) * t)
        covariances[j] += variances[1] * (1.0 + w) * w * w * w + g
        inner[j] = variances[0] * (_C1 + 2.0 * _C2 * t)
        weighted[j] = variances[1] * (3.0 + 4.0 * w) * w * w
        gaussian[j] = g
    outputs = offset.copy()
    for j in range(n):
        for a in range(len(outputs)):
            outputs[a] += covariances[j] * weights[j, a]
    if layout[i, 4]:
        for a in range(len(outputs)):
            outputs[a] = np.exp(min(outputs[a], LARGEST_LOG))
    return outputs, slopes


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def pulled_at(x, by_outputs, outputs, slopes, numbers, layout, i):
    """Return the derivative of ``sum(by_outputs * outputs)`` by the point, shape (k,).

    Parameters
    ----------
    x, numbers, layout, i
        As of :func:`outputs_at`.
    by_outputs : ndarray, shape (m,)
    outputs, slopes : ndarray
        Results of :func:`outputs_at`.
    """
    centre, whitening, Z, precisions, relevances, _, weights, _ = _parts(numbers, layout, i)
    k, n = Z.shape
    by_covariances = np.zeros(n)
    for j in range(n):
        total = 0.0
        for a in range(len(outputs)):
            by = by_outputs[a] * outputs[a] if layout[i, 4] else by_outputs[a]
            total += weights[j, a] * by
        by_covariances[j] = total
    pulled = np.zeros(k)
    for a in range(k):
        z = 0.0
        for b in range(k):
            z += whitening[a, b] * (x[b] - centre[b])
        row, relevance, precision, total = Z[a], relevances[a], precisions[a], 0.0
        for j in range(n):
            along = (slopes[0, j] + relevance * slopes[1, j]) * row[j]
            total += by_covariances[j] * (along - precision * slopes[2, j] * (z - row[j]))
        for b in range(k):
            pulled[b] += whitening[a, b] * total
    return pulled
