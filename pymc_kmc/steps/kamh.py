r"""Kernel Adaptive Metropolis-Hastings (KAMH; Sejdinovic et al., 2014, Algorithm 1).

With a kernel k and a sub-sample z_1, ..., z_n of the chain's history, an iteration at x:

1. Propose

   .. math:: x' \sim q(\cdot \mid x) = N(x, \gamma^2 I + \nu^2 M_x H M_x^\top), \quad
             M_x = 2 \, [\nabla_x k(x, z_1), \dots, \nabla_x k(x, z_n)], \quad
             H = I - \tfrac1n \mathbf 1 \mathbf 1^\top

   (Proposition 1): along the directions in which the history varies near x. With the Gaussian
   kernel proposals follow a curved target; with the linear one, k(x, z) = x'z, their covariance is
   everywhere that of the sub-sample, which is adaptive Metropolis (Haario, Saksman and Tamminen,
   2001).
2. Accept x' with probability

   .. math:: \min\left(1, \frac{\hat\pi(x') \, q(x \mid x')}{\hat\pi(x) \, q(x' \mid x)}\right)

   with the target's own (possibly estimated) density: one evaluation. The covariance depends on the
   place, so that the ratio of proposal densities isn't 1.
3. While adaptation lasts, learn: draw a new sub-sample with probability :math:`p_t = 1 / \sqrt{t +
   1}`, and drive the scale :math:`\nu` towards an acceptance rate.

:math:`M_x H` is M_x less the mean of its columns, so that no n by n matrix is formed: a proposal
costs O(n) in a compiled loop.

The kernel acts on coordinates in units of the sub-sample's standard deviations, so that a change of
units changes nothing. :math:`\gamma` is relative to the narrowest direction there, :math:`\nu` to
where M H M' is on average as large as the covariance of an optimal random walk, which keeps the
learned scale when the sub-sample is renewed. Until the first one a random walk explores
(:mod:`pymc_kmc.adaptation.random_walk`). `examples/benchmarks/README.md` has what was tried.

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

from pymc_kmc.adaptation.history import History
from pymc_kmc.adaptation.random_walk import RandomWalk
from pymc_kmc.adaptation.schedules import vanishing_weight
from pymc_kmc.adaptation.step_size import RobbinsMonroScale
from pymc_kmc.numerics.checks import check_choice, check_count, check_points, check_positive
from pymc_kmc.numerics.jit import njit
from pymc_kmc.numerics.samples import has_moved, shrunk_covariance
from pymc_kmc.numerics.threads import single_threaded_blas
from pymc_kmc.steps.base import AdaptiveStep, Proposal
from pymc_kmc.surrogates.evaluation import SUM_FLAGS
from pymc_kmc.surrogates.kernels import exp_in_place
from pymc_kmc.surrogates.selection import median_squared_distance

__all__ = ["KAMH", "proposal_covariance"]

# First sub-sample after so many iterations a dimension (with 20 the worst chains are worse).
FIRST = 50
# Share of the history that sub-samples are drawn from: the rest is burn-in (2/3 did equally well).
RECENT = 0.9
# Bandwidth in median squared distances of the sub-sample: the paper's 1 does as well, .25 and 1.5
# don't.
BANDWIDTH = 0.5
# Points at which the size of M H M' is averaged.
SIZE_POINTS = 100
LINEAR = np.inf  # as a bandwidth: the linear kernel, which has none


def proposal_covariance(x, Z, sigma, gamma2, nu2):
    r"""Return the covariance of KAMH's proposals from x, :math:`\gamma^2 I + \nu^2 M_x H M_x^\top`.

    Sejdinovic et al. (2014), Proposition 1.

    Parameters
    ----------
    x : array_like, shape (d,)
    Z : array_like, shape (n, d)
        The sub-sample of the history; one row is as good as none.
    sigma : float or None
        Bandwidth of the Gaussian kernel :math:`k(x, z) = \exp(-|x - z|^2 / \sigma)`, a squared
        distance; None for the linear kernel k(x, z) = x'z.
    gamma2 : float
        Variance of the isotropic part.
    nu2 : float
        Factor on M H M', which is a sum over the points, not a mean.

    Returns
    -------
    ndarray, shape (d, d)

    Raises
    ------
    ValueError
        If shapes don't fit, numbers aren't finite, or `sigma`, `gamma2` or `nu2` isn't positive.

    Examples
    --------
    With the linear kernel it is 4 n times the covariance of the points, plus the isotropic part:

    >>> import numpy as np
    >>> Z = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]])
    >>> proposal_covariance([9.0, 9.0], Z, None, 1.0, 0.25)
    array([[9., 6.],
           [6., 7.]])
    >>> np.eye(2) + 3 * np.cov(Z.T, ddof=0)
    array([[9., 6.],
           [6., 7.]])
    """
    Z = check_points(Z, "Z")
    x = check_points(np.atleast_2d(x), "x", d=Z.shape[1])
    if len(x) != 1:
        raise ValueError(f"x must be one point, shape ({Z.shape[1]},), got shape {x.shape}.")
    sigma = LINEAR if sigma is None else check_positive(sigma, "sigma")
    gamma2, nu2 = check_positive(gamma2, "gamma2"), check_positive(nu2, "nu2")
    return _covariance(x[0], np.ascontiguousarray(Z.T), sigma, gamma2, nu2)


@njit(fastmath=SUM_FLAGS, error_model="numpy")
def _covariance(x, points, sigma, gamma2, nu2):
    """The same for `points` (d, n), unchecked; `sigma` is LINEAR for the linear kernel."""
    d, n = points.shape
    columns = np.empty((d, n))  # of M, then of M H
    if sigma == LINEAR:
        columns[:] = 2.0 * points
    else:
        kernel, scratch = np.zeros(n), np.empty(n)
        for a in range(d):
            for i in range(n):
                difference = points[a, i] - x[a]
                columns[a, i] = difference
                kernel[i] -= difference * difference / sigma
        exp_in_place(kernel, scratch, n)
        for a in range(d):
            for i in range(n):
                columns[a, i] *= 4.0 / sigma * kernel[i]
    covariance = np.empty((d, d))
    for a in range(d):
        mean = 0.0
        for i in range(n):
            mean += columns[a, i]
        mean /= n
        for i in range(n):
            columns[a, i] -= mean
        for b in range(a + 1):
            total = 0.0
            for i in range(n):
                total += columns[a, i] * columns[b, i]
            covariance[a, b] = covariance[b, a] = nu2 * total
        covariance[a, a] += gamma2
    return covariance


@njit(error_model="numpy")
def _factor(covariance, gamma2):
    """The lower Cholesky factor of gamma2 I plus a positive semi-definite matrix.

    No pivot of it is below gamma2, so that one which rounding has made smaller is lifted to it.
    """
    d = len(covariance)
    factor = np.zeros((d, d))
    for a in range(d):
        for b in range(a + 1):
            total = covariance[a, b]
            for c in range(b):
                total -= factor[a, c] * factor[b, c]
            factor[a, b] = np.sqrt(max(total, gamma2)) if a == b else total / factor[b, b]
    return factor


@njit(error_model="numpy")
def _log_normal_density(displacement, factor):
    """Log density of N(0, factor factor') at `displacement` (d,)."""
    d = len(displacement)
    standard = np.empty(d)
    value = -0.5 * d * np.log(2.0 * np.pi)
    for a in range(d):
        total = displacement[a]
        for b in range(a):
            total -= factor[a, b] * standard[b]
        standard[a] = total / factor[a, a]
        value -= 0.5 * standard[a] ** 2 + np.log(factor[a, a])
    return value


@njit(error_model="numpy")
def _propose(x, noise, points, sigma, gamma2, nu2):
    """A proposal from x made of standard normal `noise` (d,), and log q(x | x') - log q(x' | x)."""
    factor = _factor(_covariance(x, points, sigma, gamma2, nu2), gamma2)
    step = np.zeros(len(x))
    for a in range(len(x)):
        for b in range(a + 1):
            step[a] += factor[a, b] * noise[b]
    end = x + step
    reverse = _factor(_covariance(end, points, sigma, gamma2, nu2), gamma2)
    return end, _log_normal_density(-step, reverse) - _log_normal_density(step, factor)


class LocalProposal:
    r"""The proposal distribution of one sub-sample, in standardised coordinates.

    Parameters
    ----------
    states : ndarray, shape (n, d)
        The sub-sample.
    kernel : {"gaussian", "linear"}
    gamma : float
        :math:`\gamma`, in units of the random walk's optimal scale in the narrowest direction.
    rng : numpy.random.Generator

    Attributes
    ----------
    units : ndarray, shape (d,)
        Of the coordinates.
    points : ndarray, shape (d, n)
        The sub-sample in them.
    sigma, gamma2, nu2 : float
        The last one for a scale of 1: M H M' is then as large as an optimal random walk's
        covariance, on average over the sub-sample.
    """

    def __init__(self, states, kernel, gamma, rng):
        self.units = np.sqrt(np.diag(shrunk_covariance(states)))
        points = states / self.units
        self.sigma = LINEAR
        if kernel == "gaussian":
            self.sigma = BANDWIDTH * median_squared_distance(points, rng)
        self.points = np.ascontiguousarray(points.T)
        d, n = self.points.shape
        variances = np.linalg.eigvalsh(shrunk_covariance(points))
        optimal = RandomWalk.OPTIMAL_SCALE**2 / d
        self.gamma2 = gamma**2 * optimal * variances[0]
        some = points[:: max(1, n // SIZE_POINTS)]
        sizes = [np.trace(_covariance(x, self.points, self.sigma, 0.0, 1.0)) for x in some]
        self.nu2 = optimal * variances.sum() / np.mean(sizes)

    def propose(self, position, scale, rng):
        """Draw a proposal, and say what its log Hastings ratio is.

        Parameters
        ----------
        position : ndarray, shape (d,)
        scale : float
            Factor on nu.
        rng : numpy.random.Generator

        Returns
        -------
        position : ndarray, shape (d,)
        log_ratio : float
            log q(x | x') - log q(x' | x).
        """
        end, log_ratio = _propose(
            position / self.units,
            rng.standard_normal(len(position)),
            self.points,
            self.sigma,
            self.gamma2,
            scale**2 * self.nu2,
        )
        return end * self.units, log_ratio


class Learned:
    """What KAMH learns from a chain.

    Attributes
    ----------
    history : History
    random_walk : RandomWalk
        Explores until there is a sub-sample.
    scale : RobbinsMonroScale
        Factor on the proposal's nu.
    proposal : LocalProposal or None
    n_subsamples : int
    """

    def __init__(self, n_dimensions, random_walk):
        self.history = History(n_dimensions)
        self.random_walk = random_walk
        self.scale = RobbinsMonroScale(random_walk.scale_adaptation.target)
        self.proposal = None
        self.n_subsamples = 0


class KAMH(AdaptiveStep):
    r"""Kernel Adaptive Metropolis-Hastings (Sejdinovic et al., 2014), for curved targets.

    A random walk whose covariance depends on the place: it follows a ridge that bends, where that
    of :class:`~pymc_kmc.AdaptiveMetropolis` is the same everywhere. One evaluation an iteration,
    exact with noisy likelihoods. :class:`~pymc_kmc.KMC` goes farther with each of them; KAMH
    fits no surrogate, and its iterations cost some tens of microseconds.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The variables to sample, by default all continuous ones of the model.
    kernel : {"gaussian", "linear"}
        The linear kernel makes it adaptive Metropolis on a sub-sample.
    n_points : int
        Most states in a sub-sample.
    gamma : float
        Standard deviation of the isotropic part of the proposals, relative to 2.38 / sqrt(d) times
        that of the sub-sample in its narrowest direction, coordinates standardised. It takes the
        chain beyond its history: .3 and 1 did worse.
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
        if not tune:
            raise ValueError(
                "KAMH(tune=False) has no history to propose from: let it tune, or use "
                "AdaptiveMetropolis(covariance=..., tune=False)."
            )
        if target_acceptance is not None and not 0 < target_acceptance < 1:
            raise ValueError(f"target_acceptance must be between 0 and 1, got {target_acceptance}.")
        self.kernel = check_choice(kernel, "kernel", ("gaussian", "linear"))
        self.n_points = check_count(n_points, "n_points")
        if self.n_points < 2:
            raise ValueError("n_points=1 has no spread; pass at least 2, e.g. n_points=300.")
        self.gamma = check_positive(gamma, "gamma")
        self.target_acceptance = target_acceptance
        super().__init__(vars, **kwargs)

    def _start_chain(self):
        random_walk = RandomWalk(
            self.n_dimensions,
            target_acceptance=self.target_acceptance,
            is_noisy=self.target.is_noisy,
        )
        return Learned(self.n_dimensions, random_walk)

    def _propose(self, position):
        learned = self.learned
        if learned.proposal is None:
            scale, log_ratio = learned.random_walk.scale, 0.0
            end = learned.random_walk.propose(position, self.rng)
        else:
            scale = learned.scale.scale
            end, log_ratio = learned.proposal.propose(position, scale, self.rng)
        statistics = {"kmc_scale": scale, "kmc_n_subsamples": learned.n_subsamples}
        return Proposal(end, log_ratio, statistics)

    def _learn(self, proposal, evaluation, acceptance_rate, start, position):
        learned = self.learned
        learned.history.append(position)
        if learned.proposal is None:
            learned.random_walk.learn_scale(acceptance_rate)
            learned.random_walk.learn_covariance(learned.history)
        else:
            learned.scale.update(acceptance_rate)
        n = len(learned.history)
        if n < FIRST * self.n_dimensions:
            return
        if learned.proposal is None or self.rng.uniform() < vanishing_weight(n):
            self._renew()

    def _end_tuning(self):
        if self.adaptation == "tuning" and self.learned.proposal is None:
            self._renew()

    def _renew(self):
        """Draw a new sub-sample, and make the proposals that follow it."""
        learned = self.learned
        states = learned.history.recent(RECENT)
        states = states[has_moved(states)]
        if len(states) < 2 * self.n_dimensions:
            return
        with single_threaded_blas():
            learned.proposal = LocalProposal(
                self.rng.permutation(states)[: self.n_points], self.kernel, self.gamma, self.rng
            )
        learned.n_subsamples += 1
