"""Compiled evaluation of the log density of :mod:`pymc_kmc.surrogates.log_density_gp`."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import BLOCK, evaluation, part, register, workspace
from pymc_kmc.numerics.jit import njit
from pymc_kmc.surrogates.kernels import add_pulls, weigh_kernels, write_squared_distances


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


@part
def _write_product(matrix, x, out):
    for a in range(matrix.shape[0]):
        total = 0.0
        for i in range(matrix.shape[1]):
            total += matrix[a, i] * x[i]
        out[a] = total


@part
def _add_pulled(matrix, slope, out):
    for a in range(matrix.shape[0]):
        along = slope[a]
        for i in range(matrix.shape[1]):
            out[i] += along * matrix[a, i]


@evaluation
def _workspace_size(parameters):
    """Return the room for four vectors, u, one more like it, and the terms of a block twice."""
    d, r = parameters.precision.shape[0], parameters.projection.shape[0]
    return 4 * d + 2 * r + 2 * max(BLOCK, parameters.additive_coefficients.size)


@evaluation
def _gradient_in(parameters, x, out, workspace):
    """Write the gradient, and return the log density."""
    d, r, m = x.shape[0], parameters.projection.shape[0], parameters.landmarks.shape[1]
    z, g, t = workspace[d : 2 * d], workspace[2 * d : 3 * d], workspace[3 * d : 4 * d]
    u, slope, rest = workspace[4 * d :][:r], workspace[4 * d + r :][:r], workspace[4 * d + 2 * r :]
    terms, scratch = rest[: rest.shape[0] // 2], rest[rest.shape[0] // 2 :]
    for i in range(d):
        t[i] = x[i] - parameters.centre[i]
    _write_product(parameters.whitening, t, z)
    total, pull, square = 0.0, 0.0, 0.0
    for i in range(d):
        square += z[i] * z[i]
    for k in range(parameters.radial_scales.shape[0]):
        nu, b = parameters.radial_scales[k], parameters.radial_coefficients[k]
        total += b * np.log1p(square / nu)
        pull += 2.0 * b / (nu + square)
    distance = np.sqrt(square)
    if distance > parameters.radius:
        beyond = parameters.stiffness * (distance - parameters.radius)
        total -= 0.5 * beyond * (distance - parameters.radius)
        pull -= beyond / distance
    _write_product(parameters.precision, z, t)
    for i in range(d):
        total += (parameters.linear[i] - 0.5 * t[i]) * z[i]
        g[i] = parameters.linear[i] - t[i] + pull * z[i]
    if m > 0:
        _write_product(parameters.projection, z, u)
        for a in range(r):
            slope[a] = 0.0
        for start in range(0, m, BLOCK):
            stop = min(start + BLOCK, m)
            write_squared_distances(parameters.landmarks, u, start, stop, terms)
            weights = parameters.coefficients[start:stop]
            total += weigh_kernels(parameters.kernel, terms, weights, scratch, stop - start)
            add_pulls(parameters.landmarks, u, start, stop, terms, slope)
        _add_pulled(parameters.projection, slope, g)
    if parameters.additive_coefficients.shape[1] > 0:
        total += _add_additive(parameters, z, g, t, terms, scratch)
    for i in range(d):
        out[i] = 0.0
    _add_pulled(parameters.whitening, g, out)
    return total


@part
def _add_additive(parameters, z, g, slopes, terms, scratch):
    """Return the additive part at z, and add its gradient to g; the other arrays are workspace."""
    coefficients, spacing = parameters.additive_coefficients, parameters.spacing
    total, (d, size) = 0.0, coefficients.shape
    _write_product(parameters.axes, z, slopes)
    for a in range(d):
        place = slopes[a] - parameters.origin[a]
        slopes[a] = place
        for k in range(size):
            away = place - spacing * k
            terms[a * size + k] = -0.5 * away * away
    exp_in_place(terms, scratch, d * size)
    for a in range(d):
        for k in range(size):
            terms[a * size + k] *= coefficients[a, k]
    for a in range(d):
        place, along = slopes[a], 0.0
        for k in range(size):
            total += terms[a * size + k]
            along += terms[a * size + k] * (spacing * k - place)
        slopes[a] = along
    _add_pulled(parameters.axes, slopes, g)
    return total


@evaluation
def _log_density_in(parameters, x, workspace):
    return _gradient_in(parameters, x, workspace[: x.shape[0]], workspace)


register(LogDensityGPParameters, _log_density_in, _gradient_in, _workspace_size)


@njit(error_model="numpy")
def values_and_gradients(parameters, X):
    """Return log densities (n,) and gradients (n, d) at the rows of X (n, d), contiguous."""
    values, gradients = np.empty(len(X)), np.empty(X.shape)
    space = workspace(parameters)
    for i in range(len(X)):
        values[i] = _gradient_in(parameters, X[i], gradients[i], space)
    return values, gradients
