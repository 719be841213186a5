"""Functionals: a function of the draws, or means and standard deviations of variables."""

import numpy as np


def draws_of(result, name):
    """Return a variable's draws (chains, draws, ...), of InferenceData, a DataTree or a mapping."""
    posterior = getattr(result, "posterior", result)
    if name not in posterior:
        raise ValueError(f"The draws have no variable {name!r}, they have {sorted(posterior)}.")
    draws = posterior[name]
    if hasattr(draws, "transpose") and hasattr(draws, "dims"):
        draws = draws.transpose("chain", "draw", ...).values
    return np.asarray(draws)


class Functional:
    """An expectation of the posterior, as a vector with labels.

    `functional` is a function of the draws that returns a number or an array; or names of
    variables, for the mean and the standard deviation of each of their elements.
    """

    def __init__(self, functional):
        self.names = None
        self.function = functional
        if isinstance(functional, str):
            self.names = (functional,)
        elif not callable(functional):
            try:
                self.names = tuple(functional)
            except TypeError:
                self.names = ()
            if not self.names or not all(isinstance(name, str) for name in self.names):
                raise TypeError(
                    "functional must be a function of the draws, or names of variables, got "
                    f"{functional!r} of type {type(functional).__name__}."
                )

    def __call__(self, result):
        """Return the value (k,), its shape as users see it, and a list of k labels."""
        if self.names is None:
            value = np.asarray(self.function(result), dtype=float)
            name = getattr(self.function, "__name__", "functional")
            name = "functional" if name == "<lambda>" else name
            return value.ravel(), value.shape, _elements(name, value.shape)
        values, labels = [], []
        for name in self.names:
            draws = draws_of(result, name)
            for what, moment in (
                ("mean", draws.mean(axis=(0, 1))),
                ("sd", draws.std(axis=(0, 1))),
            ):
                values.append(np.ravel(moment))
                labels += [f"{what} of {element}" for element in _elements(name, moment.shape)]
        value = np.concatenate(values).astype(float)
        return value, value.shape, labels


def _elements(name, shape):
    if not shape:
        return [name]
    return [f"{name}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]
