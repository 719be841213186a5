"""Fits to the values that a chain has paid for: when, to what, in which coordinates."""

import numpy as np
import pytest

from pymc_kmc.adaptation import fit_to_values
from pymc_kmc.adaptation.fit_to_values import FitToValues, can_be_full, first_fit
from pymc_kmc.adaptation.fitted import FittedSurrogate
from pymc_kmc.adaptation.history import GrowingArray
from pymc_kmc.adaptation.warping import learn_warp
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.surrogates.gp_fit import VALUES_PER_COEFFICIENT
from tests.fitted import assert_same_parameters, short_transitions, snapshot
from tests.histories import add_evaluation, history_of

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
    """The history of states and of proposals around them."""
    states = draws(n, seed)
    points = states + np.random.default_rng([seed, 1]).standard_normal(states.shape)
    return history_of(states, gaussian(states), points, gaussian(points))


def fits_with(n_landmarks):
    """Fits whose moves take no time to learn: what is learned of these is tested elsewhere."""
    fits = FitToValues(n_landmarks)
    fits.learn_moves = short_transitions
    return fits


# Values


def test_only_the_newest_values_are_used(monkeypatch):
    """Values of a wrong density before them do no harm."""
    monkeypatch.setattr(FitToValues, "MOST_VALUES", 100)
    history = chain(200)
    newest, history.evaluations = history.evaluations, GrowingArray(3)
    for point in draws(100, 5):
        add_evaluation(history, point, np.sin(9 * point[0]) * 50)
    for row in newest.last(100):
        history.evaluations.append(row)
    fitted = fits_with(30).fit(history, None, np.random.default_rng(0))
    X = draws(20, 6)
    np.testing.assert_allclose(fitted.surrogate.gradient(X), gradient(X), atol=1e-3)


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

    few = history_of(states, density(states), points[:30], density(points[:30]))
    fits = fits_with(30)
    assert fits.fit(few, None, rng) is None
    assert fits.failure is None and fits.n_fits == 0
    enough = history_of(states, density(states), points, density(points))
    first = fits.fit(enough, None, rng)
    assert first.surrogate.is_full_ and fits.n_fits == 1
    assert fits.fit(few, first, rng) is not None  # not postponed: a surrogate is in use


def test_too_few_values_give_no_surrogate():
    history = chain(30)
    fits = fits_with(30)
    for few in (3, 0):
        rows, history.evaluations = history.evaluations.last(few), GrowingArray(3)
        for row in rows:
            history.evaluations.append(row)
        assert fits.fit(history, None, np.random.default_rng(0)) is None
    assert fits.failure is None


# What


def test_learns_the_density_and_again():
    rng, X, fitted = np.random.default_rng(2), draws(50, 7), None
    fits = FitToValues(30)  # moves included
    for n, n_fits in ((60, 1), (90, 2)):
        fitted = fits.fit(chain(n), fitted, rng)
        assert isinstance(fitted, FittedSurrogate)
        assert fits.n_fits == n_fits and fits.failure is None
        np.testing.assert_allclose(fitted.surrogate.gradient(X), gradient(X), atol=1e-4)
        assert fitted.transitions.n_transitions > 1
        assert fitted.log_weights.spread < 1e-3


def test_a_fit_leaves_the_last_one_as_it_was():
    rng, fits = np.random.default_rng(12), fits_with(30)
    last = fits.fit(chain(60), None, rng)
    before = snapshot(last)
    assert fits.fit(chain(90), last, rng).surrogate is not last.surrogate
    assert snapshot(last) == before


def test_coordinates_have_unit_draws_first_and_unit_draws_and_gradients_then():
    """For a Gaussian both are the same; for a Student t they differ, and their mean is used."""
    nu, rng = 3.0, np.random.default_rng(3)
    states = rng.standard_normal((600, 2)) * np.sqrt(nu / rng.chisquare(nu, 600))[:, None]

    def student(X):
        return -0.5 * (nu + 2) * np.log1p((X**2).sum(axis=1) / nu)

    history = history_of(states, student(states))
    fits = fits_with(50)
    recent = states[-400:]
    covariance = np.cov(recent.T, bias=True)

    def assert_coordinates(surrogate, volume):
        whitening = surrogate.parameters_.whitening
        assert np.linalg.det(whitening) ** -2 == pytest.approx(volume, rel=0.02)

    first = fits.fit(history, None, rng)
    assert_coordinates(first.surrogate, np.linalg.det(covariance))
    scores = first.surrogate.gradient(recent)
    volume = np.linalg.det(np.linalg.inv(scores.T @ scores / len(recent)))
    assert volume < 0.5 * np.linalg.det(covariance)
    second = fits.fit(history, first, rng)
    assert_coordinates(second.surrogate, np.sqrt(np.linalg.det(covariance) * volume))


def test_the_same_generator_gives_the_same_fit():
    first, second = (
        fits_with(30).fit(chain(100), None, np.random.default_rng(4)) for _ in range(2)
    )
    assert_same_parameters(first.surrogate.parameters_, second.surrogate.parameters_)


def test_states_since_the_first_fit_are_enough_if_there_are_five_a_dimension():
    fits = fits_with(30)
    assert fits.n_recent(chain(90)) == 60  # the newest two thirds
    assert fits.fit(chain(80), None, np.random.default_rng(5)) is not None
    assert fits.n_recent(chain(80)) == 54
    assert fits.n_recent(chain(89)) == 60
    assert fits.n_recent(chain(90)) == 10  # 5 in each of 2 dimensions
    assert fits.n_recent(chain(400)) == 267  # two thirds are fewer
    states, log_densities = fits.recent(chain(90))
    np.testing.assert_array_equal(states, chain(90).states.last(10))
    np.testing.assert_array_equal(log_densities, gaussian(states))


def test_the_newest_evaluations_are_learned_from():
    fits = fits_with(30)
    assert fits.evaluations(chain(50)).shape == (50, 3)
    fits.MOST_VALUES = 40
    history = chain(50)
    np.testing.assert_array_equal(fits.evaluations(history), history.evaluations.last(40))


# Warps


def funnel(X):
    return -0.5 * X[:, 0] ** 2 / 4 - X[:, 0] - 0.5 * X[:, 1] ** 2 * np.exp(-2.0 * X[:, 0])


def funnel_chain(n, seed):
    rng = np.random.default_rng(seed)
    v = 2.0 * rng.standard_normal(n)
    states = np.column_stack([v, np.exp(v) * rng.standard_normal(n)])
    points = np.column_stack([states[:, 0], states[:, 1] * rng.uniform(0, 2, len(states))])
    return history_of(states, funnel(states), points, funnel(points))


@pytest.fixture(scope="module")
def funnel_fit():
    """Fits, the first of them."""
    fits = fits_with(60)
    return fits, fits.fit(funnel_chain(600, 12), None, np.random.default_rng(8))


def test_a_funnels_surrogate_is_fitted_in_warped_coordinates(funnel_fit):
    _, fitted = funnel_fit
    assert list(fitted.warp.drivers) == [0] and list(fitted.warp.driven) == [1]
    X = funnel_chain(200, 13).states.last(200)
    places, values = fitted.in_coordinates(X, funnel(X))
    assert np.std(values - fitted.surrogate.log_density(places)) < 0.05


def test_a_warp_that_the_values_contradict_is_refused(monkeypatch):
    warp = learn_warp(funnel_chain(600, 12).states.last(600))
    monkeypatch.setattr(fit_to_values, "learn_warp", lambda states: warp)
    fits, rng, fitted = fits_with(30), np.random.default_rng(10), None
    for n in (100, 200):
        fitted = fits.fit(chain(n), fitted, rng)
        assert fitted.warp is IDENTITY


# What goes wrong


def test_a_failed_fit_gives_none_and_says_why(monkeypatch):
    """Which is to keep the surrogate in use."""
    rng, fits = np.random.default_rng(5), fits_with(30)
    kept = fits.fit(chain(60), None, rng)
    before = snapshot(kept)

    def fail(*arguments, **options):
        raise ValueError("too bad")

    with monkeypatch.context() as patched:
        patched.setattr("pymc_kmc.surrogates.LogDensityGP.fit", fail)
        assert fits.fit(chain(90), kept, rng) is None
    assert fits.failure == "ValueError: too bad" and fits.n_fits == 1
    assert snapshot(kept) == before
    assert fits.fit(chain(90), kept, rng) is not None
    assert fits.failure is None and fits.n_fits == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
def test_a_start_where_the_estimate_is_minus_infinity_does_no_harm(share):
    """The chain's log densities there say nothing; its proposals' do."""
    states, points = draws(90, 8), draws(90, 9)
    log_densities = gaussian(states)
    log_densities[: int(share * 90)] = -np.inf
    history = history_of(states, log_densities, points, gaussian(points))
    fitted = fits_with(30).fit(history, None, np.random.default_rng(6))
    X = draws(20, 10)
    np.testing.assert_allclose(fitted.surrogate.gradient(X), gradient(X), atol=1e-3)


@pytest.mark.parametrize("place", [0.0, 0.7, 1e5 + 0.1])
def test_a_chain_that_has_not_moved_gives_a_finite_surrogate_or_none(place):
    """0.7 has a mean of rounding error, and with it a variance."""
    states = np.full((90, 2), place)
    points = states + np.random.default_rng(11).standard_normal((90, 2))
    values = gaussian(points - place)
    history = history_of(states, gaussian(states - place), points, values)
    fitted = fits_with(30).fit(history, None, np.random.default_rng(7))
    if fitted is not None:
        assert np.isfinite(fitted.surrogate.gradient(points)).all()
        assert np.isfinite(fitted.surrogate.log_density(points)).all()


# Landmarks


class Last:
    """The surrogate in use, of which the number of landmarks and the residuals' variance count."""

    def __init__(self, n_landmarks, variance):
        self.surrogate = self
        self.n_landmarks, self.variance_ = n_landmarks, variance


@pytest.mark.parametrize(
    ("last", "noise", "expected"),
    [
        (None, 0.0, 50),
        (Last(50, 0.02), 0.0, 100),
        (Last(50, 0.005), 0.0, 50),
        (Last(100, 0.005), 0.0, 100),
        (Last(100, 0.0005), 0.0, 50),
        (Last(50, 1.1), 1.0, 50),
        (Last(50, 1.3), 1.0, 100),
        (Last(50, 1.3), np.nan, 50),
    ],
)
def test_where_landmarks_are_too_few_there_are_more(last, noise, expected):
    fits = fits_with(50)
    fits.noise_variance = noise
    assert fits._most_landmarks(last) == expected


def test_a_rugged_log_density_has_more_landmarks():
    states = np.random.default_rng(0).standard_normal((600, 2))

    def rugged(X):
        return -0.5 * (X**2).sum(axis=1) + np.sin(4.0 * X[:, 0]) * np.cos(4.0 * X[:, 1])

    history = history_of(states, rugged(states), states, rugged(states))
    fits, fitted = fits_with(30), None
    for _ in range(2):
        fitted = fits.fit(history, fitted, np.random.default_rng(1))
    assert fitted.surrogate.n_landmarks == 60
    assert len(fitted.surrogate.parameters_.coefficients) > 30
