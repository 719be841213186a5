"""How many replicates: averages, their variance, the search, and what a chain makes of it."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.replicates import (
    MOST_REPLICATES,
    choose_n_replicates,
    log_mean_exp,
    log_variance,
)
from tests.models import NoisyEstimator
from tests.targets import column, run, warnings_of


def test_log_mean_exp():
    rng = np.random.default_rng(1)
    values = rng.standard_normal(7)
    assert log_mean_exp(values) == pytest.approx(np.log(np.mean(np.exp(values))))
    assert log_mean_exp(list(values - 2000)) == pytest.approx(log_mean_exp(values) - 2000)
    assert log_mean_exp([-np.inf, 0.0]) == pytest.approx(-np.log(2))
    assert log_mean_exp([-np.inf, -np.inf]) == -np.inf
    assert log_mean_exp([0.0, np.inf]) == np.inf
    assert np.isnan(log_mean_exp([0.0, np.nan])) and np.isnan(log_mean_exp([np.inf, np.nan]))
    assert log_mean_exp([-3.0]) == -3.0


def test_log_variance():
    """10,000 values: the standard errors are 1.7 % and, with correlation .5, less than 3 %."""
    rng = np.random.default_rng(2)
    values = rng.standard_normal(10_000)
    assert log_variance(3.0 * values) == pytest.approx(9.0, rel=0.08)
    assert log_variance(values[1:] + values[:-1]) == pytest.approx(1.0, rel=0.14)  # of 2
    assert log_variance([0.0] * 19 + [-np.inf]) == 0.0
    assert log_variance([0.0] * 8 + [-np.inf] * 2) == np.inf


def searched(log_estimate, start=1, target=1.5, fewest=1):
    """The number found, its variance, and the number of estimates for each number tried."""
    rng, counts = np.random.default_rng(4), {}

    def log_estimates(n):
        while True:
            counts[n] = counts.get(n, 0) + 1
            yield log_estimate(n, rng)

    return *choose_n_replicates(log_estimates, start, target, fewest), counts


@pytest.mark.parametrize("start", [1, 40, 600])
def test_search_where_the_variance_falls_as_one_over_n(start):
    """The right number is 20; variances are known to 32 %, and 60 % too much is near enough."""
    n, variance, counts = searched(lambda n, rng: np.sqrt(30 / n) * rng.standard_normal(), start)
    assert 8 <= n <= 50
    assert 0.5 < variance < 3.0
    assert len(counts) <= 4


def test_search_with_averages_of_log_normal_estimates():
    """Of variance 4: the average of 8 has variance 1.4 to 1.6, not 4 / 8."""

    def log_estimate(n, rng):
        return log_mean_exp(2.0 * rng.standard_normal(n))

    n, _, _ = searched(log_estimate)
    rng = np.random.default_rng(5)
    assert 0.6 < np.var([log_estimate(n, rng) for _ in range(4000)]) < 3.0


def test_search_when_one_is_enough_when_none_are_and_with_a_smallest_number():
    n, variance, counts = searched(lambda n, rng: 0.1 * rng.standard_normal())
    assert n == 1 and variance < 0.1 and list(counts) == [1]
    n, _, counts = searched(lambda n, rng: 0.0, start=50, fewest=3)
    assert n == 3 and list(counts) == [50, 4, 3]
    n, variance, _ = searched(lambda n, rng: -np.inf)
    assert n == MOST_REPLICATES and variance == np.inf
    n, variance, _ = searched(lambda n, rng: 10 * rng.standard_normal())
    assert n == MOST_REPLICATES and variance > 30


def test_search_where_single_estimates_are_mostly_zero():
    """One in ten is not: 1.5 is the variance of averages of some 12."""

    def log_estimate(n, rng):
        hits = rng.binomial(n, 0.1)
        return np.log(hits / n) if hits else -np.inf

    n, variance, _ = searched(log_estimate)
    assert 10 <= n <= 60 and variance < 1.5


@pytest.fixture(scope="module")
def auto_step():
    """A model, its estimator, and steps of x and z; x needs 10 to 30 replicates."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("z", x)
        estimator = NoisyEstimator(4.0)
        kmc.PseudoMarginalPotential(
            "loglik", estimator, x, n_replicates="auto", target_variance=0.5
        )
        step = kmc.AdaptiveMetropolis([x])
        other = kmc.AdaptiveMetropolis([model["z"]])
    return model, estimator, step, other


def test_auto_is_chosen_while_tuning_and_then_fixed(auto_step):
    model, estimator, step, _ = auto_step
    step.set_rng(np.random.default_rng(6))
    estimator.n_calls = 0
    points, statistics = run(step, model.initial_point(), 500)
    n = column(statistics, "kmc_n_replicates")
    assert (n[:25] == 1).all() and 4 < n[25] < 200
    assert set(np.flatnonzero(np.diff(n)) + 1) <= {25, 100, 400}
    step.stop_tuning()
    _, after = run(step, points[-1], 100)
    assert (column(after, "kmc_n_replicates") == n[-1]).all()
    # Evaluations of the choice count. One of n replicates is n calls.
    evaluations = column(statistics + after, "kmc_n_evaluations")
    chosen_at = np.flatnonzero(evaluations > 1)
    assert set(chosen_at) == {0, 25, 100, 400}
    assert (column(after, "kmc_n_evaluations") == 1).all()
    assert estimator.n_calls > 100 * n[-1]


def test_auto_begins_anew_in_a_new_chain(auto_step):
    model, _, step, _ = auto_step
    found = []
    for seed in (7, 7, 8):
        step.set_rng(np.random.default_rng(seed))
        assert step.target.n_replicates == 1
        _, statistics = run(step, model.initial_point(), 130)
        found.append(column(statistics, "kmc_n_replicates")[[0, 30, -1]])
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0][0] == 1 and not np.array_equal(found[0], found[2])


def test_saved_state_has_the_number(auto_step):
    model, _, step, _ = auto_step
    step.set_rng(np.random.default_rng(9))
    points, _ = run(step, model.initial_point(), 130)
    state, n = step.sampling_state, step.target.n_replicates
    assert n > 1
    expected = run(step, points[-1], 20)
    step.set_rng(np.random.default_rng(10))
    assert step.target.n_replicates == 1
    step.sampling_state = state
    assert step.target.n_replicates == n
    again = run(step, points[-1], 20)
    np.testing.assert_array_equal(column(expected[0], "x"), column(again[0], "x"))
    np.testing.assert_array_equal(column(expected[1], "kmc_loglik"), column(again[1], "kmc_loglik"))


def test_auto_beside_another_step(auto_step):
    """Both see one noise, of the number chosen last."""
    model, _, step, other = auto_step
    for seed, each in enumerate((step, other)):
        each.set_rng(np.random.default_rng(seed))
    point = model.initial_point()
    for i in range(120):
        for each in (step, other):
            point, (statistics,) = each.step(point)
            assert statistics["kmc_n_replicates"] == len(each.target.noise[0])
            value = each.target.current(point).log_density
            if i > 100:
                assert value == pytest.approx(step.target.current(point).log_density, rel=1e-12)


def test_no_hope_is_warned_about_whatever_the_length_of_tuning():
    def hopeless(x, rng):
        return 100.0 * rng.standard_normal()

    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", hopeless, x, n_replicates="auto")
        step = kmc.AdaptiveMetropolis(rng=1)
    start = model.initial_point()
    _, statistics = run(step, start, 26)
    (message,) = warnings_of(statistics)
    assert f"{MOST_REPLICATES} replicates of 'loglik' still" in message
    step.set_rng(np.random.default_rng(1))
    run(step, start, 20)
    step.stop_tuning()
    _, statistics = run(step, start, 3)
    (message,) = warnings_of(statistics)
    assert f"{MOST_REPLICATES} replicates of 'loglik' still" in message
    assert all(s["kmc_n_replicates"] == MOST_REPLICATES for s in statistics)
