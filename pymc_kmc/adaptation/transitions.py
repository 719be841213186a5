r"""Proposals by transitions on a surrogate, their tuning and their mixture.

A proposal is the end of a sequence of HMC transitions that leave :math:`e^{f(x) / T}` invariant
(:func:`pymc_kmc.dynamics.transitions`). Each transition is reversible and draws its step size and
its number of leapfrog steps independently of everything, from one distribution, so that the whole
sequence Q is reversible too, :math:`e^{f(x)/T} Q(x, dx') = e^{f(x')/T} Q(x', dx)`, and the end
point accepted with probability

.. math:: \min\left(1, \frac{\pi(x')}{\pi(x)} \exp\left(\frac{f(x) - f(x')}T\right)\right)

leaves :math:`\pi` invariant: the surrogate transition method (Liu, 2001, section 9.4.3), a delayed
acceptance (Christen and Fox, 2005) with as many first stages as are wanted. One evaluation of the
target pays for all of them.

Learned on the surrogate alone: the step size (:func:`learn_step_size`); the number of leapfrog
steps, from the median number until a U-turn and multiples of it; the number of transitions, as
many as make start and end independent, as far as a budget of gradients allows. Both are judged by
simulations of short sequences: the jumps of long ones are all as large as can be, so that their
differences are noise. Step sizes are mixed with smaller ones, which get through
where the log density is most curved: with one step size the far arms of a strongly curved banana
are never entered (its spread .5 too small in log, against .05-.4).

Tried: numbers of transitions from autocorrelations of coordinates and squares, pooled along
sequences, which tell fast surrogates from slow ones without the noise of squared jumps (10-d
Gaussian: 3 transitions in place of 85, half the time, 817 effective draws in place of 787). But
what makes chains stick are corners that second moments don't show: eight schools, 4 seeds, had 7
to 432 effective draws with sequences that end at a correlation of exp(-5), 203 to 429 at exp(-12),
and 448 to 532 with the squared jumps' longer ones.

The mixture: short and single transitions for when the surrogate is poor, few and many for when it
is good. How often each is made follows from its acceptance rate on the target and its squared
jumps on the surrogate. Squared jumps on the target would say more, but under noise they are so
variable that the choice is a lottery (20-d Gaussian, noise sd 1: ESS 63 per 1000 against 125).

References
----------
Christen, J. A. and Fox, C. (2005). Markov chain Monte Carlo using an approximation. *Journal of
Computational and Graphical Statistics* 14, 795-810.

Liu, J. S. (2001). *Monte Carlo Strategies in Scientific Computing*. Springer.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.adaptation.moves import Mixture, Whitening
from pymc_kmc.adaptation.trajectory import learn_step_size
from pymc_kmc.dynamics import SurrogateHamiltonian, transitions
from pymc_kmc.numerics.coordinates import Coordinates

__all__ = ["SurrogateProposal", "SurrogateTransitions", "TransitionMixture"]

TARGET_ACCEPTANCE = 0.85
# The step sizes of a sequence are the learned one times one of these, with these probabilities,
# times a uniform number; their trajectories are longer, up to a limit.
STEP_FACTORS = np.array([1.0, 0.35, 0.12])
STEP_PROBABILITIES = np.array([0.6, 0.25, 0.15])
STEP_JITTER = (0.8, 1.2)
LONGEST = 2.5
# Numbers of leapfrog steps are uniform between this share of the learned one and all of it: fixed
# ones can resonate with the target (Neal, 2011, section 3.2).
SHORTEST_SHARE = 0.3
# Coordinates of landmarks (and a constant) that the gradients of a proposal may visit: 300
# gradients with 300 landmarks in 8 dimensions, some .2 ms; and most transitions.
BUDGET = 800_000
GRADIENT_OVERHEAD = 400
# What a function of a single coordinate costs beside these.
ADDITIVE_SIZE = 5
MOST_TRANSITIONS = 100
# Multiples of the U-turn's length compared; a longer one must promise this much more.
LENGTH_FACTORS = (1.0, 2.0, 4.0)
WORTH = 1.25
MOST_STEPS = 40
# Sequences end when starts and ends are correlated by exp(-ENOUGH), as judged by sequences of so
# many transitions, whose jumps count up to a largest one.
ENOUGH = 6.0
N_SIMULATED = 8
LARGEST_JUMP = 0.95
# Starts of the simulations on the surrogate, or two a dimension: the coordinate that moves least is
# looked for, and of more coordinates one seems to.
N_STARTS = 50
# Average length of a trajectory, as a multiple of the number of steps set.
MEAN_LENGTH = (
    0.5 * (1 + SHORTEST_SHARE) * float(STEP_PROBABILITIES @ np.minimum(LONGEST, 1 / STEP_FACTORS))
)


class SurrogateProposal(NamedTuple):
    """The end of a sequence of transitions.

    Attributes
    ----------
    position : ndarray, shape (d,)
    log_ratio : float
        The surrogate's part of the acceptance ratio.
    n_steps : int
        Leapfrog steps made.
    moved : bool
        Whether any transition was accepted.
    """

    position: np.ndarray
    log_ratio: float
    n_steps: int
    moved: bool


def in_own_coordinates(parameters):
    """Return a surrogate's parameters for positions that are whitened already."""
    d = len(parameters.centre)
    return parameters._replace(centre=np.zeros(d), whitening=np.eye(d))


class SurrogateTransitions:
    """Transitions on one surrogate, with what was learned of them.

    Parameters
    ----------
    surrogate : Surrogate
        Fitted.
    states : ndarray, shape (n, d)
        Of the chain, to start simulations from.
    rng : numpy.random.Generator

    Attributes
    ----------
    hamiltonian : SurrogateHamiltonian
    step_size : float
    n_steps : int
        Longest number of leapfrog steps at this step size.
    n_transitions : int
        Of the longest sequence.
    jumps : ndarray
        Of each kind of move, the smallest mean squared jump on the surrogate over coordinates of
        the whitened states and their squares, 1 for independence.
    """

    # Kinds of move: transitions as a share of `n_transitions` (0: one), and steps of `n_steps`.
    KINDS = ((0.0, 0.3), (0.0, 1.0), (0.25, 1.0), (1.0, 1.0))

    def __init__(self, surrogate, states, rng):
        parameters = surrogate.parameters_
        if hasattr(parameters, "whitening"):  # what is done in its own coordinates is simpler
            self.coordinates = Coordinates(parameters.centre, parameters.whitening)
            parameters = in_own_coordinates(parameters)
        else:
            self.coordinates = Coordinates.identity(states.shape[1])
        self.parameters = parameters
        self.hamiltonian = SurrogateHamiltonian(parameters, coordinates=self.coordinates)
        self.step_size = learn_step_size(self.hamiltonian, states, TARGET_ACCEPTANCE, rng)
        self._learn_lengths(states, rng)

    def _learn_lengths(self, states, rng):
        starts = states[rng.integers(len(states), size=max(N_STARTS, 2 * states.shape[1]))]
        u_turns = [self._u_turn(start, rng) for start in starts]
        shortest = int(np.clip(np.median(u_turns), 2, MOST_STEPS))
        whitening = Whitening(states)
        n_landmarks = getattr(self.parameters, "coefficients", np.zeros(0)).size
        n_additive = getattr(self.parameters, "additive_coefficients", np.zeros(0)).size
        d = states.shape[1]
        size = d * (n_landmarks + d) + ADDITIVE_SIZE * n_additive
        budget = BUDGET / (size + GRADIENT_OVERHEAD)
        best = 0.0
        for factor in LENGTH_FACTORS:
            n_steps = int(factor * shortest)
            most = int(np.clip(budget / (1 + MEAN_LENGTH * n_steps), 1, MOST_TRANSITIONS))
            # Short sequences say more than long ones, whose jumps are all as large as can be, and
            # cost less: decorrelation is taken for exponential in the number of transitions.
            n_simulated = min(most, N_SIMULATED)
            jump = min(self._jump(whitening, starts, n_simulated, n_steps, rng), LARGEST_JUMP)
            rate = -np.log1p(-jump) / n_simulated
            decorrelation = min(rate * most, ENOUGH)
            if factor == LENGTH_FACTORS[0] or decorrelation > WORTH * best:
                best, self.n_steps = decorrelation, n_steps
                self.n_transitions = min(most, int(np.ceil(ENOUGH / max(rate, 1e-3))))
        parts = [length * max(share, 1.0 / self.n_transitions) for share, length in self.KINDS]
        self.jumps = -np.expm1(-best * np.array(parts))

    def follow(self, parameters):
        """Go on with a surrogate that has learned a little more in the same coordinates."""
        self.parameters = in_own_coordinates(parameters)
        self.hamiltonian.parameters = self.parameters

    def n_transitions_of(self, kind):
        """Return the number of transitions of a kind of move."""
        return self._size(kind)[0]

    @property
    def n_kinds(self):
        """Number of kinds of move."""
        return len(self.KINDS)

    def _size(self, kind):
        """Numbers of transitions and of leapfrog steps of a kind of move."""
        share, length = self.KINDS[kind]
        return max(1, round(share * self.n_transitions)), max(1, round(length * self.n_steps))

    def _u_turn(self, start, rng):
        """Leapfrog steps until a trajectory comes nearer to its start again."""
        momentum = self.hamiltonian.metric.draw_momentum(rng)
        path, _ = self.hamiltonian.path(start, momentum, self.step_size, 2 * MOST_STEPS)
        path = np.vstack([start, path])
        distances = np.linalg.norm((path - start) @ self.coordinates.matrix.T, axis=1)
        nearer = np.flatnonzero(~(np.diff(distances) > 0))
        return nearer[0] + 1 if len(nearer) else 2 * MOST_STEPS

    def _jump(self, whitening, starts, n_transitions, n_steps, rng):
        jumps = np.zeros(2 * starts.shape[1])
        for start in starts:
            end = self._sequence(start, n_transitions, n_steps, 1.0, rng).position
            jumps += whitening.squared_jumps(start, end) / len(starts)
        return jumps.min()

    def _sequence(self, position, n_transitions, n_steps, temperature, rng):
        d = len(position)
        factors = rng.choice(STEP_FACTORS, size=n_transitions, p=STEP_PROBABILITIES)
        step_sizes = self.step_size * factors * rng.uniform(*STEP_JITTER, size=n_transitions)
        lengths = n_steps * np.minimum(LONGEST, 1 / factors)
        numbers = 1 + (lengths * rng.uniform(SHORTEST_SHARE, 1.0, n_transitions)).astype(np.int64)
        start = self.coordinates.forward(position)
        end, change, acceptance = transitions(
            self.parameters,
            1.0 / temperature,
            start,
            rng.standard_normal((n_transitions, d)),
            step_sizes,
            numbers,
            rng.uniform(size=n_transitions),
        )
        moved = acceptance > 0 and not np.array_equal(start, end)
        end = self.coordinates.backward(end) if moved else position
        return SurrogateProposal(end, -change / temperature, int(numbers.sum()), moved)

    def propose(self, position, kind, rng, temperature=1.0):
        """Make a proposal.

        Parameters
        ----------
        position : ndarray, shape (d,)
        kind : int
            Index of the kind of move.
        rng : numpy.random.Generator
        temperature : float
            Of the surrogate.

        Returns
        -------
        SurrogateProposal
        """
        return self._sequence(position, *self._size(kind), temperature, rng)


class TransitionMixture(Mixture):
    """How often each kind of surrogate move is made.

    Parameters
    ----------
    n_kinds : int

    Attributes
    ----------
    probabilities : ndarray, shape (n_kinds,)
    """

    POWER = 12.0
    SMALLEST = 0.005  # probability of a kind of move
    # What was seen before a refit counts so much after it.
    MEMORY = 0.3
    # Beyond this jump more of it makes draws no more independent.
    ENOUGH = 0.97

    def __init__(self, n_kinds):
        self.counts = np.zeros(n_kinds)
        self.acceptances = np.zeros(n_kinds)
        self.jumps = np.ones(n_kinds)
        self._update()

    def _update(self):
        rates = (self.acceptances + 0.5) / (self.counts + 1.0)
        shares = (rates * np.clip(self.jumps, 1e-3, self.ENOUGH)) ** self.POWER
        free = 1.0 - self.SMALLEST * len(shares)
        self.probabilities = self.SMALLEST + free * shares / shares.sum()

    def learn(self, kind, acceptance_rate):
        """Learn from one proposal's acceptance probability."""
        self.counts[kind] += 1.0
        self.acceptances[kind] += acceptance_rate
        self._update()

    def renew(self, jumps):
        """Begin anew with the squared jumps of a new surrogate's moves."""
        self.jumps = jumps
        self.counts *= self.MEMORY
        self.acceptances *= self.MEMORY
        self._update()
