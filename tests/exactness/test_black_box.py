"""Posteriors through black boxes have the moments that they have by hand, whichever step samples.

Rejection cuts off the prior: a normal posterior becomes a truncated one.
"""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_kmc as kmc
from tests.chains import QUIET
from tests.estimates import TOLERANCE, worst_moment

# y = A b + noise of variance 1, b ~ N(0, I): the posterior precision is I + A'A.
DESIGN = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
DATA = np.array([0.3, 1.4, 1.9])
COVARIANCE = np.linalg.inv(np.eye(2) + DESIGN.T @ DESIGN)
MEAN = COVARIANCE @ DESIGN.T @ DATA
# The first coefficient has to be below this one, about its posterior mean.
LIMIT = 0.4

STEPS = {
    "KMC": (lambda: kmc.KMC(n_landmarks=60), {"tune": 600, "draws": 2000}),
    "AdaptiveMetropolis": (kmc.AdaptiveMetropolis, {"tune": 1000, "draws": 8000}),
    "Metropolis": (lambda: pm.Metropolis(), {"tune": 1000, "draws": 8000}),
    "Slice": (lambda: pm.Slice(), {"tune": 300, "draws": 3000}),
}


# One of this package and one of PyMC's show what an evaluation that fails is on either line of it.
NAMES = [
    name if name in ("KMC", "Slice") else pytest.param(name, marks=pytest.mark.one_line)
    for name in STEPS
]


def prediction(coefficients):
    return DESIGN @ coefficients


def failing_prediction(coefficients):
    if coefficients[0] > LIMIT:
        raise ArithmeticError("no solution")
    return prediction(coefficients)


def draws_of(name, function, on_error):
    make, length = STEPS[name]
    with pm.Model():
        b = pm.Normal("b", shape=2)
        mean = kmc.BlackBox("mean", function, b, shape=3, on_error=on_error)
        pm.Normal("y", mean, 1.0, observed=DATA)
        idata = pm.sample(step=make(), chains=2, cores=1, random_seed=4, **length, **QUIET)
    return idata.posterior["b"].values


def test_a_mean_that_is_a_black_box():
    """By a step of PyMC's own; that of this package is in test_learned.py, on what it learns."""
    draws = draws_of("Slice", prediction, "raise")
    for i in range(2):
        assert worst_moment(draws[..., i], MEAN[i], COVARIANCE[i, i] ** 0.5) < TOLERANCE


@pytest.mark.filterwarnings("ignore:The black box 'mean' raised ArithmeticError")
@pytest.mark.parametrize("name", NAMES)
def test_rejection_cuts_off_the_prior(name):
    draws = draws_of(name, failing_prediction, "reject")
    sd = COVARIANCE[0, 0] ** 0.5
    cut = stats.truncnorm(-np.inf, (LIMIT - MEAN[0]) / sd, MEAN[0], sd)
    assert draws[..., 0].max() <= LIMIT
    assert worst_moment(draws[..., 0], cut.mean(), cut.std()) < TOLERANCE
    # The second given the first is as it was.
    slope = COVARIANCE[0, 1] / COVARIANCE[0, 0]
    rest = draws[..., 1] - MEAN[1] - slope * (draws[..., 0] - MEAN[0])
    sd = (COVARIANCE[1, 1] - slope * COVARIANCE[0, 1]) ** 0.5
    assert worst_moment(rest, 0.0, sd) < TOLERANCE
