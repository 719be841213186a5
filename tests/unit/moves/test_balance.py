"""Each move that may be a draw leaves the target invariant, alone and in a mixture.

Exact draws x of a banana are moved once: E g(x') h(x) = E h(x') g(x) for bounded functions g and h
where the move is in detailed balance. 21 comparisons of independent pairs a move at 4.5 standard
errors: a false alarm of 1.4e-4 each, .7 % for the file; the seeds are fixed. Surrogates are wrong
on purpose: a ratio that is missing is then found out, which the twins of the tests show.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.dynamics import SurrogateHamiltonian
from pymc_kmc.moves.auxiliary import AuxiliaryChain
from pymc_kmc.moves.base import MoveKind, MoveMixture, Row
from pymc_kmc.moves.langevin import FactorRandomWalk, Langevin
from pymc_kmc.moves.learned import ModeJump, ModeTransition
from pymc_kmc.moves.local import LocalDistribution, LocalRandomWalk
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.moves.trajectory import Trajectory
from pymc_kmc.moves.transitions import (
    KINDS,
    TEMPERED,
    SequenceSize,
    SurrogateTransition,
)
from pymc_kmc.numerics.coordinates import IDENTITY, Coordinates, ModeMaps
from pymc_kmc.surrogates import KernelExpLite, LogDensityGP
from tests.balance import balance_errors, functions_of_a_banana
from tests.bananas import Banana
from tests.fitted import fitted_surrogate, short_transitions, stretching_warp
from tests.moves import Stays, evaluation, iterate, outcome_of

TARGET = Banana(spread=2.0, bend=0.25)
N_PAIRS = 10_000
# Of moves that are dear: without their ratio all are found out with |z| above 9 by as many.
DEAR = ("short_transition", "single_transition", "few_transitions", "many_transitions")
DEAR += ("warped transitions", "tempered transitions", "mode jump", "warped mode transition")
FEWER_PAIRS = dict.fromkeys(DEAR, 4000)
# A choice that depends on the state is easier to find out.
FEW_PAIRS = 5000
TOLERANCE = 4.5
# Below this the errors of a broken move would be found out by luck.
FOUND_OUT = 7.0

NEARBY = TARGET.draws(150, np.random.default_rng(0))


@cache
def fitted_to_another_density(is_warped=False):
    """A surrogate of a banana that is narrower and less bent, with transitions on it."""
    warp = stretching_warp() if is_warped else IDENTITY
    values = Banana(1.6, 0.15).log_density(NEARBY)
    surrogate = LogDensityGP(30, rng=0)
    surrogate.fit(warp.forward(NEARBY), values + warp.log_volume(NEARBY))
    return fitted_surrogate(surrogate, NEARBY, values, warp)


@cache
def fitted_to_states():
    """A surrogate with trajectories on it, by score matching with a bad bandwidth."""
    surrogate = KernelExpLite(1.0, 1.0, base="gaussian").fit(NEARBY)
    hamiltonian = SurrogateHamiltonian(surrogate.parameters_, Coordinates.identity(2))
    values = TARGET.log_density(NEARBY)
    transitions = short_transitions(hamiltonian)
    return fitted_surrogate(surrogate, NEARBY, values, transitions=transitions)


def trajectory(kind, share):
    return Trajectory(SequenceSize(kind, 0.0, share), step_size=(0.4, 0.8), n_steps=(3, 10))


class DifferentiableBanana:
    """What Langevin moves see of a model."""

    warp = IDENTITY
    n_evaluations = 0

    def compiled(self):
        return None, ()

    def rounded(self, position):
        return position

    def density(self, inputs):
        (x,) = inputs
        return np.array(TARGET.log_density(x)), TARGET.gradient(x)


FACTOR = np.array([[1.6, 0.0], [0.5, 0.9]])
ONE_STEP = {"factor": FACTOR, "scale": 1.0, "step_size": 1.0, "n_steps": 1, "has_window": False}
MORE_STEPS = ONE_STEP | {"step_size": 0.6, "n_steps": 4, "has_window": True}


def random_walk(factors=()):
    return RandomWalk(2, np.diag([2.0, 1.5]), factors=factors)


def local_random_walk(leftmost, gamma):
    """Of a sub-sample of draws right of a place."""
    move = LocalRandomWalk(0.234)
    states = TARGET.draws(400, np.random.default_rng(1))
    states = states[states[:, 0] > leftmost]
    move.distribution = LocalDistribution(states, "gaussian", gamma, np.random.default_rng(2))
    return move


def transition(size):
    return lambda: (SurrogateTransition(size, False), fitted_to_another_density())


# A banana has one mode: these are its arms.
MAPS = ModeMaps(
    [[-1.5, 0.3], [0.3, -0.8], [1.8, 0.2]],
    [[[0.6, -0.3], [-0.3, 0.8]], [[0.5, 0.0], [0.0, 0.9]], [[0.9, 0.4], [0.4, 1.2]]],
)


# Functions that return a move, and what was learned for it.
MOVES = {
    "random walk": lambda: (random_walk(), None),
    "random walk of several scales": lambda: (random_walk((1.0, 0.3)), fitted_to_another_density()),
    "warped random walk": lambda: (random_walk(), fitted_to_another_density(is_warped=True)),
    **{size.kind.name.lower(): transition(size) for size in KINDS},
    "warped transitions": lambda: (
        SurrogateTransition(KINDS[2], False),
        fitted_to_another_density(is_warped=True),
    ),
    "tempered transitions": lambda: (
        SurrogateTransition(TEMPERED, False, 1.5),
        fitted_to_another_density(),
    ),
    "long trajectory": lambda: (trajectory(MoveKind.LONG_TRAJECTORY, 1.0), fitted_to_states()),
    "short trajectory": lambda: (trajectory(MoveKind.SHORT_TRAJECTORY, 0.4), fitted_to_states()),
    "local random walk": lambda: (local_random_walk(-np.inf, 0.3), None),
    "local random walk of one arm's end": lambda: (local_random_walk(1.5, 0.1), None),
    "Langevin": lambda: (Langevin(SimpleNamespace(**ONE_STEP)), DifferentiableBanana()),
    "Langevin of several steps": lambda: (
        Langevin(SimpleNamespace(**MORE_STEPS)),
        DifferentiableBanana(),
    ),
    "mode jump": lambda: (ModeJump(MAPS), None),
    "warped mode transition": lambda: (
        ModeTransition(MAPS, False),
        fitted_to_another_density(is_warped=True),
    ),
    "random walk of a factor": lambda: (FactorRandomWalk(SimpleNamespace(**ONE_STEP)), None),
}
SYMMETRIC = ("random walk", "random walk of several scales", "random walk of a factor")
# Its ratio is so near one that it takes more draws to miss it.
NEARLY_SYMMETRIC = ("local random walk",)
NEVER_DRAWS = {MoveKind.AUXILIARY, MoveKind.ACTIVE_LEARNING, MoveKind.NOISE_PROBE}
NEVER_DRAWS |= {MoveKind.LEARNED_DRAW, MoveKind.STAY}  # while tuning
# With a partner, whose place is a part of the state: tests/unit/moves/test_partners.py.
WITH_PARTNERS = {MoveKind.EXCHANGE}

every_move = pytest.mark.parametrize("name", MOVES)


def test_every_kind_of_move_is_here():
    assert {MOVES[name]()[0].kind for name in MOVES} == set(MoveKind) - NEVER_DRAWS - WITH_PARTNERS


def largest_error(propose, n=N_PAIRS):
    """Of the balance of a function of evaluations that returns proposals, in standard errors."""
    rng = np.random.default_rng(3)
    starts = TARGET.draws(n, rng)
    ends = iterate(propose, TARGET, starts, rng)
    before, after = (functions_of_a_banana(TARGET, X) for X in (starts, ends))
    assert np.mean(np.any(ends != starts, axis=1)) > 0.05  # what stays is in balance, too
    return np.max(np.abs(balance_errors(before, after))), starts


@every_move
def test_detailed_balance(name):
    move, fitted = MOVES[name]()
    assert move.is_draw
    rng = np.random.default_rng(4)
    n = FEWER_PAIRS.get(name, N_PAIRS)
    error, _ = largest_error(lambda current: move.propose(current, fitted, rng), n)
    assert error < TOLERANCE


def without_ratio(proposal):
    """Takes the move for symmetric."""
    is_possible = proposal.log_ratio > -np.inf
    return proposal._replace(log_ratio=0.0) if is_possible else proposal


def with_generous_ratio(proposal):
    """Accepts a symmetric move more often than it may."""
    return proposal._replace(log_ratio=1.0)


@pytest.mark.parametrize("name", [name for name in MOVES if name not in NEARLY_SYMMETRIC])
def test_detailed_balance_can_fail(name):
    move, fitted = MOVES[name]()
    break_ = with_generous_ratio if name in SYMMETRIC else without_ratio
    rng = np.random.default_rng(4)
    n = FEWER_PAIRS.get(name, N_PAIRS)
    error, _ = largest_error(lambda current: break_(move.propose(current, fitted, rng)), n)
    assert error > FOUND_OUT


def share(state):
    """Of a mixture's first move: more on the right."""
    return 0.5 + 0.45 * np.tanh(2.0 * state.position[0])


def mixture_of(name, place):
    """A move, made with a probability that depends on the state, and none beside it."""
    move, fitted = MOVES[name]()
    moves = [move, Stays()] if place == "first" else [Stays(), move]
    return MoveMixture(Row(moves[0], share), Row(moves[1], 1.0)), move, fitted


@pytest.mark.parametrize("place", ["first", "last"])
@every_move
def test_detailed_balance_where_the_choice_depends_on_the_state(name, place):
    mixture, move, fitted = mixture_of(name, place)
    rng, chosen = np.random.default_rng(5), []

    def propose(current):
        proposal = mixture.propose(current, fitted, rng)
        chosen.append(proposal.move is move)
        return proposal

    error, starts = largest_error(propose, FEW_PAIRS)
    assert error < TOLERANCE
    shares = [np.mean(np.array(chosen)[side]) for side in (starts[:, 0] > 1, starts[:, 0] < -1)]
    assert max(shares) > 0.9 > 0.1 > min(shares)
    assert (shares[0] > shares[1]) == (place == "first")


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize(
    "name", ["random walk", "warped transitions", "long trajectory", "local random walk"]
)
def test_a_choices_balance_can_fail(name, place):
    """Without the ratio of its probabilities."""
    mixture, _, fitted = mixture_of(name, place)
    rng = np.random.default_rng(5)

    def propose(current):
        return mixture.propose(current, fitted, rng)._replace(choice=None)

    assert largest_error(propose, FEW_PAIRS)[0] > FOUND_OUT


# The auxiliary chain: its states are never draws, but it has a target of its own

TEMPERATURE = 1.5


def tempered_draws(n, rng, warp):
    """Draws whose density in a warp's coordinates is the target's there to the power 1 / T.

    In the given ones that is the target's to the power 1 / T over a power of the volume: draws of
    the former, thinned.
    """
    root, m = TEMPERATURE**0.5, 8 * n
    x1 = root * TARGET.spread * rng.standard_normal(m)
    X = np.column_stack([x1, TARGET.ridge(x1) + root * rng.standard_normal(m)])
    log_share = -(1.0 - 1.0 / TEMPERATURE) * warp.log_volume(X)
    kept = np.log(rng.uniform(size=m)) < log_share - np.max(log_share)
    return X[kept][:n]


@pytest.mark.parametrize("is_warped", [False, True])
@pytest.mark.parametrize("is_broken", [False, True])
def test_the_auxiliary_chain_is_in_detailed_balance(is_warped, is_broken):
    """With the target to the power 1 / T, in its coordinates; not without its proposals' ratio."""
    rng, fitted = np.random.default_rng(6), fitted_to_another_density(is_warped)
    move = AuxiliaryChain(random_walk(), False, TEMPERATURE)
    scale = move.random_walk.scale_adaptation
    assert not move.is_draw
    starts = tempered_draws(N_PAIRS, rng, fitted.warp)
    assert len(starts) == N_PAIRS
    ends = np.empty_like(starts)
    elsewhere = evaluation(np.array([9.0, 9.0]), -99.0)
    for i, start in enumerate(starts):
        move.state = evaluation(start, TARGET.log_density(start))
        proposal = move.propose(elsewhere, fitted, rng)
        assert not proposal.is_draw
        if is_broken:
            proposal = without_ratio(proposal)
        density = TARGET.log_density if proposal.log_ratio > -np.inf else None
        move.learn(outcome_of(proposal, elsewhere, density), rng)
        scale.scale = 1.0  # frozen
        ends[i] = move.state.position
    before, after = (functions_of_a_banana(TARGET, X) for X in (starts, ends))
    error = np.max(np.abs(balance_errors(before, after)))
    assert error > FOUND_OUT if is_broken else error < TOLERANCE
