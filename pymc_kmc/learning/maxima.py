"""Maxima of an emulated log density, found from draws without an evaluation."""

import numpy as np
from scipy.optimize import minimize

from pymc_kmc.learning.trust_region import Mode
from pymc_kmc.numerics.linear_algebra import symmetric
from pymc_kmc.numerics.samples import far_apart

# Number of draws that are climbed from, far apart from each other.
N_CLIMBS = 16
# Most iterations of a climb.
N_ITERATIONS = 100
# Step of the differences that give curvatures, and the smallest one, in units of the draws' scales.
CURVATURE_STEP, SMALLEST_CURVATURE = 1e-3, 1e-2
# Difference of logarithms of masses from which on the smaller maximum is left out.
NEGLIGIBLE_MASS = 7.0


def maxima(composite, X):
    """Return the maxima with mass, Modes, of an emulated log density above draws (n, d)."""
    scales = np.where((spread := X.std(axis=0)) > 0, spread, 1.0)
    found: list[Mode] = []
    copy = composite.model.nearest_copy
    for x in X[far_apart(X / scales, N_CLIMBS)]:
        mode = _climb(composite, x, scales)
        if mode is None or any(is_same(mode, known, copy) for known in found):
            continue
        found.append(mode)
    largest = max((mode.log_mass for mode in found), default=0.0)
    return [mode for mode in found if mode.log_mass > largest - NEGLIGIBLE_MASS]


def is_same(mode, other, nearest_copy):
    """Say whether one of two modes explains the other, given OpaqueModel's `nearest_copy`."""
    return any(
        Mode(one.x, one.log_density, one.covariance).explains(
            nearest_copy(another.x, one.x), another.log_density
        )
        for one, another in ((other, mode), (mode, other))
    )


def _climb(composite, x, scales):
    """Return the :class:`Mode` above a point (d,); None where the log density is not finite."""

    def loss(z):
        with np.errstate(all="ignore"):
            values = composite((x + z * scales)[None], penalty=0.0)
        value, gradient = values.penalised[0], values.gradient[0] * scales
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            return 1e10, np.zeros(len(z))
        return -value, -gradient

    options = {"maxiter": N_ITERATIONS}
    found = minimize(loss, np.zeros(len(x)), jac=True, method="L-BFGS-B", options=options)
    if not found.fun < 1e10:
        return None
    top, steps = x + found.x * scales, CURVATURE_STEP * np.diag(scales)
    with np.errstate(all="ignore"):
        ahead, behind = (composite(top + s * steps, penalty=0.0).gradient for s in (1, -1))
    H = -(ahead - behind) * scales / (2.0 * CURVATURE_STEP)
    if not np.isfinite(H).all():
        return None
    return Mode(top, float(-found.fun), covariance_of(symmetric(H), scales))


def covariance_of(curvature, scales):
    """Return the covariance (d, d) of a Gaussian, given its curvature in units of scales (d,)."""
    values, vectors = np.linalg.eigh(curvature)
    covariance = (vectors / np.maximum(values, SMALLEST_CURVATURE)) @ vectors.T
    return covariance * np.outer(scales, scales)
