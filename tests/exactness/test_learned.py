"""Chains that start from a learned posterior sample the model's, whatever was learned."""

import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc

TIMES = np.arange(4.0)
RIGHT = np.array([1.0, 0.45, 0.3, 0.1])
#: What is learned from these is two standard deviations off.
WRONG = np.array([1.1, 0.6, 0.35, 0.2])
DRAWS, CHAINS, BATCH = 15_000, 4, 500


def decay(rate):
    return np.exp(-rate * TIMES)


def model(observed, scale):
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0, 1)
        curve = kmc.BlackBox("curve", decay, rate, shape=(4,))
        pm.Normal("y", curve, scale, observed=observed)
    return model


def exact():
    """Quantiles of log(rate) under `model(RIGHT, .1)`, by summation on a grid."""
    x = np.linspace(-4.0, 4.0, 200_001)
    log_density = -0.5 * x**2
    log_density -= 0.5 * ((RIGHT - np.exp(-np.exp(x)[:, None] * TIMES)) ** 2).sum(axis=1) / 0.01
    weights = np.exp(log_density - log_density.max())
    return x, np.cumsum(weights) / weights.sum()


@pytest.fixture(scope="module")
def posteriors():
    return {
        "good": kmc.learn(model(RIGHT, 0.1), progressbar=False),
        "bad": kmc.learn(model(WRONG, 0.1), progressbar=False),
    }


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_draws_are_the_posteriors(posteriors, kind):
    # 16 shares, each of 120 batches: |z| > 4.5 has a false-alarm rate of 3e-4 by Student's t. The
    # bad posterior alone, without an accept step, has shares that are .3 off.
    posterior = posteriors[kind]
    with warnings.catch_warnings(), model(RIGHT, 0.1):
        warnings.simplefilter("ignore")
        idata = pm.sample(
            step=kmc.KMC(posterior),
            tune=60,
            draws=DRAWS,
            chains=CHAINS,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    draws = np.log(np.asarray(idata.posterior["rate"]))
    scores = shares_scores(draws)
    assert np.abs(scores).max() < 4.5
    if kind == "bad":
        assert np.abs(shares(posterior.positions[:, 0])).max() > 0.3


def shares(draws):
    """Return shares of draws below eight exact quantiles, less what they should be."""
    x, cumulative = exact()
    probabilities = np.linspace(0.1, 0.9, 8)
    return (draws[:, None] < np.interp(probabilities, cumulative, x)).mean(axis=0) - probabilities


def shares_scores(draws):
    """Return z-scores of the shares of draws (chains, n) below eight exact quantiles."""
    x, cumulative = exact()
    scores = []
    for probability in np.linspace(0.1, 0.9, 8):
        below = draws < np.interp(probability, cumulative, x)
        scores.append((below.mean() - probability) / monte_carlo_error(below))
    return np.array(scores)


def monte_carlo_error(values):
    """Return the standard error of a mean over chains (chains, n), from long batches."""
    batches = values.reshape(-1, BATCH).mean(axis=1)
    return batches.std(ddof=1) / np.sqrt(len(batches))
