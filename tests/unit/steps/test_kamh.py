"""KAMH: sub-samples of the history, what it learns, arguments."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.adaptation.schedules import vanishing_weight
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.steps.kamh import FIRST
from tests.chains import column, run


def test_subsamples_are_renewed_ever_more_seldom():
    """The first as soon as the history allows, then with probability 1 / sqrt(t + 1).

    The number of renewals in 4000 iterations is within 4.5 standard deviations of its mean, 117.
    """
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KAMH(rng=10)
    point, statistics = run(step, model.initial_point(), 4000)
    renewals = column(statistics, "kmc_n_subsamples")
    first = np.flatnonzero(renewals)[0]
    assert first == FIRST * 2
    moves = column(statistics, "kmc_move")
    assert set(moves[:first]) == {MoveKind.RANDOM_WALK}
    assert set(moves[first:]) == {MoveKind.LOCAL_RANDOM_WALK}
    probabilities = vanishing_weight(np.arange(FIRST * 2, 4000))
    sd = np.sqrt(np.sum(probabilities * (1 - probabilities)))
    assert abs(renewals[-1] - 1 - probabilities.sum()) < 4.5 * sd
    step.stop_tuning()
    _, statistics = run(step, point, 500)
    assert statistics[-1]["kmc_n_subsamples"] == step.adapted.n_subsamples
    assert statistics[0]["kmc_n_subsamples"] == statistics[-1]["kmc_n_subsamples"]
    assert len(set(column(statistics, "kmc_scale"))) == 1


def test_states_whose_squares_are_no_numbers_make_no_subsample():
    """An improper posterior lets a chain go there; it is told, and no error."""
    with pm.Model():
        pm.Normal("x", shape=2)
        step = kmc.KAMH(rng=1)
    for state in 1e200 * np.random.default_rng(0).standard_normal((100, 2)):
        step.adapted.states.append(state)
    step._renew()
    assert step.adapted.local.distribution is None


def test_subsamples_are_of_distinct_states():
    with pm.Model():
        pm.Normal("x", shape=1)
        step = kmc.KAMH(n_points=1000, rng=11)
    run(step, {"x": np.zeros(1)}, 500)
    states = step.adapted.states.recent(1.0)
    points = step.adapted.local.distribution.points.T
    assert len(np.unique(points, axis=0)) == len(points)
    assert len(points) < 0.6 * len(states)


def test_short_tuning_ends_with_a_subsample():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KAMH(rng=14)
    point, _ = run(step, model.initial_point(), 2 * FIRST - 1)
    assert step.adapted.local.distribution is None
    step.stop_tuning()
    _, statistics = run(step, point, 50)
    assert statistics[-1]["kmc_n_subsamples"] == 1


def test_a_chain_that_sat_still_goes_on_with_the_random_walk():
    def only_the_start(x):
        return pm.math.where(pm.math.eq(x, 0.0).all(), 0.0, -np.inf)

    with pm.Model():
        x = pm.Flat("x", shape=2)
        pm.Potential("only_the_start", only_the_start(x))
        step = kmc.KAMH(rng=12)
    _, statistics = run(step, {"x": np.zeros(2)}, 200)
    step.stop_tuning()
    assert step.adapted.local.distribution is None
    assert statistics[-1]["kmc_n_subsamples"] == 0


def test_drives_the_scale_to_the_acceptance_rate():
    """With the probability that is at most 1; the mean of 3000 is within .04."""
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        for target in (None, 0.4):
            step = kmc.KAMH(target_acceptance=target, rng=13)
            point, _ = run(step, model.initial_point(), 2000)
            _, statistics = run(step, point, 3000)
            rate = np.mean(column(statistics, "acceptance_rate"))
            assert rate == pytest.approx(target or RandomWalk.TARGET_ACCEPTANCE, abs=0.04)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "matern"}, "kernel='matern' is unknown; pass 'gaussian' or 'linear'"),
        ({"n_points": 0}, "n_points=0 must be an integer of at least 1"),
        ({"n_points": 1}, "n_points=1 has no spread; pass at least 2"),
        ({"gamma": 0.0}, "gamma=0.0 must be a number, positive and finite"),
        ({"target_acceptance": 1.0}, "target_acceptance must be between 0 and 1, got 1.0"),
        ({"tune": False}, "tune=False.*AdaptiveMetropolis"),
        ({"adaptation": "never"}, "adaptation='never' is unknown; pass 'tuning' or 'vanishing'"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pm.Model():
        pm.Normal("x", shape=2)
        with pytest.raises(ValueError, match=message):
            kmc.KAMH(**options)


@pytest.mark.parametrize("step_class", [kmc.KAMH, kmc.AdaptiveMetropolis])
def test_the_proposals_covariance(step_class):
    """Of 20,000 proposals from one place: 4.5 standard errors of a variance are 4.5 %."""
    with pm.Model():
        x = pm.Normal("x", 0.0, 3.0)
        pm.Normal("y", 0.3 * x**2, 10.0)
        step = step_class()
        pm.sample(
            step=step,
            tune=300,
            draws=2,
            chains=1,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    place = np.array([2.0, 1.0])
    current = step.target.evaluate(place, ())
    ends = np.array([step._propose(current).position for _ in range(20_000)])
    found = step.proposal_covariance(*([place] if step_class is kmc.KAMH else []))
    scales = np.sqrt(np.diag(found))
    errors = (np.cov(ends.T) - found) / np.outer(scales, scales)
    assert np.abs(errors).max() < 0.045
    np.testing.assert_allclose(ends.mean(axis=0), place, atol=0.04 * scales.max())
