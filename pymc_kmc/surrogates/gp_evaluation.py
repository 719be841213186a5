"""Evaluation of a fitted Gaussian-process log density, compiled and with NumPy.

The formula is in :mod:`pymc_kmc.surrogates.log_density_gp`. Compiled loops take the landmarks'
coordinates four at a time, so that sums stay in registers.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import BLOCK, evaluation, part, register
from pymc_kmc.surrogates.kernels import kernel_in_place, kernel_with_tag, squared_distances


class LogDensityGPParameters(NamedTuple):
    r"""Arrays and numbers of a fitted :class:`LogDensityGP` in d dimensions, for compiled code.

    In coordinates :math:`z = W (x - m)` the log density is :math:`h^\top z - \tfrac12 z^\top P z +
    \sum_k b_k \log(1 + |z|^2 / \nu_k) + \sum_j a_j k(B z, u_j)`, plus functions of single
    coordinates, less c / 2 times the square of the distance :math:`|z| - R` beyond the wall.

    Attributes
    ----------
    centre, whitening : ndarray (d,) and (d, d)
        m and W.
    linear, precision : ndarray (d,) and (d, d)
        h and P.
    radial_scales, radial_coefficients : ndarray (k,)
        nu and b; empty without radial terms.
    radius, stiffness : float
        R and c of the wall.
    projection : ndarray (r, d)
        B.
    landmarks : ndarray (r, m)
        u, one column a landmark, so that the innermost loops run over landmarks.
    coefficients : ndarray (m,)
        a; m = 0 without a kernel part.
    kernel : int
        The kernel's tag.
    axes, origin : ndarray (d, d) and (d,)
        Grid coordinates of the additive part are axes @ z - origin, in units of its length scale.
    spacing : float
        The grid points are 0, spacing, 2 spacing, ...
    additive_coefficients : ndarray (d, g)
        One row a coordinate; g = 0 without an additive part.
    """

    centre: np.ndarray
    whitening: np.ndarray
    linear: np.ndarray
    precision: np.ndarray
    radial_scales: np.ndarray
    radial_coefficients: np.ndarray
    radius: float
    stiffness: float
    projection: np.ndarray
    landmarks: np.ndarray
    coefficients: np.ndarray
    kernel: int
    axes: np.ndarray
    origin: np.ndarray
    spacing: float
    additive_coefficients: np.ndarray


# --------------------------------------------------------------------------------------------------
# With NumPy, many points at a time
# --------------------------------------------------------------------------------------------------


def log_densities(p, X):
    """Return the log densities (n,) of parameters `p` at the rows of X (n, d)."""
    Z = (X - p.centre) @ p.whitening.T
    squares = np.einsum("nd,nd->n", Z, Z)
    out = Z @ p.linear - 0.5 * quadratic_form(Z, p.precision)
    out += np.log1p(squares[:, None] / p.radial_scales) @ p.radial_coefficients
    out -= 0.5 * p.stiffness * np.maximum(np.sqrt(squares) - p.radius, 0.0) ** 2
    if len(p.coefficients):
        squares = squared_distances(Z @ p.projection.T, p.landmarks.T)
        out += kernel_with_tag(p.kernel).values(squares) @ p.coefficients
        values = np.exp(-0.5 * _grid_distances(p, Z) ** 2)
        out += np.einsum("ndg,dg->n", values, p.additive_coefficients)
    return out


def kernel_gradients(p, Z):
    """Return gradients in z of the kernel part, at the rows of Z (n, d)."""
    U = Z @ p.projection.T
    squares = squared_distances(U, p.landmarks.T)
    slopes = -kernel_with_tag(p.kernel).slopes(squares) * p.coefficients
    return (slopes.sum(axis=1)[:, None] * U - slopes @ p.landmarks.T) @ p.projection


def additive_gradients(p, Z):
    """Return gradients in z of the additive part, at the rows of Z (n, d)."""
    T = _grid_distances(p, Z)
    return -np.einsum("ndg,dg->nd", T * np.exp(-0.5 * T**2), p.additive_coefficients) @ p.axes


def quadratic_form(Z, matrix):
    """Return z' matrix z (n,) for the rows of Z (n, d)."""
    return np.einsum("ni,ij,nj->n", Z, matrix, Z)


def _grid_distances(p, Z):
    """Return distances (n, d, g) from the additive part's grid points, in its length scale."""
    grid = p.spacing * np.arange(p.additive_coefficients.shape[1])
    return (Z @ p.axes.T - p.origin)[:, :, None] - grid


# --------------------------------------------------------------------------------------------------
# Compiled, one point at a time
# --------------------------------------------------------------------------------------------------


@part
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


@part
def _project(parameters, z, u):
    projection = parameters.projection
    for a in range(projection.shape[0]):
        value = 0.0
        for i in range(z.shape[0]):
            value += projection[a, i] * z[i]
        u[a] = value


@part
def _squared_distances(landmarks, u, start, stop, out):
    """Write the squared distances from u to a block of landmarks."""
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


@part
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


@part
def _kernel_terms(parameters, u, start, stop, slopes, out, scratch):
    """Write coefficients times kernel functions at u, or their slopes, for a block of landmarks."""
    n = stop - start
    _squared_distances(parameters.landmarks, u, start, stop, out)
    kernel_in_place(parameters.kernel, out, scratch, n, slopes)
    coefficients = parameters.coefficients[start:stop]
    for i in range(n):
        out[i] *= coefficients[i]


@part
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
    """Return the room for z, two vectors, u, one more like it, and the terms of a block twice."""
    d, r = parameters.precision.shape[0], parameters.projection.shape[0]
    return 3 * d + 2 * r + 2 * max(BLOCK, parameters.additive_coefficients.size)


@part
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
