r"""KMC finite: random Fourier features (Strathmann et al., 2015, Proposition 2), batch and online.

.. math:: f(x) = \log q_0(x) + \theta^\top \phi(x), \qquad \theta = (C + \lambda I)^{-1} b

with means over points :math:`x_b` of weights :math:`w_b`, :math:`W = \sum_b w_b`,

.. math:: b = -\frac1W \sum_b w_b \sum_a \left[ \partial_a^2 \phi(x_b)
              + \partial_a \log q_0(x_b)\, \partial_a \phi(x_b) \right], \qquad
          C = \frac1W \sum_b w_b \sum_a \partial_a \phi(x_b)\, \partial_a \phi(x_b)^\top

(Proposition 2 is :math:`w = 1` and :math:`q_0` constant; equations 7 and 8 of the paper, which
:class:`KernelExpFinite` cites). For Fourier features
:math:`\phi_j(x) = \sqrt{2/m} \cos(\omega_j^\top x + u_j)` both come from sines and cosines of the
angles alone,

.. math:: C = \frac{2}{m W} (S^\top W S) \circ (\Omega^\top \Omega), \qquad
          S_{bj} = \sin(\omega_j^\top x_b + u_j),

one matrix product whatever the dimension.

Online updates
--------------
Each point adds a term to the sums :math:`W C` and :math:`W b`, and the system is solved anew by one
Cholesky factorisation. The paper's d rank-one updates of the factor are cheaper for one point (1 in
place of 6 ms with 500 features in eight dimensions), but not for twenty: a chain brings more than
these from one update to the next.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import (
    check_choice,
    check_count,
    check_distinct,
    check_points,
    check_positive,
    check_weights,
)
from pymc_kmc.numerics.elementary import cos_in_place, sin_in_place
from pymc_kmc.numerics.evaluation import BLOCK, evaluation, register
from pymc_kmc.numerics.linear_algebra import solve_positive
from pymc_kmc.surrogates import features as _features
from pymc_kmc.surrogates.base_density import (
    ExponentialFamily,
    base_gradient_at,
    base_log_density_at,
    check_base,
)
from pymc_kmc.surrogates.finite_sums import ScoreMatchingSums
from pymc_kmc.surrogates.protocol import check_fitted


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
        check_choice(self.kernel, "kernel", _features.KERNELS)
        check_base(self.base)
        X = check_points(X)
        weights = check_weights(sample_weight, len(X))
        if (X[weights > 0] == X[np.argmax(weights > 0)]).all():
            check_distinct(1)
        if self.basis is None:
            sigma = check_positive(self.sigma, "sigma")
            omega, phase = _features.random_basis(m, X.shape[1], sigma, self.kernel, self.rng)
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
        X_new = np.asarray(X_new)
        X_new = check_points(
            X_new[None, :] if X_new.ndim == 1 else X_new, "X_new", d=self.n_features_in_
        )
        if sample_weight is not None and np.ndim(sample_weight) == 0:
            sample_weight = np.full(len(X_new), sample_weight)
        weights = check_weights(sample_weight, len(X_new))
        X_new, weights = X_new[weights > 0], weights[weights > 0]

        self._statistics.add(X_new, weights)
        self._solve()
        return self

    def features(self, X):
        """Return random features (n, m) at the rows of X (n, d), one for each coefficient."""
        return _features.features(X, self.omega_, self.phase_)

    def gram(self):
        """Return None: the features are orthonormal in the norm of their regularisation."""
        return None

    def set_coefficients(self, coefficients):
        """Replace theta (m,); makes a new ``parameters_``.

        An update computes theta afresh from the points.
        """
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
        """Compute theta and set the fitted attributes."""
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


register(
    FiniteParameters,
    log_density=_log_density_in,
    gradient=_gradient_in,
    workspace_size=_workspace_size,
)
