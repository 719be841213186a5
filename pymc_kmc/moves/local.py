r"""Local random walks: proposals along the directions in which a chain's history varies nearby.

With a kernel k and a sub-sample z_1, ..., z_n of the history, a proposal from x is

.. math:: x' \sim q(\cdot \mid x) = N(x, \gamma^2 I + \nu^2 M_x H M_x^\top), \quad
          M_x = 2 \, [\nabla_x k(x, z_1), \dots, \nabla_x k(x, z_n)], \quad
          H = I - \tfrac1n \mathbf 1 \mathbf 1^\top

(Sejdinovic et al., 2014, Proposition 1). The covariance depends on x, and the ratio q(x | x') /
q(x' | x) is therefore part of the acceptance ratio.

References
----------
Sejdinovic, D., Strathmann, H., Lomeli, M., Andrieu, C. and Gretton, A. (2014). Kernel adaptive
Metropolis-Hastings. *ICML* 31.
"""

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kmc.adaptation.schedules import RobbinsMonroScale
from pymc_kmc.moves.base import Move, MoveKind, Proposal
from pymc_kmc.moves.random_walk import RandomWalk
from pymc_kmc.numerics.checks import check_points, check_positive
from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import SUM_FLAGS
from pymc_kmc.numerics.jit import njit
from pymc_kmc.numerics.samples import shrunk_covariance, thinned
from pymc_kmc.surrogates.kernels import median_squared_distance

# Bandwidth in median squared distances of the sub-sample: the paper's 1 does as well, .25 and 1.5
# do worse.
BANDWIDTH = 0.5
# Number of points over which the size of M H M' is averaged.
SIZE_POINTS = 100
LINEAR = np.inf  # as a bandwidth: the linear kernel, which has none


def proposal_covariance(x, Z, sigma, gamma2, nu2):
    r"""Return the covariance of KAMH's proposals from x, :math:`\gamma^2 I + \nu^2 M_x H M_x^\top`.

    This is Proposition 1 of Sejdinovic et al. (2014), for x (d,) and the history's sub-sample Z
    (n, d). One row is as good as none. `sigma` is the bandwidth, a squared distance, of the
    Gaussian kernel :math:`k(x, z) = \exp(-|x - z|^2 / \sigma)`, or None for the linear kernel
    k(x, z) = x'z. `nu2` multiplies M H M', which is a sum over the points, not a mean. A ValueError
    is raised if shapes don't fit, numbers aren't finite, or `sigma`, `gamma2` or `nu2` isn't
    positive.

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


@njit(fastmath=SUM_FLAGS, error_model="numpy", forceinline=True)
def _covariance(x, points, sigma, gamma2, nu2):
    """Return the same for `points` (d, n), unchecked; `sigma` may be LINEAR."""
    d, n = points.shape
    columns = np.empty((d, n))  # of M, then of M H
    if sigma == LINEAR:
        for a in range(d):
            for i in range(n):
                columns[a, i] = 2.0 * points[a, i]
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
    """Return the lower Cholesky factor; pivots below gamma2, by rounding, are lifted to it."""
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
    """Return a proposal from x for normal `noise` (d,), and log q(x | x') - log q(x' | x)."""
    factor = _factor(_covariance(x, points, sigma, gamma2, nu2), gamma2)
    step = np.zeros(len(x))
    for a in range(len(x)):
        for b in range(a + 1):
            step[a] += factor[a, b] * noise[b]
    end = x + step
    reverse = _factor(_covariance(end, points, sigma, gamma2, nu2), gamma2)
    return end, _log_normal_density(-step, reverse) - _log_normal_density(step, factor)


class LocalDistribution:
    r"""The proposal distribution of one sub-sample `states` (n, d), in standardised coordinates.

    `kernel` is "gaussian" or "linear". :math:`\gamma` is in units of the random walk's optimal
    scale in the narrowest direction. `basis` (d, d), lower triangular, defines the coordinates: a
    factor of the covariance that becomes the identity, by default the identity itself. Units are
    the states' standard deviations. `points` (d, n) is the sub-sample in the coordinates. `nu2` is
    for a scale of 1: M H M' is then as large as an optimal random walk's covariance, on average
    over the sub-sample.
    """

    def __init__(self, states, kernel, gamma, rng, basis=None):
        if basis is None:
            basis = np.eye(states.shape[1])
        inside = solve_triangular(basis, states.T, lower=True).T
        self.basis = basis * np.sqrt(np.diag(shrunk_covariance(inside)))
        self._inverse = solve_triangular(self.basis, np.eye(len(basis)), lower=True)
        points = states @ self._inverse.T
        self.sigma = LINEAR
        if kernel == "gaussian":
            self.sigma = BANDWIDTH * median_squared_distance(points, rng)
        self.points = np.ascontiguousarray(points.T)
        d, n = self.points.shape
        variances = np.linalg.eigvalsh(shrunk_covariance(points))
        optimal = RandomWalk.OPTIMAL_SCALE**2 / d
        self.gamma2 = gamma**2 * optimal * variances[0]
        some = thinned(points, SIZE_POINTS)
        sizes = [np.trace(_covariance(x, self.points, self.sigma, 0.0, 1.0)) for x in some]
        self.nu2 = optimal * variances.sum() / np.mean(sizes)

    def covariance(self, position, scale):
        """Return the covariance (d, d) of proposals from `position` (d,), at a factor on nu."""
        covariance = _covariance(
            self._inverse @ position, self.points, self.sigma, self.gamma2, scale**2 * self.nu2
        )
        return self.basis @ covariance @ self.basis.T

    def propose(self, position, scale, rng):
        """Return a proposal (d,) at a factor on nu, and log q(x | x') - log q(x' | x)."""
        end, log_ratio = _propose(
            self._inverse @ position,
            rng.standard_normal(len(position)),
            self.points,
            self.sigma,
            self.gamma2,
            scale**2 * self.nu2,
        )
        return self.basis @ end, log_ratio


class LocalRandomWalk(Move):
    """A random walk along the directions in which the chain's history varies near the state.

    The step replaces `distribution`, None at first, when it draws a new sub-sample. The scale, a
    factor on nu, is adapted to the `target_acceptance` in place.
    """

    kind = MoveKind.LOCAL_RANDOM_WALK

    def __init__(self, target_acceptance):
        self.distribution = None
        self.scale = RobbinsMonroScale(target_acceptance)

    def propose(self, current, fitted, rng):
        scale = self.scale.scale
        end, log_ratio = self.distribution.propose(current.position, scale, rng)
        return Proposal(end, self, log_ratio, step_size=scale)

    def learn(self, outcome, rng):
        self.scale.update(outcome.acceptance_rate)
