"""Schemes of noise: their law, that renewal leaves it as it is, and inputs that can be repeated."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import kstest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.noise_schemes import MAX_SEED, JointSeeds, Noise, Normals, Seeds
from pymc_kmc.likelihoods.noisy_log_likelihood import add_potential
from pymc_kmc.likelihoods.replicates import Replicates, log_mean_exp
from tests.models import POSTERIOR_MEAN, POSTERIOR_SD, log_likelihood
from tests.targets import column, run

SCHEMES = {
    "seeds": Seeds(),
    "blocks of seeds": Seeds(0.5),
    "joint seeds": JointSeeds(),
    "normals": Normals(3),
    "correlated normals": Normals(3, 0.9),
}


def same(first, second):
    """Whether two dictionaries of inputs hold the same random numbers."""
    if "rng" in first:
        first, second = ({"u": inputs["rng"].standard_normal(3)} for inputs in (first, second))
    return np.array_equal(first["u"], second["u"])


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_promises_of_every_scheme(scheme):
    rng = np.random.default_rng(1)
    noise = scheme.draw(6, rng)
    assert len(noise) == 6
    before = noise.copy()
    renewed = scheme.renew(noise, rng)
    np.testing.assert_array_equal(noise, before)  # not written to
    assert renewed.shape == noise.shape and renewed.dtype == noise.dtype
    assert (renewed != noise).any()

    rows, others = (noise, renewed) if scheme.is_joint else (noise[0], noise[1])
    inputs = scheme.inputs(rows)
    assert same(inputs, scheme.inputs(rows)) and not same(
        scheme.inputs(rows), scheme.inputs(others)
    )
    for value in scheme.inputs(rows).values():
        if isinstance(value, np.ndarray):
            value[:] = 0.0  # what a user's function may do
    np.testing.assert_array_equal(noise, before)
    described = eval(f"dict({scheme.describe(rows)})", {"numpy": np})
    assert described.keys() == inputs.keys() and same(described, scheme.inputs(rows))


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_no_correlation_means_independent_of_the_chain(scheme):
    """It spares estimates: :func:`kmc.estimate_noise` relies on it."""
    first, second = (scheme.draw(6, np.random.default_rng(seed)) for seed in (2, 3))
    renewed = [scheme.renew(noise, np.random.default_rng(4)) for noise in (first, second)]
    assert np.array_equal(*renewed) == (scheme.correlation == 0)


def test_joint_inputs_depend_on_every_seed():
    noise = Seeds().draw(4, np.random.default_rng(5))
    first = JointSeeds().inputs(noise)
    assert first["size"] == 4
    for i in range(4):
        changed = noise.copy()
        changed[i] += 1
        assert not same(JointSeeds().inputs(noise), JointSeeds().inputs(changed))


@pytest.mark.parametrize(
    ("correlation", "n", "n_new"), [(0, 10, 10), (0.8, 10, 2), (0.99, 10, 1), (0.5, 1, 1)]
)
def test_seeds_keep_their_share(correlation, n, n_new):
    rng = np.random.default_rng(2)
    noise = Seeds(correlation)
    seeds = noise.draw(n, rng)
    counts = np.zeros(n)
    for _ in range(2000):
        renewed = noise.renew(seeds, rng)
        assert (renewed != seeds).sum() == n_new
        counts += renewed != seeds
    # Each in turn with the same probability: binomial counts to 5 standard errors.
    p = n_new / n
    assert (np.abs(counts - 2000 * p) <= 5 * np.sqrt(2000 * p * (1 - p))).all()


def test_renewed_seeds_are_uniform():
    """A chain of 4000 renewals, every fourth of which is new in each of its 4 rows."""
    rng = np.random.default_rng(3)
    noise = Seeds(0.5)
    chain = [noise.draw(4, rng)]
    for _ in range(4000):
        chain.append(noise.renew(chain[-1], rng))
    values = np.unique(np.ravel(chain))  # two new ones each time
    assert len(values) == 4 + 2 * 4000
    assert kstest(values / MAX_SEED, "uniform").pvalue > 1e-5


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.99])
def test_normals_are_renewed_with_their_law_and_correlation(correlation):
    """100,000 pairs: standard errors .003 of means and correlation, .0045 of variances."""
    rng = np.random.default_rng(5)
    noise = Normals(1000, correlation)
    u = noise.draw(100, rng)
    renewed = noise.renew(u, rng)
    assert abs(renewed.mean()) < 0.016
    assert abs(renewed.var() - 1.0) < 0.022
    assert abs(np.mean(u * renewed) - correlation) < 0.022
    # Reversible: the pair's law is symmetric, here in a moment that a drift would show in.
    assert abs(np.mean(u**2 * renewed - u * renewed**2)) < 0.05


def test_long_rows_are_not_quoted():
    assert "error.noise" in Normals(50).describe(np.zeros(50))


class Rotated(Noise):
    """A number in [0, 1), which a proposal moves by at most `width`, around the circle."""

    correlation = 0.9

    def __init__(self, width):
        self.width = width

    def draw(self, n, rng):
        return rng.uniform(size=n)

    def renew(self, noise, rng):
        return (noise + self.width * rng.uniform(-1.0, 1.0, len(noise))) % 1.0

    def inputs(self, row):
        return {"v": float(row)}

    def describe(self, row):
        return f"v={row!r}"


def test_a_scheme_of_ones_own():
    """Potentials, steps and `estimate_noise` use the interface alone.

    The estimates tilt the posterior to one side or the other: frozen noise shifts its mean.
    """

    def log_estimate(x, v):
        return log_likelihood(x) + np.log1p((2.0 * v - 1.0) * np.tanh(5.0 * (x - POSTERIOR_MEAN)))

    with pm.Model() as model:
        x = pm.Normal("x")
        replicates = Replicates(log_estimate, Rotated(0.2))
        add_potential("loglik", replicates, log_mean_exp, [x], 2, 2.0)
        step = kmc.AdaptiveMetropolis(rng=3)
    noise = kmc.estimate_noise(model, random_seed=7).likelihoods.loc["loglik"]
    assert noise["of proposals"] < 0.7 * noise["variance"]
    points, _ = run(step, model.initial_point(), 500)
    step.stop_tuning()
    draws = column(run(step, points[-1], 4000)[0], "x")
    # Some 400 effective draws: 4.5 standard errors are .1.
    assert np.mean(draws) == pytest.approx(POSTERIOR_MEAN, abs=0.1)
    assert np.std(draws) == pytest.approx(POSTERIOR_SD, rel=0.2)
