"""Compiled evaluation of a fitted LogDensityGP.

Landmarks' coordinates are taken four at a time: what is added up stays in registers.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.surrogates.evaluation import BLOCK, evaluation, register
from pymc_kmc.surrogates.evidence import GAUSSIAN
from pymc_kmc.surrogates.kernels import exp_in_place

__all__ = ["LogDensityGPParameters"]


class LogDensityGPParameters(NamedTuple):
    """What compiled code needs of a fitted :class:`LogDensityGP`; see its module's formula."""

    centre: np.ndarray
    whitening: np.ndarray
    linear: np.ndarray
    precision: np.ndarray
    radial_scales: np.ndarray
    radial_coefficients: np.ndarray
    radius: float
    stiffness: float
    projection: np.ndarray
    landmarks: np.ndarray  # (r, m): one row a projected coordinate
    coefficients: np.ndarray
    kernel: int
    # Of the additive part, in units of its length scale: positions along the grid are
    # axes @ z - origin, the grid points 0, spacing, 2 spacing, ... Coefficients (d, g) in one row a
    # coordinate, g = 0 without an additive part.
    axes: np.ndarray
    origin: np.ndarray
    spacing: float
    additive_coefficients: np.ndarray


@evaluation
def _whiten(parameters, x, z):
    """Write z of x; return |z|^2."""
    total = 0.0
    for i in range(x.shape[0]):
        value = 0.0
        for j in range(x.shape[0]):
            value += parameters.whitening[i, j] * (x[j] - parameters.centre[j])
        z[i] = value
        total += value * value
    return total


@evaluation
def _project(parameters, z, u):
    """Write B z."""
    projection = parameters.projection
    for a in range(projection.shape[0]):
        value = 0.0
        for i in range(z.shape[0]):
            value += projection[a, i] * z[i]
        u[a] = value


@evaluation
def _squared_distances(landmarks, u, start, stop, out):
    """Write those from u to a block of landmarks."""
    r, n = landmarks.shape[0], stop - start
    for i in range(n):
        out[i] = 0.0
    for a in range(0, r - 3, 4):
        row_0, row_1 = landmarks[a, start:stop], landmarks[a + 1, start:stop]
        row_2, row_3 = landmarks[a + 2, start:stop], landmarks[a + 3, start:stop]
        u_0, u_1, u_2, u_3 = u[a], u[a + 1], u[a + 2], u[a + 3]
        for i in range(n):
            delta_0, delta_1 = u_0 - row_0[i], u_1 - row_1[i]
            delta_2, delta_3 = u_2 - row_2[i], u_3 - row_3[i]
            out[i] += delta_0 * delta_0 + delta_1 * delta_1 + delta_2 * delta_2 + delta_3 * delta_3
    for a in range(r - r % 4, r):
        row, u_a = landmarks[a, start:stop], u[a]
        for i in range(n):
            delta = u_a - row[i]
            out[i] += delta * delta


@evaluation
def _add_pulls(landmarks, u, start, stop, terms, out):
    """Add the terms of a block times the landmarks' positions relative to u."""
    r, n = landmarks.shape[0], stop - start
    for a in range(0, r - 3, 4):
        row_0, row_1 = landmarks[a, start:stop], landmarks[a + 1, start:stop]
        row_2, row_3 = landmarks[a + 2, start:stop], landmarks[a + 3, start:stop]
        u_0, u_1, u_2, u_3 = u[a], u[a + 1], u[a + 2], u[a + 3]
        total_0, total_1, total_2, total_3 = 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            term = terms[i]
            total_0 += term * (row_0[i] - u_0)
            total_1 += term * (row_1[i] - u_1)
            total_2 += term * (row_2[i] - u_2)
            total_3 += term * (row_3[i] - u_3)
        out[a] += total_0
        out[a + 1] += total_1
        out[a + 2] += total_2
        out[a + 3] += total_3
    for a in range(r - r % 4, r):
        row, u_a = landmarks[a, start:stop], u[a]
        total = 0.0
        for i in range(n):
            total += terms[i] * (row[i] - u_a)
        out[a] += total


@evaluation
def _kernel_terms(parameters, u, start, stop, slopes, out, scratch):
    """Write coefficients times kernel functions at u, or their slopes, for a block of landmarks."""
    n = stop - start
    _squared_distances(parameters.landmarks, u, start, stop, out)
    if parameters.kernel == GAUSSIAN:
        for i in range(n):
            out[i] *= -0.5
        exp_in_place(out, scratch, n)
    else:
        for i in range(n):
            q = 1.0 / (1.0 + out[i] / 3.0)
            out[i] = q * np.sqrt(q)
            if slopes:
                out[i] *= q
    coefficients = parameters.coefficients[start:stop]
    for i in range(n):
        out[i] *= coefficients[i]


@evaluation
def _additive_terms(parameters, z, t, terms, scratch):
    """Write grid coordinates of z, and coefficients times the grid's functions there."""
    coefficients = parameters.additive_coefficients
    d, size = coefficients.shape
    for a in range(d):
        value = -parameters.origin[a]
        for i in range(d):
            value += parameters.axes[a, i] * z[i]
        t[a] = value
        for k in range(size):
            distance = value - parameters.spacing * k
            terms[a * size + k] = -0.5 * distance * distance
    exp_in_place(terms, scratch, d * size)
    for a in range(d):
        for k in range(size):
            terms[a * size + k] *= coefficients[a, k]


@evaluation
def _workspace_size(parameters):
    """Room for z, two vectors, u, one more like it, and the terms of a block twice."""
    d, r = parameters.precision.shape[0], parameters.projection.shape[0]
    return 3 * d + 2 * r + 2 * max(BLOCK, parameters.additive_coefficients.size)


@evaluation
def _divided(parameters, workspace):
    d, r = parameters.precision.shape[0], parameters.projection.shape[0]
    vectors, rest = workspace[: 3 * d], workspace[3 * d :]
    n = (rest.shape[0] - 2 * r) // 2
    terms = rest[2 * r :]
    return (
        vectors[:d],
        vectors[d : 2 * d],
        vectors[2 * d :],
        rest[:r],
        rest[r : 2 * r],
        terms[:n],
        terms[n:],
    )


@evaluation
def _log_density_in(parameters, x, workspace):
    d, m = x.shape[0], parameters.landmarks.shape[1]
    z, t, _, u, _, terms, scratch = _divided(parameters, workspace)
    square = _whiten(parameters, x, z)
    total = 0.0
    for i in range(d):
        row = 0.0
        for j in range(d):
            row += parameters.precision[i, j] * z[j]
        total += (parameters.linear[i] - 0.5 * row) * z[i]
    for k in range(parameters.radial_scales.shape[0]):
        total += parameters.radial_coefficients[k] * np.log1p(square / parameters.radial_scales[k])
    beyond = np.sqrt(square) - parameters.radius
    if beyond > 0:
        total -= 0.5 * parameters.stiffness * beyond * beyond
    if m > 0:
        _project(parameters, z, u)
        for start in range(0, m, BLOCK):
            stop = min(start + BLOCK, m)
            _kernel_terms(parameters, u, start, stop, False, terms, scratch)
            for i in range(stop - start):
                total += terms[i]
    size = parameters.additive_coefficients.size
    if size > 0:
        _additive_terms(parameters, z, t, terms, scratch)
        for i in range(size):
            total += terms[i]
    return total


@evaluation
def _gradient_in(parameters, x, out, workspace):
    d, m = x.shape[0], parameters.landmarks.shape[1]
    z, g, t, u, slope, terms, scratch = _divided(parameters, workspace)
    square = _whiten(parameters, x, z)
    pull = 0.0
    for k in range(parameters.radial_scales.shape[0]):
        pull += 2.0 * parameters.radial_coefficients[k] / (parameters.radial_scales[k] + square)
    distance = np.sqrt(square)
    if distance > parameters.radius:
        pull -= parameters.stiffness * (distance - parameters.radius) / distance
    for i in range(d):
        row = 0.0
        for j in range(d):
            row += parameters.precision[i, j] * z[j]
        g[i] = parameters.linear[i] - row + pull * z[i]
    if m > 0:
        _project(parameters, z, u)
        for a in range(slope.shape[0]):
            slope[a] = 0.0
        for start in range(0, m, BLOCK):
            stop = min(start + BLOCK, m)
            _kernel_terms(parameters, u, start, stop, True, terms, scratch)
            _add_pulls(parameters.landmarks, u, start, stop, terms, slope)
        for a in range(slope.shape[0]):
            for i in range(d):
                g[i] += slope[a] * parameters.projection[a, i]
    size = parameters.additive_coefficients.shape[1]
    if size > 0:
        _additive_terms(parameters, z, t, terms, scratch)
        for a in range(d):
            total = 0.0
            for k in range(size):
                total += terms[a * size + k] * (parameters.spacing * k - t[a])
            for i in range(d):
                g[i] += total * parameters.axes[a, i]
    for j in range(d):
        out[j] = 0.0
    for i in range(d):
        for j in range(d):
            out[j] += parameters.whitening[i, j] * g[i]


register(
    LogDensityGPParameters,
    log_density=_log_density_in,
    gradient=_gradient_in,
    workspace_size=_workspace_size,
)
