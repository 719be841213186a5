"""Fits of the log density along a chain: when, to what, in which coordinates, and what is kept."""

import numpy as np
import pytest

from pymc_kmc.adaptation import log_density
from pymc_kmc.adaptation.history import History
from pymc_kmc.adaptation.log_density import (
    LogDensityAdaptation,
    can_be_full,
    distinct,
    first_fit,
)
from pymc_kmc.adaptation.warping import learn_warp
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.surrogates.gp import VALUES_PER_COEFFICIENT
from tests.records import record_of

MEAN = np.array([3.0, -1.0])
PRECISION = np.linalg.inv(np.array([[1.0, 0.6], [0.6, 1.0]]))


def gaussian(X):
    return -0.5 * np.einsum("ni,ij,nj->n", X - MEAN, PRECISION, X - MEAN)


def gradient(X):
    return -(X - MEAN) @ PRECISION


def draws(n, seed):
    root = np.linalg.cholesky(np.linalg.inv(PRECISION))
    return MEAN + np.random.default_rng(seed).standard_normal((n, 2)) @ root.T


def chain(n, seed=0):
    """The record of states and of proposals around them."""
    states = draws(n, seed)
    points = states + np.random.default_rng([seed, 1]).standard_normal(states.shape)
    return record_of(states, gaussian(states), points, gaussian(points))


# Values


def test_distinct_points_come_in_their_order_with_mean_values():
    rng = np.random.default_rng(0)
    places = rng.standard_normal((5, 3))
    order = np.array([3, 0, 3, 1, 4, 4, 3, 2])
    values = rng.standard_normal(8)
    points, means = distinct(np.column_stack([places[order], values]))
    np.testing.assert_array_equal(points, places[[3, 0, 1, 4, 2]])
    expected = [values[order == k].mean() for k in (3, 0, 1, 4, 2)]
    np.testing.assert_allclose(means, expected)


def test_distinct_points_of_a_view_of_a_history():
    evaluations = History(2)
    for row in ([1.0, 2.0], [0.0, 5.0], [1.0, 4.0]):
        evaluations.append(row)
    points, means = distinct(evaluations.last(3))
    np.testing.assert_array_equal(points, [[1.0], [0.0]])
    np.testing.assert_array_equal(means, [3.0, 5.0])


def test_only_the_newest_values_are_used(monkeypatch):
    """Values of a wrong density before them do no harm."""
    monkeypatch.setattr(LogDensityAdaptation, "MOST_VALUES", 100)
    record = chain(200)
    newest, record.evaluations = record.evaluations, History(3)
    for point in draws(100, 5):
        record.append_evaluation(point, np.sin(9 * point[0]) * 50)
    for row in newest.last(100):
        record.evaluations.append(row)
    adaptation = LogDensityAdaptation(30)
    assert adaptation.fit(record, np.random.default_rng(0))
    X = draws(20, 6)
    np.testing.assert_allclose(adaptation.surrogate.gradient(X), gradient(X), atol=1e-3)


# When


@pytest.mark.parametrize("d", [1, 2, 8, 20, 50, 63])
def test_the_first_fit_is_a_full_one(d):
    """Where it ever will be: there are then enough values for every coefficient."""
    assert can_be_full(d)
    assert first_fit(d) >= VALUES_PER_COEFFICIENT * d * (d + 3) / 2
    assert first_fit(d) <= max(60, 6 * d, 1.2 * d * (d + 3) / 2)


@pytest.mark.parametrize("d", [64, 100, 500])
def test_the_first_fit_is_soon_where_none_is_full(d):
    assert not can_be_full(d)
    assert first_fit(d) == 6 * d


def test_a_first_fit_is_postponed_while_the_quadratic_is_underdetermined():
    """Half of the proposals were impossible: 30 values for 44 coefficients, though 60 states."""
    d = 8
    rng = np.random.default_rng(1)
    states, points = rng.standard_normal((60, d)), rng.standard_normal((60, d))

    def density(X):
        return -0.5 * (X**2).sum(axis=1)

    few = record_of(states, density(states), points[:30], density(points[:30]))
    adaptation = LogDensityAdaptation(30)
    assert not adaptation.fit(few, rng)
    assert adaptation.surrogate is None and adaptation.failure is None and adaptation.n_fits == 0
    enough = record_of(states, density(states), points, density(points))
    assert adaptation.fit(enough, rng)
    assert adaptation.surrogate.is_full_ and adaptation.n_fits == 1
    assert adaptation.fit(few, rng)  # not postponed: a surrogate is in use


def test_too_few_values_give_no_surrogate():
    record = chain(30)
    adaptation = LogDensityAdaptation(30)
    for few in (3, 0):
        rows, record.evaluations = record.evaluations.last(few), History(3)
        for row in rows:
            record.evaluations.append(row)
        assert not adaptation.fit(record, np.random.default_rng(0))
    assert adaptation.surrogate is None and adaptation.failure is None


# What


def test_learns_the_density_and_again():
    rng, X = np.random.default_rng(2), draws(50, 7)
    adaptation = LogDensityAdaptation(30)
    for n, n_fits in ((60, 1), (90, 2)):
        assert adaptation.fit(chain(n), rng)
        assert adaptation.n_fits == n_fits and adaptation.failure is None
        np.testing.assert_allclose(adaptation.surrogate.gradient(X), gradient(X), atol=1e-4)


def test_coordinates_have_unit_draws_first_and_unit_draws_and_gradients_then():
    """For a Gaussian both are the same; for a Student t they differ, and their mean is used."""
    nu, rng = 3.0, np.random.default_rng(3)
    states = rng.standard_normal((600, 2)) * np.sqrt(nu / rng.chisquare(nu, 600))[:, None]

    def student(X):
        return -0.5 * (nu + 2) * np.log1p((X**2).sum(axis=1) / nu)

    record = record_of(states, student(states))
    adaptation = LogDensityAdaptation(50)
    recent = states[-400:]
    covariance = np.cov(recent.T, bias=True)

    def assert_coordinates(volume):
        whitening = adaptation.surrogate.parameters_.whitening
        assert np.linalg.det(whitening) ** -2 == pytest.approx(volume, rel=0.02)

    assert adaptation.fit(record, rng)
    assert_coordinates(np.linalg.det(covariance))
    scores = adaptation.surrogate.gradient(recent)
    volume = np.linalg.det(np.linalg.inv(scores.T @ scores / len(recent)))
    assert volume < 0.5 * np.linalg.det(covariance)
    assert adaptation.fit(record, rng)
    assert_coordinates(np.sqrt(np.linalg.det(covariance) * volume))


def test_the_same_generator_gives_the_same_fit():
    surrogates = []
    for _ in range(2):
        adaptation = LogDensityAdaptation(30)
        adaptation.fit(chain(100), np.random.default_rng(4))
        surrogates.append(adaptation.surrogate.parameters_)
    for first, second in zip(*surrogates, strict=True):
        np.testing.assert_array_equal(first, second)


def test_states_since_the_first_fit_are_enough_if_there_are_five_a_dimension():
    adaptation = LogDensityAdaptation(30)
    assert adaptation.n_recent(chain(90)) == 60  # the newest two thirds
    assert adaptation.fit(chain(80), np.random.default_rng(5))
    assert adaptation.n_recent(chain(80)) == 54
    assert adaptation.n_recent(chain(89)) == 60
    assert adaptation.n_recent(chain(90)) == 10  # 5 in each of 2 dimensions
    assert adaptation.n_recent(chain(400)) == 267  # two thirds are fewer


def test_the_newest_evaluations_are_learned_from():
    adaptation = LogDensityAdaptation(30)
    assert adaptation.evaluations(chain(50)).shape == (50, 3)
    adaptation.MOST_VALUES = 40
    record = chain(50)
    np.testing.assert_array_equal(adaptation.evaluations(record), record.evaluations.last(40))


# Warps


def funnel(X):
    return -0.5 * X[:, 0] ** 2 / 4 - X[:, 0] - 0.5 * X[:, 1] ** 2 * np.exp(-2.0 * X[:, 0])


def funnel_chain(n, seed, lowest=-np.inf):
    rng = np.random.default_rng(seed)
    v = 2.0 * rng.standard_normal(n)
    states = np.column_stack([v, np.exp(v) * rng.standard_normal(n)])[v > lowest]
    points = np.column_stack([states[:, 0], states[:, 1] * rng.uniform(0, 2, len(states))])
    return record_of(states, funnel(states), points, funnel(points))


def test_a_funnels_surrogate_is_fitted_in_warped_coordinates():
    adaptation, rng = LogDensityAdaptation(60), np.random.default_rng(8)
    record = funnel_chain(600, 12)
    assert adaptation.fit(record, rng)
    assert list(adaptation.warp.drivers) == [0] and list(adaptation.warp.driven) == [1]
    X = funnel_chain(200, 13).states.last(200)
    errors = (
        funnel(X)
        + adaptation.warp.log_volume(X)
        - adaptation.surrogate.log_density(adaptation.warp.forward(X))
    )
    assert np.std(errors) < 0.05


def test_curvature_of_a_warped_surrogate_is_in_the_states_coordinates():
    adaptation, rng = LogDensityAdaptation(60), np.random.default_rng(9)
    adaptation.fit(funnel_chain(600, 12), rng)
    X = funnel_chain(100, 14).states.last(100)
    log_scales = adaptation._conditional_log_scales(X)
    np.testing.assert_allclose(log_scales[:, 1], X[:, 0], atol=0.1)


def test_a_warp_that_the_values_contradict_is_refused(monkeypatch):
    warp = learn_warp(funnel_chain(600, 12).states.last(600))
    monkeypatch.setattr(log_density, "learn_warp", lambda *arguments: warp)
    adaptation, rng = LogDensityAdaptation(30), np.random.default_rng(10)
    n_fits = []
    for n in range(100, 1000, 100):
        calls = []
        fit_in = adaptation._fit_in
        monkeypatch.setattr(
            adaptation, "_fit_in", lambda *a, f=fit_in, c=calls: c.append(a[0]) or f(*a)
        )
        assert adaptation.fit(chain(n), rng)
        assert adaptation.warp is IDENTITY
        n_fits.append(len(calls))
        monkeypatch.undo()
        monkeypatch.setattr(log_density, "learn_warp", lambda *arguments: warp)
    assert n_fits == [2, 3, 2, 1, 3, 1, 1, 1, 3]  # after two defeats, every fourth time


# What goes wrong


def test_a_failed_fit_keeps_the_surrogate_and_says_why(monkeypatch):
    rng = np.random.default_rng(5)
    adaptation = LogDensityAdaptation(30)
    assert adaptation.fit(chain(60), rng)
    kept = adaptation.surrogate

    def fail(*arguments, **options):
        raise ValueError("too bad")

    with monkeypatch.context() as patched:
        patched.setattr("pymc_kmc.surrogates.gp.LogDensityGP.fit", fail)
        assert not adaptation.fit(chain(90), rng)
    assert adaptation.failure == "ValueError: too bad"
    assert adaptation.surrogate is kept and adaptation.n_fits == 1
    assert adaptation.fit(chain(90), rng)
    assert adaptation.failure is None and adaptation.n_fits == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
def test_a_start_where_the_estimate_is_minus_infinity_does_no_harm(share):
    """The chain's log densities there say nothing; its proposals' do."""
    states, points = draws(90, 8), draws(90, 9)
    log_densities = gaussian(states)
    log_densities[: int(share * 90)] = -np.inf
    adaptation = LogDensityAdaptation(30)
    record = record_of(states, log_densities, points, gaussian(points))
    assert adaptation.fit(record, np.random.default_rng(6))
    X = draws(20, 10)
    np.testing.assert_allclose(adaptation.surrogate.gradient(X), gradient(X), atol=1e-3)


@pytest.mark.parametrize("place", [0.0, 0.7, 1e5 + 0.1])
def test_a_chain_that_has_not_moved_gives_a_finite_surrogate_or_none(place):
    """0.7 has a mean of rounding error, and with it a variance."""
    states = np.full((90, 2), place)
    points = states + np.random.default_rng(11).standard_normal((90, 2))
    values = gaussian(points - place)
    adaptation = LogDensityAdaptation(30)
    adaptation.fit(
        record_of(states, gaussian(states - place), points, values), np.random.default_rng(7)
    )
    if adaptation.surrogate is not None:
        assert np.isfinite(adaptation.surrogate.gradient(points)).all()
        assert np.isfinite(adaptation.surrogate.log_density(points)).all()


# Landmarks


class Fit:
    def __init__(self, n_landmarks, variance):
        self.n_landmarks, self.variance_ = n_landmarks, variance


@pytest.mark.parametrize(
    ("last", "noise", "expected"),
    [
        (None, 0.0, 50),
        (Fit(50, 0.02), 0.0, 100),
        (Fit(50, 0.005), 0.0, 50),
        (Fit(100, 0.005), 0.0, 100),
        (Fit(100, 0.0005), 0.0, 50),
        (Fit(50, 1.1), 1.0, 50),
        (Fit(50, 1.3), 1.0, 100),
        (Fit(50, 1.3), np.nan, 50),
    ],
)
def test_where_landmarks_are_too_few_there_are_more(last, noise, expected):
    adaptation = LogDensityAdaptation(50)
    adaptation.surrogate, adaptation.noise_variance = last, noise
    assert adaptation._most_landmarks() == expected


def test_a_rugged_log_density_has_more_landmarks():
    states = np.random.default_rng(0).standard_normal((600, 2))

    def rugged(X):
        return -0.5 * (X**2).sum(axis=1) + np.sin(4.0 * X[:, 0]) * np.cos(4.0 * X[:, 1])

    record = record_of(states, rugged(states), states, rugged(states))
    adaptation = LogDensityAdaptation(30)
    for _ in range(2):
        assert adaptation.fit(record, np.random.default_rng(1))
    assert adaptation.surrogate.n_landmarks == 60
    assert len(adaptation.surrogate.parameters_.coefficients) > 30
