"""Checks of arguments of likelihoods and steps, and of the results of users' functions."""

import inspect
import numbers
from collections.abc import Mapping

import numpy as np
import pymc as pm
from pymc.model import modelcontext
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.basic import Variable


class WrongResult(TypeError):
    """A user's function returned a wrong type or shape; the message ends a sentence on it."""


def as_real_scalar(value):
    """Return a real number, or a 0-d array of one, as a float; raise a TypeError for others."""
    if isinstance(value, np.ma.MaskedArray) or value is np.ma.masked:
        raise TypeError(f"a masked value: {value!r}")
    if isinstance(value, np.ndarray):
        if value.shape != ():
            raise TypeError(f"an array of shape {value.shape}")
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return float(value)


def as_real_array(value, shape):
    """Return real numbers of this shape as a new array of float64; raise a TypeError for others."""
    if isinstance(value, np.ma.MaskedArray) or value is np.ma.masked:
        raise TypeError(f"a masked value: {value!r}")
    try:
        array = np.array(value)
    except ValueError:
        raise TypeError("a list with entries of different lengths") from None
    if array.dtype.kind not in "fiu":
        if array.shape == ():
            raise TypeError(f"{value!r} of type {type(value).__name__}")
        raise TypeError(f"an array of {array.dtype}")
    if array.shape != shape:
        raise TypeError(f"an array of shape {array.shape}")
    return array.astype(np.float64, copy=False)


def check_model(model):
    """Return `model`, by default the context's; raise a TypeError without one."""
    if model is not None and not isinstance(model, pm.Model):
        raise TypeError(
            f"model={model!r} must be a pymc.Model; pass one, or leave it out inside of a "
            "`with model:` block."
        )
    return modelcontext(model)


def check_name(name):
    """Raise a TypeError unless a name is a string that isn't empty."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"name={name!r} must be a string; pass it first, e.g. 'likelihood'.")


def check_n_replicates(name, n_replicates, argument="n_replicates"):
    """Raise a ValueError unless a number of replicates is a positive integer or "auto"."""
    is_auto = isinstance(n_replicates, str) and n_replicates == "auto"
    if not is_auto and not is_positive_integer(n_replicates):
        raise ValueError(
            f"{argument} of {name!r} must be a positive whole number or 'auto', got "
            f"{n_replicates!r}."
        )


def is_positive_integer(value):
    """Return whether a value is a positive whole number of Python or NumPy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1


def check_callable(name, what, function, n_params, noise=None):
    """Raise a TypeError unless a function, `what` of `name` in messages, takes its arguments.

    These are `n_params` parameters by position, and the inputs of `noise`, a Noise, by keyword.
    """
    random = {} if noise is None else noise.inputs(noise.draw(1, np.random.default_rng(0))[0])
    keywords = "".join(f", {keyword}=" for keyword in random)
    if not callable(function):
        raise TypeError(
            f"{what} of {name!r} must be callable, {what}(*param_values{keywords}), got "
            f"{function!r} of type {type(function).__name__}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some compiled callables have none
        return
    try:
        signature.bind(*range(n_params), **random)
    except TypeError as error:
        raise TypeError(
            f"{what} of {name!r} can't be called as {what}({n_params} param values{keywords}): "
            f"{error}. Its signature is {signature}."
        ) from None


def check_variables(variables, model):
    """Return the value variables of a step's argument `vars`, all continuous ones for None.

    Raises a TypeError unless it has variables, and a ValueError if it is empty, repeats a variable
    or has one that isn't free in the model.
    """
    if variables is None:
        return list(model.continuous_value_vars)
    if isinstance(variables, Variable):
        variables = [variables]
    if not isinstance(variables, list | tuple) or not all(
        isinstance(variable, Variable) for variable in variables
    ):
        raise TypeError(
            f"vars={variables!r} must be a list of the model's variables, "
            "e.g. vars=[model['x'], model['y']]; leave it out for all continuous ones."
        )
    if not variables:
        raise ValueError("vars=[] has no variables; leave it out for all continuous ones.")
    try:
        variables = get_value_vars_from_user_vars(list(variables), model)
    except ValueError:
        free = [variable.name for variable in model.free_RVs]
        raise ValueError(
            f"vars={variables!r} must be free variables of the model, which has {free}."
        ) from None
    names = [variable.name for variable in variables]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"vars has {repeated} more than once; give each variable once.")
    return variables


def check_initial_point(initial_point, model):
    """Return a point with an array for each value variable, the model's own for None; or raise."""
    if initial_point is None:
        return model.initial_point()
    if not isinstance(initial_point, Mapping):
        raise TypeError(
            f"initial_point={initial_point!r} must be a dict of arrays by the names of value "
            "variables; pass model.initial_point()."
        )
    missing = [v.name for v in model.value_vars if v.name not in initial_point]
    if missing:
        raise ValueError(
            f"initial_point has no values for {missing}, only for {list(initial_point)}; pass "
            "model.initial_point()."
        )
    point = dict(initial_point)
    for variable in model.value_vars:
        value = np.asarray(point[variable.name])
        shape = variable.type.shape
        fits = value.ndim == len(shape) and all(
            wanted in (None, n) for wanted, n in zip(shape, value.shape, strict=True)
        )
        if value.dtype.kind not in "buif" or not fits:
            wanted = tuple("any" if n is None else n for n in shape)
            raise ValueError(
                f"initial_point[{variable.name!r}]={point[variable.name]!r} must be an array of "
                f"numbers with the shape {wanted}; pass model.initial_point()."
            )
        point[variable.name] = value.astype(variable.dtype, copy=False)
    return point


def check_compile_kwargs(compile_kwargs):
    """Return the argument as a dict, empty for None; raise a TypeError for others."""
    if compile_kwargs is not None and not isinstance(compile_kwargs, Mapping):
        raise TypeError(
            f"compile_kwargs={compile_kwargs!r} must be a dict of arguments of pytensor.function, "
            "e.g. compile_kwargs={'mode': 'FAST_RUN'}"
        )
    return dict(compile_kwargs or {})
