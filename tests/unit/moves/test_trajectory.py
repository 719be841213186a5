"""One trajectory on a surrogate: its numbers, its ratio, its divergences."""

import numpy as np
import pytest

from pymc_kmc.adaptation.jumps import Whitening
from pymc_kmc.adaptation.trajectory import Trajectories
from pymc_kmc.dynamics import Metric, SurrogateHamiltonian
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.moves.trajectory import Trajectory
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.surrogates import KernelExpLite
from tests.bananas import Banana
from tests.fitted import fitted_surrogate
from tests.moves import evaluation

BANANA = Banana(spread=1.0, bend=0.5)
X = BANANA.draws(80, np.random.default_rng(0))
STATE = evaluation(X[0], BANANA.log_density(X[0]))
METRIC = np.array([[2.0, 0.5], [0.5, 1.0]])


def fitted(step_size=(0.1, 0.2), n_steps=(10, 20)):
    surrogate = KernelExpLite(4.0, 0.1, base="gaussian").fit(X)
    hamiltonian = SurrogateHamiltonian(
        surrogate.parameters_, Coordinates.identity(2), Metric(METRIC)
    )
    trajectories = Trajectories(hamiltonian, step_size, n_steps, Whitening(X))
    return fitted_surrogate(surrogate, X, BANANA.log_density(X), transitions=trajectories)


@pytest.mark.parametrize(("share", "numbers"), [(1.0, (10, 20)), (0.2, (2, 4)), (0.01, (1, 1))])
def test_sizes_and_numbers_of_steps_are_drawn_from_their_ranges(share, numbers):
    """Of a share of the learned numbers, and at least one."""
    move, rng, learned = (
        Trajectory(MoveKind.LONG_TRAJECTORY, share),
        np.random.default_rng(1),
        fitted(),
    )
    proposals = [move.propose(STATE, learned, rng) for _ in range(400)]
    n_steps = [proposal.n_steps for proposal in proposals]
    assert (min(n_steps), max(n_steps)) == numbers
    sizes = np.array([proposal.step_size for proposal in proposals])
    assert 0.1 <= sizes.min() < 0.105 and 0.195 < sizes.max() <= 0.2
    if numbers != (1, 1):
        assert abs(np.corrcoef(sizes, n_steps)[0, 1]) < 4.5 / np.sqrt(400)


def test_on_the_surrogate_itself_the_ratio_is_the_integrators_error():
    """The change of the kinetic energy undoes that of the surrogate: of second order."""
    errors, ratios = [], []
    for step_size in (0.1, 0.05):
        learned = fitted((step_size, step_size), (round(1.0 / step_size),) * 2)
        move, density = Trajectory(MoveKind.LONG_TRAJECTORY, 1.0), learned.surrogate.log_density
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
    move, rng, learned = (
        Trajectory(MoveKind.SHORT_TRAJECTORY, 0.2),
        np.random.default_rng(3),
        fitted(),
    )
    energies = [move.propose(STATE, learned, rng).kinetic_energy for _ in range(3000)]
    assert abs(np.mean(energies) - 1.0) < 4.5 / np.sqrt(3000)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_trajectory_that_diverges_is_rejected_without_an_evaluation():
    move, rng = Trajectory(MoveKind.LONG_TRAJECTORY, 1.0), np.random.default_rng(4)
    proposal = move.propose(STATE, fitted((1e4, 1e4), (200, 200)), rng)
    assert proposal.diverging and proposal.log_ratio == -np.inf
    assert not move.propose(STATE, fitted(), rng).diverging


def test_a_trajectory_whose_energy_leaps_has_diverged():
    """Twice as long a step as is stable: finite numbers, and far from where anything belongs."""
    move, rng = Trajectory(MoveKind.LONG_TRAJECTORY, 1.0), np.random.default_rng(5)
    proposals = [move.propose(STATE, fitted((4.0, 4.0), (12, 12)), rng) for _ in range(20)]
    assert all(np.isfinite(proposal.position).all() for proposal in proposals)
    assert all(proposal.diverging and proposal.log_ratio == -np.inf for proposal in proposals)
