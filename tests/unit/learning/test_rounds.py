"""Rounds: how many evaluations each makes, and what of many values is kept between fits."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning import convergence
from pymc_kmc.learning import rounds as rounds_module
from pymc_kmc.learning.composite import Composite, Draws, Values
from pymc_kmc.learning.convergence import Round, begin, unchecked, without_refuted
from pymc_kmc.learning.emulator import MANY_ROWS, SEARCH_AGAIN, NodeEmulator
from pymc_kmc.learning.modes import Mode
from pymc_kmc.learning.placing import OptimisticDraws, bounds_of, new_places, starts_of
from pymc_kmc.learning.rounds import (
    COOLING,
    LARGEST_BATCH,
    MANY_GAPS,
    PATIENCE,
    Rounds,
    hottest,
)
from pymc_kmc.model.structure import OpaqueNode
from pymc_kmc.surrogates.exact_gp import ExactGP
from tests.evaluations import evaluations_of
from tests.opaque_numbers import number, opaque

TERM = OpaqueNode(
    "term", 1, True, False, slice(0, 2), slice(0, 1), np.arange(2), (), slice(0, 1), np.ones(1)
)


@pytest.mark.parametrize(
    ("d", "n_nodes", "n", "expected"),
    [(3, 1, 20, 8), (8, 1, 250, 8), (8, 1, 500, 15), (50, 1, 100, 25), (50, 1, 5000, 32)]
    + [(2, 20, 100, 10), (2, 100, 100, 32), (50, 2, 100, 25)],
)
def test_batches_grow_with_what_is_to_be_learned(d, n_nodes, n, expected):
    """Many nodes of two dimensions need no more than one does, but for the error of their sum."""
    node = TERM._replace(moves_with=np.arange(d))
    settings = {"n_dimensions": d * n_nodes, "has_small_nodes": False, "n_parallel": 1}
    model = SimpleNamespace(nodes=n_nodes * [node], **settings)
    # A search's evaluations, thousands of nats deep, are no reason for more.
    deep = -1e4 * np.ones(3000)
    values = np.concatenate([-0.5 * (np.arange(n) % 5), deep])
    evaluations = SimpleNamespace(log_densities=values)
    assert Rounds(model, None, 0.3, None).n_next(evaluations) == expected <= LARGEST_BATCH
    assert Rounds(model, 6, 0.3, None).n_next(evaluations) == 6


@pytest.mark.parametrize(("n", "expected"), [(1000, 64), (60, 30), (10, 8)])
def test_batches_grow_with_workers_as_far_as_evaluations_do(n, expected):
    settings = {"n_dimensions": 2, "has_small_nodes": False, "n_parallel": 64}
    model = SimpleNamespace(nodes=[TERM], **settings)
    evaluations = SimpleNamespace(log_densities=np.append(np.zeros(1), -1e4 * np.ones(n - 1)))
    assert Rounds(model, None, 0.3, None).n_next(evaluations) == expected


# Of 32 draws: what is known of their log densities, and what opaque terms add.
KNOWN, TERMS = np.linspace(-4.0, 0.0, 32), np.linspace(-5.0, 0.0, 32)


def new_starts(known, terms, temperature, is_first=False, is_sum=True):
    """Starts of chains at points 0, 1, 2, ... with these parts of their log densities."""
    draws = 100.0 + np.arange(32.0)[:, None]

    def log_density(X, outputs):
        return KNOWN + outputs.sum(axis=1), None, None

    model = SimpleNamespace(
        nodes=[TERM],
        is_sum=is_sum,
        log_density=log_density,
        emulated=lambda returned: returned,
    )

    class Known:
        def __init__(self):
            self.model = model

        def __call__(self, X, T, penalty):
            np.testing.assert_array_equal(X, draws)
            return SimpleNamespace(penalised=KNOWN + TERMS / T, mean=KNOWN + TERMS)

    X = np.arange(float(len(known)))[:, None]
    outputs = np.array(terms)[:, None]
    evaluations = evaluations_of(X, outputs, np.array(known) + np.array(terms))
    state = begin(evaluations, draws, np.eye(1), temperature)
    if not is_first:
        state = state._replace(composite=object())
    starts = starts_of(state, Known(), 32, np.random.default_rng(0))[:, 0]
    assert len(starts) == 32
    kept = starts[starts >= 100]
    assert len(np.unique(kept)) == len(kept)
    return set(starts[starts < 100])


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_chains_do_not_begin_again_in_a_neck(temperature):
    """Points above all draws by what is known, the prior: a search's end, with hardly any mass."""
    known, terms = [50.0, -1.0, -60.0], [-3.0, -2.0, 0.0]
    assert new_starts(known, terms, temperature) == {1.0}
    assert new_starts(known, terms, temperature, is_first=True) == {0.0}
    # Nothing is known of what isn't a sum.
    assert new_starts(known, terms, temperature, is_sum=False) == {0.0}


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_chains_begin_at_a_mode_that_draws_have_missed(temperature):
    assert new_starts([0.5, -1.0], [40.0, -2.0], temperature) == {0.0}


def test_chains_all_go_on_from_the_last_draws_where_there_is_nothing_else():
    assert new_starts([-np.inf, 50.0, -np.inf], [0.0, -3.0, 0.0], 1.0) == set()


def test_draws_in_many_dimensions_are_not_far_below_the_compression():
    """In 50 dimensions 1000 evaluations at temperature 50 told next to nothing."""
    model = SimpleNamespace(nodes=[TERM], n_dimensions=50, has_small_nodes=False)
    assert hottest(model, ()) == 6.0


def test_draws_stay_near_modes_that_searches_have_found():
    """Errors grow with the temperature, and it with them: two of eight chains left for good."""
    model = SimpleNamespace(nodes=[TERM], n_dimensions=8, has_small_nodes=False)
    assert hottest(model, ()) == 50.0
    assert hottest(model, (object(),)) == 3.0


@pytest.mark.parametrize("are_small", [True, False])
def test_errors_at_uncertain_places_of_many_small_nodes_do_not_make_learning_hopeless(are_small):
    model = SimpleNamespace(
        nodes=[TERM], n_dimensions=50, has_small_nodes=are_small, returns_outputs=True
    )
    rounds = Rounds(model, None, 0.3, None)
    none = np.zeros(0)
    rounds.history = [Round(8, 1.0, 0.2, 5.0, 4, none, none)] * PATIENCE
    assert rounds.is_hopeless != are_small
    rounds.history = [Round(8, 1.0, 0.4, 0.1, 4, none, none)] * PATIENCE
    assert rounds.is_hopeless


@pytest.fixture
def known():
    """Rounds on a Gaussian that is known exactly, and their state after one with small errors."""
    rng = np.random.default_rng(0)
    model = opaque(number(lambda x: -0.5 * x @ x))
    evaluations = model.evaluate(1.5 * rng.standard_normal((40, 2)))
    draws = rng.standard_normal((64, 2))
    state = begin(evaluations, draws, np.eye(2), 1.0, [Mode(np.zeros(2), 0.0, np.eye(2))])
    return Rounds(model, None, 0.3, rng), state._replace(n_converged_rounds=1)


@pytest.mark.parametrize(
    ("gap", "error", "missed", "n_converged"),
    [(0.0, 0.0, 0.0, 2), (9.0, 0.0, 0.0, 1), (0.0, 5.0, 0.0, 1), (9.0, 5.0, 5.0, 0)],
)
def test_what_has_no_mass_says_nothing_of_an_end(
    monkeypatch, known, gap, error, missed, n_converged
):
    """Gaps and errors where no mass is don't count; errors where mass is begin anew."""
    rounds, state = known

    def optimistic_draws(composite, draws, factor, rng, maps):
        return OptimisticDraws(draws, np.zeros((0, 2)), gap)

    def errors(values, predicted, heights):
        return np.full(len(values), error), np.full(len(values), missed)

    monkeypatch.setattr(rounds_module, "optimistic_draws", optimistic_draws)
    monkeypatch.setattr(convergence, "errors_in_reach", errors)
    after = rounds.next(state)
    assert after.n_converged_rounds == n_converged
    assert type(after.n_converged_rounds) is int


@pytest.mark.parametrize(("n_gaps", "is_far"), [(0, False), (MANY_GAPS - 1, True)])
def test_gaps_that_stay_are_looked_into_far_away(monkeypatch, known, n_gaps, is_far):
    """One place too uncertain for the usual ones is evaluated then, and may be far off."""
    rounds, state = known

    def optimistic_draws(composite, draws, factor, rng, maps):
        return OptimisticDraws(draws, np.array([[70.0, 80.0], [60.0, 60.0]]), 9.0)

    monkeypatch.setattr(rounds_module, "optimistic_draws", optimistic_draws)
    after = rounds.next(state._replace(n_gaps=n_gaps))
    assert after.n_gaps == n_gaps + 1
    new = after.evaluations.X[len(state.evaluations) :]
    assert np.sum(np.all(new == [70.0, 80.0], axis=1)) == int(is_far)
    # Nothing is uncertain here: the same place is the most uncertain one again, and evaluated once.
    assert 4 < len(new) <= 8 and len(np.unique(new, axis=0)) == len(new)
    assert np.abs(new[:4]).max() < 10.0  # those at fresh draws are the first
    monkeypatch.setattr(
        rounds_module, "optimistic_draws", lambda *a: OptimisticDraws(a[1], np.zeros((0, 2)), 0.0)
    )
    assert rounds.next(after._replace(temperature=1.0)).n_gaps == 0


@pytest.mark.parametrize(("n_parallel", "n_rounds"), [(1, 1), (8, 1), (16, 2), (32, 4)])
def test_a_round_of_many_at_once_stands_for_many(monkeypatch, known, n_parallel, n_rounds):
    """It cools as far as they do, counts for two of three, and looks where they look."""
    rounds, state = known
    monkeypatch.setattr(type(rounds.model), "n_parallel", n_parallel)
    monkeypatch.setattr(rounds_module, "SHARE_AT_ONCE", 1.0)
    state = state._replace(n_converged_rounds=0, modes=())
    after = rounds.next(state._replace(temperature=50.0))
    # The first fit is off by less than a hundredth of a nat.
    assert np.isclose(after.temperature, max(50.0 * COOLING[0] ** n_rounds, 1.0))
    gaps, beyond = [0.0, 9.0], np.linspace(60.0, 70.0, 64)[:, None] * np.ones(2)

    def optimistic_draws(composite, draws, factor, rng, maps):
        return OptimisticDraws(draws, beyond, gaps.pop(0))

    monkeypatch.setattr(rounds_module, "optimistic_draws", optimistic_draws)
    after = rounds.next(state)
    assert after.n_converged_rounds == min(n_rounds, 2)
    n_gaps = -(-MANY_GAPS // n_rounds)
    after = rounds.next(state._replace(n_gaps=n_gaps - 1))
    far = np.flatnonzero(after.evaluations.X[:, 0] > 50.0)
    assert len(far) == n_rounds
    np.testing.assert_array_equal(after.evaluations.X[far], beyond[:: 64 // n_rounds])


def test_an_executor_begins_with_fresh_draws_while_other_places_are_looked_for(monkeypatch, known):
    rounds, state = known
    model, looked, begun = rounds.model, [], []

    def optimistic_draws(composite, draws, factor, rng, maps):
        looked.append(len(begun))
        return OptimisticDraws(draws, np.zeros((0, 2)), 0.0)

    monkeypatch.setattr(rounds_module, "optimistic_draws", optimistic_draws)
    monkeypatch.setattr(type(model), "runs_ahead", True)
    monkeypatch.setattr(model, "begin", begun.append)
    new = rounds.next(state).evaluations.X[len(state.evaluations) :]
    assert looked == [1]
    np.testing.assert_array_equal(*begun, new[:4])
    assert len(new) == 8


@pytest.mark.parametrize(("own", "n_front"), [(0.1, 4), (10.0, 0)])
def test_half_of_noisy_places_are_where_mass_cant_be_excluded(own, n_front, monkeypatch, known):
    """As soon as the draws are known, however far from all of these."""
    rounds, state = known
    composite = rounds.fit(state.evaluations, state.draws)
    drawn = rounds._draw(state, composite)
    values = drawn.draws.values._replace(variance=np.full(len(drawn.draws.X), own**2))
    drawn = drawn._replace(draws=drawn.draws._replace(values=values))

    def optimistic_draws(composite, draws, factor, rng, maps):
        return OptimisticDraws(draws._replace(X=draws.X + 1e3), np.zeros((0, 2)), 0.0)

    monkeypatch.setattr(rounds_module, "optimistic_draws", optimistic_draws)
    monkeypatch.setattr(Rounds, "noise", 1.0)
    monkeypatch.setattr(rounds.model, "is_noisy", True)
    plan = rounds._plan(state._replace(temperature=1.0), composite, drawn)
    are_there = plan.X[:, 0] > 500.0
    assert len(plan.X) == 8 and are_there.sum() == n_front
    assert plan.n_fresh == 8 - n_front and not are_there[: plan.n_fresh].any()


@pytest.mark.parametrize(("has_modes", "temperature"), [(True, 3.0), (False, 4.0)])
def test_errors_heat_up_to_a_bound_where_there_are_modes(known, has_modes, temperature):
    rounds, state = known
    state = state._replace(temperature=2.5, modes=state.modes if has_modes else ())

    def evaluate(X):
        outputs = -1e3 * (np.arange(len(X)) % 2.0)[:, None]
        return evaluations_of(X, outputs, rounds.model.values(X, outputs))

    rounds.model.evaluate = evaluate
    assert rounds.next(state).temperature == temperature


def fitted(emulator, n, rng):
    X = rng.standard_normal((n, 2))
    values = -0.5 * X[:, 0] ** 2 - np.sin(X[:, 1]) ** 2
    draws = rng.standard_normal((64, 2)) * rng.uniform(0.5, 2.0)
    return emulator.fit(evaluations_of(X, values[:, None], values), draws, draws)


def test_parameters_of_many_values_are_kept_until_there_are_more():
    rng, emulator = np.random.default_rng(0), NodeEmulator(TERM, grows=True)
    first = fitted(emulator, MANY_ROWS + 10, rng).process
    kept = fitted(emulator, MANY_ROWS + 20, rng).process
    assert kept.hyperparameters_ is first.hyperparameters_
    np.testing.assert_array_equal(kept.whitening, first.whitening)
    # What is kept are parameters: the factor is that of all values.
    fresh = ExactGP(kept.whitening, kept.centre)
    fresh.given(kept.Z_, kept.Y_, kept.noise_, first.hyperparameters_)
    np.testing.assert_array_equal(kept.inverse_factor_, fresh.inverse_factor_)
    assert len(kept.Y_) == MANY_ROWS + 20
    X = rng.standard_normal((20, 2))
    expected = -0.5 * X[:, 0] ** 2 - np.sin(X[:, 1]) ** 2
    assert np.abs(emulator.predict(X, X).outputs[:, 0] - expected).max() < 0.1
    again = fitted(emulator, int(SEARCH_AGAIN * (MANY_ROWS + 10)) + 1, rng).process
    assert again.hyperparameters_ is not first.hyperparameters_


@pytest.mark.parametrize(("n", "grows"), [(MANY_ROWS - 20, True), (MANY_ROWS + 10, False)])
def test_parameters_of_few_values_are_sought_each_time(n, grows):
    rng, emulator = np.random.default_rng(0), NodeEmulator(TERM, grows=grows)
    first = fitted(emulator, n, rng).process
    assert fitted(emulator, n + 5, rng).process.hyperparameters_ is not first.hyperparameters_


@pytest.mark.one_line
@pytest.mark.exactness
def test_many_dimensions_are_learned_from_little_more_than_a_quadratic_has_coefficients():
    """Searches to the end alone take 500 evaluations and more."""
    d = 16
    variances = np.geomspace(0.05, 5.0, d)
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))

    def log_density(x):
        return -0.5 * np.sum((Q @ x) ** 2 / variances)

    with pm.Model():
        x = pm.Flat("x", shape=d)
        pm.Potential("p", kmc.BlackBox("log density", log_density, x))
        learned = kmc.learn(progressbar=False)
    assert learned.has_converged
    assert learned.n_evaluations < 2.5 * (d + 1) * (d + 2) // 2
    z = learned.positions @ Q.T / np.sqrt(variances)
    # 2048 nearly independent draws: z of 5 is .11 standard deviations.
    assert np.abs(z.mean(axis=0)).max() < 0.15
    assert np.abs(np.log(z.std(axis=0))).max() < 0.15


def noisy_bell(noise):
    def estimate(x, rng):
        return -0.5 * np.sum(x**2) + rng.normal(0.0, noise)

    return opaque(number(estimate, 2, kmc.PseudoMarginalPotential))


def places(n):
    """Places at which a bell is some nats deep, and as many where it is hundreds of nats deep."""
    rng = np.random.default_rng(0)
    return np.vstack([rng.standard_normal((n, 2)), rng.choice([-30.0, 30.0], (n, 2))])


@pytest.mark.parametrize(("noise", "n_fitted"), [(1.0, 60), (0.01, 120)])
def test_rounds_leave_deep_values_out_where_noise_is_averaged(noise, n_fitted):
    model, X = noisy_bell(noise), places(60)
    rounds = Rounds(model, None, 0.3, np.random.default_rng(0))
    evaluations = model.evaluate(X)
    # What the noise is isn't known before.
    assert [len(e.process.Z_) for e in rounds.fit(evaluations, X[:60]).emulators] == [120]
    assert [len(e.process.Z_) for e in rounds.fit(evaluations, X[:60]).emulators] == [n_fitted]


@pytest.mark.parametrize(("n_converged", "pace", "n_new"), [(1, 1, 8), (1, 2, 16), (2, 1, 16)])
def test_estimates_made_twice_bound_the_noise(n_converged, pace, n_new, monkeypatch):
    """A round that might end learning makes two at each place: the bell has noise of .5, not 3."""
    monkeypatch.setattr(rounds_module, "noise_of", lambda emulators: 3.0)
    monkeypatch.setattr(rounds_module, "pace_of", lambda n, model: pace)
    model, X = noisy_bell(0.5), np.random.default_rng(0).standard_normal((60, 2))
    rounds = Rounds(model, None, 0.3, np.random.default_rng(1))
    state = begin(model.evaluate(X), X, np.eye(2), 1.0)
    new = rounds.next(state._replace(n_converged_rounds=n_converged)).evaluations.X[60:]
    assert len(new) == n_new
    assert len(rounds.history[-1].predicted) == n_new
    if n_new == 8:
        assert rounds.noise == 3.0
    else:
        np.testing.assert_allclose(new[8:], new[:8], atol=1e-4)
        assert 0.25 < rounds.noise < 1.5


@pytest.mark.parametrize("depth", [1.0, 500.0])
def test_under_noise_what_is_far_below_the_draws_is_no_reason_to_go_on(depth):
    """Places that tell most are far apart: errors there are no errors at draws."""
    model, X = noisy_bell(1.0), places(60)
    rounds = Rounds(model, None, 0.3, np.random.default_rng(0))
    evaluations = model.evaluate(X[:60])
    composite = rounds.fit(evaluations, X[:60])
    draws = Draws(X[:60], composite(X[:60]), 0.5)
    values = np.where(np.arange(30) % 2, -depth, -depth - 20.0)
    last = replace(evaluations[:30], log_densities=values)
    # Predicted to be alike.
    predicted = np.full(10, -depth - 10.0)
    rounds.history = [Round(90, 1.0, 10.0, 10.0, 10, predicted, np.ones(10))] * 3
    state = begin(evaluations.joined(last), X[:60], np.eye(2), 1.0)
    state = state._replace(errors=3 * (np.tile([-10.0, 10.0], 5),), composite=composite)
    assert rounds.is_close(state, composite, draws, np.eye(2)) == (depth == 500.0)


@pytest.mark.parametrize(
    ("errors", "is_close"), [((1.7, 0.2, 1.0), True), ((0.2, 1.9, 0.2), False)]
)
def test_errors_at_uncertain_places_are_a_reason_to_go_on(known, errors, is_close):
    """Twice what is small enough, .9 nats there, in each of the last three rounds."""
    rounds, state = known
    composite = rounds.fit(state.evaluations, state.draws)
    draws = Draws(state.draws, composite(state.draws), 0.5)
    none = np.zeros(8)
    rounds.history = [Round(40, 1.0, 0.1, 5.0, 4, none, none)]
    rounds.history += [Round(40, 1.0, 0.1, error, 4, none, none) for error in errors]
    state = state._replace(errors=4 * (np.full(4, 0.1),), composite=composite)
    assert rounds.is_close(state, composite, draws, np.eye(2)) == is_close


def test_draws_are_left_out_where_mass_was_refuted():
    """A chain went where the emulators were wrong; they know better now, and it is stuck there."""
    draws = np.append(np.linspace(-1.0, 1.0, 40), 50.0)[:, None]

    def composite(X, T):
        return SimpleNamespace(penalised=-0.5 * X[:, 0] ** 2)

    state = begin(None, draws, np.eye(1), 1.0)
    assert len(without_refuted(state, composite, 16).draws) == 41  # nothing was drawn yet
    state = state._replace(composite=object())
    assert without_refuted(state, composite, 16).draws.max() == 1.0
    # Most are far down: they are on their way.
    state = state._replace(draws=np.append(50.0 + np.arange(30.0), 0.0)[:, None])
    assert len(without_refuted(state, composite, 16).draws) == 31


def test_draws_far_from_all_that_was_evaluated_are_unchecked():
    """One evaluated place below has no mass, and says nothing."""
    draws = np.concatenate([np.linspace(-1.0, 1.0, 95), np.full(5, -8.0)])[:, None]
    heights = -0.5 * np.clip(draws[:, 0], -1.0, 1.0) ** 2
    values = Values(heights, np.zeros_like(draws), heights, *np.zeros((3, 100)))
    places, log_densities = np.array([[-0.9], [0.2], [0.9], [-8.0]]), np.array([-0.4, 0, -0.4, -50])
    evaluations = SimpleNamespace(X=places, log_densities=log_densities)
    model = SimpleNamespace(periods=np.array([np.inf]), has_small_nodes=False)
    found = unchecked(Draws(draws, values, 1.0), evaluations, model)
    assert found.sum() == 5 and found[-5:].all()


def test_places_of_the_prior_that_nobody_looked_at():
    """Four of them in all, with much of the prior about them, and not in the last hundredth."""
    prior = np.random.default_rng(0).normal(0.0, 10.0, (256, 1))
    rounds = Rounds(noisy_bell(1.0), None, 0.3, np.random.default_rng(0), prior)
    known = np.array([[-40.0], [0.0]])
    first = rounds.unseen(SimpleNamespace(X=known), 1)
    known = np.vstack([known, first])
    second = rounds.unseen(SimpleNamespace(X=known), 4)
    shares = [np.mean(prior <= place) for place in np.sort([*first[:, 0], *second[:, 0]])]
    np.testing.assert_allclose(shares, [0.25, 0.375, 0.75, 0.99], atol=0.02)
    assert len(rounds.unseen(SimpleNamespace(X=known), 1)) == 0


def test_fits_that_lose_the_mass_of_an_evaluation_are_told():
    """One that has mass where an evaluation says there is none is told apart."""
    X, values = np.zeros((4, 1)), np.array([0.0, -3.0, -9.0, -50.0])
    evaluations = SimpleNamespace(X=X, log_densities=values)
    rounds = Rounds(noisy_bell(1.0), None, 0.3, np.random.default_rng(0))
    rounds.emulators = []

    def misjudged(predicted, lowest=-3.5, feasible=1.0):
        def composite(X):
            heights = np.array(predicted) if X is evaluations.X else np.array([0.0, lowest])
            log_feasible = np.full(len(X), np.log(feasible))
            none = np.zeros(len(X))
            return Values(heights, None, heights, none, log_feasible, none)

        overrated, loses_mass = rounds._misjudged(evaluations, composite, np.zeros((2, 1)))
        return np.flatnonzero(overrated).tolist(), loses_mass

    assert misjudged([0.0, -3.1, -30.0, -8.0]) == ([], False)
    assert misjudged([0.0, -3.0, -5.0, -4.0]) == ([2, 3], False)
    assert misjudged([0.0, -4.5, -9.0, -50.0]) == ([], True)
    assert misjudged([0.0, -4.5, -9.0, -50.0], lowest=-2.5) == ([], False)
    # What is next to an edge is in doubt. Learning never ended.
    assert misjudged([0.0, -3.1, -9.0, -50.0], feasible=0.3) == ([], False)
    assert misjudged([0.0, -3.1, -9.0, -50.0], feasible=0.03) == ([], True)


def test_a_place_that_is_known_is_not_evaluated_again(known):
    rounds, state = known
    X, new = state.evaluations.X, np.array([[7.0, 7.0]])
    places, n_fresh = new_places(np.vstack([X[:2], new, X[:1], new]), 3, state, rounds.rng)
    np.testing.assert_array_equal(places, new)
    assert n_fresh == 1
    # Where no chain has moved, all are new, and none is a draw.
    moved, n_fresh = new_places(X[:3], 2, state, rounds.rng)
    assert (state.evaluations.rows(moved) == -1).all()
    assert n_fresh == 0


def test_chains_that_have_not_moved_tell_of_no_error(monkeypatch, known):
    """Errors at known places are 0, and learning would end."""
    rounds, state = known
    composite = rounds.fit(state.evaluations, state.draws)
    stuck = Draws(state.evaluations.X, None, 0.5)
    monkeypatch.setattr(rounds_module, "draw", lambda composite, starts, *_, **__: stuck)
    monkeypatch.setattr(Draws, "rows", lambda self, rows: self)
    monkeypatch.setattr(rounds_module, "in_place", lambda draws, n: draws.X)
    assert len(rounds._draw(state, composite).fresh) == 0


def test_there_is_no_mass_farther_from_the_prior_than_it_is_wide(known):
    rounds, state = known
    assert rounds.fit(state.evaluations, state.draws).bounds is None  # no prior
    rounds.prior = np.array([[-1.0, -2.0], [1.0, 4.0]])
    composite = rounds.fit(state.evaluations, state.draws)
    np.testing.assert_array_equal(composite.bounds, [[-3.0, -8.0], [3.0, 10.0]])
    np.testing.assert_array_equal(composite.on_all_turns.bounds, composite.bounds)
    X = np.array([[2.9, 0.0], [3.1, 0.0], [0.0, -8.1]])
    for values in (composite(X), composite(X, 5.0, penalty=0.0), composite.optimistic(X)):
        np.testing.assert_array_equal(np.isfinite(values.penalised), [True, False, False])
        assert np.isfinite(values.gradient).all()


def test_angles_have_whole_turns(known):
    """With half a turn at an end draws were more often on one half of the circle."""
    rounds, state = known
    rounds.prior = np.array([[-1.0, -2.0], [1.0, 2.5]])
    angles, lines = np.array([np.inf, 2.0 * np.pi]), np.full(2, np.inf)
    best = replace(state.evaluations[:1], X=np.zeros((1, 2)))
    np.testing.assert_allclose(
        bounds_of(rounds.prior, best, angles), [[-3.0, -3.0 * np.pi], [3.0, 3.0 * np.pi]]
    )
    np.testing.assert_allclose(
        bounds_of(rounds.prior, replace(best, X=np.array([[0.0, 8.0]])), angles)[1],
        [3.0, 5.0 * np.pi],
    )
    np.testing.assert_allclose(bounds_of(rounds.prior, best, lines)[1], [3.0, 7.0])
    composite = rounds.fit(state.evaluations, state.draws)
    model = SimpleNamespace(periods=angles)
    turned = Composite(model, composite.emulators, None, composite.bounds).on_all_turns
    np.testing.assert_array_equal(turned.bounds, [[-3.0, -np.inf], [3.0, np.inf]])
    assert Composite(model, composite.emulators).on_all_turns.bounds is None


def test_a_model_may_raise_where_nobody_has_looked(known):
    """Learning leaves the place out; elsewhere the user's error is raised."""
    rounds, _ = known

    def evaluate(X):
        if (X[:, 0] > 3.0).any():
            raise ZeroDivisionError("too steep")
        return len(X)

    rounds.model = SimpleNamespace(evaluate=evaluate)
    X = np.array([[0.5, 0.5], [4.0, 0.0], [1.0, 0.0]])
    plan, new = rounds._evaluated(convergence.RoundPlan(X, 1, 0, True, 0, X[1:2]))
    np.testing.assert_array_equal(plan.X, X[[0, 2]])
    assert new == 2
    with pytest.raises(ZeroDivisionError, match="too steep"):
        rounds._evaluated(plan._replace(X=X + 0.1))
