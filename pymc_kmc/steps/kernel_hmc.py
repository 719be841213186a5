r"""Kernel Hamiltonian Monte Carlo (KMC; Strathmann et al., 2015, Algorithm 1).

An iteration at x:

1. Choose a move. A random walk (:mod:`pymc_kmc.moves.random_walk`) is the only one before the first
   fit, and is chosen more often where the target is far above the surrogate
   (:mod:`pymc_kmc.steps.surrogate`). The others are a long and a short trajectory
   (:mod:`pymc_kmc.moves.trajectory`), with learned probabilities
   (:class:`~pymc_kmc.moves.base.OneOf`).
2. For a trajectory, draw a momentum p ~ N(0, M), a step size and a number of leapfrog steps, all
   independent of x. Follow :math:`H(x, p) = -f(x) + \frac12 p^\top M^{-1} p` from (x, p) to
   (x', p'); f is a kernel exponential family fitted to the chain's history.
3. Accept x' with probability

   .. math:: \min\left(1, \frac{\hat\pi(x')}{\hat\pi(x)}
             \exp\left(\tfrac12 p^\top M^{-1} p - \tfrac12 p'^\top M^{-1} p'\right)\right)

   with the target's own (possibly estimated) density: one evaluation.
4. While adaptation lasts, fit the surrogate on a schedule
   (:mod:`pymc_kmc.adaptation.fit_to_scores`). Learn step size and number of steps on the surrogate
   alone (:mod:`pymc_kmc.adaptation.transitions`), and the trajectories' probabilities from their
   jumps on the surrogate and their acceptance on the target: a poor surrogate makes short
   trajectories frequent.

The chain is exact: given f, M, the step size and the number of steps, the leapfrog map followed by
a flip of the momentum is a volume-preserving involution whatever f is. Step 3 is therefore a
Metropolis-Hastings step for :math:`\hat\pi(x) N(p; 0, M)` (Neal, 2011, section 2.3; with an
estimated density for the extended target of Andrieu and Roberts, 2009). A mixture of kernels that
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
from functools import partial

import numpy as np

from pymc_kmc.adaptation.fit_to_scores import FitToScores
from pymc_kmc.adaptation.fitted import GivenSurrogate
from pymc_kmc.adaptation.schedules import GeometricSchedule, vanishing_weight
from pymc_kmc.adaptation.transitions import learn_transitions
from pymc_kmc.moves.base import MoveKind, Row
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.moves.trajectory import Trajectory
from pymc_kmc.moves.transitions import SequenceSize
from pymc_kmc.numerics.checks import (
    check_between,
    check_choice,
    check_count,
    check_flag,
    check_interval,
    check_positive,
)
from pymc_kmc.steps.surrogate import SurrogateAdaptation, SurrogateStep
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite

# Iterations a dimension before the first fit (15 to 40 do equally well).
FIRST_FIT = 20
# Factor on the number of iterations from one fit to the next: 1.12 gives twice the effective sample
# size of 1.2 on a banana, whose arms are explored one fit at a time.
REFIT_GROWTH = 1.12
# The same with the online schedule, whose updates learn the states in between: the costly choice of
# coordinates and hyper-parameters is made seven times in 1000 iterations.
UPDATED_REFIT_GROWTH = 1.5
# Kinds of trajectory: the second one has a fifth of the learned number of steps.
TRAJECTORIES = (
    SequenceSize(MoveKind.LONG_TRAJECTORY, 0.0, 1.0),
    SequenceSize(MoveKind.SHORT_TRAJECTORY, 0.0, 0.2),
)
# Largest `random_walk_probability`: trajectories need the rest.
LARGEST_RANDOM_WALK_PROBABILITY = 0.8


class KernelHMC(SurrogateStep):
    """Base of KMC lite and KMC finite: all but the surrogate's family."""

    stats_dtypes_shapes = SurrogateStep.stats_dtypes_shapes | {
        "energy": (np.float64, []),
        "diverging": (bool, []),
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
        check_choice(schedule, "schedule", ("geometric", "online"))
        if schedule == "online" and values:
            raise ValueError(
                "values=True needs schedule='geometric': the online schedule is the paper's, "
                "which learns from states alone."
            )
        check_between(target_acceptance, "target_acceptance", 0.0, 1.0)
        check_between(
            random_walk_probability,
            "random_walk_probability",
            0.0,
            LARGEST_RANDOM_WALK_PROBABILITY,
            open=False,
        )
        self.sigma = None if sigma is None else check_positive(sigma, "sigma")
        self.regularisation = regularisation
        if regularisation is not None:
            self.regularisation = check_positive(regularisation, "regularisation")
        self.base = base
        self.values = schedule == "geometric" if values is None else check_flag(values, "values")
        self.given_step_size = check_interval("step_size", step_size, minimum=0.0)
        self.given_n_leapfrog = check_interval("n_leapfrog", n_leapfrog, minimum=1, integer=True)
        self.target_acceptance = target_acceptance
        self.random_walk_probability = random_walk_probability
        self.schedule = schedule
        super().__init__(vars, **kwargs)

    @abstractmethod
    def _template(self):
        """Return an unfitted surrogate, which chooses `sigma` and `regularisation` if None."""

    def _start_chain(self):
        d, given = self.n_dimensions, (self.given_step_size, self.given_n_leapfrog)
        sizes = TRAJECTORIES[:1] if self.given_n_leapfrog else TRAJECTORIES
        growth = UPDATED_REFIT_GROWTH if self.schedule == "online" else REFIT_GROWTH
        return SurrogateAdaptation(
            d,
            self._fits(),
            GeometricSchedule(FIRST_FIT * d, growth),
            RandomWalk(d, is_noisy=self.target.is_noisy, has_momentum=True),
            [Trajectory(size, *given) for size in sizes],
        )

    def _fits(self):
        # A trajectory is a sequence of one transition.
        learn_moves = partial(
            learn_transitions,
            n_gradients=0,
            target_acceptance=self.target_acceptance,
            step_size=self.given_step_size and np.mean(self.given_step_size),
            n_steps=self.given_n_leapfrog and self.given_n_leapfrog[1],
        )
        if self.given_surrogate is not None:
            return GivenSurrogate(self.given_surrogate, learn_moves)
        return FitToScores(self._template(), self.n_points, self.values, learn_moves)

    def _coordinates(self, fitted):
        return fitted.hamiltonian.coordinates

    # Algorithm 1

    def _moves(self):
        adapted = self.adapted
        walks = Row(adapted.random_walk, self._random_walk_probability)
        return [walks, Row(adapted.transitions, 1.0)]

    def _learn(self, outcome):
        adapted, proposal = self.adapted, outcome.proposal
        adapted.history.append(outcome)
        adapted.random_walk.learn_covariance(adapted.history.states)
        proposal.move.learn(outcome, self.rng)
        adapted.transitions.learn(outcome)
        n = len(adapted.history)
        if adapted.schedule.is_due(n):
            self._fit()
        elif self.schedule == "online" and adapted.fits.n_fits:
            if self.rng.uniform() < vanishing_weight(n):
                adapted.fitted = adapted.fits.update(adapted.history, adapted.fitted, self.rng)

    def _end_tuning(self):
        if self.adaptation == "tuning":
            self._fit()

    def _fit(self):
        adapted = self.adapted
        fitted = adapted.fits.fit(adapted.history, adapted.fitted, self.rng)
        if fitted is not None:
            adapted.use(fitted)

    def _statistics(self, proposal, current):
        return super()._statistics(proposal, current) | {
            "energy": proposal.kinetic_energy - current.log_density,
            "diverging": proposal.diverging,
        }


class KMCLite(KernelHMC):
    r"""KMC lite: the surrogate is a kernel expansion at states of the chain.

    Strathmann et al. (2015), Proposition 1 and Algorithm 1. A fit costs O(n_points^3), a gradient
    O(n_points d).

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    surrogate : Surrogate, optional
        A fitted surrogate to use as it is, in the unconstrained raveled coordinates of `vars`;
        nothing is fitted then. Any of :mod:`pymc_kmc.surrogates`, or an object of your own with
        `n_features_in_`, `log_density(X)` and `gradient(X)`.
    n_points : int
        Largest number of states that a fit uses.
    sigma : float, optional
        Bandwidth in squared units of the unconstrained scale; by default chosen at every fit,
        together with coordinates.
    regularisation : float, optional
        By default chosen at every fit by blocked cross-validation.
    penalty : {"rkhs", "coefficients", "reference"}
        See :class:`~pymc_kmc.surrogates.KernelExpLite`; "coefficients" is the paper's.
    rank : int, optional
        Largest rank of the kernel matrix in a fit (the paper's Appendix A), which then costs
        O(n_points rank d) for each of some tens of iterations. By default fits are exact.
    tolerance : float, optional
        Residual of the kernel matrix's diagonal, which is 1, at which its rank is large enough.
    base : {"gaussian", None}
        Base density of the surrogate: a Gaussian, whose tails pull inwards, or none, as in the
        paper.
    values : bool, optional
        Whether the log densities of proposals correct the surrogate's base density and
        coefficients; by default they do, except with the online schedule. Coordinates and bandwidth
        are always those in which kernels predict these log densities best.
    step_size : (float, float), optional
        Bounds of the uniformly drawn leapfrog step size; by default learned on the surrogate.
    n_leapfrog : (int, int), optional
        Bounds of the uniformly drawn number of leapfrog steps; by default learned on the surrogate.
    target_acceptance : float
        Acceptance rate of trajectories if the surrogate were the target; it determines the step
        size. The surrogate's errors make the target's own acceptance lower.
    random_walk_probability : float
        Probability of a random walk; it is larger at states where the target is far above the
        surrogate. With 0 there are none once a surrogate is fitted.
    schedule : {"geometric", "online"}
        Whether the surrogate is fitted on a geometric schedule alone, or is also updated with
        probability 1 / sqrt(t + 1) at iteration t, from states alone, as in the paper. 10,000
        iterations of tuning make 45 fits, 13 s in all (KMC finite, 3 dimensions), and 13 fits, 18 s
        in all, with "online". Costs grow with the logarithm of the number of iterations.
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

    def __init__(
        self, vars=None, *, n_points=500, penalty="rkhs", rank=None, tolerance=None, **kwargs
    ):
        self.n_points = check_count(n_points, "n_points")
        self.penalty = check_choice(penalty, "penalty", ("coefficients", "reference", "rkhs"))
        self.rank = None if rank is None else check_count(rank, "rank")
        self.tolerance = None if tolerance is None else check_positive(tolerance, "tolerance")
        super().__init__(vars, **kwargs)

    def _template(self):
        return KernelExpLite(
            self.sigma, self.regularisation, self.penalty, self.base, self.rank, self.tolerance
        )


class KMCFinite(KernelHMC):
    r"""KMC finite: the surrogate is linear in random Fourier features.

    Strathmann et al. (2015), Proposition 2 and Algorithm 1. A fit costs O(n d m + n m^2 + m^3)
    for n states and m features, a gradient O(m d); with ``schedule="online"`` the surrogate is
    updated online with every state that the chain went through.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    n_features : int
        Number m of random features.
    n_points : int
        Largest number of states that a fit uses.
    kernel : {"gaussian", "rational_quadratic"}
        Kernel of the random features.
    **kwargs
        As for :class:`KMCLite`: `surrogate`, `sigma`, `regularisation`, `base`, `values`,
        `step_size`, `n_leapfrog`, `target_acceptance`, `random_walk_probability`, `schedule`, and
        those of every step.

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

    def _template(self):
        return KernelExpFinite(
            self.n_features, self.sigma, self.regularisation, self.kernel, self.base
        )
