"""Partners: a sweep leaves the law of the chain as it is, in any coordinates."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.adaptation.fitted import FittedSurrogate
from pymc_kmc.dynamics import SequenceEnd
from pymc_kmc.moves import transitions
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.learned import ModeJump
from pymc_kmc.moves.partners import JumpPartner, NearPartner, Partner, Sweeps
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.moves.transitions import KINDS, TEMPERED, SurrogateTransition
from pymc_kmc.numerics.coordinates import ModeMaps
from pymc_kmc.steps.kmc_adaptation import N_GROUPS
from tests.fitted import stretching_warp
from tests.moves import evaluation, outcome_of

TEMPERATURE, N = 1.5, 3


class Gaussian:
    """A surrogate whose density is N(0, scale^2 I); the target is another one."""

    def __init__(self, scale):
        self.scale = scale

    def log_density(self, X):
        return -0.5 * (X**2).sum(axis=-1) / self.scale**2


TARGET, SURROGATE = Gaussian(1.0), Gaussian(1.4)
MAPS = ModeMaps(
    [np.array([-0.5, 0.0]), np.array([0.7, 0.3])], [0.6 * np.eye(2), np.diag([0.3, 0.2])]
)


def drawn_anew(hamiltonian, position, step_size, n, n_steps, rng, temperature):
    """Stands for a sequence: it draws from the surrogate, and takes no time."""
    end = TEMPERED_SCALE[temperature] * rng.standard_normal(2)
    change = SURROGATE.log_density(end) - SURROGATE.log_density(position)
    return SequenceEnd(end, -change / temperature, n, True)


TEMPERED_SCALE = {t: SURROGATE.scale * t**0.5 for t in (1.0, TEMPERATURE)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(transitions, "transition_sequence", drawn_anew)


def of_gaussian():
    sizes = SimpleNamespace(hamiltonian=SURROGATE, step_size=1.0, n_steps=1, n_transitions=1)
    return FittedSurrogate(SURROGATE, stretching_warp(), sizes, None)


def ends_of_sweeps(shares, n=1200, n_sweeps=1, jumps=0.0):
    """Places (n, 2) after sweeps from draws of the target, in standard coordinates.

    The surrogate is Gaussian in coordinates of its own. Jumps leave any target's law as it is.
    """
    rng, fitted = np.random.default_rng(1), of_gaussian()
    random_walk = RandomWalk(2, factors=(1.0, 0.3))
    moves = SurrogateTransition(KINDS[-1], False), SurrogateTransition(TEMPERED, False, TEMPERATURE)
    kinds = (MoveKind.EXCHANGE, 1.0), (MoveKind.TEMPERED_TRANSITION, TEMPERATURE)
    ends = []
    for start in rng.standard_normal((n, 2)):
        current = evaluation(start, TARGET.log_density(start))
        groups = [
            [[Partner(kind, np.zeros(2), t) for _ in range(N)] for kind, t in kinds]
            for _ in range(N_GROUPS)
        ]
        sweeps = Sweeps(groups, moves, random_walk, ModeJump(MAPS))
        for _ in range(n_sweeps):
            places = sweeps.begin(current, fitted, shares, rng, jumps=jumps)
            sweeps.give([evaluation(place, TARGET.log_density(place)) for place in places], b"")
            while sweeps.waiting:
                current = exchanged(sweeps.waiting.popleft(), current, fitted, rng)
        ends.append(current.position)
    return np.array(ends)


def exchanged(partner, current, fitted, rng):
    proposal = partner.propose(current, fitted, rng)
    accepted = rng.uniform() < proposal.acceptance_rate(current, proposal.evaluation)
    outcome = outcome_of(proposal, current, is_accepted=False)
    end = proposal.evaluation if accepted else current
    partner.learn(outcome._replace(end=end), rng)
    assert not accepted or partner.position is current.position
    return end


def worst(ends):
    """Largest error of means, variances and the mean product, in standard errors."""
    values = np.column_stack([ends, ends**2 - 1.0, ends[:, 0] * ends[:, 1]])
    return np.abs(values.mean(axis=0) / (values.std(axis=0) / len(values) ** 0.5)).max()


NEAR, TEMPERED_ALONE, USUAL = np.eye(3)


@pytest.mark.parametrize(
    ("shares", "jumps"),
    [(NEAR, 0.0), (TEMPERED_ALONE, 0.0), (USUAL, 1.0), ((0.3, 0.3, 0.4), 0.5)],
)
def test_the_targets_law_stays(shares, jumps):
    """Starts are independent draws: |z| > 4.5 has a false-alarm rate of 3e-5 in each case."""
    assert worst(ends_of_sweeps(shares, n=5000, n_sweeps=3, jumps=jumps)) < 4.5


def test_a_jump_without_its_ratio_is_found_out(monkeypatch):
    jump = ModeJump.propose
    monkeypatch.setattr(ModeJump, "propose", lambda *args: jump(*args)._replace(log_ratio=0.0))
    assert worst(ends_of_sweeps(USUAL, n=2000, jumps=1.0)) > 6.0


@pytest.mark.parametrize(("jumps", "share"), [(0.0, 0.0), (0.1, 0.3), (1.0, 1.0)])
def test_a_jump_begins_a_sweep_without_near_partners(jumps, share):
    """Three partners a sweep; 400 sweeps, four standard deviations: a false-alarm rate of 1e-4."""
    rng, start = np.random.default_rng(0), evaluation(np.zeros(2), 0.0)
    groups = [[[Partner(MoveKind.EXCHANGE, np.zeros(2)) for _ in range(N)], []] for _ in range(2)]
    move = SurrogateTransition(KINDS[-1], False)
    sweeps, n_jumps = Sweeps(groups, (move, move), None, ModeJump(MAPS)), 0
    for _ in range(400):
        sweeps.begin(start, of_gaussian(), USUAL, rng, jumps=jumps)
        first, *others = sweeps.waiting
        assert not any(isinstance(partner, JumpPartner) for partner in others)
        n_jumps += isinstance(first, JumpPartner)
        sweeps.waiting.clear()
    assert abs(n_jumps / 400 - share) <= 4.0 * (share * (1.0 - share) / 400) ** 0.5


def test_near_partners_are_exchanged_first():
    """Their centre is drawn around the place where the chain is when the sweep begins."""
    rng, start = np.random.default_rng(0), evaluation(np.zeros(2), 0.0)
    groups = [[[Partner(MoveKind.EXCHANGE, np.zeros(2)) for _ in range(8)], []] for _ in range(2)]
    move = SurrogateTransition(KINDS[-1], False)
    sweeps = Sweeps(groups, (move, move), RandomWalk(2, factors=(1.0,)))
    for _ in range(3):
        sweeps.begin(start, of_gaussian(), (0.5, 0.0, 0.5), rng)
        are_near = [isinstance(partner, NearPartner) for partner in sweeps.waiting]
        assert 0 < sum(are_near) < len(are_near)
        assert are_near == sorted(are_near, reverse=True)
        sweeps.waiting.clear()


def test_a_group_is_asked_for_before_the_other_is_exchanged():
    asked, rng = [], np.random.default_rng(0)
    groups = [[[Partner(MoveKind.EXCHANGE, np.zeros(2)) for _ in range(N)], []] for _ in range(2)]
    move = SurrogateTransition(KINDS[-1], False)
    sweeps = Sweeps(groups, (move, move), None)
    settings = None, of_gaussian(), USUAL, rng, asked.append
    for n_asked in (2 * N, 3 * N, 4 * N):
        places = sweeps.begin(*settings)
        assert len(asked) == n_asked
        np.testing.assert_array_equal(places, asked[n_asked - 2 * N : n_asked - N])
        sweeps.waiting.clear()


@pytest.mark.parametrize(
    ("shares", "kind", "n"), [(NEAR, NearPartner, 3000), (USUAL, Partner, 1200)]
)
def test_ratios_without_volumes_or_surrogate_are_found_out(shares, kind, n, monkeypatch):
    monkeypatch.setattr(kind, "_log_density", lambda self, position, fitted: 0.0)
    assert worst(ends_of_sweeps(shares, n)) > 6.0
