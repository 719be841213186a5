"""Checks of the arguments that noisy likelihoods share, and of what a user's function returns."""

import inspect
import numbers

import numpy as np

from pymc_kmc.likelihoods.noise import Normals, Seeds

__all__ = [
    "WrongResult",
    "as_real_scalar",
    "check_callable",
    "check_noise",
    "is_positive_integer",
]

# The noise is part of the state and must mix too: on random effects .9 gave KMC 85 effective draws
# and .99 gave 23 (examples/benchmarks/README.md). Estimates of larger variance ask for more:
# Deligiannidis, Doucet and Pitt (2018) use .98 to .9995 for long series.
DEFAULT_CORRELATION = 0.95


class WrongResult(TypeError):
    """A user's function returned something of the wrong type or shape; says what."""


def as_real_scalar(value):
    """Return `value` as a float.

    Parameters
    ----------
    value : object
        A real number or a 0-d array of one.

    Returns
    -------
    float

    Raises
    ------
    TypeError
        If it is anything else; the message says what it is.
    """
    if isinstance(value, np.ma.MaskedArray) or value is np.ma.masked:
        raise TypeError(f"a masked value: {value!r}")
    if isinstance(value, np.ndarray):
        if value.shape != ():
            raise TypeError(f"an array of shape {value.shape}")
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return float(value)


def check_noise(name, n_normals, correlation, n_replicates, number="n_replicates"):
    """Return the kind of noise that these arguments ask for, or raise a ValueError."""
    if n_replicates != "auto" and not is_positive_integer(n_replicates):
        raise ValueError(
            f"{number} of {name!r} must be a positive whole number or 'auto', got {n_replicates!r}."
        )
    if n_normals is None:
        correlation = 0.0 if correlation is None else correlation
        if correlation and n_replicates == 1:
            raise ValueError(
                f"correlation={correlation} of {name!r} needs several replicates, some of which "
                f"keep their seeds, or an estimator that takes u=: give {number} or n_normals."
            )
    elif not is_positive_integer(n_normals):
        raise ValueError(
            f"n_normals of {name!r} must be a positive whole number, got {n_normals!r}."
        )
    if correlation is None:
        correlation = DEFAULT_CORRELATION
    if not (isinstance(correlation, numbers.Real) and 0 <= correlation < 1):
        raise ValueError(f"correlation of {name!r} must be in [0, 1), got {correlation!r}.")
    if n_normals is None:
        return Seeds(correlation)
    return Normals(int(n_normals), correlation)


def is_positive_integer(value):
    """Say whether `value` is a positive whole number, of Python's or NumPy's."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1


def check_callable(name, what, function, n_params, noise):
    """Raise a TypeError if `function` can't be called with `n_params` values and the noise."""
    random = noise.inputs(noise.draw(1, np.random.default_rng(0))[0])
    keywords = ", ".join(f"{keyword}=" for keyword in random)
    if not callable(function):
        raise TypeError(
            f"{what} of {name!r} must be callable, {what}(*param_values, {keywords}), "
            f"got {function!r} of type {type(function).__name__}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # no signature to be had: some compiled callables
        return
    try:
        signature.bind(*range(n_params), **random)
    except TypeError as error:
        raise TypeError(
            f"{what} of {name!r} can't be called as {what}({n_params} param values, {keywords}): "
            f"{error}. Its signature is {signature}."
        ) from None
