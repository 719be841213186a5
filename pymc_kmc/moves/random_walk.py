r"""The random walk of adaptive Metropolis: :math:`x' \sim N(x, c^2 s^2 \frac{2.38^2}d \Sigma)`.

The factor c is 1 or random, scale s and covariance :math:`\Sigma` are learned from the chain. The
proposal is symmetric for each c.

:math:`\Sigma` is the covariance of the recent half of the chain's history, recomputed on a
geometric schedule. Haario, Saksman and Tamminen (2001) use the whole history, which keeps a bad
start for ever. Stochastic approximation (Andrieu and Thoms, 2008, algorithm 4) drives s from 1 to
the acceptance rate .234 (Roberts, Gelman and Gilks, 1997).

References
----------
Haario, H., Saksman, E. and Tamminen, J. (2001). An adaptive Metropolis algorithm. *Bernoulli* 7,
223-242.

Roberts, G. O., Gelman, A. and Gilks, W. R. (1997). Weak convergence and optimal scaling of random
walk Metropolis algorithms. *Annals of Applied Probability* 7, 110-120.

Andrieu, C. and Thoms, J. (2008). A tutorial on adaptive MCMC. *Statistics and Computing* 18,
343-373.

Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
pseudo-marginal random walk Metropolis algorithms. *Annals of Statistics* 43, 238-275.
"""

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kmc.adaptation.history import RECENT_SHARE
from pymc_kmc.adaptation.schedules import GeometricSchedule, RobbinsMonroScale
from pymc_kmc.moves.base import MoveKind, Proposal, WarpedMove
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.numerics.samples import count_distinct, shrunk_covariance

# Two steps of half the variance have that of one step.
SQRT_HALF = 0.5**0.5


class RandomWalk(WarpedMove):
    """A Gaussian random walk in the learned coordinates; scale and covariance change in place.

    `scale` is a factor on `optimal_scale`, 2.38 / sqrt(d), driven to `target_acceptance`: by
    default .234, or .1 if the density is an estimate (`is_noisy`). With a surrogate the scale has
    one of the `factors` besides, drawn uniformly. `cholesky` is the factor of the `covariance`
    (d, d). `basis` is that of a first covariance with correlations, else None; covariances are
    learned in coordinates in which that covariance is the identity. With `has_momentum` the energy
    of a momentum is drawn, only for statistics comparable with trajectories'.
    """

    kind = MoveKind.RANDOM_WALK
    # Optimal scale times sqrt(d) (Roberts, Gelman and Gilks, 1997).
    OPTIMAL_SCALE = 2.38
    # Acceptance rate of the optimal scale (the same source).
    TARGET_ACCEPTANCE = 0.234
    # Acceptance rate with an estimated density. At a variance of 3 noise alone allows .22, so that
    # .234 would shrink the scale for ever; the optimum is .07 there (Sherlock et al., 2015).
    NOISY_TARGET_ACCEPTANCE = 0.1
    # States a dimension at which the covariance is learned first.
    FIRST_UPDATE = 5
    # Factor by which the history grows between covariances: some 50 factorisations in 5000 states.
    GROWTH = 1.1
    # Smallest share of distinct states for a new covariance: a chain that was long stuck on a lucky
    # estimate has a history of hardly any spread, and would stay there.
    FEWEST_DISTINCT = 0.02
    # Largest scale on a new covariance: a scale that compensated a too narrow one is too large.
    LARGEST_SCALE = 3.0

    def __init__(
        self,
        n_dimensions,
        covariance=None,
        scale=1.0,
        target_acceptance=None,
        is_noisy=False,
        factors=(),
        has_momentum=False,
    ):
        if target_acceptance is None:
            target_acceptance = self.NOISY_TARGET_ACCEPTANCE if is_noisy else self.TARGET_ACCEPTANCE
        self.scale_adaptation = RobbinsMonroScale(target_acceptance, scale)
        self.optimal_scale = self.OPTIMAL_SCALE / np.sqrt(n_dimensions)
        self.factors, self.has_momentum = factors, has_momentum
        self._warp = IDENTITY
        self.basis = None
        self.schedule = GeometricSchedule(max(20, self.FIRST_UPDATE * n_dimensions), self.GROWTH)
        self.set_covariance(np.eye(n_dimensions) if covariance is None else covariance)

    @property
    def scale(self):
        return self.scale_adaptation.scale

    @property
    def proposal_covariance(self):
        return (self.scale * self.optimal_scale) ** 2 * self.covariance

    def _propose_from(self, place, fitted, rng):
        factor = self._factor(fitted, rng)
        return Proposal(
            place + self._step(factor, rng),
            self,
            details=factor,
            step_size=factor * self.scale,
            kinetic_energy=0.5 * rng.chisquare(len(place)) if self.has_momentum else np.nan,
        )

    def _factor(self, fitted, rng):
        if self.factors and fitted is not None:
            return self.factors[rng.integers(len(self.factors))]
        return 1.0

    def _step(self, factor, rng):
        step = self.cholesky @ rng.standard_normal(len(self.cholesky))
        return factor * self.optimal_scale * self.scale * step

    def around(self, current, n, fitted, rng):
        """Return n proposals, exchangeable with the chain's state, around a centre near it.

        The centre is half a step's variance from the state, and each proposal as far from the
        centre.
        """
        factor, warp = self._factor(fitted, rng), fitted.warp
        centre = warp.forward(current.position) + SQRT_HALF * self._step(factor, rng)
        size = factor * self.scale
        ends = [centre + SQRT_HALF * self._step(factor, rng) for _ in range(n)]
        return [Proposal(warp.backward(end), self, step_size=size) for end in ends]

    def learn(self, outcome, rng):
        """Adapt the scale by proposals of the full scale."""
        if outcome.proposal.details == 1.0:
            self.scale_adaptation.update(outcome.acceptance_rate)

    def set_covariance(self, covariance, cholesky=None):
        """Set the positive definite covariance (d, d), with its Cholesky factor if known."""
        self.covariance = np.asarray(covariance, dtype=np.float64)
        self.cholesky = np.linalg.cholesky(self.covariance) if cholesky is None else cholesky

    def set_shape(self, cholesky):
        """Replace the first covariance, the identity, by one with the Cholesky factor (d, d)."""
        self.set_covariance(cholesky @ cholesky.T, cholesky)
        is_diagonal = np.count_nonzero(cholesky) == len(cholesky)
        self.basis = None if is_diagonal else cholesky

    def learn_covariance(self, states, warp=IDENTITY):
        """Learn from the chain's `states`, if that is due or the `warp` has changed."""
        if not self.schedule.is_due(len(states)) and warp is self._warp:
            return
        self._warp = warp
        recent = states.recent(RECENT_SHARE)
        fewest = max(2 * recent.shape[1], self.FEWEST_DISTINCT * len(recent))
        if count_distinct(recent) >= fewest:
            with single_threaded_blas():
                self._learn_from(warp.forward(recent), self.basis if warp is IDENTITY else None)
            self.scale_adaptation.scale = min(self.scale, self.LARGEST_SCALE)

    def _learn_from(self, states, basis):
        if basis is None:
            self.set_covariance(shrunk_covariance(states))
            return
        inside = solve_triangular(basis, states.T, lower=True).T
        cholesky = basis @ np.linalg.cholesky(shrunk_covariance(inside))
        self.set_covariance(cholesky @ cholesky.T, cholesky)
