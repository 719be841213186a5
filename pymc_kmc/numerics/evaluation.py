r"""Evaluation of surrogates, from Python and from compiled code.

A fitted surrogate of this package carries ``parameters_``, a named tuple of arrays and scalars,
never modified after it was made. :func:`log_density_at` and :func:`gradient_at` evaluate it, from
Python and from any function compiled with numba, which is specialised (and cached on disk) once per
surrogate class; :func:`log_density_in` and :func:`gradient_in`, for loops, are given their
:func:`workspace`:

>>> import numpy as np
>>> from pymc_kmc.surrogates import KernelExpLite, gradient_at
>>> X = np.random.default_rng(0).normal(size=(50, 2))
>>> surrogate = KernelExpLite(sigma=4.0, regularisation=1.0).fit(X)
>>> out = np.empty(2)
>>> gradient_at(surrogate.parameters_, X[0], out)
>>> np.allclose(out, surrogate.gradient(X[0]))
True

Of any other object with ``log_density`` and ``gradient``, :func:`evaluable` makes parameters that
the same functions evaluate, from Python only.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from pymc_kmc.numerics.jit import njit

#: fastmath flags for sums in hot loops: re-ordered and fused, they can be vectorised. NaN and
#: infinity keep their meaning ("nnan" and "ninf" are left out on purpose).
SUM_FLAGS = {"reassoc", "contract", "arcp", "nsz"}

#: Points handled at a time in hot loops: those of an 8-d surrogate fill 16 kB, half of a usual
#: first-level cache.
BLOCK = 256


#: How functions of a surrogate's parameters are compiled. Without the run time they can't allocate:
#: numba's reference counts of the parameters' arrays took half of the time of a gradient.
EVALUATION = {
    "fastmath": SUM_FLAGS,
    "error_model": "numpy",
    "forceinline": True,
    "_nrt": False,
}


def evaluation(function):
    """Compile a function of a surrogate's parameters, to be inlined; it can't allocate memory."""
    return njit(**EVALUATION)(function)


def part(function):
    """Compile a part of an :func:`evaluation`: its source is inlined, with the caller's options."""
    return njit(inline="always")(function)


class _Evaluation(NamedTuple):
    log_density: Any
    gradient: Any
    workspace_size: Any


_EVALUATIONS: dict[type, _Evaluation] = {}


def register(parameters_class, log_density, gradient, workspace_size):
    """Register the numba dispatchers that evaluate a ``typing.NamedTuple`` class of parameters.

    They are ``(parameters, x, workspace) -> float``, ``(parameters, x, out, workspace) -> None``
    and ``(parameters) -> int``, with these names of arguments, compiled with :func:`evaluation`.
    """
    _EVALUATIONS[parameters_class] = _Evaluation(log_density, gradient, workspace_size)


class PythonParameters:
    """Parameters for evaluation by a surrogate's own methods, from Python."""

    def __init__(self, surrogate):
        self.surrogate = surrogate


# The methods are given copies: callers overwrite their points, and a method may keep what it got.
def _log_density_of(parameters, x, workspace):
    return float(parameters.surrogate.log_density(x.copy()))


def _gradient_of(parameters, x, out, workspace):
    out[:] = parameters.surrogate.gradient(x.copy())


register(PythonParameters, _log_density_of, _gradient_of, lambda parameters: 0)


def evaluable(surrogate):
    """Return a surrogate's ``parameters_`` if their class is registered, else PythonParameters."""
    parameters = getattr(surrogate, "parameters_", None)
    return parameters if type(parameters) in _EVALUATIONS else PythonParameters(surrogate)


def is_compiled(parameters):
    return type(parameters) is not PythonParameters


def log_density_at(parameters, x):
    """Return the log density of a surrogate at one point, from Python or from compiled code.

    Parameters
    ----------
    parameters : NamedTuple
        The ``parameters_`` of a fitted surrogate.
    x : ndarray (d,)
        Contiguous, float64; not checked.

    Returns
    -------
    float
    """
    return log_density_in(parameters, x, workspace(parameters))


def gradient_at(parameters, x, out):
    """Write the gradient of a fitted surrogate's log density at ``x`` (d,) into ``out`` (d,).

    The arguments are those of :func:`log_density_at`; nothing is returned.
    """
    gradient_in(parameters, x, out, workspace(parameters))


def workspace(parameters):
    """Return an array that evaluations of these parameters can write to."""
    return np.empty(_evaluation_of(type(parameters)).workspace_size(parameters))


def log_density_in(parameters, x, workspace):
    """As :func:`log_density_at`, with a :func:`workspace`."""
    return _evaluation_of(type(parameters)).log_density(parameters, x, workspace)


def gradient_in(parameters, x, out, workspace):
    """As :func:`gradient_at`, with a :func:`workspace`."""
    _evaluation_of(type(parameters)).gradient(parameters, x, out, workspace)


def _evaluation_of(parameters_class):
    try:
        return _EVALUATIONS[parameters_class]
    except KeyError:
        raise TypeError(
            f"parameters of type {parameters_class.__name__} belong to no registered surrogate; "
            "pass the `parameters_` of a fitted one"
        ) from None


# Overloads compile with the caller, so that its on-disk cache contains them. All that they call is
# inlined by force: of a function that isn't, a process that compiles has one copy, optimised by
# itself, and one that loads from disk another, optimised with its caller. With re-ordered sums the
# two round differently, and the same seed would give other draws in the second process.
INLINED = {"forceinline": True}


def _typed(parameters):
    return _EVALUATIONS.get(getattr(parameters, "instance_class", None))


@overload(log_density_at, jit_options=INLINED)
def _overload_log_density_at(parameters, x):
    if _typed(parameters) is None:
        return None
    return lambda parameters, x: log_density_in(parameters, x, workspace(parameters))


@overload(gradient_at, jit_options=INLINED)
def _overload_gradient_at(parameters, x, out):
    if _typed(parameters) is None:
        return None
    return lambda parameters, x, out: gradient_in(parameters, x, out, workspace(parameters))


@overload(workspace, jit_options=INLINED)
def _overload_workspace(parameters):
    if _typed(parameters) is None:
        return None
    workspace_size = _typed(parameters).workspace_size
    return lambda parameters: np.empty(workspace_size(parameters))


# The registered function itself: one that only called it would be optimised by itself once more.
@overload(log_density_in, jit_options=EVALUATION)
def _overload_log_density_in(parameters, x, workspace):
    return None if _typed(parameters) is None else _typed(parameters).log_density.py_func


# This one only calls it: surrogates call theirs from Python too, and it is compiled once for both.
@overload(gradient_in, jit_options=INLINED | {"_nrt": False})
def _overload_gradient_in(parameters, x, out, workspace):
    if _typed(parameters) is None:
        return None
    gradient = _typed(parameters).gradient
    return lambda parameters, x, out, workspace: gradient(parameters, x, out, workspace)
