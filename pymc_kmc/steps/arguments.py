"""Checks of the arguments that every step takes, before anything is compiled."""

from collections.abc import Mapping

import numpy as np


def check_initial_point(initial_point, model):
    """Return a point with an array for each of the model's variables; None means the model's own.

    Raises a TypeError if it isn't a dict, and a ValueError if a variable is missing, or its value
    isn't an array of numbers with its dimensions.
    """
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
    """Return the argument as a dict, empty for None, or raise a TypeError that names it."""
    if compile_kwargs is not None and not isinstance(compile_kwargs, Mapping):
        raise TypeError(
            f"compile_kwargs={compile_kwargs!r} must be a dict of arguments of pytensor.function, "
            "e.g. compile_kwargs={'mode': 'FAST_RUN'}"
        )
    return dict(compile_kwargs or {})
