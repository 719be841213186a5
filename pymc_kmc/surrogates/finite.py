r"""KMC finite: random Fourier features (Strathmann et al., 2015, Proposition 2), batch and online.

.. math:: f(x) = \log q_0(x) + \theta^\top \phi(x), \qquad \theta = (C + \lambda I)^{-1} b

with means over points :math:`x_b` of weights :math:`w_b`, :math:`W = \sum_b w_b`,

.. math:: b = -\frac1W \sum_b w_b \sum_a \left[ \partial_a^2 \phi(x_b)
              + \partial_a \log q_0(x_b)\, \partial_a \phi(x_b) \right], \qquad
          C = \frac1W \sum_b w_b \sum_a \partial_a \phi(x_b)\, \partial_a \phi(x_b)^\top

(Proposition 2 is :math:`w = 1` and :math:`q_0` constant; equations 7 and 8 of the paper, which
:class:`KernelExpFinite` cites). The features are random Fourier features (Rahimi and Recht, 2007),
:math:`\phi_j(x) = \sqrt{2/m} \cos(\omega_j^\top x + u_j)` with :math:`u_j \sim U(0, 2\pi)`, so that
:math:`E\, \phi(x)^\top \phi(y) = k(x, y)` for

- ``"gaussian"``: :math:`k = \exp(-|x - y|^2/\sigma)`, :math:`\omega_j \sim N(0, 2/\sigma\, I)`;
- ``"rational_quadratic"``: :math:`k = 1 / (1 + |x - y|^2 / \sigma)`, a mixture of Gaussian kernels
  over :math:`1/\sigma`: :math:`\omega_j \sim N(0, 2 g_j/\sigma\, I)`, :math:`g_j` exponential with
  mean 1. The Cauchy kernel has the widest spread of scales in common use.

Both b and C come from sines and cosines of the angles alone, C by one matrix product whatever the
dimension,

.. math:: C = \frac{2}{m W} (S^\top W S) \circ (\Omega^\top \Omega), \qquad
          S_{bj} = \sin(\omega_j^\top x_b + u_j).

An online update adds each point's terms to the sums :math:`W C` and :math:`W b`, and solves the
system anew by one Cholesky factorisation. The paper's d rank-one updates of the factor are cheaper
for one point (1 in place of 6 ms with 500 features in eight dimensions), but not for twenty, and a
chain brings more from one update to the next.
"""

import copy
import math
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import (
    CHUNK_ENTRIES,
    check_choice,
    check_count,
    check_distinct,
    check_points,
    check_positive,
    check_rng,
    check_weights,
)
from pymc_kmc.numerics.elementary import cos_in_place, sin_in_place
from pymc_kmc.numerics.evaluation import BLOCK, evaluation, register
from pymc_kmc.numerics.linear_algebra import solve_positive
from pymc_kmc.surrogates.exponential_family import (
    ExponentialFamily,
    GaussianBase,
    base_gradient_at,
    base_log_density_at,
    check_base,
    gaussian_base,
    no_base,
)
from pymc_kmc.surrogates.protocol import check_fitted

FEATURE_KERNELS = ("gaussian", "rational_quadratic")


def standard_basis(n_features, d, kernel, rng):
    """Draw omega (d, n_features) and phases (n_features,) of `kernel` with sigma = 1."""
    omega = rng.normal(scale=math.sqrt(2.0), size=(d, n_features))
    phase = rng.uniform(0.0, 2.0 * math.pi, size=n_features)
    if kernel == "rational_quadratic":
        omega *= np.sqrt(rng.standard_exponential(n_features))
    return omega, phase


def scale_basis(omega, sigma):
    return omega / math.sqrt(sigma)


def random_basis(n_features, d, sigma, kernel="gaussian", rng=None):
    """Return frequencies (d, n_features) and phases (n_features,) of random Fourier features.

    >>> import numpy as np
    >>> omega, phase = random_basis(4000, 2, sigma=2.0, rng=np.random.default_rng(0))
    >>> x, y = np.zeros(2), np.array([1.0, 1.0])
    >>> bool(abs(features(x, omega, phase) @ features(y, omega, phase) - np.exp(-1.0)) < 0.05)
    True
    """
    omega, phase = standard_basis(n_features, d, kernel, check_rng(rng))
    return scale_basis(omega, sigma), phase


def features(X, omega, phase):
    """Return features of X, (d,) or (n, d), for omega (d, m) and phase (m,): (m,) or (n, m)."""
    return math.sqrt(2.0 / len(phase)) * np.cos(X @ omega + phase)


class ScoreMatchingSums:
    """Weighted sums over points for the system of Proposition 2, with any base density.

    Positions have the `origin` (d,) subtracted, by default the mean of X, lest squares lose digits.
    """

    SUMS = ("total_weight", "x", "xx", "cosines", "sines", "sines_x", "_sines_sines")

    def __init__(self, omega, phase, X, weights, origin=None):
        d, m = omega.shape
        self.omega, self.phase = omega, phase
        self.total_weight = 0.0
        self.origin = X[weights > 0].mean(axis=0) if origin is None else origin
        self.x = np.zeros(d)
        self.xx = np.zeros((d, d))
        self.cosines = np.zeros(m)
        self.sines = np.zeros(m)
        self.sines_x = np.zeros((m, d))
        self._sines_sines = np.zeros((m, m))
        rows = max(1, CHUNK_ENTRIES // m)
        for i in range(0, len(X), rows):
            self._add(X[i : i + rows], weights[i : i + rows])

    def _add(self, X, weights):
        angles = X @ self.omega + self.phase
        sines = np.sin(angles)
        centred = X - self.origin
        self.total_weight += weights.sum()
        self.x += weights @ centred
        self.xx += (centred.T * weights) @ centred
        self.cosines += weights @ np.cos(angles)
        self.sines += weights @ sines
        self.sines_x += (sines.T * weights) @ centred
        rows = np.sqrt(weights)[:, None] * sines
        self._sines_sines += rows.T @ rows

    def second_moment(self):
        """Return W C (m, m), a fresh array."""
        m = len(self.phase)
        return (2.0 / m) * self._sines_sines * (self.omega.T @ self.omega)

    def right_hand_side(self, base):
        """Return W b (m,)."""
        scale = math.sqrt(2.0 / len(self.phase))
        b = self.cosines * (self.omega**2).sum(axis=0)
        offset = base.mean - self.origin
        slopes = (self.sines_x - np.outer(self.sines, offset)) @ base.precision
        return scale * (b - np.einsum("am,ma->m", self.omega, slopes))

    def base(self, kind):
        """Return the base density for the argument ``kind``, from the points' moments."""
        if isinstance(kind, GaussianBase):
            return kind
        if kind is None:
            return no_base(len(self.origin))
        mean = self.x / self.total_weight
        covariance = self.xx / self.total_weight - np.outer(mean, mean)
        return gaussian_base(mean + self.origin, covariance, self.total_weight)

    def __add__(self, part):
        """Return the sums over the points of both, which share basis and origin."""
        total = copy.copy(self)
        for name in self.SUMS:
            setattr(total, name, getattr(self, name) + getattr(part, name))
        return total


class FiniteParameters(NamedTuple):
    """Arrays and numbers of a fitted :class:`KernelExpFinite`, for compiled code."""

    omega: np.ndarray  # (d, m): the innermost loops run over features
    phase: np.ndarray  # (m,)
    coefficients: np.ndarray  # (m,), sqrt(2 / m) theta
    base_mean: np.ndarray  # (d,)
    base_precision: np.ndarray  # (d, d), zero without a base density


class KernelExpFinite(ExponentialFamily):
    """Finite-dimensional kernel exponential family on random Fourier features, "KMC finite".

    The log density is log q0(x) + sum_j theta_j phi_j(x) with a base density q0 and the features
    phi_j(x) = sqrt(2 / m) cos(omega_j' x + phase_j), fitted by score matching (Strathmann et al.,
    2015, Proposition 2).

    Parameters
    ----------
    n_features : int
        Number m of features.
    sigma : float
        Bandwidth in squared units of X.
    regularisation : float
        lambda, added to means over points.
    kernel : {"gaussian", "rational_quadratic"}
        ``exp(-|x - y|^2 / sigma)`` or ``1 / (1 + |x - y|^2 / sigma)``.
    base : None, "gaussian" or GaussianBase
        Base density: a constant (None), or a Gaussian, fitted to X or given. A Gaussian makes the
        tails pull inwards.
    rng : None, int or numpy.random.Generator
        Draws the basis when fitting; an integer gives the same basis in every fit.

    Attributes
    ----------
    coefficients_ : ndarray (m,)
        theta.
    omega_, phase_ : ndarray (d, m) and (m,)
        The basis; each feature has a column of omega.
    total_weight_ : float
        Sum of the weights of all points seen.
    parameters_ : FiniteParameters
        For evaluation by ``log_density_at`` and ``gradient_at``, from compiled code too. An update
        makes a new one; the old one stays valid.

    References
    ----------
    Strathmann, H., Sejdinovic, D., Livingstone, S., Szabó, Z. and Gretton, A. (2015). Gradient-free
    Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(1).normal(size=(500, 2))
    >>> surrogate = KernelExpFinite(200, sigma=10.0, regularisation=1e-2, rng=2).fit(X[:400])
    >>> surrogate.update(X[400:]).gradient(np.array([1.0, -1.0])).round(1)  # truth: (-1, 1)
    array([-1.1,  0.9])
    """

    def __init__(self, n_features, sigma, regularisation, kernel="gaussian", base=None, rng=None):
        self.n_features = n_features
        self.sigma = sigma
        self.regularisation = regularisation
        self.kernel = kernel
        self.base = base
        self.rng = rng
        self.basis = None

    @classmethod
    def from_basis(cls, omega, phase, regularisation, base=None):
        """Return a surrogate on a given basis, cos(omega' x + phase) times sqrt(2 / m).

        Parameters
        ----------
        omega : array_like (d, m)
        phase : array_like (m,)
        regularisation : float
        base : None or "gaussian"
        """
        omega = np.array(check_points(omega, "omega"))
        phase = np.array(phase, dtype=np.float64)
        if phase.shape != omega.shape[1:]:
            raise ValueError(
                f"phase has shape {phase.shape}, omega {omega.shape}; pass omega (d, m), phase (m,)"
            )
        if not np.isfinite(phase).all():
            raise ValueError("phase has entries that are not finite; pass numbers in [0, 2 pi)")
        surrogate = cls(omega.shape[1], None, regularisation, base=base)
        surrogate.basis = (omega, phase)
        return surrogate

    def fit(self, X, sample_weight=None):
        """Fit by score matching, and forget points of earlier fits and updates.

        Parameters
        ----------
        X : array_like (n, d)
        sample_weight : array_like (n,), optional
            Multiplicities: a weight of 2 is the point given twice.

        Returns
        -------
        self : KernelExpFinite

        Raises
        ------
        ValueError
            If an argument is out of its range, an entry of X isn't finite, or fewer than two points
            are distinct.
        """
        m = check_count(self.n_features, "n_features")
        regularisation = check_positive(self.regularisation, "regularisation")
        check_choice(self.kernel, "kernel", FEATURE_KERNELS)
        check_base(self.base)
        X = check_points(X)
        weights = check_weights(sample_weight, len(X))
        if (X[weights > 0] == X[np.argmax(weights > 0)]).all():
            check_distinct(1)
        if self.basis is None:
            sigma = check_positive(self.sigma, "sigma")
            omega, phase = random_basis(m, X.shape[1], sigma, self.kernel, self.rng)
        else:
            omega, phase = self.basis
            X = check_points(X, d=len(omega))

        self.omega_, self.phase_ = omega, phase
        self.n_features_in_ = len(omega)
        self._statistics = ScoreMatchingSums(omega, phase, X, weights)
        self._regularisation = regularisation
        self._solve()
        return self

    def update(self, X_new, sample_weight=None):
        """Learn from further points, at O(m^3); the result is that of one batch fit.

        Parameters
        ----------
        X_new : array_like (d,) or (n, d)
            One point or a block.
        sample_weight : float or array_like (n,), optional

        Returns
        -------
        self : KernelExpFinite
            It has a new ``parameters_``.
        """
        check_fitted(self)
        X_new = check_points(np.atleast_2d(X_new), "X_new", d=self.n_features_in_)
        if sample_weight is not None and np.ndim(sample_weight) == 0:
            sample_weight = np.full(len(X_new), sample_weight)
        weights = check_weights(sample_weight, len(X_new))
        X_new, weights = X_new[weights > 0], weights[weights > 0]

        last = self._statistics
        more = ScoreMatchingSums(self.omega_, self.phase_, X_new, weights, last.origin)
        self._statistics = last + more  # a copy may share the last ones
        self._solve()
        return self

    def features(self, X):
        """Return random features (n, m) at the rows of X (n, d), one for each coefficient."""
        return features(X, self.omega_, self.phase_)

    def gram(self):
        """Return None: the features are orthonormal in the norm of their regularisation."""
        return None

    def set_coefficients(self, coefficients):
        """Replace theta (m,) until the next update; makes a new ``parameters_``."""
        self.coefficients_ = np.array(coefficients, dtype=np.float64)
        scaled = math.sqrt(2.0 / len(self.coefficients_)) * self.coefficients_
        self.parameters_ = self.parameters_._replace(coefficients=scaled)

    def _log_density(self, X):
        cosines = np.cos(X @ self.omega_ + self.phase_)
        return cosines @ self.parameters_.coefficients + self.base_.log_density(X)

    def _derivatives(self, X):
        angles = X @ self.omega_ + self.phase_
        coefficients = self.parameters_.coefficients
        gradients = -(np.sin(angles) * coefficients) @ self.omega_.T + self.base_.gradient(X)
        curvature = coefficients * (self.omega_**2).sum(axis=0)
        return gradients, self.base_.laplacian - np.cos(angles) @ curvature

    def _solve(self):
        statistics = self._statistics
        base = statistics.base(self.base)
        P = statistics.second_moment()
        P[np.diag_indices_from(P)] += self._regularisation * statistics.total_weight
        theta = solve_positive(P, statistics.right_hand_side(base))
        self.base_ = base
        self.coefficients_ = theta
        self.total_weight_ = statistics.total_weight
        self.parameters_ = FiniteParameters(
            omega=self.omega_,
            phase=self.phase_,
            coefficients=math.sqrt(2.0 / len(theta)) * theta,
            base_mean=base.mean.copy(),
            base_precision=base.precision.copy(),
        )


# --------------------------------------------------------------------------------------------------
# Compiled evaluation
# --------------------------------------------------------------------------------------------------


@evaluation
def _angles(omega, phase, x, start, stop, angles):
    n = stop - start
    row = phase[start:stop]
    for j in range(n):
        angles[j] = row[j]
    for a in range(omega.shape[0]):
        row = omega[a, start:stop]
        xa = x[a]
        for j in range(n):
            angles[j] += xa * row[j]


@evaluation
def _log_density_in(parameters, x, workspace):
    omega, phase, coefficients = parameters.omega, parameters.phase, parameters.coefficients
    m = phase.shape[0]
    values = workspace
    total = base_log_density_at(parameters.base_mean, parameters.base_precision, x)
    for start in range(0, m, BLOCK):
        stop = min(start + BLOCK, m)
        _angles(omega, phase, x, start, stop, values)
        cos_in_place(values, stop - start)
        weights = coefficients[start:stop]
        for j in range(stop - start):
            total += weights[j] * values[j]
    return total


@evaluation
def _gradient_in(parameters, x, out, workspace):
    omega, phase, coefficients = parameters.omega, parameters.phase, parameters.coefficients
    d, m = omega.shape
    values = workspace
    base_gradient_at(parameters.base_mean, parameters.base_precision, x, out)
    for start in range(0, m, BLOCK):
        stop = min(start + BLOCK, m)
        _angles(omega, phase, x, start, stop, values)
        sin_in_place(values, stop - start)
        weights = coefficients[start:stop]
        for j in range(stop - start):
            values[j] *= weights[j]
        for a in range(d):
            row = omega[a, start:stop]
            total = 0.0
            for j in range(stop - start):
                total += values[j] * row[j]
            out[a] -= total


@evaluation
def _workspace_size(parameters):
    return BLOCK


register(FiniteParameters, _log_density_in, _gradient_in, _workspace_size)
