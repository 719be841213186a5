"""Moves by many transitions on a surrogate: their ratios, and what isn't worth an evaluation."""

from functools import partial

import numpy as np
import pytest

from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.transitions import FEW, KINDS, TEMPERED, SurrogateTransition
from pymc_kmc.surrogates import LogDensityGP
from tests.bananas import Banana
from tests.fitted import fitted_surrogate, stretching_warp
from tests.moves import evaluation

BANANA = Banana(spread=1.0, bend=0.5)
X = BANANA.draws(300, np.random.default_rng(1))
STATE = evaluation(X[0], BANANA.log_density(X[0]))


@pytest.fixture(scope="module")
def fitted():
    surrogate = LogDensityGP(80, rng=0).fit(X, BANANA.log_density(X), reference=X)
    return fitted_surrogate(surrogate, X, BANANA.log_density(X))


@pytest.mark.parametrize(
    ("make", "temperature"),
    [(partial(SurrogateTransition, size), 1.0) for size in KINDS]
    + [(partial(SurrogateTransition, TEMPERED, temperature=2.0), 2.0)],
)
def test_the_ratio_is_the_surrogates_own(fitted, make, temperature):
    """A target that is the surrogate to its power accepts everything: the ratios cancel."""
    rng, density = np.random.default_rng(3), fitted.surrogate.log_density
    for _ in range(5):
        proposal = make(is_noisy=True).propose(STATE, fitted, rng)
        change = density(proposal.position) - density(X[0])
        assert proposal.log_ratio + change / temperature == pytest.approx(0.0, abs=1e-8)


def test_in_a_warp_the_ratio_has_the_volumes():
    """A target that is the surrogate in the warp's coordinates accepts everything."""
    warp = stretching_warp()
    values = BANANA.log_density(X) + warp.log_volume(X)
    surrogate = LogDensityGP(80, rng=0).fit(warp.forward(X), values)
    warped = fitted_surrogate(surrogate, X, BANANA.log_density(X), warp)

    def density(x):
        return surrogate.log_density(warp.forward(x)) - warp.log_volume(x)

    proposal = SurrogateTransition(FEW, False).propose(STATE, warped, np.random.default_rng(4))
    change = density(proposal.position) - density(X[0])
    assert not np.array_equal(proposal.position, X[0])
    assert proposal.log_ratio + change == pytest.approx(0.0, abs=1e-8)


def test_longer_kinds_make_more_steps(fitted):
    rng = np.random.default_rng(5)
    n_steps, n_transitions = [], []
    for size in KINDS:
        proposals = [SurrogateTransition(size, False).propose(STATE, fitted, rng) for _ in range(9)]
        assert {proposal.move.kind for proposal in proposals} == {size.kind}
        n_steps.append(np.mean([proposal.n_steps for proposal in proposals]))
        n_transitions.append(proposals[0].n_transitions)
    assert n_steps == sorted(n_steps) and n_steps[0] < n_steps[-1]
    assert n_transitions[:2] == [1, 1] and n_transitions[2] < n_transitions[3]
    assert n_transitions[3] == fitted.transitions.n_transitions
    tempered = SurrogateTransition(TEMPERED, False, 1.5).propose(STATE, fitted, rng)
    assert tempered.move.kind == MoveKind.TEMPERED_TRANSITION
    assert tempered.n_transitions == n_transitions[2]


@pytest.mark.parametrize("is_noisy", [False, True])
def test_a_sequence_that_goes_nowhere_is_evaluated_under_noise_alone(fitted, is_noisy):
    """There it is a new estimate at one place; else a rejection that costs nothing."""
    transitions = fitted.transitions._replace(step_size=1e6)
    stuck = fitted_surrogate(fitted.surrogate, X, BANANA.log_density(X), transitions=transitions)
    move = SurrogateTransition(FEW, is_noisy)
    proposal = move.propose(STATE, stuck, np.random.default_rng(6))
    np.testing.assert_array_equal(proposal.position, X[0])
    assert proposal.log_ratio == (0.0 if is_noisy else -np.inf)


def test_the_same_generator_gives_the_same_proposal(fitted):
    move = SurrogateTransition(KINDS[-1], False)
    first, second = (move.propose(STATE, fitted, np.random.default_rng(9)) for _ in range(2))
    np.testing.assert_array_equal(first.position, second.position)
    assert first.log_ratio == second.log_ratio and first.n_steps == second.n_steps
