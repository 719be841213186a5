"""How long sequences on a surrogate are: learned without the target, within a budget."""

import numpy as np
import pytest

from pymc_kmc.adaptation import transitions
from pymc_kmc.adaptation.transitions import (
    ADDITIVE_SIZE,
    BUDGET,
    GRADIENT_OVERHEAD,
    LARGEST_JUMP,
    MOST_DECORRELATION,
    MOST_TRANSITIONS,
    N_SIMULATED,
    JumpScale,
    acceptance,
    learn_step_size,
    learn_transitions,
    whitened_hamiltonian,
)
from pymc_kmc.dynamics import Metric, SurrogateHamiltonian, transition_sequence
from pymc_kmc.moves.transitions import KINDS
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.surrogates import KernelExpLite, LogDensityGP
from pymc_kmc.surrogates.lite import LiteParameters
from tests.bananas import Banana

BANANA = Banana(spread=1.0, bend=0.5)
LONGEST = KINDS[-1]


def sequence(moves, position, size, rng):
    numbers = size.numbers(moves)
    return transition_sequence(moves.hamiltonian, position, moves.step_size, *numbers, rng)


@pytest.fixture(scope="module")
def fitted():
    X = BANANA.draws(300, np.random.default_rng(1))
    surrogate = LogDensityGP(80, rng=0).fit(X, BANANA.log_density(X), reference=X)
    return surrogate, X


def learned(surrogate, X, seed):
    return learn_transitions(whitened_hamiltonian(surrogate), X, np.random.default_rng(seed))


@pytest.fixture(scope="module")
def moves(fitted):
    return learned(*fitted, seed=1)


def test_what_is_learned_is_sensible(moves):
    assert 0.1 < moves.step_size < 2.0
    assert moves.n_steps >= 2
    assert moves.n_transitions > 5
    jumps = np.array([moves.jump(size) for size in KINDS])
    assert np.all((jumps > 0) & (jumps <= 1))
    assert np.argmax(jumps) == 3
    assert jumps[0] < jumps[1]  # .3 of the steps


def test_the_same_generator_gives_the_same_lengths_and_sequences(fitted, moves):
    _, X = fitted
    first, second = learned(*fitted, seed=8), learned(*fitted, seed=8)
    assert first[1:] == second[1:]
    first, second = (sequence(moves, X[0], LONGEST, np.random.default_rng(9)) for _ in range(2))
    np.testing.assert_array_equal(first.position, second.position)
    assert first[1:] == second[1:]


@pytest.mark.parametrize("kind", ["gaussian", "two modes", "heavy tails"])
def test_independent_ends_need_the_shortest_sequences(monkeypatch, fitted, kind):
    """Capped jumps of independent ends are below 1; squares that are constant don't jump at all."""
    rng = np.random.default_rng(18)
    states = rng.standard_normal((400, 2))
    if kind == "two modes":
        states[:, 0] = np.repeat([-1.0, 1.0], 200)
        states[:200, 1] = states[200:, 1]  # uncorrelated, so that the squares are constant
    if kind == "heavy tails":
        states = rng.standard_t(3, (400, 2))

    def independent(hamiltonian, whitening, *rest):
        return whitening.independent_jumps(states)

    monkeypatch.setattr(transitions, "_mean_jumps", independent)
    rate = -np.log1p(-LARGEST_JUMP) / N_SIMULATED
    surrogate, _ = fitted
    assert learned(surrogate, states, seed=19).n_transitions == np.ceil(MOST_DECORRELATION / rate)


def test_a_sequence_ends_at_the_decorrelation_that_is_asked_for(fitted):
    surrogate, X = fitted
    hamiltonian = whitened_hamiltonian(surrogate)
    half, whole = (
        learn_transitions(hamiltonian, X, np.random.default_rng(3), most_decorrelation=each)
        for each in (MOST_DECORRELATION / 2, MOST_DECORRELATION)
    )
    assert (half.decorrelation, whole.decorrelation) == (MOST_DECORRELATION / 2, MOST_DECORRELATION)
    assert half.n_transitions == pytest.approx(whole.n_transitions / 2, abs=1)


def mean_number_of_steps(moves, position, seed=15):
    rng = np.random.default_rng(seed)
    return np.mean([sequence(moves, position, LONGEST, rng).n_steps for _ in range(50)])


@pytest.mark.parametrize("n_landmarks", [1, 80])
def test_a_sequence_costs_no_more_than_its_budget(n_landmarks):
    X = np.random.default_rng(13).standard_normal((200, 3))
    values = np.sin(2 * X).sum(axis=1) - 0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(n_landmarks, rng=0).fit(X, values, reference=X)
    moves = learned(surrogate, X, seed=14)
    assert [size.numbers(moves)[0] for size in KINDS[:2]] == [1, 1]
    assert LONGEST.numbers(moves) == (moves.n_transitions, moves.n_steps)
    assert moves.n_transitions <= MOST_TRANSITIONS
    m = len(surrogate.parameters_.coefficients)
    assert mean_number_of_steps(moves, X[0]) * (3 * (m + 3) + GRADIENT_OVERHEAD) < 1.1 * BUDGET


def test_functions_of_single_coordinates_are_in_the_budget(monkeypatch):
    budget = 100_000  # one that bounds sequences on so small a surrogate
    monkeypatch.setattr(transitions, "BUDGET", budget)
    rng = np.random.default_rng(16)
    X = rng.standard_normal((600, 4))
    values = np.sin(2 * X).sum(axis=1) - 0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(10, rng=0).fit(X, values, reference=X)
    p = surrogate.parameters_
    assert p.additive_coefficients.size > 0
    size = 4 * (p.coefficients.size + 4) + ADDITIVE_SIZE * p.additive_coefficients.size
    moves = learned(surrogate, X, seed=17)
    assert mean_number_of_steps(moves, X[0]) * (size + GRADIENT_OVERHEAD) < 1.1 * budget


def test_the_hamiltonian_is_the_surrogate_in_coordinates_that_whiten_it(fitted):
    surrogate, X = fitted
    hamiltonian = whitened_hamiltonian(surrogate)
    p = surrogate.parameters_
    np.testing.assert_allclose(hamiltonian.coordinates.matrix, p.whitening)
    assert not np.allclose(p.whitening, np.eye(2))
    np.testing.assert_array_equal(hamiltonian.metric.inverse, np.eye(2))
    for x in X[:10]:
        assert hamiltonian.log_density(x) == pytest.approx(surrogate.log_density(x), abs=1e-9)


def test_a_surrogate_without_coordinates_of_its_own_is_taken_in_the_given_ones(fitted):
    _, X = fitted
    surrogate = KernelExpLite(4.0, 1.0, base="gaussian").fit(X)
    hamiltonian = whitened_hamiltonian(surrogate)
    assert hamiltonian.parameters is surrogate.parameters_
    np.testing.assert_array_equal(hamiltonian.coordinates.forward(X), X)


def test_follow_a_surrogate_that_has_learned_more(fitted, moves):
    surrogate, X = fitted
    place = np.array([3.0, 5.0])
    updated = surrogate.updated(place, float(BANANA.log_density(place)))
    following = moves.following(updated)
    assert following[1:] == moves[1:]

    def drop(density):
        return density.log_density(X[0]) - density.log_density(place)

    assert drop(following.hamiltonian) == pytest.approx(drop(updated))
    assert drop(moves.hamiltonian) == pytest.approx(drop(surrogate))
    assert abs(drop(updated) - drop(surrogate)) > 0.1


# Step size


def gaussian(sd):
    """A surrogate that is its base density, N(0, diag(sd^2)), and states of it."""
    d = len(sd)
    parameters = LiteParameters(
        np.zeros((d, 1)), np.zeros(1), 1.0, np.zeros(d), np.diag(1.0 / np.square(sd))
    )
    states = sd * np.random.default_rng(0).standard_normal((500, d))
    return SurrogateHamiltonian(parameters, Coordinates.identity(d)), states


def test_step_size_follows_the_narrowest_direction():
    rng = np.random.default_rng(1)
    sizes = [
        learn_step_size(*gaussian(np.array([scale, 3 * scale, 10 * scale])), 0.9, rng)
        for scale in (0.1, 1.0)
    ]
    assert 5 < sizes[1] / sizes[0] < 20
    assert 0.3 < sizes[1] < 2.0  # the leapfrog is stable below 2


def test_higher_target_smaller_step():
    rng = np.random.default_rng(2)
    hamiltonian, states = gaussian(np.ones(8))
    low, high = (learn_step_size(hamiltonian, states, a, rng) for a in (0.6, 0.99))
    assert high < 0.7 * low


def test_acceptance_of_a_divergence_is_zero():
    values = acceptance(np.array([np.nan, np.inf, -1.0, 0.0, 1.0]))
    np.testing.assert_allclose(values, [0.0, 0.0, 1.0, 1.0, np.exp(-1.0)])


# A single trajectory: a sequence of one transition


def trajectory(hamiltonian, states, seed, **given):
    return learn_transitions(hamiltonian, states, np.random.default_rng(seed), 0, **given)


def test_length_follows_the_widest_direction():
    short = trajectory(*gaussian(np.array([1.0, 1.0])), seed=3, step_size=0.5)
    long = trajectory(*gaussian(np.array([1.0, 10.0])), seed=3, step_size=0.5)
    assert short.n_transitions == long.n_transitions == 1
    assert short.n_steps <= 12
    assert long.n_steps >= 24


def test_a_metric_undoes_different_widths():
    """With the covariance as inverse metric all directions are alike.

    Unstable trajectories, of which there are some, blow rounding errors up.
    """
    sd = np.array([0.1, 1.0, 30.0])
    hamiltonian, states = gaussian(sd)
    alike = SurrogateHamiltonian(
        hamiltonian.parameters, hamiltonian.coordinates, Metric(np.diag(sd**2))
    )
    scaled = trajectory(alike, states, seed=4)
    plain = trajectory(*gaussian(np.ones(3)), seed=4)
    assert scaled.step_size == pytest.approx(plain.step_size, rel=0.01)
    assert scaled.n_steps == plain.n_steps
    assert scaled.decorrelation == pytest.approx(plain.decorrelation, rel=0.05)
    assert plain.decorrelation > 0.5


def test_what_is_given_is_not_learned():
    hamiltonian, states = gaussian(np.ones(2))
    given = trajectory(hamiltonian, states, seed=5, step_size=0.25, n_steps=6)
    assert (given.step_size, given.n_steps, given.n_transitions) == (0.25, 6, 1)
    assert given.hamiltonian is hamiltonian
    size = learn_step_size(hamiltonian, states, 0.9, np.random.default_rng(5))
    learned = trajectory(hamiltonian, states, seed=5, target_acceptance=0.9)
    assert learned.step_size == size and learned.n_steps != 6
    one_length = trajectory(hamiltonian, states, seed=5, target_acceptance=0.9, n_steps=6)
    assert one_length.step_size == size and one_length.n_steps == 6


# The scale that jumps are measured on


def test_jumps_between_independent_draws():
    rng = np.random.default_rng(2)
    root = rng.standard_normal((3, 3))
    states = rng.standard_normal((20_000, 3)) @ root
    scale = JumpScale(states)
    jumps = np.array(
        [scale.squared_jumps(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
    )
    assert jumps.max() <= 3.0
    # The means of a chi-squared and of a product of two, capped: .858 and .611. One of 10,000 pairs
    # has a standard error below .01; six of them are off by .04 less often than once in 10,000.
    np.testing.assert_allclose(jumps.mean(axis=0), 3 * [0.858] + 3 * [0.611], atol=0.04)
    np.testing.assert_allclose(scale.squared_jumps(states[0], states[:2])[0], 0.0, atol=1e-28)


def test_independence_is_judged_by_states_far_apart():
    """Whatever the distribution, and however slowly the chain moves."""
    rng = np.random.default_rng(3)
    n = 4000
    slow = np.repeat(rng.standard_normal(n // 10), 10)
    modes = rng.choice([-1.0, 1.0], n) + 0.1 * rng.standard_normal(n)
    states = np.column_stack([slow, modes])
    scale = JumpScale(states)
    among = scale.squared_jumps(states, states[rng.permutation(n)]).mean(axis=0)
    found = scale.independent_jumps(states)
    # 4000 pairs, and 8 times as many that depend on each other: within .1 at four sd.
    np.testing.assert_allclose(found, among, atol=0.1)
    assert found[2] > 0.5 and found[3] < 0.1


def test_independence_of_two_states():
    states = np.array([[0.0, 1.0], [1.0, 3.0]])
    scale = JumpScale(states)
    np.testing.assert_allclose(scale.independent_jumps(states), scale.squared_jumps(*states))
