"""Noise is drawn as a run's statistics say; stays are counted from the draws."""

import numpy as np
import pytest

import pymc_kmc as kmc
from pymc_kmc.plots.noise import stays
from tests.plots import line, panels_of

NAMES = ("variance", "acceptance", "stays")


@pytest.fixture
def panels(noisy):
    return panels_of(kmc.plots.plot_noise(noisy, n_bins=4), *NAMES)


def test_variance_along_the_chains(panels, noisy):
    iterations, variance = line(panels[0], "chain 1")
    np.testing.assert_array_equal(iterations, np.arange(1, 401))
    np.testing.assert_array_equal(variance, noisy.sample_stats["kmc_noise_variance"][1])


def test_real_and_ideal_acceptance(panels, noisy):
    statistics = noisy.sample_stats
    _, real = line(panels[1], "real")
    rates = statistics["acceptance_rate"].values[0]
    np.testing.assert_allclose(real, rates.reshape(4, 100).mean(axis=1))
    _, ideal = line(panels[1], "ideal")
    np.testing.assert_array_equal(ideal, statistics["kmc_ideal_acceptance"][0])


def test_stays(panels, noisy):
    """Against a count one by one: the share of draws that belong to stays of at least k."""
    x = noisy.posterior["x"].values[0]
    of_draw = np.empty(len(x))
    for i in range(len(x)):
        first, last = i, i
        while first > 0 and x[first - 1] == x[i]:
            first -= 1
        while last < len(x) - 1 and x[last + 1] == x[i]:
            last += 1
        of_draw[i] = last - first + 1
    lengths, shares = line(panels[2], "chain 0")
    np.testing.assert_allclose(shares, [np.mean(of_draw >= k) for k in lengths])
    assert shares[0] == 1.0 and lengths[-1] >= of_draw.max()


def test_a_stay_ends_where_any_element_moves():
    draws = np.array([[0, 0], [0, 0], [0, 1], [0, 1], [0, 1], [2, 1]])
    np.testing.assert_array_equal(stays(draws), [2, 3, 1])


def test_an_exact_likelihood_has_no_noise(curved):
    with pytest.raises(ValueError, match="no noise to draw"):
        kmc.plots.plot_noise(curved[0])
