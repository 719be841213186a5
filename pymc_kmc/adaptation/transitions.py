"""Step size and lengths of transitions on a surrogate, learned on the surrogate alone.

Trajectories start at states of the chain and never evaluate the target. A step size driven by the
target's acceptance would shrink until the chain stands still: surrogate errors lower the
acceptance, and no step size cures them.

The numbers of leapfrog steps compared are the median number until a U-turn (Hoffman and Gelman,
2014) and multiples of it. The criterion is the expected squared jump (Pasarica and Gelman, 2010) of
the whitened coordinate, or square of one, that moves least. The number of transitions makes start
and end independent, as far as a budget of gradients allows. Only short sequences are simulated: the
jumps of long ones are all near their largest, so that their differences are noise.

References
----------
Hoffman, M. D. and Gelman, A. (2014). The No-U-Turn sampler. *Journal of Machine Learning
Research* 15, 1593-1623.

Pasarica, C. and Gelman, A. (2010). Adaptively scaling the Metropolis algorithm using expected
squared jumped distance. *Statistica Sinica* 20, 343-364.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.adaptation.schedules import FIRST_STEP_SIZE, DualAveraging
from pymc_kmc.dynamics import (
    MEAN_LENGTH,
    SurrogateHamiltonian,
    transition_sequence,
)
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.numerics.evaluation import evaluable
from pymc_kmc.numerics.samples import shrunk_covariance, whitening

# Bounds of the step size, in coordinates of about unit scale.
STEP_SIZE_BOUNDS = (1e-3, 2.0)
# Number of trajectories after which dual averaging has settled.
N_STEP_SIZE_TRAJECTORIES = 60
# Number of leapfrog steps in each of them: enough to show an instability.
N_STEP_SIZE_STEPS = 5
# Acceptance rate of a transition on the surrogate: .8 to .9 do equally well.
TARGET_ACCEPTANCE = 0.85
# Budget of a proposal's gradients, in coordinates of landmarks: 300 gradients with 300 landmarks in
# 8 dimensions, some .2 ms.
BUDGET = 800_000
# Cost of a gradient besides its landmarks, in the budget's unit.
GRADIENT_OVERHEAD = 400
# Cost of a function of a single coordinate, in the budget's unit.
ADDITIVE_SIZE = 5
# Most transitions in a sequence.
MOST_TRANSITIONS = 100
# Numbers of leapfrog steps that are compared, as multiples of the U-turn's.
LENGTH_FACTORS = (1.0, 2.0, 4.0)
# Ratio by which a longer trajectory must raise the decorrelation, because it costs more.
WORTH = 1.25
# Most leapfrog steps before a U-turn.
MOST_BEFORE_TURN = 40
# -log of the correlation of start and end at which a sequence ends: correlations don't show all
# dependence.
MOST_DECORRELATION = 6.0
# Number of transitions in a simulated sequence.
N_SIMULATED = 8
# Squared jump, in units of independence, from which on noise hides the difference to independence.
LARGEST_JUMP = 0.95
# Squared jump added to both sides of a comparison: a constant square, which has none, then doesn't
# decide it.
LEAST_JUMP = 0.01
# Fewest simulated sequences; there are at least two a dimension, or some coordinate of many seems
# to move least by chance.
FEWEST_SEQUENCES = 50
# Smallest decorrelation of a transition that a sequence's length is computed from.
SLOWEST = 1e-3
# Cap of a squared jump, in means under independence: few very long jumps don't make a chain mix.
LONGEST_JUMP = 3.0
# Number of lags at which states are paired: of a hundred states they give the jumps under
# independence within 10 %.
N_LAGS = 8


class SurrogateTransitions(NamedTuple):
    """Sequences of transitions on one surrogate; immutable."""

    hamiltonian: SurrogateHamiltonian
    step_size: float
    n_steps: int  # most leapfrog steps of a transition
    n_transitions: int  # of the longest sequence
    decorrelation: float  # -log of the correlation of that sequence's start and end

    def following(self, surrogate):
        """Return the same transitions on an updated surrogate in the same coordinates."""
        parameters, _ = _in_own_coordinates(surrogate)
        return self._replace(hamiltonian=self.hamiltonian.following(parameters))

    def jump(self, size):
        """Return the squared jump of a sequence of a SequenceSize; 1 for independence."""
        part = size.length * max(size.share, 1.0 / self.n_transitions)
        return -np.expm1(-self.decorrelation * part)


def whitened_hamiltonian(surrogate):
    """Return a surrogate's `hamiltonian`, or one with identity metric in its own coordinates."""
    own = getattr(surrogate, "hamiltonian", None)
    return own or SurrogateHamiltonian(*_in_own_coordinates(surrogate))


def _in_own_coordinates(surrogate):
    """Return a surrogate's parameters in its own coordinates, and these coordinates."""
    parameters, d = evaluable(surrogate), surrogate.n_features_in_
    if not hasattr(parameters, "whitening"):
        return parameters, Coordinates.identity(d)
    coordinates = Coordinates(parameters.centre, parameters.whitening)
    return parameters._replace(centre=np.zeros(d), whitening=np.eye(d)), coordinates


def learn_transitions(
    hamiltonian,
    states,
    rng,
    n_gradients=None,
    *,
    most_decorrelation=MOST_DECORRELATION,
    target_acceptance=TARGET_ACCEPTANCE,
    step_size=None,
    n_steps=None,
):
    """Return :class:`SurrogateTransitions`, learned from simulations on the surrogate.

    `hamiltonian` is that of :func:`whitened_hamiltonian`; simulations start at states (n, d) of the
    chain, repetitions included. `n_gradients` is the budget of a sequence, by default computed from
    the cost of a gradient; with 0 a sequence has one transition, whose acceptance rate on the
    surrogate is `target_acceptance`. A decorrelation of `most_decorrelation` ends a sequence. A
    given `step_size` or `n_steps` is kept.
    """
    if n_gradients is None:
        n_gradients = BUDGET / _gradient_cost(hamiltonian.parameters, states.shape[1])
    if step_size is None:
        step_size = learn_step_size(hamiltonian, states, target_acceptance, rng)
    starts = states[rng.integers(len(states), size=max(FEWEST_SEQUENCES, 2 * states.shape[1]))]
    numbers = [n_steps]
    if n_steps is None:
        u_turns = [_u_turn(hamiltonian, start, step_size, rng) for start in starts]
        shortest = int(np.clip(np.median(u_turns), 2, MOST_BEFORE_TURN))
        numbers = [int(factor * shortest) for factor in LENGTH_FACTORS]
    if n_gradients == 0:  # as many transitions as of longer sequences: one says little
        starts = np.repeat(starts, N_SIMULATED, axis=0)
    scale = JumpScale(states)
    independent = scale.independent_jumps(states)
    best, lengths = 0.0, None
    for n_steps in numbers:
        most = int(np.clip(n_gradients / (1 + MEAN_LENGTH * n_steps), 1, MOST_TRANSITIONS))
        # Decorrelation is taken for exponential in the number of transitions.
        n_simulated = min(most, N_SIMULATED)
        jumps = _mean_jumps(hamiltonian, scale, starts, step_size, n_simulated, n_steps, rng)
        jump = np.min((jumps + LEAST_JUMP) / (independent + LEAST_JUMP))
        rate = -np.log1p(-min(jump, LARGEST_JUMP)) / n_simulated
        decorrelation = min(rate * most, most_decorrelation)
        if lengths is None or decorrelation > WORTH * best:
            best = decorrelation
            n_enough = int(np.ceil(most_decorrelation / max(rate, SLOWEST)))
            lengths = n_steps, min(most, n_enough)
    return SurrogateTransitions(hamiltonian, step_size, *lengths, best)


def learn_step_size(hamiltonian, states, target_acceptance, rng):
    """Return the step size at which the surrogate's trajectories have `target_acceptance`."""
    averaging = DualAveraging(target_acceptance, FIRST_STEP_SIZE, STEP_SIZE_BOUNDS)
    for _ in range(N_STEP_SIZE_TRAJECTORIES):
        start = states[rng.integers(len(states))]
        momentum = hamiltonian.metric.draw_momentum(rng)
        _, energies = hamiltonian.path(start, momentum, averaging.step_size, N_STEP_SIZE_STEPS)
        averaging.update(acceptance(energies[-1]))
    return averaging.averaged_step_size


def acceptance(energy_change):
    """Return the acceptance probability of a change of energy; 0 where it is NaN."""
    return np.exp(-np.maximum(np.nan_to_num(energy_change, nan=np.inf, neginf=0.0), 0.0))


def _gradient_cost(parameters, d):
    n_landmarks = getattr(parameters, "coefficients", np.zeros(0)).size
    n_additive = getattr(parameters, "additive_coefficients", np.zeros(0)).size
    return d * (n_landmarks + d) + ADDITIVE_SIZE * n_additive + GRADIENT_OVERHEAD


def _u_turn(hamiltonian, start, step_size, rng):
    """Return the number of leapfrog steps until a trajectory comes nearer to its start again."""
    momentum = hamiltonian.metric.draw_momentum(rng)
    path, _ = hamiltonian.path(start, momentum, step_size, 2 * MOST_BEFORE_TURN)
    path = np.vstack([start, path])
    distances = hamiltonian.metric.lengths((path - start) @ hamiltonian.coordinates.matrix.T)
    nearer = np.flatnonzero(~(np.diff(distances) > 0))
    return nearer[0] + 1 if len(nearer) else 2 * MOST_BEFORE_TURN


def _mean_jumps(hamiltonian, scale, starts, step_size, n_transitions, n_steps, rng):
    """Return the mean squared jumps (2 d,) of sequences: of each coordinate, and of its square."""
    jumps = np.zeros(2 * starts.shape[1])
    for start in starts:
        end = transition_sequence(hamiltonian, start, step_size, n_transitions, n_steps, rng)
        jumps += scale.squared_jumps(start, end.position) / len(starts)
    return jumps


class JumpScale:
    """The scale that jumps are measured on: it whitens states (n, d), repetitions included."""

    def __init__(self, states):
        self.mean = states.mean(axis=0)
        self.matrix = np.ascontiguousarray(whitening(shrunk_covariance(states)).T)

    def squared_jumps(self, start, ends):
        """Return squared jumps (..., 2 d) of the whitened coordinates and of their squares.

        They are in units of their means under independence for a Gaussian, 2 and 4, and capped.
        `start` has shape (d,) or that of the ends, (..., d).
        """
        z0, z = (start - self.mean) @ self.matrix, (ends - self.mean) @ self.matrix
        jumps = np.concatenate([(z - z0) ** 2 / 2, (z**2 - z0**2) ** 2 / 4], axis=-1)
        return np.minimum(jumps, LONGEST_JUMP)

    def independent_jumps(self, states):
        """Return the mean squared jumps (2 d,) between distant states (n, d) in chain order.

        The means are below 1: long jumps are capped. They are far below where tails are heavy or
        where a coordinate's squares are nearly equal, as in two modes.
        """
        n = len(states)
        lags = np.unique(np.linspace(0, n, N_LAGS + 2)[1:-1].round().astype(int).clip(1, n - 1))
        others = (np.roll(states, lag, axis=0) for lag in lags)
        return np.mean([self.squared_jumps(states, other) for other in others], axis=(0, 1))
