"""Rows of data in a container: arrays, data frames, tuples and dictionaries of them."""

import numpy as np


def n_rows(data):
    """Return the number of data.

    Raises a TypeError if `data` has no rows, and a ValueError if its parts have different numbers.
    """
    if isinstance(data, tuple | dict):
        parts = data.values() if isinstance(data, dict) else data
        numbers = [n_rows(part) for part in parts]
        if not numbers:
            raise ValueError("data is empty: it needs at least one array.")
        if len(set(numbers)) > 1:
            raise ValueError(
                f"The parts of data have {numbers} rows: all must have the same number of rows."
            )
        return numbers[0]
    shape = getattr(data, "shape", ())
    if not shape:
        raise TypeError(
            "data must be an array or a data frame with one row a datum, or a tuple or dictionary "
            f"of such, got {type(data).__name__}. Use numpy.asarray for a list."
        )
    if shape[0] == 0:
        raise ValueError("data has no rows.")
    return int(shape[0])


def take(data, indices):
    """Return a copy of some rows, in the order of `indices`."""
    return _mapped(data, lambda part: part.iloc[indices], lambda part: part[indices])


def prefix(data, n):
    return _mapped(data, lambda part: part.iloc[:n], lambda part: part[:n])


def _mapped(data, of_frame, of_array):
    if isinstance(data, dict):
        return {name: _mapped(part, of_frame, of_array) for name, part in data.items()}
    if isinstance(data, tuple):
        return tuple(_mapped(part, of_frame, of_array) for part in data)
    if hasattr(data, "iloc"):
        return of_frame(data)
    # A memory map hands out memory maps of its own file: a subset is an array.
    return np.asarray(of_array(data)) if isinstance(data, np.ndarray) else of_array(data)
