r"""The full kernel exponential family on landmark points (Sutherland et al., 2018).

The minimiser of :math:`J(f) + \tfrac{\lambda}{2} |f|^2` over the whole reproducing kernel Hilbert
space lies in the span of :math:`\partial_a k(x_b, \cdot)` and of

.. math:: \xi_X = \frac{1}{W} \sum_b w_b \sum_a \left[ \partial_a^2 k(x_b, \cdot)
                  + \partial_a \log q_0(x_b)\, \partial_a k(x_b, \cdot) \right],

derivatives acting on the first argument. The reproducing property gives
:math:`J(f) = \langle f, \xi_X \rangle + \tfrac{1}{2W} \sum_b w_b |\nabla f(x_b)|^2`, so that in
the span of any functions :math:`\psi_p` the coefficients solve

.. math:: \left[ \frac{1}{W} \sum_b w_b \nabla\psi_p(x_b)^\top \nabla\psi_q(x_b)
                 + \lambda \langle \psi_p, \psi_q \rangle \right] c_q
          = - \langle \psi_p, \xi_X \rangle.

The span used here is that of :math:`\partial_a k(z_i, \cdot)` at the landmarks :math:`z_i` and of
a mean element :math:`\xi`. Fitted,

.. math:: f(x) = \log q_0(x) + \alpha\, \xi(x) + \sum_{i,a} \beta_{ia}\, \partial_a k(z_i, x).

With all points as landmarks it is the full estimator, and :math:`\alpha = -1/\lambda`.

References
----------
Sriperumbudur, B., Fukumizu, K., Gretton, A., Hyvärinen, A. and Kumar, R. (2017). Density estimation
in infinite dimensional exponential families. JMLR 18(57). Theorem 5.
Sutherland, D., Strathmann, H., Arbel, M. and Gretton, A. (2018). Efficient and principled score
estimation with Nyström kernel exponential families. AISTATS. Theorem 1.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import (
    as_rows,
    check_choice,
    check_count,
    check_distinct,
    check_points,
    check_positive,
    check_rng,
    check_weights,
    in_chunks,
)
from pymc_kmc.numerics.elementary import exp_in_place
from pymc_kmc.numerics.evaluation import BLOCK, evaluation, register
from pymc_kmc.numerics.linear_algebra import solve_positive, solve_symmetric
from pymc_kmc.numerics.samples import distinct_rows, unique_rows
from pymc_kmc.surrogates.base_density import (
    base_gradient_at,
    base_log_density_at,
    check_base,
    fit_base,
)
from pymc_kmc.surrogates.kernels import squared_distances
from pymc_kmc.surrogates.protocol import check_fitted
from pymc_kmc.surrogates.scores import score_matching_loss

MEAN_ELEMENTS = ("landmarks", "data", None)


class NystromParameters(NamedTuple):
    """Arrays and numbers of a fitted :class:`KernelExpNystrom`, for compiled code.

    With c = 2 / sigma and delta = x - points_p, the surrogate is the sum over p of
    ``k(points_p, x) [radial_p (c^2 |delta|^2 - c d) + c delta' directions_p]``.
    """

    points: np.ndarray  # (d, p)
    radial: np.ndarray  # (p,)
    directions: np.ndarray  # (d, p)
    sigma: float
    base_mean: np.ndarray  # (d,)
    base_precision: np.ndarray  # (d, d), zero without a base density


class KernelExpNystrom:
    r"""The full kernel exponential family, restricted to landmark points.

    The log density is log q0(x) + alpha xi(x) + the sum over landmarks z_i and coordinates a of
    beta_ia times the kernel's derivative in coordinate a of z_i, at x (Sutherland et al., 2018).
    The mean element xi is, with weights of sum 1,
    :math:`\sum_b w_b \sum_a [\partial_a^2 k(x_b, \cdot) + \partial_a \log q_0(x_b)\,
    \partial_a k(x_b, \cdot)]`.

    Parameters
    ----------
    sigma : float
        Bandwidth in squared units of X: ``k(x, y) = exp(-|x - y|^2 / sigma)``.
    regularisation : float
        lambda of the squared RKHS norm, against means over points.
    n_landmarks : int, optional
        Number of landmarks drawn from the distinct points; all of them if there are fewer.
    landmarks : array_like (m, d), optional
        The landmarks themselves, in place of ``n_landmarks``.
    base : None, "gaussian" or GaussianBase
        Base density: a constant (None), or a Gaussian, fitted to X or given, which makes the tails
        pull inwards.
    mean_element : {"landmarks", "data", None}
        Function beside the landmarks' kernel derivatives. ``"landmarks"``: the average of
        :math:`\xi` over the landmarks in place of the points, also on the right-hand side, as in
        the authors' code; it needs representative landmarks and a firm regularisation.
        ``"data"``: :math:`\xi_X` itself, the exact projection; an evaluation then costs O(n).
        ``None``: nothing (Sutherland et al., Theorem 1), the best choice for few landmarks.
    rng : None, int or numpy.random.Generator
        Draws the landmarks.

    Attributes
    ----------
    landmarks_ : ndarray (m, d)
    mean_coefficient_ : float
        alpha.
    coefficients_ : ndarray (m, d)
        beta.
    parameters_ : NystromParameters
        For evaluation by ``log_density_at`` and ``gradient_at``, from compiled code too.

    References
    ----------
    Sutherland, D., Strathmann, H., Arbel, M. and Gretton, A. (2018). Efficient and principled score
    estimation with Nyström kernel exponential families. *AISTATS*.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(1).normal(size=(300, 2))
    >>> surrogate = KernelExpNystrom(10.0, 1e-2, n_landmarks=40, mean_element=None, rng=2).fit(X)
    >>> surrogate.gradient(np.array([1.0, -1.0])).round(1)  # of the true density: (-1, 1)
    array([-1.1,  1. ])
    """

    def __init__(
        self,
        sigma,
        regularisation,
        n_landmarks=None,
        landmarks=None,
        base=None,
        mean_element="landmarks",
        rng=None,
    ):
        self.sigma = sigma
        self.regularisation = regularisation
        self.n_landmarks = n_landmarks
        self.landmarks = landmarks
        self.base = base
        self.mean_element = mean_element
        self.rng = rng

    def fit(self, X, sample_weight=None):
        """Fit by score matching.

        Parameters
        ----------
        X : array_like (n, d)
            Points; repeated rows are merged.
        sample_weight : array_like (n,), optional
            Multiplicities: a weight of 2 is the point given twice.

        Returns
        -------
        KernelExpNystrom
            Itself.

        Raises
        ------
        ValueError
            If an argument is out of its range, an entry of X isn't finite, or fewer than two points
            are distinct.
        """
        sigma = check_positive(self.sigma, "sigma")
        regularisation = check_positive(self.regularisation, "regularisation")
        check_base(self.base)
        check_choice(self.mean_element, "mean_element", MEAN_ELEMENTS)
        if (self.landmarks is None) == (self.n_landmarks is None):
            given = "neither" if self.landmarks is None else "both"
            raise ValueError(
                "n_landmarks (a number) and landmarks (the points) stand for each other; pass one "
                f"of them, not {given}"
            )
        X = check_points(X)
        X, weights = unique_rows(X, check_weights(sample_weight, len(X)))
        check_distinct(len(X))
        base = fit_base(self.base, X, weights)
        Z = self._landmarks(X)
        weights = weights / weights.sum()
        m, d = Z.shape

        root = np.sqrt(weights)
        jacobian = cross_derivatives(X, Z, sigma) * np.repeat(root, d)[:, None]
        inner = cross_derivatives(Z, Z, sigma)
        data_mean = MeanElement(X, weights, base, sigma)
        A = jacobian.T @ jacobian + regularisation * inner
        if self.mean_element is None:
            mean = None
            alpha, beta = 0.0, -solve_positive(A, data_mean.gradient(Z).ravel())
        else:
            on_landmarks = self.mean_element == "landmarks"
            mean = MeanElement(Z, np.full(m, 1.0 / m), base, sigma) if on_landmarks else data_mean
            slopes = (root[:, None] * mean.gradient(X)).ravel()
            products = mean.gradient(Z).ravel()  # <d_a k(z_i, .), mean> by the reproducing property
            # <mean, xi_X>. On landmarks it also stands for |mean|^2, as in the authors' code.
            square = mean.inner(data_mean)
            system = np.empty((m * d + 1, m * d + 1))
            system[0, 0] = slopes @ slopes + regularisation * square
            system[1:, 0] = system[0, 1:] = jacobian.T @ slopes + regularisation * products
            system[1:, 1:] = A
            solution = -solve_symmetric(system, np.concatenate([[square], products]))
            alpha, beta = float(solution[0]), solution[1:]

        self.landmarks_ = Z
        self.mean_coefficient_ = alpha
        self.coefficients_ = beta.reshape(m, d)
        self.base_ = base
        self.n_features_in_ = d
        points, radial, directions = _expansion(alpha, mean, Z, self.coefficients_)
        self._expansion = points, radial, directions
        self.parameters_ = NystromParameters(
            points=np.ascontiguousarray(points.T),
            radial=radial.copy(),
            directions=np.ascontiguousarray(directions.T),
            sigma=sigma,
            base_mean=base.mean.copy(),
            base_precision=base.precision.copy(),
        )
        return self

    def log_density(self, X):
        """Return the unnormalised log density at X, (d,) or (n, d): a float or (n,)."""
        check_fitted(self)
        X, single = as_rows(X, self.n_features_in_)
        values = in_chunks(lambda part: self._derivatives(part)[0], X, len(self._expansion[0]))
        return float(values[0]) if single else values

    def gradient(self, X):
        """Return the gradient of the log density at X, (d,) or (n, d), in the shape of X."""
        check_fitted(self)
        X, single = as_rows(X, self.n_features_in_)
        gradients = in_chunks(lambda part: self._derivatives(part)[1], X, len(self._expansion[0]))
        return gradients[0] if single else gradients

    def loss(self, X, sample_weight=None):
        """Return the score-matching objective on X (n, d), a mean over its rows, unpenalised."""
        check_fitted(self)
        X = check_points(X, d=self.n_features_in_)
        weights = check_weights(sample_weight, len(X))
        _, gradients, laplacians = self._derivatives(X)
        return score_matching_loss(gradients, laplacians, weights)

    def _landmarks(self, X):
        if self.landmarks is not None:
            Z = check_points(self.landmarks, "landmarks", d=X.shape[1])
            return unique_rows(Z, np.ones(len(Z)))[0]
        count = check_count(self.n_landmarks, "n_landmarks")
        if count >= len(X):
            return X
        chosen = check_rng(self.rng).choice(len(X), size=count, replace=False)
        return X[np.sort(chosen)]

    def _derivatives(self, X):
        values, gradients, laplacians = expansion_derivatives(
            X, *self._expansion, self.parameters_.sigma
        )
        base = self.base_
        return (
            values + base.log_density(X),
            gradients + base.gradient(X),
            laplacians + base.laplacian,
        )


class MeanElement:
    """The mean element xi, of the kernel's Laplacian and its base term over points.

    Parameters
    ----------
    points : ndarray (p, d)
    weights : ndarray (p,)
        Of sum 1.
    base : GaussianBase
    sigma : float
    """

    def __init__(self, points, weights, base, sigma):
        self.points, self.radial = points, weights
        self.directions = weights[:, None] * base.gradient(points)
        self.base, self.sigma = base, sigma

    def gradient(self, X):
        """Return gradients (n, d) of xi as a function, at X (n, d)."""
        return self._derivatives(X)[1]

    def inner(self, other):
        """Return the inner product with another mean element."""
        _, gradients, laplacians = self._derivatives(other.points)
        return float(other.radial @ laplacians + (other.directions * gradients).sum())

    def _derivatives(self, X):
        return expansion_derivatives(X, self.points, self.radial, self.directions, self.sigma)


def _expansion(alpha, mean, Z, beta):
    """Points, radial coefficients and directions of the fitted sum, repeated points merged."""
    if mean is None:
        return Z, np.zeros(len(Z)), beta
    points = np.concatenate([mean.points, Z])
    radial = np.concatenate([alpha * mean.radial, np.zeros(len(Z))])
    directions = np.concatenate([alpha * mean.directions, beta])
    first, group = distinct_rows(points)
    points = points[first]
    merged_radial, merged = np.zeros(len(points)), np.zeros(points.shape)
    np.add.at(merged_radial, group, radial)
    np.add.at(merged, group, directions)
    return points, merged_radial, merged


def cross_derivatives(X, Z, sigma):
    """Return d/dx_b d/dz_a k(x, z) as a matrix (n d, m d) for X (n, d) and Z (m, d)."""
    (n, d), m = X.shape, len(Z)
    c = 2.0 / sigma
    delta = X[:, None, :] - Z[None, :, :]
    K = c * np.exp(-(delta**2).sum(axis=2) / sigma)
    blocks = np.einsum("nm,nmb,nma->nbma", -c * K, delta, delta)
    for a in range(d):
        blocks[:, a, :, a] += K
    return blocks.reshape(n * d, m * d)


def expansion_derivatives(X, points, radial, directions, sigma):
    """Return values (n,), gradients (n, d) and Laplacians (n,) of the sum at X (n, d)."""
    d = X.shape[1]
    c = 2.0 / sigma
    centre = points.mean(axis=0)
    X, points = X - centre, points - centre
    D = squared_distances(X, points)
    K = np.exp(-D / sigma)
    along = X @ directions.T - np.einsum("pd,pd->p", points, directions)
    inner = radial * (c * c * D - c * d) + c * along
    values = (K * inner).sum(axis=1)
    pull = K * (2.0 * c * c * radial - c * inner)
    gradients = pull.sum(axis=1)[:, None] * X - pull @ points + c * K @ directions
    laplacians = K * (inner * (c * c * D - c * d) + 2.0 * c * c * d * radial)
    laplacians -= 2.0 * c * K * (2.0 * c * c * radial * D + c * along)
    return values, gradients, laplacians.sum(axis=1)


# --------------------------------------------------------------------------------------------------
# Compiled evaluation
# --------------------------------------------------------------------------------------------------


@evaluation
def _block(points, directions, x, start, stop, squares, along):
    """Write |delta|^2 and delta' directions for one block of points."""
    n = stop - start
    for i in range(n):
        squares[i] = 0.0
        along[i] = 0.0
    for a in range(points.shape[0]):
        row = points[a, start:stop]
        direction = directions[a, start:stop]
        xa = x[a]
        for i in range(n):
            delta = xa - row[i]
            squares[i] += delta * delta
            along[i] += delta * direction[i]


@evaluation
def _log_density_in(parameters, x, workspace):
    points, directions = parameters.points, parameters.directions
    d, n = points.shape
    c = 2.0 / parameters.sigma
    squares, along = workspace[:BLOCK], workspace[BLOCK : 2 * BLOCK]
    kernel, scratch = workspace[2 * BLOCK : 3 * BLOCK], workspace[3 * BLOCK :]
    total = base_log_density_at(parameters.base_mean, parameters.base_precision, x)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        _block(points, directions, x, start, stop, squares, along)
        for i in range(stop - start):
            kernel[i] = -0.5 * c * squares[i]
        exp_in_place(kernel, scratch, stop - start)
        radial = parameters.radial[start:stop]
        for i in range(stop - start):
            total += kernel[i] * (radial[i] * (c * c * squares[i] - c * d) + c * along[i])
    return total


@evaluation
def _gradient_in(parameters, x, out, workspace):
    points, directions = parameters.points, parameters.directions
    d, n = points.shape
    c = 2.0 / parameters.sigma
    squares, along = workspace[:BLOCK], workspace[BLOCK : 2 * BLOCK]
    kernel, scratch = workspace[2 * BLOCK : 3 * BLOCK], workspace[3 * BLOCK :]
    base_gradient_at(parameters.base_mean, parameters.base_precision, x, out)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        _block(points, directions, x, start, stop, squares, along)
        for i in range(stop - start):
            kernel[i] = -0.5 * c * squares[i]
        exp_in_place(kernel, scratch, stop - start)
        radial = parameters.radial[start:stop]
        for i in range(stop - start):
            inner = radial[i] * (c * c * squares[i] - c * d) + c * along[i]
            squares[i] = kernel[i] * (2.0 * c * c * radial[i] - c * inner)
            kernel[i] *= c
        for a in range(d):
            row = points[a, start:stop]
            direction = directions[a, start:stop]
            xa = x[a]
            total = 0.0
            for i in range(stop - start):
                total += squares[i] * (xa - row[i]) + kernel[i] * direction[i]
            out[a] += total


@evaluation
def _workspace_size(parameters):
    return 4 * BLOCK


register(
    NystromParameters,
    log_density=_log_density_in,
    gradient=_gradient_in,
    workspace_size=_workspace_size,
)
