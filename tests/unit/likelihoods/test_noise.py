"""The noise: what is drawn, and that renewing it leaves its law as it is."""

import numpy as np
import pytest
from scipy.stats import kstest

from pymc_kmc.likelihoods.noise import MAX_SEED, Normals, Seeds


def test_seeds_are_the_estimators_generator():
    rng = np.random.default_rng(1)
    seeds = Seeds().draw(5, rng)
    assert seeds.shape == (5,) and seeds.dtype == np.int64 and (seeds >= 0).all()
    first = Seeds.inputs(seeds[0])["rng"].standard_normal()
    assert first == Seeds.inputs(seeds[0])["rng"].standard_normal()
    generator = eval(Seeds.describe(seeds[0]).removeprefix("rng="), {"numpy": np})
    assert generator.standard_normal() == first


@pytest.mark.parametrize(
    ("correlation", "n", "n_new"), [(0, 10, 10), (0.8, 10, 2), (0.99, 10, 1), (0.5, 1, 1)]
)
def test_seeds_keep_their_share(correlation, n, n_new):
    rng = np.random.default_rng(2)
    noise = Seeds(correlation)
    seeds = noise.draw(n, rng)
    before, counts = seeds.copy(), np.zeros(n)
    for _ in range(2000):
        renewed = noise.renew(seeds, rng)
        assert (renewed != seeds).sum() == n_new
        counts += renewed != seeds
    np.testing.assert_array_equal(seeds, before)
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


def test_normals_are_the_estimators_u():
    noise = Normals(3)
    rows = noise.draw(2, np.random.default_rng(4))
    assert rows.shape == (2, 3)
    u = Normals.inputs(rows[0])["u"]
    u[:] = 0.0  # the estimator may write into it
    assert (rows[0] != 0).all()
    described = eval(Normals.describe(rows[1]).removeprefix("u="), {"numpy": np})
    np.testing.assert_array_equal(described, rows[1])
    assert "error.noise" in Normals.describe(np.zeros(50))


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.99])
def test_normals_are_renewed_with_their_law_and_correlation(correlation):
    """100,000 pairs: standard errors .003 of means and correlation, .0045 of variances."""
    rng = np.random.default_rng(5)
    noise = Normals(1000, correlation)
    u = noise.draw(100, rng)
    before = u.copy()
    renewed = noise.renew(u, rng)
    np.testing.assert_array_equal(u, before)
    assert abs(renewed.mean()) < 0.016
    assert abs(renewed.var() - 1.0) < 0.022
    assert abs(np.mean(u * renewed) - correlation) < 0.022
    # Reversible: the pair's law is symmetric, here in a moment that a drift would show in.
    assert abs(np.mean(u**2 * renewed - u * renewed**2)) < 0.05
