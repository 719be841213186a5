"""Checks of arguments: each returns the argument or raises an error with name, value and remedy."""

import numbers
import reprlib

import numpy as np

#: Most entries of the temporary arrays of a chunk of rows: 32 MB.
CHUNK_ENTRIES = 4_000_000
#: Largest difference of two correlations that should be equal: single precision's errors, and more.
ASYMMETRY = 1e-5


def as_number(value):
    """Return a real number as a float, and NaN for anything else, True and "1" included."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    return float(value) if is_number else np.nan


def as_array(value, name):
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}={reprlib.repr(value)} could not be read as an array of real numbers"
        ) from None


def check_positive(value, name):
    """Return the argument as a positive finite float."""
    number = as_number(value)
    if not 0 < number < np.inf:
        raise ValueError(
            f"{name}={value!r} must be a number, positive and finite; pass e.g. {name}=1.0"
        )
    return number


def check_between(value, name, low, high, open=True):
    """Return the argument if it is a number from `low` to `high`, ends excluded if `open`."""
    number = as_number(value)
    inside = low < number < high if open else low <= number <= high
    if not inside:
        raise ValueError(f"{name} must be between {low:g} and {high:g}, got {value!r}.")
    return value


def check_covariance(covariance, d):
    """Require a finite, symmetric, positive definite (d, d) matrix."""
    if covariance.shape != (d, d):
        raise ValueError(
            f"covariance must have shape {(d, d)}, one row for each of the step's {d} "
            f"unconstrained values, got shape {covariance.shape}."
        )
    if not is_covariance(covariance):
        raise ValueError(
            f"covariance must be finite, symmetric and positive definite, got\n{covariance}"
        )


def is_covariance(matrix):
    """Return whether a matrix (d, d) is finite, symmetric and positive definite, in any units."""
    variances = np.diag(matrix)
    if not np.isfinite(matrix).all() or not (variances > 0).all():
        return False
    sd = np.sqrt(variances)
    # As correlations: rounding errors of large variances would hide small ones.
    correlations = matrix / np.outer(sd, sd)
    is_symmetric = np.allclose(correlations, correlations.T, rtol=0, atol=ASYMMETRY)
    return is_symmetric and np.linalg.eigvalsh(correlations)[0] > 0


def check_count(value, name):
    """Return the argument as an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1; pass e.g. {name}=100")
    return int(value)


def check_choice(value, name, choices):
    is_name = value is None or isinstance(value, str)  # an array can't be asked whether it is equal
    if not is_name or value not in choices:
        options = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}={value!r} is unknown; pass {options}")
    return value


def check_flag(value, name):
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={value!r} must be True or False")
    return bool(value)


def check_rng(rng, name="rng"):
    """Return a numpy.random.Generator, given one, a seed or None."""
    try:
        if isinstance(rng, np.random.RandomState):
            raise TypeError
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name}={rng!r} is neither a seed nor a generator; pass a whole number of at least 0, "
            "a numpy.random.Generator, or None"
        ) from None


def check_interval(name, interval, minimum, integer=False):
    """Return (low, high), minimum <= low <= high > 0; one number is both ends, None is kept."""
    if interval is None:
        return None
    kind = "whole numbers" if integer else "numbers"
    try:
        low, high = (interval, interval) if np.isscalar(interval) else interval
        ends = as_number(low), as_number(high)
    except (TypeError, ValueError):
        ends = (np.nan, np.nan)
    whole = not integer or all(end == int(end) for end in ends if np.isfinite(end))
    if not (minimum <= ends[0] <= ends[1] < np.inf and ends[1] > 0 and whole):
        raise ValueError(
            f"{name} must be two {kind} (low, high) with {minimum} <= low <= high, got "
            f"{interval!r}."
        )
    return tuple(int(end) for end in ends) if integer else ends


def check_points(X, name="X", d=None):
    """Return points as a contiguous, finite, non-empty array (n, d) of float64."""
    X = np.ascontiguousarray(as_array(X, name))
    if X.ndim != 2:
        raise ValueError(
            f"{name} has shape {X.shape}; pass an (n, d) array, one point a row "
            f"(`{name}[:, None]` for n points in one dimension)"
        )
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"{name} has shape {X.shape}; pass at least one point and one dimension")
    if d is not None and X.shape[1] != d:
        raise ValueError(
            f"{name} has {X.shape[1]} columns, the surrogate {d}; pass points in {d}-d"
        )
    bad = ~np.isfinite(X)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name}[{row}, {column}] is {X[row, column]}; remove or repair the "
            f"{bad.any(axis=1).sum()} row(s) that are not finite"
        )
    return X


def check_weights(sample_weight, n):
    """Return weights (n,), used as multiplicities: not negative, not all zero; ones if None."""
    if sample_weight is None:
        return np.ones(n)
    weights = np.ascontiguousarray(as_array(sample_weight, "sample_weight"))
    if weights.shape != (n,):
        raise ValueError(f"sample_weight has shape {weights.shape}; pass one weight a row: ({n},)")
    bad = ~np.isfinite(weights) | (weights < 0)
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"sample_weight[{index}] is {weights[index]}; weights are multiplicities: pass finite "
            "numbers of at least 0"
        )
    if not weights.any():
        raise ValueError("sample_weight is zero everywhere; give at least one point a weight")
    return weights


def check_distinct(n_distinct):
    """Require at least two distinct points for a fit."""
    if n_distinct < 2:
        raise ValueError(
            f"X has {n_distinct} distinct point(s) of positive weight; pass at least 2 "
            "(a chain that has not moved yet teaches a surrogate nothing)"
        )


def as_rows(X, d):
    """Return points as (n, d), NaN and infinity included, and whether one point (d,) was passed."""
    X = as_array(X, "X")
    if X.ndim not in (1, 2) or X.shape[-1] != d:
        raise ValueError(f"X has shape {X.shape}; the surrogate takes ({d},) or (n, {d})")
    return (X[None, :], True) if X.ndim == 1 else (X, False)


def in_chunks(function, X, row_entries):
    """Apply a function to slices of rows X (n, d) that fit into memory, at `row_entries` a row."""
    rows = max(1, CHUNK_ENTRIES // max(1, row_entries))
    if len(X) <= rows:
        return function(X)
    return np.concatenate([function(X[i : i + rows]) for i in range(0, len(X), rows)])
