"""Transitions on a surrogate: exact on the surrogate itself, and tuned without the target."""

import numpy as np
import pytest

from pymc_kmc.adaptation.transitions import (
    ADDITIVE_SIZE,
    BUDGET,
    GRADIENT_OVERHEAD,
    MOST_TRANSITIONS,
    SurrogateTransitions,
    TransitionMixture,
)
from pymc_kmc.dynamics import transitions
from pymc_kmc.surrogates import LogDensityGP, log_density_at


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 2))
    X[:, 1] += 0.5 * X[:, 0] ** 2
    values = -0.5 * X[:, 0] ** 2 - 0.5 * (X[:, 1] - 0.5 * X[:, 0] ** 2) ** 2
    surrogate = LogDensityGP(80, rng=0).fit(X, values, reference=X)
    return surrogate, X, SurrogateTransitions(surrogate, X, rng)


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_sequences_leave_the_surrogate_invariant(fitted, temperature):
    """Draws from a surrogate on a grid, moved by one sequence: moments stay within 4.5 errors.

    Six comparisons of 4000 independent pairs: false alarm 4e-5.
    """
    surrogate, _, moves = fitted
    rng = np.random.default_rng(2)
    axes = np.linspace(-9, 9, 400), np.linspace(-9, 25, 600)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(surrogate.log_density(grid) / temperature)
    cell = np.array([axes[0][1] - axes[0][0], axes[1][1] - axes[1][0]])
    starts = grid[rng.choice(len(grid), 4000, p=density / density.sum())]
    starts = starts + cell * rng.uniform(-0.5, 0.5, starts.shape)
    ends = np.array([moves.propose(x, 2, rng, temperature).position for x in starts])
    assert np.mean(np.any(ends != starts, axis=1)) > 0.9
    for g in (lambda x: x, np.square, lambda x: x[:, :1] * x[:, 1:], np.tanh):
        change = g(ends) - g(starts)
        errors = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(len(change)))
        assert np.all(np.abs(errors) < 4.5)


def test_the_ratio_is_the_surrogates_own(fitted):
    """A target that is the surrogate accepts everything: its ratio cancels the proposal's."""
    surrogate, X, moves = fitted
    rng = np.random.default_rng(3)
    for kind in range(moves.n_kinds):
        proposal = moves.propose(X[0], kind, rng)
        change = surrogate.log_density(proposal.position) - surrogate.log_density(X[0])
        assert proposal.log_ratio + change == pytest.approx(0.0, abs=1e-8)
        tempered = moves.propose(X[0], kind, rng, temperature=2.0)
        change = surrogate.log_density(tempered.position) - surrogate.log_density(X[0])
        assert tempered.log_ratio + change / 2.0 == pytest.approx(0.0, abs=1e-8)


def test_a_transition_is_rejected_where_it_should_be(fitted):
    surrogate, X, _ = fitted
    momenta, n_steps = np.random.default_rng(4).standard_normal((2, 2)), np.array([3, 3])

    def run(uniforms, step_size):
        return transitions(
            surrogate.parameters_, 1.0, X[1], momenta, np.full(2, step_size), n_steps, uniforms
        )

    never = np.ones(2)
    np.testing.assert_array_equal(run(never, 0.1)[0], X[1])
    assert run(never, 0.1)[1] == 0.0
    end, change, acceptance = run(np.zeros(2), 0.1)
    assert 0 < acceptance <= 1
    expected = log_density_at(surrogate.parameters_, end) - surrogate.log_density(X[1])
    assert change == pytest.approx(expected, abs=1e-9)
    end, change, acceptance = run(np.zeros(2), 1e200)  # leaves the finite numbers
    np.testing.assert_array_equal(end, X[1])
    assert (change, acceptance) == (0.0, 0.0)


def test_what_is_learned_is_sensible(fitted):
    *_, moves = fitted
    assert 0.1 < moves.step_size < 2.0
    assert moves.n_steps >= 2
    assert moves.n_transitions > 5
    assert np.all((moves.jumps > 0) & (moves.jumps <= 1))
    assert np.argmax(moves.jumps) == 3


def test_mixture_prefers_what_moves_and_is_accepted():
    mixture = TransitionMixture(3)
    mixture.renew(np.array([0.1, 0.8, 0.9]))
    for _ in range(30):
        for kind, rate in enumerate([0.9, 0.8, 0.02]):
            mixture.learn(kind, rate)
    assert mixture.probabilities.sum() == pytest.approx(1.0)
    assert np.argmax(mixture.probabilities) == 1
    assert mixture.probabilities.min() >= TransitionMixture.SMALLEST
    rng = np.random.default_rng(5)
    counts = np.bincount([mixture.choose(rng) for _ in range(2000)], minlength=3)
    assert counts[1] > 1800


def test_the_same_generator_gives_the_same_proposal(fitted):
    surrogate, X, moves = fitted
    again = SurrogateTransitions(surrogate, X, np.random.default_rng(8))
    twin = SurrogateTransitions(surrogate, X, np.random.default_rng(8))
    assert (again.step_size, again.n_steps) == (twin.step_size, twin.n_steps)
    first, second = (moves.propose(X[0], 3, np.random.default_rng(9)) for _ in range(2))
    np.testing.assert_array_equal(first.position, second.position)
    assert first[1:] == second[1:]


def test_a_sequence_that_goes_nowhere_ends_where_it_began(fitted):
    """Bit by bit, with a ratio of one: the caller can tell, and nothing is evaluated for it."""
    surrogate, X, _ = fitted
    moves = SurrogateTransitions(surrogate, X, np.random.default_rng(10))
    moves.step_size = 1e6
    proposal = moves.propose(X[0], 3, np.random.default_rng(11))
    assert not proposal.moved and proposal.log_ratio == 0.0
    np.testing.assert_array_equal(proposal.position, X[0])


def test_accepting_every_transition_is_found_out(fitted):
    """The invariance test's twin: at a large step size the ends' second moment is far off."""
    surrogate, X, _ = fitted
    rng = np.random.default_rng(12)
    ends = []
    for x in X:
        end, _, _ = transitions(
            surrogate.parameters_,
            1.0,
            x,
            rng.standard_normal((3, 2)),
            np.full(3, 1.7),
            np.full(3, 3),
            np.zeros(3),  # accepts whatever is possible at all
        )
        ends.append(end)
    change = np.square(ends)[:, 0] - X[:, 0] ** 2
    assert abs(change.mean()) > 4.5 * change.std() / np.sqrt(len(X))


@pytest.mark.parametrize("n_landmarks", [1, 80])
def test_a_proposal_costs_no_more_than_its_budget(n_landmarks):
    X = np.random.default_rng(13).standard_normal((200, 3))
    values = np.sin(2 * X).sum(axis=1) - 0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(n_landmarks, rng=0).fit(X, values, reference=X)
    moves = SurrogateTransitions(surrogate, X, np.random.default_rng(14))
    assert [moves.n_transitions_of(kind) for kind in (0, 1)] == [1, 1]
    assert moves.n_transitions_of(3) == moves.n_transitions <= MOST_TRANSITIONS
    rng = np.random.default_rng(15)
    n_steps = np.mean([moves.propose(X[0], 3, rng).n_steps for _ in range(50)])
    m = len(surrogate.parameters_.coefficients)
    assert n_steps * (3 * (m + 3) + GRADIENT_OVERHEAD) < 1.1 * BUDGET


def test_functions_of_single_coordinates_are_in_the_budget(monkeypatch):
    budget = 100_000  # one that bounds sequences on so small a surrogate
    monkeypatch.setattr("pymc_kmc.adaptation.transitions.BUDGET", budget)
    rng = np.random.default_rng(16)
    X = rng.standard_normal((600, 4))
    values = np.sin(2 * X).sum(axis=1) - 0.5 * (X**2).sum(axis=1)
    surrogate = LogDensityGP(10, rng=0).fit(X, values, reference=X)
    p = surrogate.parameters_
    assert p.additive_coefficients.size > 0
    size = 4 * (p.coefficients.size + 4) + ADDITIVE_SIZE * p.additive_coefficients.size
    moves = SurrogateTransitions(surrogate, X, np.random.default_rng(17))
    n_steps = np.mean([moves.propose(X[0], 3, rng).n_steps for _ in range(50)])
    assert n_steps * (size + GRADIENT_OVERHEAD) < 1.1 * budget


def test_a_refit_discounts_what_was_seen_of_the_last_surrogate():
    mixture = TransitionMixture(2)
    for _ in range(100):
        mixture.learn(0, 0.9)
        mixture.learn(1, 0.1)
    assert mixture.probabilities[0] > 0.98
    mixture.renew(np.array([0.5, 0.5]))
    for _ in range(100):
        mixture.learn(0, 0.1)
        mixture.learn(1, 0.9)
    assert np.argmax(mixture.probabilities) == 1
    assert mixture.probabilities.sum() == pytest.approx(1.0)
