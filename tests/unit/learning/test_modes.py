"""Maxima of densities: those above draws, draws that jump between them, what is said of them."""

import dataclasses
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning import learning_run
from pymc_kmc.learning.averages import INEFFICIENCY, inefficiency, one_turn
from pymc_kmc.learning.composite import MIXED, Values, drawn
from pymc_kmc.learning.modes import (
    LearnedMode,
    Mode,
    covariance_of,
    maxima,
    of_searches,
    regressed,
    sentences,
    unseen_share,
)
from pymc_kmc.learning.multistart import MultiStart
from pymc_kmc.learning.search import are_constant
from pymc_kmc.numerics.samples import far_apart, spread_out
from tests.learned import learned_curve, on_grid
from tests.opaque_numbers import number


def mode(log_mass, was_left_out=False, **variables):
    variables = {name: np.array(value) for name, value in variables.items()}
    return LearnedMode(np.zeros(2), log_mass, np.eye(2), 2, log_mass, was_left_out, variables)


BEST = mode(3.0, rate=1.0)


def test_where_was_searched_is_always_told():
    (said,) = sentences(())
    assert said.startswith("No search for maxima was needed; one much narrower than the prior may")
    (said,) = sentences((BEST, mode(1.0, rate=2.0)))
    assert said.startswith("4 searches from all over the prior ended at 2 maxima: less than about")
    assert "25 % of further ones would find others" in said
    drawn = mode(1.0, rate=2.0)._replace(n_searches=0)  # by draws of the emulators
    (said,) = sentences((BEST, drawn))
    assert said.startswith("2 searches from all over the prior ended at one maximum: less than")


def test_a_mode_that_was_left_out_is_named():
    out = mode(-48.2, True, rate=0.31234, sizes=[1.0, 2e-9, 3000.0])
    place = "rate = 0.312, sizes = [1, 2e-09, 3e+03]."
    said, _ = sentences((BEST, out))
    assert said == f"A second maximum, 51 nats of mass lower, was left out: {place}"
    said, _ = sentences((BEST, mode(2.0, rate=5.0), out))
    assert said.startswith("Another maximum, 51 nats of mass lower, was left out: rate = 0.312")


SURE = SimpleNamespace(is_noisy=False, is_blurred=False, may_have_missed=False)
NOISY = SimpleNamespace(is_noisy=True, is_blurred=False, may_have_missed=False)
HIDDEN = SimpleNamespace(is_noisy=True, is_blurred=True, may_have_missed=False)
ALIKE = SimpleNamespace(is_noisy=True, is_blurred=True, may_have_missed=True)


def test_maxima_found_once_tell_of_others():
    once, often = BEST._replace(n_searches=1), BEST._replace(n_searches=3)
    assert unseen_share(()) == 0.0
    assert unseen_share((often,)) == 0.0
    assert unseen_share((once, often)) == 0.25
    (said,) = sentences((once, often))
    assert "ended at 2 maxima: about 25 % of further ones would find others" in said


def test_a_highest_maximum_that_one_search_alone_has_found_is_a_warning():
    once, often = BEST._replace(n_searches=1), BEST._replace(n_searches=3)
    lower = once._replace(log_density=-9.0)
    said = of_searches((often._replace(log_density=-9.0), once), SURE)
    assert re.search("Of 4 searches .*, 1 ended at the highest of 2: about 25 %", said)
    assert of_searches((often, lower), SURE) is None
    assert of_searches((once,), SURE) is None
    assert of_searches((), SURE) is None
    # Draws have found them, where no search was needed.
    drawn = BEST._replace(n_searches=0), lower._replace(n_searches=0)
    assert of_searches(drawn, SURE) is None


def test_a_lucky_value_is_not_the_highest_maximum():
    """A search of few noisy values ended 4 nats too high, half a nat below where three ended."""
    lucky = BEST._replace(n_searches=1, log_density=7.0, log_mass=8.0)
    often = BEST._replace(n_searches=3)
    heights = np.array([2.5, 3.0])

    def composite(X, penalty):
        return SimpleNamespace(mean=heights)

    found = regressed([lucky, often], composite)
    assert [each.log_density for each in found] == [2.5, 3.0]
    assert [each.log_mass for each in found] == [3.5, 3.0]
    assert of_searches([lucky, often], NOISY) is not None
    assert of_searches(found, NOISY) is None
    # By chance it is a little higher still: as high as the other, but for a fit's error.
    heights[0] = 3.4
    as_high = regressed([lucky, often], composite)
    assert of_searches(as_high, NOISY) is None
    assert of_searches(as_high, SURE) is not None
    assert regressed([], composite) == []


def test_heights_of_learned_modes_are_emulated_under_noise(monkeypatch):
    def estimate(x, rng):
        return -0.5 * x @ x + 2.0 * rng.standard_normal() - 2.0

    asked = []
    monkeypatch.setattr(learning_run, "regressed", lambda modes, _: asked.append(modes) or modes)
    for function, likelihood in (
        (lambda x: -0.5 * x @ x, kmc.BlackBox),
        (estimate, kmc.PseudoMarginalPotential),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = {"max_evaluations": 60, "random_seed": 1, "progressbar": False}
            kmc.learn(number(function, 2, likelihood), **settings)
        assert len(asked) == (likelihood is not kmc.BlackBox)


def test_one_search_is_a_warning_where_noise_hides_maxima():
    once = BEST._replace(n_searches=1)
    said = of_searches((once,), HIDDEN)
    assert re.search("Of 1 searches .*, 1 ended at the highest of 1", said)


def test_maxima_that_are_alike_under_noise_are_a_warning(monkeypatch):
    lower = BEST._replace(log_density=-9.0)
    said = of_searches((BEST, lower), ALIKE)
    assert re.search("All 4 searches .* -9.0 to 3.0. Under noise", said)
    monkeypatch.setattr(MultiStart, "may_have_missed", True)
    with pytest.warns(UserWarning, match="may have missed a higher one") as told:
        kmc.learn(number(lambda x: -0.5 * x @ x), max_evaluations=60, progressbar=False)
    assert told[0].filename == __file__


def test_many_are_one_sentence():
    out = [mode(-10.0 * i, True, rate=float(i)) for i in (2, 1, 3)]
    said, _ = sentences((BEST, *out))
    assert said == ("3 other maxima were left out; the largest is 13 nats of mass lower: rate = 1.")


def test_long_places_are_cut():
    variables = {f"x{i}": np.zeros(9) for i in range(9)}
    said, _ = sentences((BEST, mode(-9.0, True, **variables)))
    assert said.endswith("x3 = [0, 0, 0, 0, ...], ....")


def test_outputs_have_modes():
    (found,) = learned_curve().modes
    places, weights = on_grid()
    means = weights @ places
    sds = np.sqrt(weights @ (places - means) ** 2)
    assert np.all(np.abs(found.x - means) < sds)
    assert np.all(np.abs(np.log(np.diag(found.covariance) / sds**2)) < 0.7)
    assert found.n_searches >= 2
    assert not found.was_left_out
    assert found.variables["rate"].shape == ()
    assert found.variables["rate"] == pytest.approx(np.exp(found.x[1]))


def test_it_says_what_was_left_out(tmp_path):
    (found,) = learned_curve().modes
    out = found._replace(log_mass=found.log_mass - 20.0, was_left_out=True)
    learned = dataclasses.replace(learned_curve(), modes=(found, out))
    said = "A second maximum, 20 nats of mass lower, was left out: size = "
    assert said in repr(learned)
    assert said in learned._repr_html_()
    assert "left out" not in repr(learned_curve())
    learned.to_netcdf(tmp_path / "learned.nc")
    read = kmc.LearnedPosterior.from_netcdf(tmp_path / "learned.nc")
    assert repr(read) == repr(learned)
    assert read.modes[1].variables["rate"].shape == ()
    assert read.modes[1].was_left_out is True


PLACES, SDS, SHARES = np.array([-4.0, 4.0]), np.array([0.5, 0.25]), np.array([0.3, 0.7])


class TwoModes:
    """Two Gaussians of one coordinate, as a composite that knows all."""

    model = SimpleNamespace(nearest_copy=lambda x, to: x, periods=np.array([np.inf]), nodes=[0])

    def __init__(self, places=PLACES, sds=SDS, shares=SHARES):
        self.places, self.sds, self.shares = map(np.array, (places, sds, shares))

    def __call__(self, X, temperature=1.0, penalty=0.0):
        away = (X - self.places) / self.sds
        logs = np.log(self.shares / self.sds) - 0.5 * away**2
        values = np.logaddexp(*logs.T)
        weights = np.exp(logs - values[:, None])
        gradient = -(weights * away / self.sds).sum(axis=1, keepdims=True)
        none = np.zeros(len(X))
        return Values(values / temperature, gradient / temperature, values, none, none, none)

    def slopes(self, X, temperature):
        return self(X, temperature).gradient


def test_all_maxima_above_draws_are_found():
    X = np.random.default_rng(0).normal(PLACES[[0] * 60 + [1] * 4], 0.3)[:, None]
    found = sorted(maxima(TwoModes(), X), key=lambda mode: mode.x[0])
    np.testing.assert_allclose([mode.x[0] for mode in found], PLACES, atol=1e-3)
    np.testing.assert_allclose([mode.covariance[0, 0] for mode in found], SDS**2, rtol=1e-3)


def test_chains_that_do_not_mix_jump_between_maxima():
    """Standard error of the share: .02 at 2048 nearly independent draws; 7 of them are allowed."""
    starts = PLACES[np.arange(64) % 2][:, None] + 0.1
    state = SimpleNamespace(
        draws=starts, factor=np.eye(1), modes=(), maps=None, step_size=0.3, has_converged=True
    )
    found = drawn(TwoModes(), state, np.random.default_rng(0), np.zeros((0, 2)))
    assert found.r_hat < MIXED
    X = np.concatenate([part.X[:, 0] for part in found.parts])
    assert np.mean(X > 0) == pytest.approx(SHARES[1], abs=0.14)
    assert len(found.modes) == 2


def test_draws_of_the_prior_lead_to_a_plateau_far_below_a_mode():
    """A share of .05 of 2048 draws, nearly independent: its standard error is .005; 4 allowed."""
    rng = np.random.default_rng(0)
    density, prior = TwoModes((0.0, 1.0), (0.05, 5.0), (0.95, 0.05)), rng.normal(0, 5, (256, 1))
    state = SimpleNamespace(
        draws=rng.normal(0, 0.05, (256, 1)), factor=0.05 * np.eye(1), modes=(), maps=None
    )
    state.step_size, state.has_converged = 0.3, True

    def share(prior):
        X = np.concatenate([part.X for part in drawn(density, state, rng, prior).parts])
        return np.mean(np.abs(X) > 0.5)

    expected = 0.05 * 0.92
    assert share(prior) == pytest.approx(expected, abs=0.02)
    assert share(prior[:0]) < 0.5 * expected


def test_draws_are_worth_less_where_chains_differ():
    assert inefficiency(1.0, 8) == INEFFICIENCY
    assert inefficiency(50.0, 8) == pytest.approx(8.0, rel=1e-2)


def test_one_turn_of_an_angle_holds_most_draws():
    rng = np.random.default_rng(0)
    draws = np.column_stack([np.pi + 0.3 * rng.standard_normal(200), rng.standard_normal(200)])
    draws[:20, 0] -= 2 * np.pi
    is_inside = one_turn(draws, np.array([2 * np.pi, np.inf]))
    assert is_inside(draws).sum() == 180
    assert is_inside(np.array([[np.pi, 1e9]])).all()
    assert not is_inside(np.array([[-np.pi / 2, 0.0]])).any()


def test_starts_fill_the_prior():
    pool = np.random.default_rng(0).normal(size=(256, 1))
    for seed in range(5):
        chosen = spread_out(pool, 8, np.random.default_rng(seed))[:, 0]
        assert len(np.unique(chosen)) == 8
        strata = np.searchsorted(np.quantile(pool, np.arange(1, 8) / 8), chosen)
        assert len(np.unique(strata)) >= 7  # ranks are rounded


def test_points_are_far_apart():
    X = np.array([[0.0], [0.1], [5.0], [-5.0], [0.2]])
    assert set(far_apart(X, 3)) == {1, 2, 3}
    assert set(far_apart(np.vstack([X, X]), 10)) == set(range(5))


def test_constant_outputs():
    assert are_constant(np.array([[1.0, np.nan], [1.0, np.nan]]))
    assert not are_constant(np.array([[1.0, 2.0], [1.0, 2.1]]))


def test_a_covariance_can_be_inverted_whatever_the_curvature():
    flat = np.ones((3, 3)) / 3.0  # along the one direction of small curvature
    covariance = covariance_of(1e40 * (np.eye(3) - flat), np.ones(3))
    mode = Mode(np.zeros(3), 0.0, covariance)
    assert np.isfinite(np.linalg.solve(mode.covariance, np.ones(3))).all()
    assert np.isfinite(mode.log_mass)
