r"""Kernel Adaptive Metropolis-Hastings (KAMH; Sejdinovic et al., 2014, Algorithm 1).

With a kernel k and a sub-sample z_1, ..., z_n of the chain's history, an iteration at x:

1. Propose

   .. math:: x' \sim q(\cdot \mid x) = N(x, \gamma^2 I + \nu^2 M_x H M_x^\top), \quad
             M_x = 2 \, [\nabla_x k(x, z_1), \dots, \nabla_x k(x, z_n)], \quad
             H = I - \tfrac1n \mathbf 1 \mathbf 1^\top

   (Proposition 1), along the directions in which the history varies near x. With the Gaussian
   kernel the proposals follow a curved target. With the linear kernel, k(x, z) = x'z, their
   covariance is the sub-sample's everywhere: adaptive Metropolis (Haario, Saksman and Tamminen,
   2001).
2. Accept x' with probability

   .. math:: \min\left(1, \frac{\hat\pi(x') \, q(x \mid x')}{\hat\pi(x) \, q(x' \mid x)}\right)

   with the target's own (possibly estimated) density: one evaluation.
3. While adaptation lasts, draw a new sub-sample with probability :math:`p_t = 1 / \sqrt{t + 1}`,
   and drive the scale :math:`\nu` towards an acceptance rate.

:math:`M_x H` is M_x less the mean of its columns: a proposal costs O(n), in a compiled loop.

The kernel acts on coordinates in units of the sub-sample's standard deviations. :math:`\gamma` is
relative to the narrowest direction there. :math:`\nu` is relative to the value at which M H M' is
on average as large as the covariance of an optimal random walk: the learned scale holds for a new
sub-sample too. Before the first one a random walk is made (:mod:`pymc_kmc.moves.random_walk`).

References
----------
Sejdinovic, D., Strathmann, H., Lomeli, M., Andrieu, C. and Gretton, A. (2014). Kernel adaptive
Metropolis-Hastings. *ICML* 31.

Haario, H., Saksman, E. and Tamminen, J. (2001). An adaptive Metropolis algorithm. *Bernoulli* 7,
223-242.

Examples
--------
>>> import pymc as pm, pymc_kmc as kmc
>>> with pm.Model():
...     x = pm.Normal("x", shape=2)
...     idata = pm.sample(50, tune=200, step=kmc.KAMH(), chains=1, random_seed=1, progressbar=False)
>>> int(idata.sample_stats["kmc_n_subsamples"][0, -1]) > 0
True
"""

import numpy as np

from pymc_kmc.adaptation.history import GrowingArray
from pymc_kmc.adaptation.schedules import vanishing_weight
from pymc_kmc.moves.local import LocalDistribution, LocalRandomWalk
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.numerics.checks import (
    check_between,
    check_choice,
    check_count,
    check_flag,
    check_points,
    check_positive,
)
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.numerics.samples import has_moved
from pymc_kmc.steps.base import AdaptiveStep

# Iterations a dimension before the first sub-sample (with 20 the worst chains are worse).
FIRST = 50
# Share of the history, the most recent, that sub-samples are drawn from (2/3 does equally well).
SUBSAMPLED_SHARE = 0.9


class KAMHAdaptation:
    """KAMH's adaptation: `random_walk` moves the chain until the first sub-sample, then `local`."""

    def __init__(self, n_dimensions, random_walk):
        self.states = GrowingArray(n_dimensions)
        self.random_walk = random_walk
        self.local = LocalRandomWalk(random_walk.scale_adaptation.target)
        self.n_subsamples = 0

    @property
    def move(self):
        return self.random_walk if self.local.distribution is None else self.local


class KAMH(AdaptiveStep):
    r"""Kernel Adaptive Metropolis-Hastings (Sejdinovic et al., 2014), for curved targets.

    A random walk whose covariance depends on the place, so that it follows a ridge that bends. It
    makes one evaluation an iteration, and is exact with noisy likelihoods. :class:`~pymc_kmc.KMC`
    goes farther with each evaluation; KAMH fits no surrogate, and an iteration costs some tens of
    microseconds.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    kernel : {"gaussian", "linear"}
        The linear kernel makes it adaptive Metropolis on a sub-sample.
    n_points : int
        Largest number of states in a sub-sample.
    gamma : float
        Standard deviation of the isotropic part of the proposals, relative to 2.38 / sqrt(d) times
        that of the sub-sample in its narrowest direction, coordinates standardised. The isotropic
        part takes the chain beyond its history: .3 and 1 do worse.
    target_acceptance : float, optional
        Acceptance rate that the scale nu is driven to: by default .234, as in the paper, or .1 if
        the likelihood is estimated.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`. With ``adaptation="vanishing"`` sub-samples are
        renewed after tuning too, as in the paper.

    Raises
    ------
    ValueError
        If an argument is out of its range, or `tune` is false: the proposals are learned.
    """

    name = "kamh"
    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {
        "kmc_scale": (np.float64, []),
        "kmc_n_subsamples": (np.int64, []),
    }

    def __init__(
        self,
        vars=None,
        *,
        kernel="gaussian",
        n_points=300,
        gamma=0.6,
        target_acceptance=None,
        tune=True,
        **kwargs,
    ):
        if not check_flag(tune, "tune"):
            raise ValueError(
                "KAMH(tune=False) has no history to propose from: let it tune, or use "
                "AdaptiveMetropolis(covariance=..., tune=False)."
            )
        if target_acceptance is not None:
            check_between(target_acceptance, "target_acceptance", 0.0, 1.0)
        self.kernel = check_choice(kernel, "kernel", ("gaussian", "linear"))
        self.n_points = check_count(n_points, "n_points")
        if self.n_points < 2:
            raise ValueError("n_points=1 has no spread; pass at least 2, e.g. n_points=300.")
        self.gamma = check_positive(gamma, "gamma")
        self.target_acceptance = target_acceptance
        super().__init__(vars, **kwargs)

    def _start_chain(self):
        d, options = self.n_dimensions, (self.target_acceptance, self.target.is_noisy)
        return KAMHAdaptation(d, RandomWalk(d, None, 1.0, *options))

    _wants_shape = True

    def proposal_covariance(self, position):
        """Return the covariance of the proposals that the last chain of this process has learned.

        Parameters
        ----------
        position : array_like, shape (d,)
            The proposals' start, unconstrained and raveled.

        Returns
        -------
        ndarray, shape (d, d)
        """
        position = check_points(np.atleast_2d(position), "position", self.n_dimensions)[0]
        local = self.adapted.local
        if local.distribution is None:
            return self.adapted.random_walk.proposal_covariance
        return local.distribution.covariance(position, local.scale.scale)

    def _propose(self, current):
        return self.adapted.move.propose(current, None, self.rng)

    def _learn(self, outcome):
        adapted = self.adapted
        adapted.states.append(outcome.end.position)
        adapted.move.learn(outcome, self.rng)
        n, is_first = len(adapted.states), adapted.local.distribution is None
        if is_first:
            adapted.random_walk.learn_covariance(adapted.states)
        if n < FIRST * self.n_dimensions:
            return
        if is_first or self.rng.uniform() < vanishing_weight(n):
            self._renew()

    def _end_tuning(self):
        if self.adaptation == "tuning" and self.adapted.local.distribution is None:
            self._renew()

    def _renew(self):
        adapted = self.adapted
        states = adapted.states.recent(SUBSAMPLED_SHARE)
        states = states[has_moved(states)]
        if len(states) < 2 * self.n_dimensions:
            return
        with np.errstate(all="ignore"):
            # An improper posterior lets a chain go beyond the numbers whose squares are numbers.
            if not np.isfinite(states.var(axis=0)).all():
                return
        with single_threaded_blas():
            adapted.local.distribution = LocalDistribution(
                self.rng.permutation(states)[: self.n_points],
                self.kernel,
                self.gamma,
                self.rng,
                adapted.random_walk.basis,
            )
        adapted.n_subsamples += 1

    def _statistics(self, proposal, current):
        return {"kmc_scale": proposal.step_size, "kmc_n_subsamples": self.adapted.n_subsamples}
