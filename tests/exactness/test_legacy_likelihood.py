"""A legacy log likelihood of six correlated parameters, more than learning's limit lets it know.

Autoregressive errors around a dose-response curve, one number a call. It must be learned right or
be said not to be, and what it cost must be of use to the chains. Expected moments are those of
importance sampling from a wide Student t around the maximum.
"""

import logging
import re
import warnings
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.op import Op
from scipy.special import logsumexp
from scipy.stats import multivariate_t

import pymc_kmc as kmc
from pymc_kmc.learning import unasked
from tests.chains import run
from tests.honesty import Exact, Outcome, deviation, silent_error

N_TIMES = 60
TIMES = np.linspace(0.0, 5.0, N_TIMES)
PRIOR_MEANS = np.array([0.0, 5.0, 1.0, 0.0, 0.0, -1.0])
PRIOR_SDS = np.array([3.0, 4.0, 1.0, 1.0, 1.0, 1.0])
# Mean and covariance where errors are nearly a random walk, as chains have found them there.
WALKS = (
    np.array([1.6, 5.2, 1.3, 0.25, 1.85, -1.04]),
    np.diag([2.3, 3.2, 0.9, 0.8, 0.6, 0.1]) ** 2,
)
# Evaluations that learning is given, a third of what a step gives it, which takes minutes.
FEW = 250


def response(t):
    """Return curves (..., 60) of parameters (..., 6)."""
    bottom, top, log_place, log_slope = np.moveaxis(np.asarray(t)[..., :4], -1, 0)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):  # NaN far away, as legacies have
        power = TIMES ** np.exp(log_slope)
        return bottom + top * power / (np.exp(log_place) + power)


def observed():
    rng, errors = np.random.default_rng(4), np.zeros(N_TIMES)
    for i in range(1, N_TIMES):
        errors[i] = 0.6 * errors[i - 1] + 0.3 * rng.standard_normal()
    return response([1.0, 6.0, 1.2, 0.5]) + errors


OBSERVED = observed()


def log_likelihood(t):
    """Return log likelihoods (...) of parameters (..., 6)."""
    residuals = OBSERVED - response(t)
    correlation, log_sd = np.tanh(t[..., 4, None]), t[..., 5, None]
    z = (residuals[..., 1:] - correlation * residuals[..., :-1]) / np.exp(log_sd)
    return -0.5 * np.sum(z**2, axis=-1) - (N_TIMES - 1) * log_sd[..., 0]


class Legacy(Op):
    """The log likelihood, of which a model's graph knows nothing but its input."""

    itypes, otypes = [pt.dvector], [pt.dscalar]
    __props__ = ()

    def __init__(self):
        self.places = []

    def perform(self, node, inputs, outputs):
        self.places.append(inputs[0].copy())
        outputs[0][0] = np.asarray(log_likelihood(inputs[0]))


def legacy():
    """Return the model and its Op, which keeps the places of its calls."""
    op = Legacy()
    with pm.Model() as model:
        pm.Potential("l", op(pm.Normal("t", PRIOR_MEANS, PRIOR_SDS, shape=6)))
    return model, op


@cache
def exact():
    """Return the model's :class:`Exact` moments, by importance sampling from two Student t.

    One is moved to the draws' weighted moments five times, the other covers the half per cent of
    the mass where errors are random walks. Effective sample size of the last draws: above 2000.
    """
    rng, mean, covariance = np.random.default_rng(0), PRIOR_MEANS, np.diag(PRIOR_SDS**2)
    of_walks = multivariate_t(*WALKS, df=5, seed=rng)
    for temperature in (64.0, 16.0, 8.0, 4.0, 2.0, 1.4, 1.0, 1.0):
        usual = multivariate_t(mean, 1.5 * covariance, df=5, seed=rng)
        draws = np.concatenate([usual.rvs(90_000), of_walks.rvs(10_000)])
        log_proposal = np.log(0.9 * usual.pdf(draws) + 0.1 * of_walks.pdf(draws))
        log_likelihoods = log_likelihood(draws)
        log_densities = np.where(np.isnan(log_likelihoods), -np.inf, log_likelihoods)
        log_densities -= 0.5 * np.sum(((draws - PRIOR_MEANS) / PRIOR_SDS) ** 2, axis=1)
        log_weights = log_densities / temperature - log_proposal
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        mean, covariance = weights @ draws, np.cov(draws.T, aweights=weights)
    assert np.sum(weights**2) < 1.0 / 2000
    log_evidence = logsumexp(log_weights) - np.log(len(draws))
    log_evidence -= np.sum(np.log(PRIOR_SDS)) + 3.0 * np.log(2.0 * np.pi)
    return Exact(mean, np.sqrt(np.diag(covariance)), float(log_evidence))


@pytest.mark.one_line
def test_learning_is_right_or_says_that_it_has_not_converged():
    model, _ = legacy()
    assert silent_error(model, exact(), random_seed=0, max_evaluations=FEW) == ""


@pytest.mark.one_line
def test_a_step_says_why_it_does_not_start_there_and_its_chains_have_all_evaluations(
    monkeypatch, caplog
):
    monkeypatch.setattr(unasked, "most_evaluations", lambda d: FEW)
    model, op = legacy()
    op.places.clear()
    with model, warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.INFO):
        warnings.simplefilter("always")
        step = kmc.KMC()
    if step.posterior is None:
        why = (
            r"after (\d+) evaluations chains can't start .* Legacy: .*; each chain learns by itself"
        )
        (n_said,) = re.findall(why, caplog.text)
        assert int(n_said) == len(op.places)
    elif not any(w.category is UserWarning for w in warned):
        assert deviation(Outcome(step.posterior, (), None), exact()) == ""
    # Nothing that was paid for is lost.
    known = step.evaluations.X
    assert FEW <= len(known) < FEW + 16
    np.testing.assert_array_equal(known, op.places)

    for seed in (0, 1):  # chains of one step, one after another
        step.set_rng(np.random.default_rng(seed))
        run(step, model.initial_point(), 70)
        X, values = step.history_
        np.testing.assert_array_equal(X[: len(known)], known)
        np.testing.assert_array_equal(values[: len(known)], step.evaluations.log_densities)
        assert step.adapted.fits.n_fits > 0
        assert len(step.adapted.fits.evaluations(step.adapted.history)) == len(X) > len(known)
