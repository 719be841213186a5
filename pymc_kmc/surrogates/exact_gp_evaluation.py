r"""The mean of an exact Gaussian process at one point, compiled.

With the coordinates :math:`z = W (x - m)` of a point, and the n places :math:`Z_j` and m columns of
weights B of a fitted :class:`~pymc_kmc.surrogates.exact_gp.ExactGP`, an output is

.. math:: o_k + \sum_j k(z, Z_j) B_{jk},

or its exponential where the process is of logarithms. Sums over places are replaced where possible:
the trend and the damped quadratics of radial terms by quadratics, functions of single coordinates
and of pairs by their values on grids. The Gaussian kernel and the bend remain, unless they are
negligible. Several processes share one vector of numbers, so that one compiled function serves
every model.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.elementary import exp_in_place, gaussian_of
from pymc_kmc.numerics.evaluation import SUM_FLAGS
from pymc_kmc.numerics.jit import njit
from pymc_kmc.surrogates.covariance import (
    BEND_LENGTH,
    DEGREES_OF_FREEDOM,
    TREND_VARIANCES,
    Covariances,
    dampings,
    terms,
)

# Largest plausible logarithm of a natural value, which is then 1e130; doubles end at 709.
LARGEST_LOG = 300.0
# Largest change of an output at a place, in the outputs' standard deviations, for which a part of
# the covariance is left out.
NEGLIGIBLE = 1e-4
_C0, _C1, _C2 = TREND_VARIANCES


class Packed(NamedTuple):
    """Several processes, for compiled code.

    Attributes
    ----------
    numbers : ndarray
        One process after the other: m (k,), W (k, k), the q quadratics of (1, z) (q, m, k + 1,
        k + 1), the coefficients of radial terms (q - 1, m), Z (k, n), precisions and relevances of
        the coordinates (k,), the variances of bend and kernel (2,), B (n, m). Of functions of few
        coordinates the inverse length scales of x and the numbers of knots (k,), the M knots in
        length scales, and the coefficients of their Gaussians (m, M) and of pairs (m, M, M).
    layout : ndarray of int, shape (n_processes, 7)
        For each process the index of its first number, k, n, m, q, M, and whether it is of
        logarithms. The first quadratic is the trend's, with the offset; others are damped. Where
        both bend and kernel are negligible n is 0.
    """

    numbers: np.ndarray
    layout: np.ndarray

    @property
    def operations(self):
        """Numbers (n_processes,) of operations for the value and gradient of each process."""
        _, k, n, m, q, knots, _ = self.layout.T
        return q * m * k * k + n * (OF_A_PLACE + 4 * k + 2 * m) + knots * (OF_A_KNOT + m * knots)


# Operations for a place's and for a knot's Gaussian, besides those for each coordinate or output.
OF_A_PLACE, OF_A_KNOT = 16, 24


def packed(processes) -> Packed:
    """Pack tuples: an ExactGP, scales and offsets (m,) of its outputs, whether of logarithms."""
    numbers, layout, begin, begins = [], [], 0, {}
    for process, scales, offset, is_log in processes:
        d, extension = len(process.centre), process.hyperparameters_.extension
        B, U = process.weights_ * scales, process.Z_ @ process.axes_.T
        constant, places = _places(process, B)
        quadratics, coefficients = [_trend(process, B, offset + constant)], np.zeros(0)
        knots, *of_knots = [np.zeros(0)] * d, np.zeros(0), np.zeros(0)
        shrinking = np.zeros(d)
        if process.extension == "additive":
            knots, *of_knots = extension.on_grids(U, B)
            shrinking = extension.factors[2] / process.scales
        elif process.extension == "radial":
            of_terms, of_damped = extension.variances
            coefficients = of_terms * terms(U).T @ B
            quadratics += [
                _quadratic(process.Z_, of_damped * column[:, None] * B) for column in dampings(U).T
            ]
        parts = (
            process.centre,
            process.whitening,
            *quadratics,
            coefficients,
            *places,
            shrinking,
            [len(of_one) for of_one in knots],
            *knots,
            *of_knots,
        )
        flat = np.concatenate([np.ravel(part) for part in parts]).astype(float)
        (_, n), n_knots = places[0].shape, sum(map(len, knots))
        first = begins.setdefault(flat.tobytes(), begin)  # nodes of one function have one process
        layout.append([first, d, n, B.shape[1], len(quadratics), n_knots, int(is_log)])
        if first == begin:
            numbers.append(flat)
            begin += len(flat)
    return Packed(np.concatenate(numbers), np.array(layout, dtype=np.int64))


def _quadratic(Z, weights):
    """Return matrices (m, d + 1, d + 1) of weighted sums of (1 + z'Z_j)^2, as forms of (1, z)."""
    points = np.column_stack([np.ones(len(Z)), Z])
    return np.stack([(points * column[:, None]).T @ points for column in weights.T])


def _trend(process, B, constant):
    """Return the trend plus a constant (m,) as forms (m, d + 1, d + 1) of (1, z)."""
    variance = np.exp(2.0 * process.hyperparameters_.log_scale)
    forms = _quadratic(process.Z_, variance * _C2 * B)
    forms[:, 0] *= 0.5 * _C1 / _C2
    forms[:, 1:, 0] *= 0.5 * _C1 / _C2
    forms[:, 0, 0] = variance * _C0 * B.sum(axis=0) + constant
    return forms


def _places(process, B):
    """Return the constant (m,) in place of negligible parts, and the data for sums over places."""
    parameters, Z = process.hyperparameters_, process.Z_
    spread = NEGLIGIBLE * np.std(process.Y_, axis=0) * np.abs(B).max(axis=0)
    spread /= np.maximum(np.abs(process.weights_).max(axis=0), 1e-300)
    none = parameters._replace(log_scale=-np.inf, extension=None)
    alone = none._replace(log_variance=-np.inf), none._replace(log_bend=-np.inf)
    parts = [Covariances(one, Z, Z, process.axes_).values @ B for one in alone]
    medians = [np.median(part, axis=0) for part in parts]
    matter = [
        bool(np.any(np.abs(part - median) > spread))
        for part, median in zip(parts, medians, strict=True)
    ]
    constant = np.zeros(B.shape[1])
    for median, matters in zip(medians, matter, strict=True):
        constant += 0.0 if matters else median
    variances, precisions = parameters.factors
    relevances = BEND_LENGTH * Z.shape[1] * precisions
    kept = slice(None) if any(matter) else slice(0)
    return constant, (Z[kept].T, precisions, relevances, variances[1:] * matter, B[kept])


@njit(error_model="numpy", forceinline=True)
def _array(numbers, begin, shape):
    """Return the array of a shape whose numbers start at `begin`, and their end."""
    size = 1
    for n in shape:
        size *= n
    return numbers[begin : begin + size].reshape(shape), begin + size


@njit(error_model="numpy", forceinline=True)
def _parts(numbers, layout, i):
    """Return the arrays of process i, in the order of :class:`Packed`."""
    begin, k, n, m, q, size, _ = layout[i]
    centre, begin = _array(numbers, begin, (k,))
    whitening, begin = _array(numbers, begin, (k, k))
    quadratics, begin = _array(numbers, begin, (q, m, k + 1, k + 1))
    coefficients, begin = _array(numbers, begin, (q - 1, m))
    Z, begin = _array(numbers, begin, (k, n))
    scales, begin = _array(numbers, begin, (2, k))  # precisions, relevances
    variances, begin = _array(numbers, begin, (2,))
    weights, begin = _array(numbers, begin, (n, m))
    grids, begin = _array(numbers, begin, (2, k))  # inverse length scales, numbers of knots
    knots, begin = _array(numbers, begin, (size,))
    linear, begin = _array(numbers, begin, (m, size))
    pairs, _ = _array(numbers, begin, (m, size, size))
    smooth, places = (quadratics, coefficients), (Z, scales, variances, weights)
    return centre, whitening, smooth, places, (grids, knots, linear, pairs)


@njit(error_model="numpy", forceinline=True)
def _memory_parts(memory, layout, i):
    """Return the parts of the memory: derivatives by z and by x, and slopes at places."""
    k, n, m = layout[i, 1], layout[i, 2], layout[i, 3]
    by_z = memory[: m * k].reshape((m, k))
    by_x = memory[m * k : 2 * m * k].reshape((m, k))
    return by_z, by_x, memory[2 * m * k :].reshape((2, n))


@njit(error_model="numpy", forceinline=True)
def outputs_at(X, numbers, layout, i):
    """Return the outputs (c, m) of process i of a :class:`Packed` at points X (c, k), and memories.

    A memory (2 m k + 2 n,), for :func:`pulled_at`, has derivatives by z and by x of the outputs, or
    of their logarithms, without sums over places, and the slopes of bend and kernel at the places.
    """
    k, n, m = layout[i, 1], layout[i, 2], layout[i, 3]
    outputs, memories = np.zeros((len(X), m)), np.zeros((len(X), 2 * m * k + 2 * n))
    for j in range(len(X)):
        _write_outputs(X[j], outputs[j], memories[j], numbers, layout, i)
    return outputs, memories


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _write_outputs(x, outputs, memory, numbers, layout, i):
    centre, whitening, smooth, places, grids = _parts(numbers, layout, i)
    k, n, m = layout[i, 1], layout[i, 2], layout[i, 3]
    by_z, by_x, slopes = _memory_parts(memory, layout, i)
    z, square = np.empty(k), 0.0
    for a in range(k):
        total = 0.0
        for b in range(k):
            total += whitening[a, b] * (x[b] - centre[b])
        z[a] = total
        square += total * total
    _add_quadratics(z, square, smooth, outputs, by_z)
    if n:
        _add_places(z, places, outputs, slopes)
    if layout[i, 5]:
        _add_knots(x, centre, grids, outputs, by_x)
    if layout[i, 6]:
        for a in range(m):
            outputs[a] = np.exp(min(outputs[a], LARGEST_LOG))


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _add_quadratics(z, square, smooth, outputs, by_z):
    """Add the trend, radial terms and damped quadratics, and their derivatives by z."""
    (quadratics, coefficients), k, m = smooth, len(z), len(outputs)
    for b in range(len(quadratics)):
        weight, along = 1.0, 0.0
        if b > 0:
            nu = DEGREES_OF_FREEDOM[b - 1]
            weight = nu / (nu + square)
            along = -2.0 * weight / (nu + square)
            term = 0.5 * nu * np.log1p(square / nu)
        for a in range(m):
            form = quadratics[b, a]
            value = form[0, 0]
            for r in range(k):
                row, total = form[1 + r], 0.0
                for c in range(k):
                    total += row[1 + c] * z[c]
                value += z[r] * (2.0 * row[0] + total)
                by_z[a, r] += 2.0 * weight * (row[0] + total)
            outputs[a] += weight * value
            if b > 0:
                outputs[a] += coefficients[b - 1, a] * term
                slope = along * value + coefficients[b - 1, a] * weight
                for r in range(k):
                    by_z[a, r] += slope * z[r]


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _add_places(z, places, outputs, slopes):
    """Add bend and kernel; write slopes by inner product and -|distance|^2 / 2, both weighted."""
    Z, scales, variances, weights = places
    precisions, relevances = scales[0], scales[1]
    k, n = Z.shape
    bend, gaussian = slopes[0], slopes[1]
    covariances = np.zeros(n)
    if variances[0] > 0.0:
        for a in range(k):
            row, weighted = Z[a], relevances[a] * z[a]
            for j in range(n):
                bend[j] += weighted * row[j]
        for j in range(n):
            w = bend[j]
            covariances[j] = variances[0] * (1.0 + w) * w * w * w
            bend[j] = variances[0] * (3.0 + 4.0 * w) * w * w
    if variances[1] > 0.0:
        for a in range(k):
            row, at, half_precision = Z[a], z[a], 0.5 * precisions[a]
            for j in range(n):
                away = at - row[j]
                gaussian[j] -= half_precision * away * away
        exp_in_place(gaussian, np.empty(n), n)
        for j in range(n):
            gaussian[j] *= variances[1]
            covariances[j] += gaussian[j]
    for j in range(n):
        for a in range(len(outputs)):
            outputs[a] += covariances[j] * weights[j, a]


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _add_knots(x, centre, grids, outputs, by_x):
    """Add functions of single coordinates and of pairs, and their derivatives by x."""
    scales_and_counts, knots, linear, pairs = grids
    scales, counts = scales_and_counts[0], scales_and_counts[1]
    size = len(knots)
    gaussians, slopes, begin = np.empty(size), np.empty(size), 0
    for a in range(len(x)):
        u, end = (x[a] - centre[a]) * scales[a], begin + int(counts[a])
        for j in range(begin, end):
            away = knots[j] - u
            g = gaussian_of(away)
            gaussians[j] = g
            slopes[j] = scales[a] * away * g
        begin = end
    for b in range(len(outputs)):
        begin = 0
        for a in range(len(x)):
            end, slope = begin + int(counts[a]), 0.0
            for j in range(begin, end):
                row, total = pairs[b, j], 0.0
                for c in range(size):
                    total += row[c] * gaussians[c]
                outputs[b] += gaussians[j] * (linear[b, j] + 0.5 * total)
                slope += slopes[j] * (linear[b, j] + total)
            by_x[b, a] += slope
            begin = end


@njit(error_model="numpy", forceinline=True)
def pulled_at(X, by_outputs, outputs, memories, numbers, layout, i):
    """Return the derivatives of ``sum(by_outputs * outputs)`` by points X (c, k)."""
    pulled = np.zeros(X.shape)
    for j in range(len(X)):
        _write_pulled(X[j], by_outputs[j], outputs[j], memories[j], pulled[j], numbers, layout, i)
    return pulled


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _write_pulled(x, by_outputs, outputs, memory, pulled, numbers, layout, i):
    centre, whitening, _, (Z, scales, variances, weights), _ = _parts(numbers, layout, i)
    precisions, relevances = scales[0], scales[1]
    by_z, by_x, slopes = _memory_parts(memory, layout, i)
    k, n = Z.shape
    m, along_z = len(outputs), np.zeros(k)
    by = np.empty(m)
    for a in range(m):
        by[a] = by_outputs[a] * outputs[a] if layout[i, 6] else by_outputs[a]
        for r in range(k):
            along_z[r] += by[a] * by_z[a, r]
            pulled[r] += by[a] * by_x[a, r]
    if n:
        by_covariances = np.zeros(n)
        for j in range(n):
            total = 0.0
            for a in range(m):
                total += weights[j, a] * by[a]
            by_covariances[j] = total
        for a in range(k):
            z = 0.0
            for b in range(k):
                z += whitening[a, b] * (x[b] - centre[b])
            row, total = Z[a], 0.0
            if variances[0] > 0.0:
                for j in range(n):
                    total += by_covariances[j] * slopes[0, j] * row[j]
                along_z[a] += relevances[a] * total
                total = 0.0
            for j in range(n):
                total += by_covariances[j] * slopes[1, j] * (row[j] - z)
            along_z[a] += precisions[a] * total
    for a in range(k):
        for b in range(k):
            pulled[b] += whitening[a, b] * along_z[a]
