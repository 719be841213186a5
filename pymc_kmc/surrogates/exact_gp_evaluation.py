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
from pymc_kmc.surrogates.additive_kernel import gaussians_at
from pymc_kmc.surrogates.exact_gp import TREND_VARIANCES
from pymc_kmc.surrogates.radial_terms import DEGREES_OF_FREEDOM, dampings, terms

# Largest logarithm of an output.
LARGEST_LOG = 300.0
_C0, _C1, _C2 = TREND_VARIANCES
_N_TERMS = len(DEGREES_OF_FREEDOM)
# What extends a covariance, as numbers.
_ADDITIVE, _RADIAL = 1, 2
_EXTENSIONS = {None: 0, "additive": _ADDITIVE, "radial": _RADIAL}


class Packed(NamedTuple):
    """Several processes, for compiled code.

    Attributes
    ----------
    numbers : ndarray
        One process after the other: m (k,), W (k, k), Z (k, n), precisions and relevances of the
        coordinates (k,), the variances of trend, bend and kernel (3,), B (n, m) and o (m,). Of
        functions of few coordinates their variance and ratio (2,), the inverse length scales of x
        (k,), and the places in length scales (k, n). Of radial terms their coefficients (4, m), the
        variance of the damped quadratic, and the places' dampings (4, n).
    layout : ndarray of int, shape (n_processes, 7)
        Of each where its numbers begin, k, n, m, whether it is of logarithms, what extends its
        covariance, and where the numbers of that begin. What extends it is nothing, 0, functions of
        few coordinates, 1, or radial terms, 2.
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
        extension, more = parameters.extension, ()
        if process.extension == "additive":
            variance, ratio, shrinking = extension.factors
            places = (process.U_ * shrinking).T
            more = np.array([variance, ratio]), shrinking / process.scales, places
        elif process.extension == "radial":
            of_terms, of_damped = extension.variances
            coefficients = of_terms * terms(process.U_).T @ process.weights_
            more = coefficients * scales, of_damped, dampings(process.U_).T
        flat = np.concatenate([np.ravel(part) for part in (*parts, *more)])
        numbers.append(flat)
        sizes, kind = (k, n, process.weights_.shape[1]), _EXTENSIONS[process.extension]
        rest = begin + sum(np.size(part) for part in parts)
        layout.append([begin, *sizes, int(is_log), kind, rest])
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


@njit(error_model="numpy")
def _extension(numbers, layout, i):
    """Return the numbers of what extends the covariance of process i."""
    return numbers[layout[i, 6] :]


@njit(error_model="numpy")
def _additive_parts(numbers, layout, i):
    """Return the arrays of functions of few coordinates, empty ones if there are none."""
    numbers, begin, n = _extension(numbers, layout, i), 2, layout[i, 2]
    k = layout[i, 1] if layout[i, 5] == _ADDITIVE else 0
    factors = numbers[:2]
    scales = numbers[begin : begin + k]
    begin += k
    return factors, scales, numbers[begin : begin + k * n].reshape((k, n))


@njit(error_model="numpy")
def _radial_parts(numbers, layout, i):
    """Return the arrays of radial terms, empty ones if there are none."""
    numbers, n, m = _extension(numbers, layout, i), layout[i, 2], layout[i, 3]
    size = _N_TERMS if layout[i, 5] == _RADIAL else 0
    begin = size * m
    coefficients = numbers[:begin].reshape((size, m))
    variance = numbers[begin : begin + 1]
    return coefficients, variance, numbers[begin + 1 :][: size * n].reshape((size, n))


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
    slopes : ndarray, shape (3, n), (3 + k, n) or (4, n)
        Derivatives of the covariances with the n places by the inner product, by the weighted one,
        and by minus half of the weighted square of the distance; of functions of few coordinates
        by each in length scales, of radial terms along z, in units of z.
    """
    centre, whitening, Z, precisions, relevances, variances, weights, offset = _parts(
        numbers, layout, i
    )
    k, n = Z.shape
    factors, scales, V = _additive_parts(numbers, layout, i)
    coefficients, damped_variance, damping = _radial_parts(numbers, layout, i)
    slopes = np.zeros((3 + len(scales) + min(len(coefficients), 1), n))
    inner, weighted, gaussian, square = slopes[0], slopes[1], slopes[2], 0.0
    for a in range(k):
        z = 0.0
        for b in range(k):
            z += whitening[a, b] * (x[b] - centre[b])
        square += z * z
        row, weighted_z, half_precision = Z[a], relevances[a] * z, 0.5 * precisions[a]
        for j in range(n):
            away = z - row[j]
            inner[j] += z * row[j]
            weighted[j] += weighted_z * row[j]
            gaussian[j] -= half_precision * away * away
    exp_in_place(gaussian, np.empty(n), n)
    covariances, products = np.empty(n), np.empty(n)
    for j in range(n):
        products[j] = 1.0 + inner[j]
        t, w, g = inner[j], weighted[j], variances[2] * gaussian[j]
        covariances[j] = variances[0] * (_C0 + (_C1 + _C2 * t) * t)
        covariances[j] += variances[1] * (1.0 + w) * w * w * w + g
        inner[j] = variances[0] * (_C1 + 2.0 * _C2 * t)
        weighted[j] = variances[1] * (3.0 + 4.0 * w) * w * w
        gaussian[j] = g
    if len(scales):
        variance, ratio = factors[0], factors[1]
        u, gaussians = np.empty(k), slopes[3:]
        for a in range(k):
            u[a] = (x[a] - centre[a]) * scales[a]
        gaussians_at(u, V, ratio, gaussians, products)
        for j in range(n):
            covariances[j] += variance * products[j]
            products[j] = variance * (1.0 + ratio * products[j])
        for a in range(k):
            row, slope, at = V[a], gaussians[a], u[a]
            for j in range(n):
                slope[j] = products[j] * slope[j] / (1.0 + ratio * slope[j]) * (row[j] - at)
    if len(coefficients):
        along = slopes[3]
        for b in range(len(coefficients)):
            nu, row = DEGREES_OF_FREEDOM[b], damping[b]
            weight = damped_variance[0] * nu / (nu + square)
            slope = -2.0 * weight / (nu + square)
            for j in range(n):
                covariances[j] += weight * row[j] * products[j] * products[j]
                inner[j] += 2.0 * weight * row[j] * products[j]
                along[j] += slope * row[j] * products[j] * products[j]
    outputs = offset.copy()
    for j in range(n):
        for a in range(len(outputs)):
            outputs[a] += covariances[j] * weights[j, a]
    for j in range(len(coefficients)):
        nu = DEGREES_OF_FREEDOM[j]
        term = 0.5 * nu * np.log1p(square / nu)
        for a in range(len(outputs)):
            outputs[a] += coefficients[j, a] * term
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
    z, square = np.zeros(k), 0.0
    for a in range(k):
        for b in range(k):
            z[a] += whitening[a, b] * (x[b] - centre[b])
        square += z[a] * z[a]
    along_z, (coefficients, _, _) = 0.0, _radial_parts(numbers, layout, i)
    if len(coefficients):
        for j in range(n):
            along_z += by_covariances[j] * slopes[3, j]
    for j in range(len(coefficients)):
        nu, total = DEGREES_OF_FREEDOM[j], 0.0
        for a in range(len(outputs)):
            by = by_outputs[a] * outputs[a] if layout[i, 4] else by_outputs[a]
            total += coefficients[j, a] * by
        along_z += total * nu / (nu + square)
    pulled = np.zeros(k)
    for a in range(k):
        row, relevance, precision, total = Z[a], relevances[a], precisions[a], along_z * z[a]
        for j in range(n):
            along = (slopes[0, j] + relevance * slopes[1, j]) * row[j]
            total += by_covariances[j] * (along - precision * slopes[2, j] * (z[a] - row[j]))
        for b in range(k):
            pulled[b] += whitening[a, b] * total
    _, scales, _ = _additive_parts(numbers, layout, i)
    for a in range(len(scales)):
        total = 0.0
        for j in range(n):
            total += by_covariances[j] * slopes[3 + a, j]
        pulled[a] += scales[a] * total
    return pulled
