r"""Kernel Hamiltonian Monte Carlo (KMC; Strathmann et al., 2015, Algorithm 1).

An iteration at x:

1. Choose a kind of move: a random walk (:mod:`pymc_kmc.adaptation.random_walk`; always, while no
   surrogate is fitted yet), more often where the target is far above the surrogate
   (:mod:`pymc_kmc.steps.surrogate`, with what that asks of the acceptance ratio), or a trajectory
   of a long or a short range of lengths, with fixed probabilities
   (:mod:`pymc_kmc.adaptation.moves`).
2. For a trajectory, draw a momentum p ~ N(0, M), a step size and a number of leapfrog steps, each
   independently of x, and follow :math:`H(x, p) = -f(x) + \frac12 p^\top M^{-1} p` from (x, p) to
   (x', p'), where f is an exponential family in a reproducing kernel Hilbert space fitted to the
   chain's history.
3. Accept x' with probability

   .. math:: \min\left(1, \frac{\hat\pi(x')}{\hat\pi(x)}
             \exp\left(\tfrac12 p^\top M^{-1} p - \tfrac12 p'^\top M^{-1} p'\right)\right)

   with the target's own (possibly estimated) density: one evaluation.
4. While adaptation lasts, learn: the surrogate on a schedule
   (:mod:`pymc_kmc.adaptation.surrogate`), then step size and number of steps on the surrogate
   alone (:mod:`pymc_kmc.adaptation.trajectory`), and the moves' probabilities from their real
   jumps: where the surrogate is poor, short trajectories and random walks win.

Why it is exact: given f, M, the step size and the number of steps, the leapfrog map followed by a
flip of the momentum is a volume-preserving involution whatever f is, so that step 3 is a
Metropolis-Hastings step for :math:`\hat\pi(x) N(p; 0, M)` (Neal, 2011, section 2.3; with an
estimated density for the extended target of Andrieu and Roberts, 2009); a mixture of kernels that
leave the target invariant leaves it invariant too. With ``random_walk_probability=0`` there are no
random walks after the first fit, as in the paper.

References
----------
Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.

Neal, R. M. (2011). MCMC using Hamiltonian dynamics. In *Handbook of Markov Chain Monte Carlo*,
Chapman and Hall/CRC.

Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.

Examples
--------
>>> import pymc as pm, pymc_kmc as kmc
>>> with pm.Model():
...     x = pm.Normal("x", shape=2)
...     idata = pm.sample(
...         step=kmc.KMCLite(), tune=200, draws=200, chains=1, random_seed=1, progressbar=False,
...         compute_convergence_checks=False,
...     )
>>> idata.posterior.sizes["draw"]
200
"""

from abc import abstractmethod

import numpy as np

from pymc_kmc.adaptation.log_weights import LogWeights
from pymc_kmc.adaptation.moves import MoveMixture, Whitening
from pymc_kmc.adaptation.schedules import GeometricSchedule, vanishing_weight
from pymc_kmc.adaptation.surrogate import FiniteFamily, LiteFamily, SurrogateAdaptation
from pymc_kmc.adaptation.trajectory import learn_n_steps, learn_step_size
from pymc_kmc.dynamics import SurrogateHamiltonian
from pymc_kmc.numerics.checks import check_choice, check_count, check_interval, check_positive
from pymc_kmc.numerics.threads import single_threaded_blas
from pymc_kmc.steps.base import AdaptiveStep, Proposal
from pymc_kmc.steps.surrogate import RANDOM_WALK, LearnedWithSurrogate, SurrogateStep

__all__ = ["KMCFinite", "KMCLite", "KernelHMC"]

# The step size of an iteration is the learned one times a uniform number from this interval:
# fixed ones can resonate with the target (Neal, 2011, section 3.2).
STEP_SIZE_JITTER = (0.7, 1.1)
# First fit after so many iterations a dimension (15 to 40 did equally well).
FIRST_FIT = 20
# Fits are due whenever the number of iterations has grown by this factor: growth by 1.12 instead
# of 1.2 doubled the effective sample size on the banana of the benchmarks, whose arms are explored
# one fit at a time.
REFIT_GROWTH = 1.12
# The kinds of trajectory: shares of the learned numbers of steps, and each one's smallest
# probability.
SHARES = (1.0, 0.2)
SMALLEST_PROBABILITY = 0.05


class Learned(LearnedWithSurrogate):
    """What KMC lite and finite learn from a chain, besides what every step on a surrogate does.

    Attributes
    ----------
    step_size : (float, float) or None
        Bounds of the uniform distribution of step sizes; None until they are learned.
    n_steps : (int, int) or None
        The same for numbers of leapfrog steps.
    moves : MoveMixture
        The random walk and the trajectories of different lengths.
    whitening : Whitening or None
        The scale that their jumps are measured on.
    """

    def __init__(self, n_dimensions, adaptation, is_noisy, step_size, n_steps, moves):
        schedule = GeometricSchedule(FIRST_FIT * n_dimensions, REFIT_GROWTH)
        super().__init__(n_dimensions, adaptation, schedule, is_noisy)
        self.step_size = step_size
        self.n_steps = n_steps
        self.moves = moves
        self.whitening = None


class KernelHMC(SurrogateStep):
    """What KMC lite and KMC finite share: everything but the surrogate's family."""

    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {
        "step_size": (np.float64, []),
        "n_steps": (np.int64, []),
        "energy": (np.float64, []),
        "diverging": (bool, []),
        "kmc_move": (np.int64, []),
        "kmc_n_fits": (np.int64, []),
    }

    def __init__(
        self,
        vars=None,
        *,
        sigma=None,
        regularisation=None,
        base="gaussian",
        values=None,
        step_size=None,
        n_leapfrog=None,
        target_acceptance=0.9,
        random_walk_probability=0.1,
        schedule="geometric",
        **kwargs,
    ):
        check_choice(base, "base", (None, "gaussian"))
        check_choice(schedule, "schedule", ("geometric", "vanishing"))
        if schedule == "vanishing" and values:
            raise ValueError(
                "values=True needs schedule='geometric': the vanishing schedule is the "
                "paper's, which "
                "learns from states alone."
            )
        if not 0 < target_acceptance < 1:
            raise ValueError(f"target_acceptance must be between 0 and 1, got {target_acceptance}.")
        if not 0 <= random_walk_probability <= 0.8:
            raise ValueError(
                f"random_walk_probability must be between 0 and 0.8, got {random_walk_probability}."
            )
        self.sigma = None if sigma is None else check_positive(sigma, "sigma")
        self.regularisation = regularisation
        if regularisation is not None:
            self.regularisation = check_positive(regularisation, "regularisation")
        self.base = base
        self.values = schedule == "geometric" if values is None else bool(values)
        self.given_step_size = check_interval("step_size", step_size, minimum=0.0)
        self.given_n_leapfrog = check_interval("n_leapfrog", n_leapfrog, minimum=1, integer=True)
        self.target_acceptance = target_acceptance
        self.random_walk_probability = random_walk_probability
        self.schedule = schedule
        super().__init__(vars, **kwargs)

    @abstractmethod
    def _family(self):
        """Return what makes the surrogates."""

    def _start_chain(self):
        hamiltonian = None
        if self.given_surrogate is not None:
            hamiltonian = SurrogateHamiltonian(self.given_surrogate.parameters_)
        adaptation = SurrogateAdaptation(
            self._family(), self.base, self.values, self.sigma, self.regularisation, hamiltonian
        )
        n_trajectories = 1 if self.given_n_leapfrog else len(SHARES)
        smallest = [self.random_walk_probability] + n_trajectories * [SMALLEST_PROBABILITY]
        if not self._adapts:  # nothing will be learned of the moves: trajectories, long ones
            smallest[1] = 1.0 - sum(smallest) + SMALLEST_PROBABILITY
        return Learned(
            self.n_dimensions,
            adaptation,
            self.target.is_noisy,
            self.given_step_size,
            self.given_n_leapfrog,
            MoveMixture(smallest, self.n_dimensions),
        )

    # Algorithm 1

    def _propose(self, position):
        learned, rng = self.learned, self.rng
        self._use_given_surrogate(position)
        log_density = self.target.recycled.log_density
        if learned.log_weights is None or (
            rng.uniform() < self._random_walk_probability(position, log_density)
        ):
            return self._propose_random_walk(position)
        hamiltonian = learned.adaptation.hamiltonian
        move = learned.moves.choose(rng, first=RANDOM_WALK + 1)
        step_size = rng.uniform(*learned.step_size)
        share = SHARES[move - 1]
        low, high = (max(1, round(share * n)) for n in learned.n_steps)
        n_steps = int(rng.integers(low, high, endpoint=True))
        momentum = hamiltonian.metric.draw_momentum(rng)
        end, end_momentum = hamiltonian.trajectory(position, momentum, step_size, n_steps)
        kinetic = hamiltonian.metric.kinetic_energy(momentum)
        log_ratio = kinetic - hamiltonian.metric.kinetic_energy(end_momentum)
        diverging = not np.isfinite(log_ratio)
        return Proposal(
            end,
            -np.inf if diverging else log_ratio,
            {
                "step_size": step_size,
                "n_steps": n_steps,
                "energy": kinetic,
                "diverging": diverging,
                "kmc_move": move,
                "kmc_n_fits": learned.adaptation.n_fits,
            },
        )

    def _propose_random_walk(self, position):
        learned = self.learned
        return Proposal(
            learned.random_walk.propose(position, self.rng),
            0.0,
            {
                "step_size": learned.random_walk.scale,
                "n_steps": 0,
                # A momentum that this move has no use for: energies stay comparable.
                "energy": 0.5 * self.rng.chisquare(self.n_dimensions),
                "diverging": False,
                "kmc_move": RANDOM_WALK,
                "kmc_n_fits": learned.adaptation.n_fits,
            },
        )

    def _statistics(self, proposal, current):
        # The Hamiltonian at the iteration's start with its momentum.
        energy = proposal.statistics["energy"] - current.log_density
        return proposal.statistics | {"energy": energy}

    def _learn(self, proposal, evaluation, acceptance_rate, start, position):
        learned = self.learned
        move = proposal.statistics["kmc_move"]
        self._remember(evaluation, position)
        if move == RANDOM_WALK:
            learned.random_walk.learn_scale(acceptance_rate)
        if learned.whitening is not None:
            jumps = np.zeros(2 * self.n_dimensions)
            if acceptance_rate > 0:
                jumps = acceptance_rate * learned.whitening.squared_jumps(start, proposal.position)
            learned.moves.learn(move, jumps)
        n = len(learned.record)
        if learned.schedule.is_due(n):
            self._fit()
        elif self.schedule == "vanishing" and learned.adaptation.n_fits:
            if self.rng.uniform() < vanishing_weight(n):
                with single_threaded_blas():
                    learned.adaptation.update(learned.record, self.rng)

    def _end_tuning(self):
        if self.adaptation == "tuning":
            self._fit()

    @property
    def _smallest_random_walk_probability(self):
        return self.learned.moves.probabilities[RANDOM_WALK]

    def _renew_moves(self, states, log_densities):
        learned, rng = self.learned, self.rng
        hamiltonian = learned.adaptation.hamiltonian
        learned.step_size = self.given_step_size
        if learned.step_size is None:
            scale = learn_step_size(hamiltonian, states, self.target_acceptance, rng)
            low, high = STEP_SIZE_JITTER
            learned.step_size = low * scale, high * scale
        learned.n_steps = self.given_n_leapfrog
        if learned.n_steps is None:
            learned.n_steps = learn_n_steps(hamiltonian, states, np.mean(learned.step_size), rng)
        learned.whitening = Whitening(states)
        learned.moves.forget()
        learned.log_weights = LogWeights(hamiltonian, states, log_densities)


class KMCLite(KernelHMC):
    r"""KMC lite: the surrogate is a kernel expansion at states of the chain.

    Strathmann et al. (2015), Proposition 1 and Algorithm 1. A fit costs O(n_points^3), a gradient
    O(n_points d).

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    surrogate : KernelExpLite or KernelExpFinite, optional
        A fitted one to use as it is, in the unconstrained raveled coordinates of `vars`; nothing is
        fitted then.
    n_points : int
        Most states that a fit uses.
    sigma : float, optional
        Bandwidth in squared units of the unconstrained scale; by default chosen at every fit,
        together with coordinates.
    regularisation : float, optional
        By default chosen at every fit by blocked cross-validation.
    penalty : {"rkhs", "coefficients", "reference"}
        See :class:`~pymc_kmc.surrogates.KernelExpLite`; "coefficients" is the paper's.
    base : {"gaussian", None}
        Base density of the surrogate: a Gaussian, which makes the tails pull inwards, or none,
        the paper's.
    values : bool, optional
        Whether the surrogate learns from the log densities of proposals beside the states. By
        default it does, except with the vanishing schedule.
    step_size : (float, float), optional
        Bounds of the uniformly drawn leapfrog step size; by default learned on the surrogate.
    n_leapfrog : (int, int), optional
        Bounds of the uniformly drawn number of leapfrog steps; by default learned on the surrogate.
    target_acceptance : float
        Acceptance rate that trajectories would have if the surrogate were the target: how fine the
        step size is. The target's own acceptance is lower by the surrogate's errors.
    random_walk_probability : float
        Smallest probability of a random-walk move; it is more if trajectories move the chain less
        far, and at states where the target is far above the surrogate. With 0 there are none once a
        surrogate is fitted.
    schedule : {"geometric", "vanishing"}
        When the surrogate learns: on a geometric schedule, or in addition with probability
        1 / sqrt(t + 1) at iteration t, from states alone, as in the paper.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the given surrogate isn't fitted or has the wrong
        dimension.
    """

    name = "kmc_lite"

    def __init__(self, vars=None, *, n_points=500, penalty="rkhs", **kwargs):
        self.n_points = check_count(n_points, "n_points")
        self.penalty = check_choice(penalty, "penalty", ("coefficients", "reference", "rkhs"))
        super().__init__(vars, **kwargs)

    def _family(self):
        return LiteFamily(self.n_points, self.penalty)


class KMCFinite(KernelHMC):
    r"""KMC finite: the surrogate is linear in random Fourier features.

    Strathmann et al. (2015), Proposition 2 and Algorithm 1. A fit costs O(n d m + n m^2 + m^3)
    for n states and m features, a gradient O(m d); with ``schedule="vanishing"`` the surrogate is
    updated online with every state that the chain went through.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    n_features : int
        Number m of random features.
    n_points : int
        Most states that a fit uses.
    kernel : {"gaussian", "rational_quadratic"}
        Of the random features.
    surrogate, sigma, regularisation, base, values, step_size, n_leapfrog, target_acceptance, \
random_walk_probability, schedule, **kwargs
        As for :class:`KMCLite`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the given surrogate isn't fitted or has the wrong
        dimension.
    """

    name = "kmc_finite"

    def __init__(self, vars=None, *, n_features=500, n_points=2000, kernel="gaussian", **kwargs):
        self.n_features = check_count(n_features, "n_features")
        self.n_points = check_count(n_points, "n_points")
        self.kernel = check_choice(kernel, "kernel", ("gaussian", "rational_quadratic"))
        super().__init__(vars, **kwargs)

    def _family(self):
        return FiniteFamily(self.n_features, self.n_points, self.kernel)
