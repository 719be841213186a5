"""Compiled evaluation of a fitted Gaussian-process log density.

The formula is in :mod:`pymc_kmc.surrogates.log_density_gp`.
"""

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
    """Return the room for four vectors, u, one more like it, and the terms of a block twice."""
    d, r = parameters.precision.shape[0], parameters.projection.shape[0]
    return 4 * d + 2 * r + 2 * max(BLOCK, parameters.additive_coefficients.size)


@part
def _divided(parameters, workspace):
    d, r = parameters.precision.shape[0], parameters.projection.shape[0]
    vectors, rest = workspace[d : 4 * d], workspace[4 * d :]
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
def _gradient_in(parameters, x, out, workspace):
    """Write the gradient, and return the log density."""
    d, m = x.shape[0], parameters.landmarks.shape[1]
    z, g, t, u, slope, terms, scratch = _divided(parameters, workspace)
    square = _whiten(parameters, x, z)
    total, pull = 0.0, 0.0
    for k in range(parameters.radial_scales.shape[0]):
        nu, b = parameters.radial_scales[k], parameters.radial_coefficients[k]
        total += b * np.log1p(square / nu)
        pull += 2.0 * b / (nu + square)
    distance = np.sqrt(square)
    if distance > parameters.radius:
        beyond = parameters.stiffness * (distance - parameters.radius)
        total -= 0.5 * beyond * (distance - parameters.radius)
        pull -= beyond / distance
    for i in range(d):
        row = 0.0
        for j in range(d):
            row += parameters.precision[i, j] * z[j]
        total += (parameters.linear[i] - 0.5 * row) * z[i]
        g[i] = parameters.linear[i] - row + pull * z[i]
    if m > 0:
        _project(parameters, z, u)
        for a in range(slope.shape[0]):
            slope[a] = 0.0
        for start in range(0, m, BLOCK):
            stop = min(start + BLOCK, m)
            write_squared_distances(parameters.landmarks, u, start, stop, terms)
            weights = parameters.coefficients[start:stop]
            total += weigh_kernels(parameters.kernel, terms, weights, scratch, stop - start)
            add_pulls(parameters.landmarks, u, start, stop, terms, slope)
        for a in range(slope.shape[0]):
            for i in range(d):
                g[i] += slope[a] * parameters.projection[a, i]
    size = parameters.additive_coefficients.shape[1]
    if size > 0:
        _additive_terms(parameters, z, t, terms, scratch)
        for a in range(d):
            along = 0.0
            for k in range(size):
                term = terms[a * size + k]
                total += term
                along += term * (parameters.spacing * k - t[a])
            for i in range(d):
                g[i] += along * parameters.axes[a, i]
    for j in range(d):
        out[j] = 0.0
    for i in range(d):
        for j in range(d):
            out[j] += parameters.whitening[i, j] * g[i]
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
