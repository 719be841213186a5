"""The rate of convergence from differences of levels."""

import numpy as np
import pytest

from pymc_kmc.partial.schedule import Schedule, convergence_rate


def paths(beta, alpha, n, *, seed=0, n_data=2**14):
    """Paths whose differences have mean squares n_{t-1}^-beta."""
    schedule, rng = Schedule(n_data, 16, alpha), np.random.default_rng(seed)
    values = np.full((n, len(schedule.sizes), 1), np.nan)
    for path in values:
        level = schedule.draw(rng)
        steps = rng.normal(size=level) * schedule.sizes[:level] ** (-0.5 * beta)
        path[: level + 1, 0] = np.cumsum(np.r_[1.0, steps])
    return values, schedule.sizes


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_rate_is_found_with_an_honest_error(beta):
    """Pulls of 100 data sets: mean 0 +- .1, sd 1 +- .07; checks at 4 of these errors."""
    rates = [convergence_rate(*paths(beta, 0.5, 100, seed=seed)) for seed in range(100)]
    pulls = np.array([(rate.exponent - beta) / rate.standard_error for rate in rates])
    assert abs(pulls.mean()) < 0.4
    assert pulls.std() == pytest.approx(1.0, abs=0.3)


def test_levels_that_were_not_reached_are_guessed():
    values, sizes = paths(1.0, 1.0, 400)
    values[:, 6:] = np.nan
    rate = convergence_rate(values, sizes)
    assert np.isnan(rate.mean_squares[0]).all()
    ratio = rate.mean_squares[1:, 0] * sizes[:-1]
    # Five levels of 13 differences or more: the rate is known within .2, five levels on a factor 2.
    assert np.all((ratio > 1 / 6) & (ratio < 6))
    growth = ratio[6:] / ratio[5:-1]
    np.testing.assert_allclose(growth, growth[0])


def test_two_differences_a_level_are_needed():
    values, sizes = paths(1.0, 1.0, 20)
    values[1:, 1:] = np.nan
    rate = convergence_rate(values, sizes)
    assert np.isnan(rate.exponent).all()
    assert np.isnan(convergence_rate(values[:, :1], sizes[:1]).exponent).all()


def test_a_last_level_that_hardly_grows_does_not_count():
    values, sizes = paths(1.0, 0.2, 200, n_data=2**12 + 1)
    spoilt = values.copy()
    spoilt[:, -1] = spoilt[:, -2] + 1e-9
    assert convergence_rate(spoilt, sizes).exponent == convergence_rate(values, sizes).exponent
