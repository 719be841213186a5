"""log_evidence: within its stated error of closed forms, and refused where it can't be known."""

import warnings
from copy import deepcopy
from functools import cache

import numpy as np
import pymc as pm
import pytest
from scipy.special import betaln, gammaln
from scipy.stats import multivariate_normal, norm

import pymc_kmc as kmc
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
def test_chains_that_stick_are_refused():
    """Noise of variance 16: few weights, each repeated for long."""
    model, _, learned, idata = run(lambda: noisy(4.0))
    with pytest.raises(ValueError, match="effective draws of the evidence's weights"):
        kmc.log_evidence(idata, learned, model)
