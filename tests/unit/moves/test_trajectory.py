"""One trajectory on a surrogate: its numbers, its ratio, its divergences."""

from dataclasses import replace

import numpy as np
import pytest

from pymc_kmc.dynamics import SHORTEST_SHARE, STEP_JITTER, Metric, SurrogateHamiltonian
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.trajectory import Trajectory
from pymc_kmc.moves.transitions import SequenceSize
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.surrogates import KernelExpLite
from tests.bananas import Banana
from tests.fitted import fitted_surrogate, short_transitions
from tests.moves import evaluation

BANANA = Banana(spread=1.0, bend=0.5)
X = BANANA.draws(80, np.random.default_rng(0))
STATE = evaluation(X[0], BANANA.log_density(X[0]))
METRIC = np.array([[2.0, 0.5], [0.5, 1.0]])


def fitted():
    surrogate = KernelExpLite(4.0, 0.1, base="gaussian").fit(X)
    hamiltonian = SurrogateHamiltonian(
        surrogate.parameters_, Coordinates.identity(2), Metric(METRIC)
    )
    transitions = short_transitions(hamiltonian)
    return fitted_surrogate(surrogate, X, BANANA.log_density(X), transitions=transitions)


def trajectory(kind=MoveKind.LONG_TRAJECTORY, share=1.0, step_size=(0.1, 0.2), n_steps=(10, 20)):
    return Trajectory(SequenceSize(kind, 0.0, share), step_size, n_steps)


@pytest.mark.parametrize(("share", "numbers"), [(1.0, (10, 20)), (0.2, (2, 4)), (0.01, (1, 1))])
def test_sizes_and_numbers_of_steps_are_drawn_from_their_ranges(share, numbers):
    """Of a share of the learned numbers, and at least one."""
    move, rng, learned = trajectory(share=share), np.random.default_rng(1), fitted()
    proposals = [move.propose(STATE, learned, rng) for _ in range(400)]
    n_steps = [proposal.n_steps for proposal in proposals]
    assert (min(n_steps), max(n_steps)) == numbers
    sizes = np.array([proposal.step_size for proposal in proposals])
    assert 0.1 <= sizes.min() < 0.105 and 0.195 < sizes.max() <= 0.2
    if numbers != (1, 1):
        assert abs(np.corrcoef(sizes, n_steps)[0, 1]) < 4.5 / np.sqrt(400)


def test_what_is_not_given_is_what_was_learned():
    learned, rng = fitted(), np.random.default_rng(6)
    learned = replace(learned, transitions=learned.transitions._replace(step_size=0.1, n_steps=30))
    move = Trajectory(SequenceSize(MoveKind.LONG_TRAJECTORY, 0.0, 1.0))
    proposals = [move.propose(STATE, learned, rng) for _ in range(400)]
    n_steps = [proposal.n_steps for proposal in proposals]
    assert (min(n_steps), max(n_steps)) == (SHORTEST_SHARE * 30, 30)
    sizes = np.array([proposal.step_size for proposal in proposals]) / 0.1
    low, high = STEP_JITTER
    assert low <= sizes.min() < low + 0.01 and high - 0.01 < sizes.max() <= high


def test_on_the_surrogate_itself_the_ratio_is_the_integrators_error():
    """The change of the kinetic energy undoes that of the surrogate: of second order."""
    errors, ratios = [], []
    for step_size in (0.1, 0.05):
        learned, n_steps = fitted(), round(1.0 / step_size)
        move = trajectory(step_size=(step_size, step_size), n_steps=(n_steps, n_steps))
        density = learned.surrogate.log_density
        rng, total = np.random.default_rng(2), 0.0
        for x in X[:40]:
            proposal = move.propose(evaluation(x), learned, rng)
            error = proposal.log_ratio + density(proposal.position) - density(x)
            ratios.append(abs(proposal.log_ratio))
            total += abs(error)
        errors.append(total)
    assert np.mean(ratios) > 0.3 > 10 * errors[0] / 40
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.3)


def test_kinetic_energies_are_those_of_the_metric():
    """3000 momenta: the mean energy is d / 2, its sd 1; 4.5 standard errors."""
    move, rng, learned = trajectory(share=0.2), np.random.default_rng(3), fitted()
    energies = [move.propose(STATE, learned, rng).kinetic_energy for _ in range(3000)]
    assert abs(np.mean(energies) - 1.0) < 4.5 / np.sqrt(3000)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_trajectory_that_diverges_is_rejected_without_an_evaluation():
    rng = np.random.default_rng(4)
    proposal = trajectory(step_size=(1e4, 1e4), n_steps=(200, 200)).propose(STATE, fitted(), rng)
    assert proposal.diverging and proposal.log_ratio == -np.inf
    assert not trajectory().propose(STATE, fitted(), rng).diverging


def test_a_trajectory_whose_energy_leaps_has_diverged():
    """Twice as long a step as is stable: finite numbers, and far from where anything belongs."""
    move, rng = trajectory(step_size=(4.0, 4.0), n_steps=(12, 12)), np.random.default_rng(5)
    proposals = [move.propose(STATE, fitted(), rng) for _ in range(20)]
    assert all(np.isfinite(proposal.position).all() for proposal in proposals)
    assert all(proposal.diverging and proposal.log_ratio == -np.inf for proposal in proposals)
