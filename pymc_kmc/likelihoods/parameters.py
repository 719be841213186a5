"""Parameters of users' functions: variables of a model, or expressions of them."""

import numbers

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable


def as_tensors(name, params, what):
    """Return the parameters of a user's function, named `what` in messages, as tensors.

    Raises a ValueError if there are none, and a TypeError if one is neither a tensor nor numbers.
    """
    if not params:
        raise ValueError(
            f"{name!r} got no params. Give the variables that the {what} takes after it: "
            f"({name!r}, {what}, variable, ...)."
        )
    tensors = []
    for i, param in enumerate(params):
        try:
            # An array of a number: PyTensor would make an int8 of 3.
            is_number = isinstance(param, numbers.Number)
            tensor = pt.as_tensor_variable(np.asarray(param) if is_number else param)
        except (TypeError, ValueError, NotImplementedError):
            raise TypeError(
                f"params[{i}] of {name!r} must be a variable of the model, an expression of "
                f"variables or numbers, got {param!r} of type {type(param).__name__}."
            ) from None
        tensors.append(tensor)
    return tensors


def names_of(params):
    """Return the names of parameters, for messages."""
    return [param.name or f"params[{i}]" for i, param in enumerate(params)]


def evaluate_at_initial_point(params, model):
    """Return the values of `params` at the model's initial point, on their natural scale.

    Raises a ValueError if one depends on a variable that isn't the model's.
    """
    values = model.replace_rvs_by_values(params)
    for param, value in zip(names_of(params), values, strict=True):
        strange = [
            variable.name
            for variable in ancestors([value])
            if is_free(variable) and variable not in model.value_vars
        ]
        if strange:
            raise ValueError(
                f"The parameter {param!r} depends on the variable {strange[0]!r}, which is not a "
                "variable of this model. Register it in this model, or give the model that "
                "it belongs to."
            )
    point = model.initial_point()
    function = pytensor.function(
        model.value_vars, values, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    return function(*(point[variable.name] for variable in model.value_vars))


def is_free(variable):
    """Return whether a node of a graph is a random variable, or an input without a value."""
    if variable.owner is None:
        return not isinstance(variable, Constant | SharedVariable)
    return isinstance(variable.owner.op, RandomVariable)
