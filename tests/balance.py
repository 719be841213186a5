"""Detailed balance, tested with independent pairs of a state and the one after it."""

import numpy as np


def balance_errors(before, after):
    """Return errors of E g(x') h(x) - E h(x') g(x), in standard errors; shape (k (k + 1) / 2,).

    They are standard normal where x is drawn from the target and the move from x to x' is in
    detailed balance.

    Parameters
    ----------
    before, after : array_like, shape (k, n)
        k bounded functions of the states x and x'. The constant function joins them.
    """
    before, after = (
        np.vstack([np.ones(len(values[0])), np.asarray(values, dtype=float)])
        for values in (before, after)
    )
    errors = []
    for i in range(len(before)):
        for j in range(i):
            difference = before[i] * after[j] - before[j] * after[i]
            scale = difference.std() / np.sqrt(len(difference))
            errors.append(difference.mean() / (scale + 1e-12))
    return np.array(errors)


def functions_of_a_banana(banana, X):
    """Return six bounded functions of positions X (n, 2), shape (6, n)."""
    z = banana.standardised(X)
    return np.array(
        [
            np.tanh(z[:, 0]),
            np.tanh(z[:, 1]),
            np.abs(z[:, 0]) > 1,
            np.abs(z[:, 1]) > 1,
            np.sin(2 * X[:, 1]),
            (X[:, 0] > 0.5 * banana.spread) & (X[:, 1] > 0),
        ]
    )
