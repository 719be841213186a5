"""Evaluation of an emulated log density in compiled loops."""

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from pymc_kmc.model.differentiable import density_at
from pymc_kmc.numerics.evaluation import INLINED, gradient_in, log_density_in, workspace


class EmulatedParameters(NamedTuple):
    """A compiled log density with its gradient, in coordinates u: x = origin + inverse @ u.

    `address` is that of a :class:`~pymc_kmc.model.differentiable.CompiledDensity` in this process,
    `shared` are the arrays that it takes besides x. `origin` is (d,), `inverse` (d, d).
    """

    address: int
    shared: tuple
    origin: np.ndarray
    inverse: np.ndarray


def _is_emulated(parameters):
    return getattr(parameters, "instance_class", None) is EmulatedParameters


# The workspace has the last log density and the coordinates that it is of: a trajectory asks for
# the gradient first, which comes with it.
@overload(workspace, jit_options=INLINED)
def _overload_workspace(parameters):
    if not _is_emulated(parameters):
        return None
    return lambda parameters: np.full(1 + parameters.origin.shape[0], np.nan)


@overload(gradient_in, jit_options=INLINED)
def _overload_gradient_in(parameters, x, out, workspace):
    if not _is_emulated(parameters):
        return None

    def gradient(parameters, x, out, workspace):
        d = x.shape[0]
        position = np.empty(d)
        for i in range(d):
            position[i] = parameters.origin[i]
            for j in range(d):
                position[i] += parameters.inverse[i, j] * x[j]
        density = density_at(parameters.address, position, parameters.shared)
        value, slope = density((position,) + parameters.shared)
        workspace[0] = value[()]
        for j in range(d):
            workspace[1 + j] = x[j]
            out[j] = 0.0
            for i in range(d):
                out[j] += parameters.inverse[i, j] * slope[i]

    return gradient


@overload(log_density_in, jit_options=INLINED)
def _overload_log_density_in(parameters, x, workspace):
    if not _is_emulated(parameters):
        return None

    def log_density(parameters, x, workspace):
        for j in range(x.shape[0]):
            if workspace[1 + j] != x[j]:
                gradient_in(parameters, x, np.empty(x.shape[0]), workspace)
                break
        return workspace[0]

    return log_density
