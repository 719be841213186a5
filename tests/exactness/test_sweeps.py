"""Sweeps: a chain that exchanges places with partners on a surrogate samples the posterior.

The posterior is N(.8, .2), its likelihood exact or estimated. Surrogates are right, one nat off, or
of another Gaussian. Each check compares a long chain's mean and variance with the exact ones in
units of their Monte-Carlo error: at 4.5 the false-alarm rate is about 1e-4 a check
(test_pseudo_marginal.py), 2e-3 for the file.
"""

from functools import cache

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.moves.partners import Partner
from tests.chains import ONE_CHAIN
from tests.estimates import TOLERANCE, worst_moment
from tests.models import POSTERIOR_MEAN, POSTERIOR_SD, noisy_gaussian

#: Errors of a surrogate, as a function of places in standard deviations from the mean.
ERRORS = {
    "good": lambda z: 0.0 * z,
    "one nat off": lambda z: 2**0.5 * np.cos(2.0 * z + 0.5),
    "wrong": lambda z: 0.5 * z**2 - 0.5 * ((z - 1.0) / 1.5) ** 2,
}
#: Variance of the log estimate, and whether it grows with the parameter.
NO_NOISE, GROWING_NOISE = (0.0, False), (1.0, True)
MORE_NOISE = (2.5, True)
DRAWS = 3000


@cache
def surrogate(kind):
    z = np.linspace(-6.0, 6.0, 60)
    x = POSTERIOR_MEAN + POSTERIOR_SD * z
    values = -0.5 * z**2 + ERRORS[kind](z)
    return kmc.surrogates.LogDensityGP(rng=0).fit(x[:, None], values)


def draws(kind, noise, n_parallel, seed=1, companion=False):
    with noisy_gaussian(*noise, companion=companion) as model:
        step = kmc.KMC([model["x"]], surrogate=surrogate(kind), n_parallel=n_parallel)
        if companion:
            step = [step, pm.Metropolis([model["z"]])]
        options = ONE_CHAIN | {"random_seed": seed}
        posterior = pm.sample(step=step, tune=100, draws=DRAWS, **options).posterior
    return posterior


def error(posterior):
    return worst_moment(posterior["x"], POSTERIOR_MEAN, POSTERIOR_SD)


@pytest.mark.one_line
@pytest.mark.parametrize(
    ("kind", "noise", "n_parallel"),
    [
        ("one nat off", NO_NOISE, 32),
        ("wrong", NO_NOISE, 4),
        ("good", GROWING_NOISE, 32),
        ("one nat off", GROWING_NOISE, 4),
        ("wrong", GROWING_NOISE, 1),
        ("wrong", GROWING_NOISE, 4),
        ("wrong", GROWING_NOISE, 32),
        ("good", MORE_NOISE, 4),
    ],
)
def test_draws_are_the_posteriors(kind, noise, n_parallel):
    assert error(draws(kind, noise, n_parallel)) < TOLERANCE


def test_beside_another_step():
    """The other step's variable is in the density, so that waiting partners are evaluated anew."""
    posterior = draws("wrong", GROWING_NOISE, 4, companion=True)
    assert error(posterior) < TOLERANCE
    residuals = posterior["z"] - posterior["x"] / 2
    assert worst_moment(residuals, 0.0, 1.0) < TOLERANCE


@pytest.mark.one_line
def test_an_exchange_with_the_ratio_upside_down_is_found_out(monkeypatch):
    right = Partner.propose

    def upside_down(self, current, fitted, rng):
        proposal = right(self, current, fitted, rng)
        return proposal._replace(log_ratio=-proposal.log_ratio)

    monkeypatch.setattr(Partner, "propose", upside_down)
    assert error(draws("wrong", NO_NOISE, 4)) > 2 * TOLERANCE


@pytest.mark.one_line
def test_an_estimate_that_stays_behind_is_found_out(monkeypatch):
    """The chain takes a partner's place, and another estimate there."""
    right = kmc.KMC._conclude

    def without_noise(self, outcome):
        right(self, outcome)
        if outcome.accepted:
            self.target.accept(self.target.propose(outcome.end.position, self.rng))

    monkeypatch.setattr(kmc.KMC, "_conclude", without_noise)
    assert max(error(draws("good", MORE_NOISE, 4, seed)) for seed in (1, 2, 3)) > TOLERANCE
