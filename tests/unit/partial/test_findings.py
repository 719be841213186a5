"""What is wrong is said, and only then."""

import numpy as np
import pymc as pm

import pymc_kmc as kmc
from tests.subsets import Conjugate, normal_data
from tests.unit.partial.test_result import estimate

LARGE = normal_data(4000)


def findings(**options):
    return "\n".join(estimate(**{"n_draws": 200, "data": LARGE} | options).findings)


def test_nothing_to_complain_of():
    """Of 40 replications with alpha .5; a false alarm for some 2 % of the seeds."""
    result = estimate(n_draws=200, data=LARGE, alpha=0.5, n_replications=40)
    assert result.findings == ()
    assert "Nothing to complain of." in str(result)


def test_one_and_few_replications():
    assert "no standard error" in findings(n_replications=1)
    assert "5 replications are few" in findings(n_replications=5, alpha=0.3)


def test_one_replication_that_decides():
    result = estimate(n_draws=200, alpha=0.5, n_replications=40)
    result.replications["value"][7] *= 100.0
    result = kmc.PartialPosteriors(result.replications)
    assert any("One replication has" in finding for finding in result.findings)


def test_alpha_beyond_the_rate():
    said = findings(alpha=2.0, n_replications=400, first_size=4)
    assert "alpha = 2 is too large" in said
    assert "the variance grows with the data" in said


def test_expectations_that_do_not_converge():
    """A functional that is as noisy at all levels."""
    rng = np.random.default_rng(0)
    said = findings(functional=lambda draws: rng.normal(), alpha=0.7, n_replications=60)
    assert "is too large" in said and "don't converge at these sizes" in said


def test_expectations_that_converge_fast():
    """E(phi_t - phi_{t-1})^2 ~ n^-4."""
    model, rng = Conjugate(200), np.random.default_rng(0)
    result = kmc.partial_posteriors(
        model.build,
        LARGE,
        lambda draws: rng.normal() / len(model.subsets[-1]) ** 2,
        first_size=16,
        alpha=0.5,
        n_replications=60,
        sample=model.sample,
        random_seed=1,
        progressbar=False,
    )
    assert any("faster than costs grow" in finding for finding in result.findings)


def test_levels_that_nobody_reached():
    assert "the standard error doesn't contain it" in findings(alpha=1.0, n_replications=15)


def test_first_size_is_everything():
    assert "every replication is a run on all data" in findings(first_size=4000, n_replications=12)


def test_too_few_replications_for_a_rate():
    assert "to see how fast" in findings(alpha=9.0, n_replications=12)


def test_short_chains():
    said = findings(n_draws=12, alpha=0.3)
    assert "Chains are too short" in said
    assert "sample={'draws'" in said
    assert "too few draws" in findings(n_draws=3)


def test_a_functional_that_is_not_finite():
    model = Conjugate(200)

    def functional(draws):
        return np.nan if len(model.subsets) == 5 else draws["theta"].mean()

    result = kmc.partial_posteriors(
        model.build,
        LARGE,
        functional,
        first_size=16,
        alpha=0.7,
        n_replications=12,
        sample=model.sample,
        random_seed=1,
        progressbar=False,
    )
    assert "isn't finite in 1 replications" in result.findings[0]
    assert np.isnan(result.estimate)


def test_improper_posteriors():
    """Flat priors on the mean and the scale: improper given two data."""

    def build(subset):
        with pm.Model() as model:
            mu, sigma = pm.Flat("mu"), pm.HalfFlat("sigma")
            pm.Normal("y", mu, sigma, observed=subset)
        return model

    result = kmc.partial_posteriors(
        build,
        normal_data(16),
        "sigma",
        first_size=2,
        alpha=0.1,
        n_replications=2,
        sample={"step": kmc.AdaptiveMetropolis, "draws": 400, "tune": 400},
        random_seed=1,
        progressbar=False,
    )
    assert result.levels.max() > 0
    assert any("it may be improper. Give a larger first_size" in one for one in result.findings)


def test_wide_first_posteriors_are_not_improper():
    said = findings(first_size=2, alpha=0.5, n_replications=40)
    assert "improper" not in said
