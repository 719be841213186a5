"""Chains that start from a learned posterior sample the model's, whatever was learned.

So do chains whose places are evaluated at once, on an executor.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc

TIMES = np.arange(4.0)
RIGHT = np.array([1.0, 0.45, 0.3, 0.1])
#: What is learned of a curve that is that much higher is two standard deviations off.
TOO_HIGH = np.array([-0.1, -0.15, -0.05, -0.1])
DRAWS, CHAINS, BATCH = 4000, 4, 200


def decay(rate):
    return np.exp(-rate * TIMES)


def model(error=0.0):
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0, 1)
        curve = kmc.BlackBox("curve", lambda rate: decay(rate) + error, rate, shape=(4,))
        pm.Normal("y", curve, 0.1, observed=RIGHT)
    return model


def exact():
    """Quantiles of log(rate) under `model()`, by summation on a grid."""
    x = np.linspace(-4.0, 4.0, 200_001)
    log_density = -0.5 * x**2
    log_density -= 0.5 * ((RIGHT - np.exp(-np.exp(x)[:, None] * TIMES)) ** 2).sum(axis=1) / 0.01
    weights = np.exp(log_density - log_density.max())
    return x, np.cumsum(weights) / weights.sum()


def sample(name, make_step, tune, draws):
    """Draws (chains, draws, ...) of a variable of the model of the context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = pm.sample(
            step=make_step(),
            tune=tune,
            draws=draws,
            chains=CHAINS,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return np.asarray(idata.posterior[name])


@pytest.fixture(autouse=True)
def quick(with_short_sequences):
    """Longer sequences than elsewhere: draws that depend on each other cost as much here."""


@pytest.fixture(scope="module")
def bad_posterior():
    return kmc.learn(model(TOO_HIGH), progressbar=False)


@pytest.mark.parametrize("n_parallel", [1, 32])
def test_draws_are_the_posteriors_whatever_was_learned(bad_posterior, n_parallel):
    # 16 shares, each of 80 batches: |z| > 4.5 has a false-alarm rate of 3e-4 by Student's t. What
    # was learned, without an accept step, has shares that are .3 off. Chains on what is right are
    # those of `test_modes_have_their_shares`.
    posterior = bad_posterior
    with model(), ThreadPoolExecutor(2) as pool:
        options = {"executor": pool, "n_parallel": n_parallel} if n_parallel > 1 else {}
        draws = np.log(sample("rate", lambda: kmc.KMC(posterior, **options), 60, DRAWS))
    scores = shares_scores(draws)
    assert np.abs(scores).max() < 4.5
    assert np.abs(shares(posterior.positions[:, 0])).max() > 0.3


def test_averages_are_the_posteriors_whatever_was_learned(bad_posterior):
    """They converge where what was learned is two standard deviations off."""
    x, shares_below = exact()
    rate, weights = np.exp(x), np.diff(shares_below, prepend=0.0)
    mean = weights @ rate
    right = {"mean": mean, "sd": np.sqrt(weights @ (rate - mean) ** 2)}
    right |= {f"{p}%": rate[np.searchsorted(shares_below, p / 100)] for p in (5, 50, 95)}
    posteriors = {"good": kmc.learn(model(), progressbar=False), "bad": bad_posterior}
    found, worst = {}, {}
    for kind, posterior in posteriors.items():
        with model() as to_sample, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"tune": 60, "draws": DRAWS if kind == "bad" else 25, "chains": CHAINS}
            quiet = {"progressbar": False, "compute_convergence_checks": False}
            idata = pm.sample(step=kmc.KMC(posterior), cores=1, random_seed=1, **options, **quiet)
        found[kind] = kmc.summary(idata, posterior, to_sample).loc["rate"]
        scores = [(found[kind][name] - r) / found[kind][f"se_{name}"] for name, r in right.items()]
        worst[kind] = np.abs(scores).max()
    # Ten figures, five standard errors: a false-alarm rate of 1e-5.
    assert max(worst.values()) < 5.0
    assert found["good"]["se_mean"] < 0.01 * right["sd"]
    # What was learned, without draws, is found out.
    alone = bad_posterior.summary().loc["rate"]
    assert abs(alone["mean"] - mean) > 10 * found["bad"]["se_mean"]


LINE = np.linspace(0.0, 1.0, 8)
#: Outputs of two parameters (2,), or of many, (2, n, 1), that no smooth emulator follows.
ROUGH = {
    "a kink between two modes": lambda x: np.abs(x[0]) + x[1] * LINE,
    "a jump": lambda x: x[0] + x[1] * LINE + 0.5 * (x[0] > 0.4),
    "failures in a third of the prior": lambda x: (
        (x[0] + x[1] * LINE) * np.where(x[0] < 0.5, 1.0, np.nan)
    ),
}


@pytest.mark.parametrize("kind", ROUGH)
def test_what_cannot_be_learned_is_survived(kind):
    # 18 shares, each of 32 batches: |z| > 4.8 has a false-alarm rate of 7e-4 by Student's t. What
    # is learned is of other outputs, and half a standard deviation off, so that draws that are not
    # corrected are found out: z is above 10 at the kink and at the jump.
    noise = 0.2 * np.random.default_rng(0).standard_normal(8)
    observed = ROUGH[kind](np.array([0.4, -0.3])) + noise
    wrong, rough = (rough_model(kind, observed, error) for error in (-0.05, 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned = kmc.learn(wrong, max_evaluations=100, progressbar=False)
    with rough:
        draws = sample("x", lambda: kmc.KMC(learned), 200, 2000)
    grid, weights = on_grid(ROUGH[kind], observed)
    scores = []
    for direction in ([1, 0], [0, 1], [1, -1]):
        along, projected = grid @ direction, draws @ np.array(direction)
        order = np.argsort(along, kind="stable")
        cumulative = np.cumsum(weights[order])
        for probability in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8):
            quantile = along[order][np.searchsorted(cumulative, probability)]
            below = projected < quantile
            error = monte_carlo_error(below, 250)
            scores.append((below.mean() - weights[along < quantile].sum()) / error)
    assert np.abs(scores).max() < 4.8


def rough_model(kind, observed, error):
    def function(x):
        return ROUGH[kind](x) + error

    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=2)
        outputs = kmc.BlackBox("outputs", function, x, shape=(8,), on_error="reject")
        pm.Normal("y", outputs, 0.2, observed=observed)
    return model


@pytest.fixture(scope="module")
def two_modes():
    """A model of two modes, the black box's observed outputs, and what is learned of it."""
    observed = 1.0 - 0.3 * LINE + 0.1 * np.random.default_rng(0).standard_normal(8)
    with pm.Model() as modes:
        x = pm.Normal("x", [0.3, 0.0], 0.8, shape=2)
        outputs = kmc.BlackBox("outputs", ROUGH["a kink between two modes"], x, shape=(8,))
        pm.Normal("y", outputs, 0.2, observed=observed)
    return modes, observed, kmc.learn(modes, progressbar=False)


@pytest.mark.parametrize("n_parallel", [1, 32])
def test_modes_have_their_shares(two_modes, n_parallel):
    # Chains that don't jump stay in the mode where they begin: the shares are those of the starts.
    modes, observed, learned = two_modes
    with modes:
        draws = sample("x", lambda: kmc.KMC(learned, n_parallel=n_parallel), 60, 4000)
    grid, weights = on_grid(ROUGH["a kink between two modes"], observed, 0.3, 0.8)
    share = weights[grid[:, 0] > 0].sum()
    assert 0.65 < share < 0.85
    is_positive = draws[:, :, 0] > 0
    # A z-score by 32 batches: a false-alarm rate of 1e-4 each. The learned share has five standard
    # errors of 256 chains.
    assert abs(is_positive.mean() - share) < 4.5 * monte_carlo_error(is_positive, 500)
    assert monte_carlo_error(is_positive, 500) < 0.01
    assert abs(np.mean(learned.positions[:, 0] > 0) - share) < 0.15


def on_grid(outputs, observed, mean=0.0, sd=1.0):
    """Return a grid of points (n, 2), jittered within its cells, and their probabilities.

    Shares of a coarser one, of 200 points a side, were .03 off where outputs jump.
    """
    n = 601
    low, high = np.array([-1.6, -2.3]), np.array([1.8, 1.7])
    cells = np.stack(np.meshgrid(*[np.linspace(0.0, 1.0, n)] * 2, indexing="ij"), axis=-1)
    jitter = np.random.default_rng(1).uniform(-0.5, 0.5, (n * n, 2)) / (n - 1)
    points = low + (high - low) * (cells.reshape(-1, 2) + jitter)
    values = -0.5 * np.sum(((observed - outputs(points.T[:, :, None])) / 0.2) ** 2, axis=1)
    values -= 0.5 * np.sum(((points - [mean, 0.0]) / sd) ** 2, axis=1)
    weights = np.nan_to_num(np.exp(values - np.nanmax(values)))
    return points, weights / weights.sum()


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


def monte_carlo_error(values, batch=BATCH):
    """Return the standard error of a mean over chains (chains, n), from long batches."""
    batches = values.reshape(-1, batch).mean(axis=1)
    return batches.std(ddof=1) / np.sqrt(len(batches))
