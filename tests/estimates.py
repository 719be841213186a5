"""Estimates of a likelihood, and the check that they are unbiased."""

import numpy as np

TOLERANCE = 4.5


def estimates(op, x, n, seed=0):
    """Log estimates at x under independent noise, shape (n,)."""
    rng = np.random.default_rng(seed)
    return np.array([op.evaluate(op.noise.draw(op.n_start, rng), x) for _ in range(n)])


def check_mean(log_estimates, expected, precision):
    """The estimates' mean is `expected`, and known to a share `precision` of it."""
    values = np.exp(log_estimates)
    error = values.std(ddof=1) / len(values) ** 0.5
    assert error < precision * expected
    assert abs(values.mean() - expected) < TOLERANCE * error
