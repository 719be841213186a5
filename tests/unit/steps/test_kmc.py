"""The default KMC: its moves, its statistics, what it learns and when."""

from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.moves import frontier
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.steps import kmc as kmc_step
from pymc_kmc.steps import kmc_adaptation
from pymc_kmc.surrogates import KernelExpLite, LogDensityGP
from tests.bananas import Banana
from tests.chains import ONE_CHAIN, column, iterate, run, short_sequences
from tests.fitted import snapshot
from tests.models import NoisyEstimator, noisy_gaussian
from tests.moves import evaluation

pytestmark = pytest.mark.usefixtures("with_short_sequences")
ON_THE_SURROGATE = (
    MoveKind.SHORT_TRANSITION,
    MoveKind.SINGLE_TRANSITION,
    MoveKind.FEW_TRANSITIONS,
    MoveKind.MANY_TRANSITIONS,
)
BANANA_START = {"x": np.array(0.0), "y": np.array(-2.7)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune": False}, "tune=False.*fitted"),
        ({"n_landmarks": 0}, "n_landmarks=0"),
        ({"adaptation": "never"}, "adaptation='never' is unknown; pass 'tuning' or 'vanishing'"),
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
            step=kmc.KMC(learn=False),
            tune=500,
            draws=300,
            random_seed=1,
            discard_tuned_samples=False,
            **ONE_CHAIN,
        )
    kinds = []
    for group in (idata.warmup_sample_stats, idata.sample_stats):
        move = group["kmc_move"].values.ravel()
        n_steps = group["n_steps"].values.ravel()
        on_the_surrogate = np.isin(move, ON_THE_SURROGATE)
        assert np.all(group["kmc_n_evaluations"].values.ravel()[1:] == 1)
        assert np.all(n_steps[move == MoveKind.RANDOM_WALK] == 0)
        assert np.all(n_steps[on_the_surrogate] > 0)
        assert np.all(group["kmc_n_transitions"].values.ravel()[on_the_surrogate] > 0)
        assert not np.any(group["kmc_accepted"].values.ravel()[move == MoveKind.AUXILIARY])
        kinds.append(set(move))
    tuning, drawing = kinds
    assert MoveKind.AUXILIARY in tuning and MoveKind.NOISE_PROBE in tuning
    assert drawing <= {MoveKind.RANDOM_WALK, MoveKind.TEMPERED_TRANSITION, *ON_THE_SURROGATE}
    fits = idata.sample_stats["kmc_n_fits"].values
    assert np.all(fits == fits.flat[0]) and fits.flat[0] > 5


def test_evaluations_are_counted_with_probes_and_the_auxiliary_chain():
    with pm.Model():
        x = pm.Normal("x")
        estimator = NoisyEstimator(1.0)
        kmc.PseudoMarginalPotential("loglik", estimator, x)
        step = kmc.KMC(learn=False, rng=7)
    point, _ = run(step, {"x": np.array(0.0)}, 1)
    before = estimator.n_calls
    learned_before = len(step.adapted.history.evaluations)
    run(step, point, 400)
    assert estimator.n_calls - before == 400
    assert len(step.adapted.history.evaluations) == learned_before + 400


def test_a_given_surrogate_is_used_as_it_is():
    X = np.linspace(-2.0, 3.0, 80)[:, None]
    values = -0.5 * ((X[:, 0] - 0.7) / 0.4) ** 2
    surrogate = LogDensityGP(20, rng=0).fit(X, values)
    before = [np.copy(array) for array in surrogate.parameters_]
    with pm.Model():
        pm.Normal("x", 0.7, 0.4, shape=1)
        idata = pm.sample(
            step=kmc.KMC(surrogate=surrogate), tune=150, draws=200, random_seed=10, **ONE_CHAIN
        )
    for array, kept in zip(surrogate.parameters_, before, strict=True):
        np.testing.assert_array_equal(array, kept)
    statistics = idata.sample_stats
    moves = statistics["kmc_move"].values
    on_the_surrogate = np.isin(moves, ON_THE_SURROGATE)
    assert np.all(statistics["kmc_n_fits"] == 0)
    assert not (moves == MoveKind.AUXILIARY).any()
    assert np.mean(on_the_surrogate) > 0.8
    assert statistics["acceptance_rate"].values[on_the_surrogate].mean() > 0.98


def test_no_surrogate_yet_only_random_walks():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KMC(rng=11)
    _, statistics = run(step, model.initial_point(), 70)
    moves = column(statistics, "kmc_move")
    np.testing.assert_array_equal(column(statistics, "kmc_n_fits") > 0, np.arange(70) >= 60)
    assert set(moves[:60]) == {MoveKind.RANDOM_WALK}
    assert set(moves[60:]) != {MoveKind.RANDOM_WALK}


def test_a_fit_knows_the_noise():
    """Two pairs of estimates, 100 iterations apart, before the last fits."""
    with noisy_gaussian(1.0):
        step = kmc.KMC(n_landmarks=30, learn=False, rng=18)
    run(step, {"x": np.array(0.0)}, 400)
    step.stop_tuning()
    variance = step.progress.noise.variance
    assert variance.n_pairs > 1
    assert step.adapted.fits.noise_variance == variance.value


def test_a_chain_on_its_way_learns_nothing_of_what_lies_around():
    """100 standard deviations to go in three dimensions; then it has arrived."""
    with pm.Model():
        pm.Normal("x", shape=3)
        step = kmc.KMC(n_landmarks=30, rng=19)
    point, moves, rising = {"x": np.full(3, 100.0)}, [], []
    for _ in range(400):
        rising.append(step.adapted.is_on_its_way)
        point, (statistics,) = step.step(point)
        moves.append(statistics["kmc_move"])
    moves, rising = np.array(moves), np.array(rising)
    assert not rising[:150].any()  # nobody knows yet
    assert rising[150:].any() and not rising[350:].any()
    around = MoveKind.AUXILIARY, MoveKind.ACTIVE_LEARNING
    assert not np.isin(moves[rising], around).any()
    assert np.isin(moves[~rising], around).any()


def test_random_walks_help_a_poor_surrogate_while_tuning():
    with pm.Model():
        pm.Normal("x", shape=3)
        step = kmc.KMC(n_landmarks=30, rng=20)
    run(step, {"x": np.zeros(3)}, 100)
    adapted = step.adapted

    def share(accepted):
        adapted.transitions.recent[:] = accepted
        return step.random_walk_probability

    usual = kmc_step.TUNING_RANDOM_WALKS
    assert share([0.0] * 19) == usual  # too few
    assert share([0.0] * 20) == usual + kmc_step.MORE_RANDOM_WALKS
    assert usual < share([0.1] * 20) < usual + kmc_step.MORE_RANDOM_WALKS
    assert share([0.2] * 20) == share([0.9] * 20) == usual
    step.stop_tuning()
    exact, usual = kmc_step.RANDOM_WALKS
    for spread, expected in ((0.0, exact), (1.0, usual)):  # the surrogate is that wrong
        weights = adapted.fitted.log_weights._replace(spread=spread)
        adapted.fitted = replace(adapted.fitted, log_weights=weights)
        assert share([0.0] * 20) == pytest.approx(expected)


def test_places_of_active_learning_are_evaluated_and_never_draws():
    with Banana().model():
        step = kmc.KMC(n_landmarks=60, rng=12)
    before, moves = BANANA_START, []
    for point, statistics in iterate(step, BANANA_START, 600):
        moves.append(statistics["kmc_move"])
        if moves[-1] == MoveKind.ACTIVE_LEARNING:
            assert statistics["kmc_n_evaluations"] == 1
            assert not statistics["kmc_accepted"]
            assert point == before
        before = point
    assert 5 < np.sum(np.array(moves) == MoveKind.ACTIVE_LEARNING) < 200
    active_learning = step.adapted.active_learning
    assert active_learning.search_error < 0.99  # not all found what nobody had predicted
    step.stop_tuning()
    assert active_learning.frontier is None
    _, statistics = run(step, before, 100)
    learning = MoveKind.ACTIVE_LEARNING, MoveKind.AUXILIARY
    assert not np.isin(column(statistics, "kmc_move"), learning).any()


def test_active_learning_has_its_share_of_the_iterations():
    """2000 choices: five standard errors."""

    class Ready:
        def search(self, surrogate, rng, edge):
            return np.zeros(surrogate.n_features_in_)

    with Banana().model():
        step = kmc.KMC(n_landmarks=30, rng=16)
    run(step, BANANA_START, 100)
    active_learning = step.adapted.active_learning
    active_learning.frontier, active_learning.search_error = Ready(), 0.5
    share, current = active_learning.share, step.target.recycled
    moves = np.array([step._propose(current).move.kind for _ in range(2000)])
    error = np.sqrt(share * (1 - share) / 2000)
    assert abs(np.mean(moves == MoveKind.ACTIVE_LEARNING) - share) < 5 * error


def test_moves_and_log_weights_follow_the_surrogates_updates():
    """Also where an update changes the surrogate's constant."""
    with Banana().model():
        step = kmc.KMC(n_landmarks=60, rng=13)
    adapted, n_updates, last = step.adapted, 0, None
    for _ in iterate(step, BANANA_START, 500):
        fitted, n_fits = adapted.fitted, adapted.fits.n_fits
        if adapted.active_learning.frontier is None:
            continue
        surrogate, moved = fitted.surrogate, fitted.hamiltonian.parameters
        np.testing.assert_array_equal(moved.coefficients, surrogate.parameters_.coefficients)
        position, log_density = step.target.recycled.position, step.target.recycled.log_density
        weight = log_density - surrogate.log_density(position)
        value = fitted.log_weights(position, log_density)
        assert value == pytest.approx(weight - fitted.log_weights.median, abs=1e-6)
        # Values are predicted, so that the usual log weight is the prediction's constant.
        if last is not None and last[0] == n_fits:
            n_updates += last[1] is not fitted
        last = n_fits, fitted
        if fitted.log_weights.spread < 0.1:
            assert fitted.log_weights.median == pytest.approx(surrogate.constant_, abs=0.5)
    assert n_updates > 3


def funnel_model():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 2.0)
        pm.Normal("y", 0.0, pm.math.exp(x))
    return model


@pytest.fixture(scope="module", params=[Banana().model, funnel_model], ids=["banana", "funnel"])
def tuned(request):
    """A step at the end of its tuning, in bytes; its number of fits; whether it has a warp."""
    with request.param():
        step = kmc.KMC(n_landmarks=60, rng=14)
    with short_sequences():
        _, statistics = run(step, BANANA_START, 700)
    return cloudpickle.dumps(step), statistics[-1]["kmc_n_fits"], request.param is funnel_model


@pytest.mark.parametrize("clearly_worse", [0.0, np.inf])
def test_the_last_fit_is_at_the_end_of_tuning_and_dropped_if_it_is_worse(
    clearly_worse, tuned, monkeypatch
):
    monkeypatch.setattr(kmc_adaptation, "CLEARLY_WORSE", clearly_worse)
    pickled, n_fits, has_warp = tuned
    step = cloudpickle.loads(pickled)
    adapted = step.adapted
    before, transitions = adapted.fitted, adapted.transitions
    as_it_was = snapshot((before.surrogate, before.transitions, before.warp))
    assert (before.warp is IDENTITY) != has_warp
    step.stop_tuning()
    assert adapted.fits.n_fits == n_fits + 1
    after, is_dropped = adapted.fitted, clearly_worse == 0.0
    assert (after.surrogate is before.surrogate) == is_dropped
    assert (after.transitions is before.transitions) == is_dropped
    if is_dropped or after.warp is not IDENTITY:
        assert (after.warp is before.warp) == is_dropped
    assert (adapted.transitions is transitions) == is_dropped
    assert snapshot((before.surrogate, before.transitions, before.warp)) == as_it_was
    # Log weights are those of the surrogate in use and of what the chain has seen since.
    position, log_density = step.target.recycled.position, step.target.recycled.log_density
    place, weight = after.in_coordinates(position, log_density)
    value = after.log_weights(place, weight)
    weight -= after.surrogate.log_density(place)
    assert value == pytest.approx(weight - after.log_weights.median, abs=1e-6)
    expected = after.weighed(*adapted.fits.recent(adapted.history)).log_weights
    assert (after.log_weights.median, after.log_weights.spread) == (
        expected.median,
        expected.spread,
    )


def test_a_surrogate_in_warped_coordinates_learns_between_fits(monkeypatch):
    """Values are taken in where they belong: the log weights stay narrow."""
    frontiers = []

    def remember(*arguments):
        frontiers.append(arguments)
        return Frontier(*arguments)

    Frontier = frontier.Frontier
    monkeypatch.setattr(frontier, "Frontier", remember)
    with funnel_model():
        step = kmc.KMC(n_landmarks=60, rng=15)
    run(step, BANANA_START, 700)
    adapted, fitted = step.adapted, step.adapted.fitted
    assert fitted.warp is not IDENTITY and fitted.log_weights.spread < 0.5
    evaluations = adapted.history.evaluations.last(300)
    places, values = fitted.in_coordinates(evaluations[:, :-1], evaluations[:, -1])
    states = adapted.history.states.last(300)
    log_densities = adapted.history.log_densities.last(300)[:, 0]
    shares = [
        step._random_walk_probability(evaluation(state, log_density))
        for state, log_density in zip(states, log_densities, strict=True)
    ]
    assert np.mean(shares) < 0.15  # .1 where log weights are usual, .7 at most
    adapted._explore(step.target.recycled, True)
    surrogate, states, evaluated = frontiers[-1]
    assert adapted.active_learning.frontier is not None
    assert surrogate is fitted.surrogate
    np.testing.assert_array_equal(evaluated[-300:], places)
    expected = fitted.warp.forward(adapted.history.states.last(300))
    np.testing.assert_array_equal(states[-300:], expected)
    inside = values > np.median(values)
    errors = fitted.surrogate.predict(places) - values
    assert np.sqrt(np.mean(errors[inside] ** 2)) < 0.5
