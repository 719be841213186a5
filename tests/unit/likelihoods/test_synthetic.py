"""SyntheticLikelihoodPotential: its densities, against closed forms, and what is wrong with input.

Averages of estimates are compared with the Gaussian density at 4.5 standard errors: a false-alarm
rate of 7e-6 a check; seeds are fixed.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal, norm

import pymc_kmc as kmc
from pymc_kmc.likelihoods.synthetic import SyntheticLogDensity
from tests.estimates import TOLERANCE, check_mean, estimates
from tests.targets import metropolis_chain, run, warnings_of

COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
FACTOR = np.linalg.cholesky(COVARIANCE)
OBSERVED = np.array([0.5, -0.7])
# To which share the estimates' means are known.
PRECISION = 0.05


def simulator(x, rng):
    return x + FACTOR @ rng.standard_normal(2)


def many(x, rng, size):
    return x + rng.standard_normal((size, 2)) @ FACTOR.T


def potential(simulate=simulator, **options):
    """The op of a potential in a model of one variable, x, that starts at 0.2."""
    with pm.Model():
        x = pm.Normal("x", initval=0.2)
        return kmc.SyntheticLikelihoodPotential(
            "synthetic", simulate, x, **{"observed": OBSERVED} | options
        ).owner.op


@pytest.mark.parametrize(("simulate", "n"), [(simulator, 6), (many, 6), (many, 12), (many, 50)])
def test_unbiased(simulate, n):
    """From the smallest number of simulations on."""
    expected = multivariate_normal([0.3, 0.3], COVARIANCE).pdf(OBSERVED)
    check_mean(estimates(potential(simulate, n_simulations=n), 0.3, 4000), expected, PRECISION)


@pytest.mark.parametrize("p", [1, 3])
def test_unbiased_with_other_numbers_of_summaries(p):
    rng = np.random.default_rng(4)
    density = SyntheticLogDensity("synthetic", np.full(p, 0.8), "unbiased")
    values = [density(rng.standard_normal((p + 4, p))) for _ in range(8000)]
    check_mean(np.array(values), norm.pdf(0.8) ** p, PRECISION)


def test_the_plugin_density_is_biased_and_that_is_found_out():
    """Its tails are too heavy."""
    expected = multivariate_normal([3.0, 3.0], COVARIANCE).pdf(OBSERVED)
    values = np.exp(estimates(potential(many, n_simulations=8, density="plugin"), 3.0, 4000))
    error = values.std(ddof=1) / len(values) ** 0.5
    assert values.mean() - expected > 2 * TOLERANCE * error


@pytest.mark.parametrize("density", ["unbiased", "plugin"])
def test_against_the_formulas(density):
    """The unbiased estimate's as printed by Price et al. (2018), for two summaries."""
    rng = np.random.default_rng(5)
    summaries = rng.standard_normal((9, 2))
    n, p = summaries.shape
    mean = summaries.mean(axis=0)
    if density == "plugin":
        expected = multivariate_normal(mean, np.cov(summaries.T)).pdf(OBSERVED)
    else:
        from scipy.special import gamma

        def c(k, v):
            gammas = np.prod([gamma((v - i + 1) / 2) for i in range(1, k + 1)])
            return 2.0 ** (-k * v / 2) * np.pi ** (-k * (k - 1) / 4) / gammas

        M = (n - 1) * np.cov(summaries.T)
        inner = M - np.outer(OBSERVED - mean, OBSERVED - mean) / (1 - 1 / n)
        assert np.all(np.linalg.eigvalsh(inner) > 0)
        expected = (
            (2 * np.pi) ** (-p / 2)
            * c(p, n - 2)
            / (c(p, n - 1) * (1 - 1 / n) ** (p / 2))
            * np.linalg.det(M) ** (-(n - p - 2) / 2)
            * np.linalg.det(inner) ** ((n - p - 3) / 2)
        )
    value = SyntheticLogDensity("synthetic", OBSERVED, density)(list(summaries))
    assert value == pytest.approx(np.log(expected))


def test_far_away_the_unbiased_estimate_is_zero():
    summaries = np.random.default_rng(6).standard_normal((10, 2))
    assert SyntheticLogDensity("synthetic", np.full(2, 50.0), "unbiased")(summaries) == -np.inf
    assert SyntheticLogDensity("synthetic", np.full(2, 50.0), "plugin")(summaries) < -100


def test_no_covariance_no_density():
    """NaN: such proposals are rejected, counted and reported."""
    summaries = np.random.default_rng(7).standard_normal((10, 2))
    summaries[:, 1] = 1.0
    assert np.isnan(SyntheticLogDensity("synthetic", OBSERVED, "unbiased")(summaries))


@pytest.mark.parametrize("density", ["unbiased", "plugin"])
def test_a_covariance_that_is_singular_up_to_rounding_is_no_density(density):
    """Cholesky passes many of them: constants had a log density of 37, proportions of 20."""
    rng = np.random.default_rng(8)

    def is_nan(summaries):
        with np.errstate(all="raise"):
            log_density = SyntheticLogDensity("synthetic", summaries[0], density)(summaries)
        return np.isnan(log_density)

    for n in (5, 20, 1000):
        assert all(is_nan(np.full((n, 1), value)) for value in (0.1, -0.7, 1e9 / 3))
    for offset in (0.0, 1e9):
        for _ in range(50):
            data = offset + rng.standard_normal((20, 10))
            mean, sd = data.mean(axis=1), data.std(axis=1)
            assert is_nan(np.column_stack([mean, sd, mean + sd]))
            assert is_nan(np.column_stack([mean, 1e6 * data.sum(axis=1)]))
            assert is_nan(rng.multinomial(50, [0.2, 0.3, 0.5], 20) / 50)


def test_units_only_shift_the_log_density():
    rng = np.random.default_rng(9)
    summaries = 1e3 + rng.standard_normal((10, 3)) @ rng.standard_normal((3, 3))
    log_density = SyntheticLogDensity("synthetic", summaries[0], "unbiased")(summaries)
    for units in np.array([[1e-9, 1.0, 1e9], [1e50, 1e-50, 1.0]]):
        scaled = SyntheticLogDensity("synthetic", units * summaries[0], "unbiased")
        assert scaled(units * summaries) == pytest.approx(log_density - np.log(units).sum())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("n", [12, 40])
def test_unbiased_with_simulations_that_fail(n, value):
    """The density given success, times its probability, .8: fewer than 6 of 12 succeed in .4 %."""

    def failing(x, rng, size):
        return np.where(rng.random((size, 1)) < 0.8, many(x, rng, size), [0.0, value])

    expected = 0.8 * multivariate_normal([0.3, 0.3], COVARIANCE).pdf(OBSERVED)
    check_mean(estimates(potential(failing, n_simulations=n), 0.3, 4000), expected, PRECISION)


@pytest.mark.parametrize("density", ["unbiased", "plugin"])
def test_failed_simulations_are_left_out_and_their_share_is_a_factor(density):
    summaries = np.random.default_rng(8).standard_normal((10, 2))
    log_density = SyntheticLogDensity("synthetic", OBSERVED, density)
    expected = log_density(summaries[:6]) + np.log(0.6)
    summaries[6:, 0] = np.nan
    assert log_density(summaries) == pytest.approx(expected)
    assert (log_density.n_simulations, log_density.n_failed) == (16, 4)
    assert log_density.warn() == "" and "4 of 16 simulations" in log_density.explain()


def test_too_few_simulations_left_are_an_estimate_of_zero_that_is_named():
    summaries = np.random.default_rng(9).standard_normal((10, 2))
    summaries[5:, 0] = np.nan
    log_density = SyntheticLogDensity("synthetic", OBSERVED, "unbiased")
    assert [log_density(summaries), log_density(summaries)] == [-np.inf, -np.inf]
    warning = log_density.warn()
    assert "10 of 20 simulations for 'synthetic' failed" in warning
    assert "2 of 2 estimates were zero because fewer than 6 of their simulations" in warning
    log_density.forget()
    assert log_density.warn() == log_density.explain() == ""
    # A few failures may leave many estimates with too few.
    one_fails = np.random.default_rng(9).standard_normal((6, 2))
    for i in range(400):
        log_density(np.where(i % 16, one_fails, np.nan))
    assert "25 of 400 estimates were zero" in log_density.warn()


def test_a_chain_with_failed_simulations_says_so_and_rejects_nothing_as_invalid():
    def failing(x, rng, size):
        return np.where(rng.random((size, 1)) < 0.8, many(x, rng, size), np.nan)

    with pm.Model() as model:
        x = pm.Normal("x", initval=0.2)
        kmc.SyntheticLikelihoodPotential("synthetic", failing, x, observed=OBSERVED)
        step = kmc.AdaptiveMetropolis()
    step.set_rng(np.random.default_rng(3))
    step.stop_tuning()
    _, statistics = run(step, model.initial_point(), 50)
    assert statistics[-1]["kmc_n_invalid"] == 0
    assert 0.15 < statistics[-1]["kmc_failed_share"] < 0.25
    assert sum("simulations for 'synthetic' failed" in m for m in warnings_of(statistics)) == 1


def chain(simulate, **options):
    with pm.Model() as model:
        x = pm.Normal("x", initval=0.2)
        kmc.SyntheticLikelihoodPotential(
            "synthetic", simulate, x, **{"observed": OBSERVED, "n_simulations": 10} | options
        )
    return metropolis_chain(model, n=120)


def test_an_executor_gives_the_same_draws():
    here, _ = chain(simulator)
    with ThreadPoolExecutor(2) as pool:
        there, _ = chain(simulator, executor=lambda: pool)
    np.testing.assert_array_equal(here, there)
    assert len(set(here)) > 10


def test_auto_begins_with_as_few_as_it_can_and_finds_a_number():
    _, statistics = chain(many, n_simulations="auto", target_variance=0.2)
    assert statistics[0]["kmc_n_replicates"] == 6
    op = potential(many, n_simulations=int(statistics[-1]["kmc_n_replicates"]))
    values = estimates(op, 0.0, 300)
    finite = values[np.isfinite(values)]  # from few simulations the estimate is 0 now and then
    assert len(finite) > 0.95 * len(values)
    assert 0.05 < finite.var() < 0.6


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"simulate": 3.0}, TypeError, "simulator of 'synthetic' must be callable"),
        ({"simulate": lambda x, rng: None}, TypeError, "returned a data set that is None"),
        ({"simulate": lambda x, rng: np.zeros(3)}, TypeError, r"shape \(3,\), where \(2,\)"),
        ({"observed": np.ma.masked_less(OBSERVED, 0)}, TypeError, "observed of 'synthetic' is a m"),
        ({"observed": [np.nan, 1.0]}, ValueError, "observed of 'synthetic' has NaN"),
        ({"density": "exact"}, ValueError, "density='exact' is unknown"),
        ({"n_simulations": 5}, ValueError, "at least 6, 4 more than the 2 summary statistics"),
        ({"n_simulations": 2.5}, ValueError, "n_simulations of 'synthetic' must be a positive"),
        ({"simulate": many, "correlation": 0.5}, ValueError, "correlation of 'synthetic' needs"),
    ],
)
def test_what_is_wrong_is_found_when_the_model_is_built(options, error, message):
    with pytest.raises(error, match=message):
        potential(**options)


def test_an_error_has_the_parameters_and_the_seed_that_reproduce_it():
    def failing(x, rng, size):
        if x > 0.5:
            raise ZeroDivisionError("solver failed")
        return many(x, rng, size)

    with pytest.raises(kmc.EstimatorError, match="simulator of 'synthetic' raised") as caught:
        chain(failing)
    assert "size=10" in str(caught.value) and "x=" in str(caught.value)


def test_a_scalar_summary_and_one_that_is_a_matrix():
    op = potential(summary=np.sum)
    assert estimates(op, 0.0, 1).shape == (1,)
    op = potential(summary=lambda data: np.outer(data, [1.0, 2.0])[:, :1], n_simulations=6)
    expected = multivariate_normal([0.3, 0.3], COVARIANCE).pdf(OBSERVED)
    check_mean(estimates(op, 0.3, 4000), expected, PRECISION)
