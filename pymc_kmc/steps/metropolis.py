r"""Adaptive Metropolis: a Gaussian random walk that learns its covariance and its scale.

It proposes :math:`x' \sim N(x, s^2 \frac{2.38^2}{d} \Sigma)` and accepts with probability
:math:`\min(1, \pi(x') / \pi(x))`. :math:`\Sigma` follows the covariance of the chain's history
(Haario, Saksman and Tamminen, 2001), :math:`s` the acceptance rate (Andrieu and Thoms, 2008,
algorithm 4). The proposal is symmetric and fixed within an iteration: each iteration leaves the
target invariant. Adaptation ends with tuning, or dies out.

References
----------
Haario, H., Saksman, E. and Tamminen, J. (2001). An adaptive Metropolis algorithm. *Bernoulli* 7,
223-242.

Andrieu, C. and Thoms, J. (2008). A tutorial on adaptive MCMC. *Statistics and Computing* 18,
343-373.

Examples
--------
>>> import pymc as pm, pymc_kmc as kmc
>>> with pm.Model():
...     x = pm.Normal("x", shape=3)
...     idata = pm.sample(
...         draws=50, tune=50, chains=1, cores=1, random_seed=1, progressbar=False, quiet=True,
...         step=kmc.AdaptiveMetropolis(), compute_convergence_checks=False,
...     )  # doctest: +SKIP
"""

import numpy as np

from pymc_kmc.adaptation.history import GrowingArray
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.numerics.checks import as_array, check_between, check_covariance, check_positive
from pymc_kmc.steps.base import AdaptiveStep


class MetropolisAdaptation:
    """The chain's states and the random walk learned from them."""

    def __init__(self, n_dimensions, random_walk):
        self.states = GrowingArray(n_dimensions)
        self.random_walk = random_walk


class AdaptiveMetropolis(AdaptiveStep):
    r"""Adaptive Metropolis (Haario, Saksman and Tamminen, 2001), exact with noisy likelihoods.

    It suits targets close to Gaussian and cheap evaluations, and is a baseline for the other steps.
    With an estimated likelihood it is exact; `pymc.Metropolis` is not.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    covariance : array_like, shape (d, d), optional
        First proposal covariance on the unconstrained scale; by default the identity.
    scale : float
        First scale, as a factor on 2.38 / sqrt(d).
    target_acceptance : float, optional
        Acceptance rate that the scale is driven to: by default .234, which is optimal for many
        dimensions (Roberts, Gelman and Gilks, 1997), or .1 if the likelihood is estimated.
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`: `model`, `initial_point`, `compile_kwargs`,
        `blocked`, `rng`, `tune`, `adaptation`.

    Raises
    ------
    ValueError
        If `covariance` isn't a finite, symmetric, positive definite (d, d) matrix, or `scale` or
        `target_acceptance` are out of range.
    """

    name = "adaptive_metropolis"
    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {"kmc_scale": (np.float64, [])}

    def __init__(
        self,
        vars=None,
        *,
        covariance=None,
        scale=1.0,
        target_acceptance=None,
        **kwargs,
    ):
        if target_acceptance is not None:
            check_between(target_acceptance, "target_acceptance", 0.0, 1.0)
        self.initial_covariance = None
        if covariance is not None:
            self.initial_covariance = np.array(as_array(covariance, "covariance"))
        self.initial_scale = check_positive(scale, "scale")
        self.target_acceptance = target_acceptance
        super().__init__(vars, **kwargs)

    def _make_target(self, model, initial_point, compile_kwargs):
        if self.initial_covariance is not None:
            d = sum(np.size(initial_point[variable.name]) for variable in self.vars)
            check_covariance(self.initial_covariance, d)
        return super()._make_target(model, initial_point, compile_kwargs)

    def _start_chain(self):
        d = self.n_dimensions
        first = self.initial_covariance, self.initial_scale
        random_walk = RandomWalk(d, *first, self.target_acceptance, self.target.is_noisy)
        return MetropolisAdaptation(d, random_walk)

    def proposal_covariance(self):
        """Return the proposal covariance, the same everywhere, of this process's last chain.

        Returns
        -------
        ndarray, shape (d, d)
        """
        return self.adapted.random_walk.proposal_covariance

    @property
    def _instead_of_tuning(self):
        if self.initial_covariance is not None:
            return None
        return ", or pass a covariance: kmc.AdaptiveMetropolis(covariance=...)"

    @property
    def _wants_shape(self):
        return self.initial_covariance is None

    def _propose(self, current):
        return self.adapted.random_walk.propose(current, None, self.rng)

    def _learn(self, outcome):
        adapted = self.adapted
        adapted.states.append(outcome.end.position)
        adapted.random_walk.learn(outcome, self.rng)
        adapted.random_walk.learn_covariance(adapted.states)

    def _statistics(self, proposal, current):
        return {"kmc_scale": proposal.step_size}
