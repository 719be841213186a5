"""summary and log_evidence: within stated errors of closed forms, refused where unknown."""

import warnings
from copy import deepcopy
from functools import cache

import numpy as np
import pymc as pm
import pytest
from scipy.special import betaln, gammaln
from scipy.stats import multivariate_normal, norm

import pymc_kmc as kmc
from pymc_kmc._compat import pareto_k
from tests.targets import sample

Y = np.array([0.3, 1.2, -0.4, 0.8, 1.9, 0.5])
DESIGN = np.array([[1.0, -1.0], [1, -0.6], [1, -0.2], [1, 0.2], [1, 0.6], [1, 1.0]])


def line():
    x = pm.Normal("x", 0.5, 2.0, shape=2)
    pm.Normal("y", kmc.BlackBox("f", lambda x: DESIGN @ x, x, shape=6), 0.5, observed=Y)
    covariance = 0.25 * np.eye(6) + 4.0 * DESIGN @ DESIGN.T
    return multivariate_normal(DESIGN @ [0.5, 0.5], covariance).logpdf(Y)


def counts(y=3, a=2.0, b=1.5):
    rate = pm.Gamma("rate", a, b)
    pm.Poisson("y", kmc.BlackBox("f", lambda rate: rate, rate), observed=y)
    return gammaln(y + a) - gammaln(a) - gammaln(y + 1) + a * np.log(b) - (y + a) * np.log(b + 1)


def successes(y=7, n=10, a=2.0, b=3.0):
    p = pm.Beta("p", a, b)
    pm.Binomial("y", n, kmc.BlackBox("f", lambda p: p, p), observed=y)
    choose = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
    return choose + betaln(a + y, b + n - y) - betaln(a, b)


def precision(a=3.0, b=2.0):
    def log_likelihood(tau):
        return 3.0 * np.log(tau / (2 * np.pi)) - 0.5 * tau * np.sum(Y**2)

    tau = pm.Gamma("tau", a, b)
    pm.Potential("p", kmc.BlackBox("f", log_likelihood, tau))
    after = a + 3.0, b + 0.5 * np.sum(Y**2)
    constants = a * np.log(b) - after[0] * np.log(after[1]) - 3.0 * np.log(2 * np.pi)
    return constants + gammaln(after[0]) - gammaln(a)


def noisy(sd=1.0):
    """The estimate is right in the mean, sd^2 / 2 too low in that of its logarithm."""

    def estimate(x, rng):
        return norm.logpdf(0.7, x) + sd * rng.standard_normal() - 0.5 * sd**2

    kmc.PseudoMarginalPotential("p", estimate, pm.Normal("x"))
    return norm.logpdf(0.7, 0.0, np.sqrt(2.0))


@cache
def run(make, step=kmc.AdaptiveMetropolis, **options):
    """A model's closed form, what was learned of it, and draws."""
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = make()
        learned = kmc.learn(max_evaluations=120, random_seed=1, progressbar=False)
        idata = sample(step(), chains=2, tune=500, draws=2000, **options)
    return model, exact, learned, idata


ON_ONE_LINE = [
    pytest.param(make, marks=pytest.mark.one_line) for make in (noisy, successes, precision)
]


@pytest.mark.parametrize("make", [line, counts, *ON_ONE_LINE])
def test_closed_forms(make):
    model, exact, learned, idata = run(make)
    value, error = kmc.log_evidence(idata, learned, model, random_seed=1)
    # Five standard errors: a false-alarm rate below 1e-6 each.
    assert abs(value - exact) < 5 * error
    assert error < 0.08


def test_what_cannot_be_known_is_refused():
    with pytest.raises(TypeError, match=r"must be what kmc.learn\(\) has returned"):
        kmc.log_evidence(None, 1, pm.Model())
    model, _, learned, idata = run(counts)
    with pm.Model() as other, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts(y=60)
        far = kmc.learn(max_evaluations=120, random_seed=1, progressbar=False)
    with pytest.raises(ValueError, match="learned is of another model"):
        kmc.log_evidence(idata, far, model)
    idata = deepcopy(idata)
    lp = idata.sample_stats["lp"]
    # Weights of a Pareto law without a mean.
    idata.sample_stats["lp"] = lp - np.random.default_rng(2).exponential(1.5, lp.shape)
    with pytest.raises(ValueError, match="Pareto k of the weights is .* learn with more"):
        kmc.log_evidence(idata, learned, model)
    idata.sample_stats["kmc_zero_share"] = 0.0 * idata.sample_stats["kmc_zero_share"] + 0.1
    with pytest.raises(ValueError, match="were zero"):
        kmc.log_evidence(idata, learned, model)
    with other:
        pm.Normal("z")
    with pytest.raises(ValueError, match="one step with all variables"):
        kmc.log_evidence(idata, learned, other)


@pytest.mark.one_line
@pytest.mark.parametrize("n", [1000, 12, 4])
def test_tails_without_an_index(n):
    """Of a learned posterior that is exact, or of short chains; ArviZ 1 raises an error there."""
    assert pareto_k(np.zeros(n)) == np.inf


def test_chains_that_stick_are_refused():
    """Noise of variance 16: few weights, each repeated for long."""
    model, _, learned, idata = run(lambda: noisy(4.0))
    with pytest.raises(ValueError, match="effective draws of the evidence's weights"):
        kmc.log_evidence(idata, learned, model)


def line_moments():
    """Means and standard deviations of `line`'s posterior."""
    precision = np.eye(2) / 4.0 + DESIGN.T @ DESIGN / 0.25
    means = np.linalg.solve(precision, 0.5 / 4.0 + DESIGN.T @ Y / 0.25)
    return means, np.sqrt(np.diag(np.linalg.inv(precision)))


def test_few_draws_are_worth_thousands():
    with pm.Model() as model:
        line()
        learned = kmc.learn(max_evaluations=60, random_seed=1, progressbar=False)
        idata = sample(kmc.KMC(learned), chains=2, tune=20, draws=15)
    found = kmc.summary(idata, learned, model, quantiles=[0.05])
    assert list(found.index) == ["x[0]", "x[1]"]
    means, sds = line_moments()
    exact = {"mean": means, "sd": sds, "5%": means + norm.ppf(0.05) * sds}
    assert list(found) == [*exact, *(f"se_{name}" for name in exact)]
    for name, right in exact.items():
        # Half of the error allowed is that of the learned posterior's own 2048 draws' quantiles.
        assert np.all(np.abs(found[name] - right) < 0.1 * sds)
        assert np.all(found[f"se_{name}"] < 0.1 * sds)
    # Thirty draws are .18 standard deviations off, alone.
    assert np.all(np.abs(found["mean"] - means) < 0.005 * sds)


def test_averages_under_noise():
    model, _, learned, idata = run(noisy)
    found = kmc.summary(idata, learned, model).loc["x"]
    sd = np.sqrt(0.5)
    exact = {"mean": 0.35, "sd": sd, "5%": 0.35 + sd * norm.ppf(0.05), "50%": 0.35}
    # Four figures, five standard errors: a false-alarm rate of 2e-6.
    for name, right in exact.items():
        assert abs(found[name] - right) < 5 * found[f"se_{name}"] < 0.5


def test_averages_of_draws_alone_where_ratios_say_nothing():
    model, _, learned, idata = run(counts)
    draws = idata.posterior["rate"].values
    close = kmc.summary(idata, learned, model).loc["rate"]
    # A Gamma posterior, whose moments are known: shape y + a, rate b + 1.
    assert abs(close["mean"] - 5.0 / 2.5) < 5 * close["se_mean"]
    zeros = deepcopy(idata)
    zeros.sample_stats["kmc_zero_share"] = 0.0 * zeros.sample_stats["kmc_zero_share"] + 0.1
    heavy = deepcopy(idata)
    lp = heavy.sample_stats["lp"]
    heavy.sample_stats["lp"] = lp - np.random.default_rng(2).exponential(1.5, lp.shape)
    for changed in (zeros, heavy):
        alone = kmc.summary(changed, learned, model).loc["rate"]
        np.testing.assert_allclose(alone[["mean", "sd"]], [draws.mean(), draws.std()])
        assert alone["se_mean"] > 3 * close["se_mean"]
    with pytest.raises(ValueError, match="3 draws a chain; standard errors need 4"):
        kmc.summary(idata.isel(draw=slice(3)), learned, model)
    with pytest.raises(ValueError, match=r"quantiles=\(1.5,\) must be numbers"):
        kmc.summary(idata, learned, model, quantiles=[1.5])
    with pytest.raises(TypeError, match=r"must be what kmc.learn\(\) has returned"):
        kmc.summary(idata, idata, model)
