"""Averages beside what they are to be: of estimates of a likelihood, and of draws of chains."""

import arviz as az
import numpy as np

# Standard errors that an average may be off: a false alarm of 7e-6 where the error is Gaussian.
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


def z_score_of_draws(draws, expected):
    """Return the error of chains' mean in Monte-Carlo errors, as ArviZ estimates these.

    Parameters
    ----------
    draws : array_like, shape (n,) or (n_chains, n)
    expected : float
    """
    draws = np.atleast_2d(np.asarray(draws, dtype=float))
    error = draws.std() / np.sqrt(float(az.ess(draws, method="mean")))
    return float((draws.mean() - expected) / error)


def worst_moment(draws, mean, sd):
    """Return the error of chains' mean or variance, the larger one, in Monte-Carlo errors."""
    draws = np.asarray(draws, dtype=float)
    scores = z_score_of_draws(draws, mean), z_score_of_draws((draws - mean) ** 2, sd**2)
    return max(map(abs, scores))
