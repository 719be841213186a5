"""The default KMC: its moves, its statistics, and the balance of its state-dependent mixture."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.adaptation.exploration import Frontier
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.steps import surrogate_transition
from pymc_kmc.steps.surrogate_transition import (
    AUXILIARY,
    FIRST_TRANSITION,
    FRONTIER,
    RANDOM_WALK,
)
from pymc_kmc.surrogates import KernelExpLite, LogDensityGP
from tests.models import NoisyEstimator, noisy_gaussian

QUIET = {"progressbar": False, "compute_convergence_checks": False, "chains": 1, "cores": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune": False}, "tune=False.*fitted"),
        ({"n_landmarks": 0}, "n_landmarks=0"),
        ({"adaptation": "never"}, "adaptation must be 'tuning' or 'vanishing'"),
        ({"surrogate": KernelExpLite(1.0, 1.0)}, "not fitted"),
        ({"surrogate": LogDensityGP()}, "not fitted"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pm.Model():
        pm.Normal("x", shape=2)
        with pytest.raises(ValueError, match=message):
            kmc.KMC(**options)


def test_a_surrogate_of_another_dimension():
    X = np.random.default_rng(0).normal(size=(30, 3))
    surrogate = LogDensityGP(rng=0).fit(X, -0.5 * (X**2).sum(axis=1))
    with pm.Model():
        pm.Normal("x", shape=2)
        with pytest.raises(ValueError, match="3 coordinates.*2 unconstrained values"):
            kmc.KMC(surrogate=surrogate)


def test_default_tune_steps_grow_with_the_dimension():
    steps = []
    for d in (1, 10, 50):
        with pm.Model():
            pm.Normal("x", shape=d)
            steps.append(kmc.KMC().default_tune_steps)
    assert steps == [2100, 2800, 6000]


def test_moves_and_their_statistics():
    with noisy_gaussian(1.0):
        idata = pm.sample(
            step=kmc.KMC(), tune=500, draws=300, random_seed=1, discard_tuned_samples=False, **QUIET
        )
    for group in (idata.warmup_sample_stats, idata.sample_stats):
        move = group["kmc_move"].values.ravel()
        n_steps = group["n_steps"].values.ravel()
        assert np.all(group["kmc_n_evaluations"].values.ravel()[1:] == 1)
        assert np.all(n_steps[move == RANDOM_WALK] == 0)
        assert np.all(n_steps[move >= FIRST_TRANSITION] > 0)
        assert np.all(group["kmc_n_transitions"].values.ravel()[move >= FIRST_TRANSITION] > 0)
        assert not np.any(group["kmc_accepted"].values.ravel()[move == AUXILIARY])
    tuning, drawing = (
        set(group["kmc_move"].values.ravel())
        for group in (idata.warmup_sample_stats, idata.sample_stats)
    )
    assert AUXILIARY in tuning
    assert AUXILIARY not in drawing
    fits = idata.sample_stats["kmc_n_fits"].values
    assert np.all(fits == fits.flat[0]) and fits.flat[0] > 5


def test_evaluations_are_counted_with_probes_and_the_auxiliary_chain():
    with pm.Model():
        x = pm.Normal("x")
        estimator = NoisyEstimator(1.0)
        kmc.PseudoMarginalPotential("loglik", estimator, x)
        step = kmc.KMC(rng=7)
    point = {"x": np.array(0.0)}
    point, _ = step.step(point)
    before = estimator.n_calls
    for _ in range(400):
        point, _ = step.step(point)
    assert estimator.n_calls - before == 400
    assert len(step.learned.record.evaluations) == 401


def test_a_given_surrogate_is_used_as_it_is():
    X = np.linspace(-2.0, 3.0, 80)[:, None]
    values = -0.5 * ((X[:, 0] - 0.7) / 0.4) ** 2
    surrogate = LogDensityGP(20, radial=False, rng=0).fit(X, values)
    before = [np.copy(array) for array in surrogate.parameters_]
    with pm.Model():
        pm.Normal("x", 0.7, 0.4, shape=1)
        idata = pm.sample(
            step=kmc.KMC(surrogate=surrogate), tune=150, draws=200, random_seed=10, **QUIET
        )
    for array, kept in zip(surrogate.parameters_, before, strict=True):
        np.testing.assert_array_equal(array, kept)
    statistics = idata.sample_stats
    moves = statistics["kmc_move"].values
    assert np.all(statistics["kmc_n_fits"] == 0)
    assert not (moves == AUXILIARY).any()
    assert np.mean(moves >= FIRST_TRANSITION) > 0.8
    assert statistics["acceptance_rate"].values[moves >= FIRST_TRANSITION].mean() > 0.98


def test_no_surrogate_yet_only_random_walks():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KMC(rng=11)
    point = model.initial_point()
    moves = []
    for _ in range(70):
        point, (statistics,) = step.step(point)
        moves.append(statistics["kmc_move"])
        assert (statistics["kmc_n_fits"] > 0) == (len(moves) > 60)
    assert set(moves[:60]) == {RANDOM_WALK}
    assert set(moves[60:]) != {RANDOM_WALK}


def banana_model():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Normal("y", 0.3 * (x**2 - 9.0), 1.0)
    return model


def test_a_fit_knows_the_noise():
    """Two pairs of estimates, 100 iterations apart, before the last fits."""
    with noisy_gaussian(1.0):
        step = kmc.KMC(n_landmarks=30, rng=18)
    point = {"x": np.array(0.0)}
    for _ in range(400):
        point, _ = step.step(point)
    step.stop_tuning()
    noise = step.progress.noise
    assert noise.n_pairs > 1
    assert step.learned.adaptation.noise_variance == noise.value


def test_a_chain_on_its_way_learns_nothing_of_what_lies_around():
    """100 standard deviations to go in three dimensions; then it has arrived."""
    with pm.Model():
        pm.Normal("x", shape=3)
        step = kmc.KMC(n_landmarks=30, rng=19)
    point, moves, rising = {"x": np.full(3, 100.0)}, [], []
    for _ in range(400):
        rising.append(step._is_on_its_way())
        point, (statistics,) = step.step(point)
        moves.append(statistics["kmc_move"])
    moves, rising = np.array(moves), np.array(rising)
    assert not rising[:150].any()  # nobody knows yet
    assert rising[150:].any() and not rising[350:].any()
    assert not np.isin(moves[rising], (AUXILIARY, FRONTIER)).any()
    assert np.isin(moves[~rising], AUXILIARY).any()


def test_random_walks_help_a_poor_surrogate_while_tuning():
    with pm.Model():
        pm.Normal("x", shape=3)
        step = kmc.KMC(n_landmarks=30, rng=20)
    point = {"x": np.zeros(3)}
    for _ in range(100):
        point, _ = step.step(point)

    def probability(accepted):
        step.learned.recent = accepted
        return step._smallest_random_walk_probability

    usual = surrogate_transition.TUNING_RANDOM_WALKS
    assert probability([0.0] * 19) == usual  # too few
    assert probability([0.0] * 20) == usual + surrogate_transition.MORE_RANDOM_WALKS
    assert usual < probability([0.1] * 20) < usual + surrogate_transition.MORE_RANDOM_WALKS
    assert probability([0.2] * 20) == probability([0.9] * 20) == usual
    step.stop_tuning()
    exact, usual = surrogate_transition.RANDOM_WALKS
    step.learned.log_weights.spread = 0.0
    assert probability([0.0] * 20) == exact
    step.learned.log_weights.spread = 1.0  # the surrogate is that wrong
    assert probability([0.0] * 20) == pytest.approx(usual)


def test_frontier_places_are_evaluated_and_never_draws():
    with banana_model():
        step = kmc.KMC(n_landmarks=60, rng=12)
    point, moves = {"x": np.array(0.0), "y": np.array(-2.7)}, []
    for _ in range(600):
        before = point
        point, (statistics,) = step.step(point)
        moves.append(statistics["kmc_move"])
        if moves[-1] == FRONTIER:
            assert statistics["kmc_n_evaluations"] == 1
            assert not statistics["kmc_accepted"]
            assert point == before
    assert 5 < np.sum(np.array(moves) == FRONTIER) < 200
    assert step.learned.search_error < 0.99  # not all of them found what nobody had predicted
    step.stop_tuning()
    assert step.learned.frontier is None
    for _ in range(100):
        point, (statistics,) = step.step(point)
        assert statistics["kmc_move"] not in (FRONTIER, AUXILIARY)


@pytest.mark.parametrize(
    ("model", "search_error", "share"),
    [
        (banana_model, 1.0, 0.2),
        (banana_model, 0.5, 0.1),
        (banana_model, 0.0, 0.04),
        (lambda: noisy_gaussian(1.0), 1.0, 0.4),
        (lambda: noisy_gaussian(1.0), 0.0, 0.4),
    ],
)
def test_searches_are_rarer_where_the_last_ones_found_what_was_predicted(
    model, search_error, share
):
    """4000 choices: five standard errors."""

    class Ready:
        def search(self, rng, edge):
            assert edge == (search_error if share < 0.4 else 1.0)
            return True

    with model() as built:
        step = kmc.KMC(n_landmarks=30, rng=16)
    point = built.initial_point()
    for _ in range(100):
        point, _ = step.step(point)
    learned = step.learned
    learned.frontier, learned.search_error = Ready(), search_error
    position = step.target.recycled.position
    moves = np.array([step._choose_move(position) for _ in range(4000)])
    error = np.sqrt(share * (1 - share) / 4000)
    assert abs(np.mean(moves == FRONTIER) - share) < 5 * error


def test_moves_and_log_weights_follow_the_surrogates_updates():
    """Also where an update changes the surrogate's constant."""
    with banana_model():
        step = kmc.KMC(n_landmarks=60, rng=13)
    point = {"x": np.array(0.0), "y": np.array(-2.7)}
    n_updates, last = 0, None
    for _ in range(500):
        point, _ = step.step(point)
        learned = step.learned
        if learned.frontier is None:
            continue
        surrogate, moved = learned.adaptation.surrogate, learned.transitions.parameters
        np.testing.assert_array_equal(moved.coefficients, surrogate.parameters_.coefficients)
        position = step.target.recycled.position
        weight = step.target.recycled.log_density - surrogate.log_density(position)
        value = learned.log_weights(position, step.target.recycled.log_density)
        assert value == pytest.approx(weight - learned.log_weights.median, abs=1e-6)
        # Values are predicted, so that the usual log weight is the prediction's constant.
        now = learned.adaptation.n_fits, surrogate.parameters_
        n_updates += last is not None and now[0] == last[0] and now[1] is not last[1]
        last = now
        if learned.log_weights.spread < 0.1:
            assert learned.log_weights.median == pytest.approx(surrogate.constant_, abs=0.5)
    assert n_updates > 3


def funnel_model():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 2.0)
        pm.Normal("y", 0.0, pm.math.exp(x))
    return model


@pytest.mark.parametrize("model", [banana_model, funnel_model])
@pytest.mark.parametrize("clearly_worse", [0.0, np.inf])
def test_the_last_fit_is_at_the_end_of_tuning_and_dropped_if_it_is_worse(
    clearly_worse, model, monkeypatch
):
    monkeypatch.setattr(surrogate_transition, "CLEARLY_WORSE", clearly_worse)
    with model():
        step = kmc.KMC(n_landmarks=60, rng=14)
    point = {"x": np.array(0.0), "y": np.array(-2.7)}
    for _ in range(700):
        point, (statistics,) = step.step(point)
    learned = step.learned
    before = learned.adaptation.surrogate, learned.transitions, learned.warp
    assert (learned.warp is IDENTITY) == (model is banana_model)
    step.stop_tuning()
    assert learned.adaptation.n_fits == statistics["kmc_n_fits"] + 1
    after = learned.adaptation.surrogate, learned.transitions, learned.warp
    was_dropped = [a is b for a, b in zip(after, before, strict=True)]
    assert was_dropped[:2] == [clearly_worse == 0.0] * 2
    assert was_dropped[2] == (clearly_worse == 0.0 or learned.warp is IDENTITY)
    # Log weights are those of the surrogate in use and of what the chain has seen since.
    position, log_density = step.target.recycled.position, step.target.recycled.log_density
    place = learned.warp.forward(position)
    weight = log_density + learned.warp.log_volume(position)
    value = learned.log_weights(place, weight)
    weight -= learned.adaptation.surrogate.log_density(place)
    assert value == pytest.approx(weight - learned.log_weights.median, abs=1e-6)


def test_a_surrogate_in_warped_coordinates_learns_between_fits(monkeypatch):
    """Values are taken in where they belong: the log weights stay narrow."""
    frontiers = []

    def remember(*arguments):
        frontiers.append(arguments)
        return Frontier(*arguments)

    monkeypatch.setattr(surrogate_transition, "Frontier", remember)
    with funnel_model():
        step = kmc.KMC(n_landmarks=60, rng=15)
    point = {"x": np.array(0.0), "y": np.array(-2.7)}
    for _ in range(700):
        point, _ = step.step(point)
    learned = step.learned
    assert learned.warp is not IDENTITY and learned.log_weights.spread < 0.5
    evaluations = learned.record.evaluations.last(300)
    places = learned.warp.forward(evaluations[:, :-1])
    values = evaluations[:, -1] + learned.warp.log_volume(evaluations[:, :-1])
    states, log_densities = (
        log.last(300) for log in (learned.record.states, learned.record.log_densities)
    )
    probabilities = [
        step._random_walk_probability(state, log_density)
        for state, log_density in zip(states, log_densities[:, 0], strict=True)
    ]
    assert np.mean(probabilities) < 0.15  # .1 where log weights are usual, .7 at most
    assert step._frontier() is not None
    surrogate, states, evaluated = frontiers[-1]
    assert surrogate is learned.adaptation.surrogate
    np.testing.assert_array_equal(evaluated[-300:], places)
    np.testing.assert_array_equal(
        states[-300:], learned.warp.forward(learned.record.states.last(300))
    )
    inside = values > np.median(values)
    errors = learned.adaptation.surrogate.predict(places) - values
    assert np.sqrt(np.mean(errors[inside] ** 2)) < 0.5
