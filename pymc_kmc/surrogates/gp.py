r"""A Gaussian-process surrogate of a log density, fitted to its values.

The surrogate is, in coordinates :math:`z = W (x - m)`,

.. math:: f(x) = h^\top z - \tfrac12 z^\top P z
          + \sum_k b_k \log\left(1 + |z|^2 / \nu_k\right) + \sum_i g_i(x_i)
          + \sum_j a_j k(B z, u_j) - \tfrac c2 \max(|z| - R, 0)^2,

a quadratic trend, radial terms, functions of single coordinates, a kernel expansion on landmarks
and a wall. Fitted to values :math:`y_i \approx \log\pi(x_i) + \text{const}` it is the posterior
mean of a Gaussian process with those trends (Rasmussen and Williams, 2006, section 2.7), computed
from a subset of its kernel functions.

- *Quadratic*: shrunk towards a given precision; its eigenvalues are kept positive, and what that
  changes is fitted again by the other parts. With fewer values than coefficients only its
  diagonal is fitted.
- *Radial terms*, :math:`\nu = d, 4 d`: log densities with heavy tails grow like
  :math:`\log |z|`, which no quadratic does. A Student t is represented nearly exactly.
- *Additive part*: a function of each coordinate x_i, Gaussian kernel functions on a grid over the
  points (Duvenaud, Nickisch and Rasmussen, 2011, order one). What bends along single coordinates
  needs no neighbours in the others. Whether there is one, its variance in units of the kernel
  part's and its length scale are chosen by the marginal likelihood too.
- *Kernel part*: a Gaussian or rational quadratic kernel in a linear map B of the coordinates. Maps,
  kernels, length scales and ridges compete by the marginal likelihood
  (:mod:`pymc_kmc.surrogates.evidence`) on a subset of the points. The maps: the given coordinates,
  those that whiten the points, the last fit's, and powers of the average outer product of the
  last kernel part's gradient, which finds the directions in which the log density isn't quadratic.
- *Wall*: beyond R, a multiple of the farthest reference point, the surrogate falls at least
  quadratically: it is integrable whatever the data say, and stays near to what they say. It is
  steep enough to keep kernel functions that extrapolate upwards below the bulk.

A value far below the others tells little of where the mass is: it counts
:math:`1 / (1 + (\text{depth} / c)^2)`, and far-away points not at all.

Between fits :meth:`LogDensityGP.update` takes in values one at a time, with a kernel function at
each point, as the same regression would (:mod:`pymc_kmc.surrogates.online`).

What was tried
--------------
- The Glass posterior of the benchmarks, nine dimensions, 2000 values: what is left at posterior
  draws has standard deviation 2.0 nats with a kernel alone, whatever the number of landmarks from
  150 to 2000, and .6 to .9 with an additive part. Interactions of two coordinates and a length
  scale for each would leave .43 (an exact Gaussian process with the product of 1 + b exp(-r^2 / 2)
  over coordinates), at nine exponentials a landmark.
- Additive functions of the length scale that the grid has, always: a banana's fourth power ends
  where the grid does. HMC transitions on its surrogate were accepted at .51 in place of .96; with
  the longer one to choose, which goes on, at .93.
- The choice for or against the additive part by the comparisons on a subset: eight schools' last
  fit had it, with a residual variance of .81; .20 without.
- The average gradient outer product of the kernel part alone where the additive part is to be done
  without: .093 in place of .042, eight schools; an additive part once chosen stayed.

Costs, for n values, p trend features and m landmarks: a fit
:math:`O(n (p + m)^2 + (p + m)^3)` and a constant number of comparisons of size
:math:`O(n' m'^2)`; an update :math:`O((n + m) (p + m))`; a gradient :math:`O(d m + d^2)`.
`examples/benchmarks/surrogates.py` has figures.

References
----------
Rasmussen, C. E. and Williams, C. K. I. (2006). *Gaussian Processes for Machine Learning*. MIT
Press.

Duvenaud, D., Nickisch, H. and Rasmussen, C. E. (2011). Additive Gaussian processes. *NeurIPS* 24.

Rasmussen, C. E. (2003). Gaussian processes to speed up hybrid Monte Carlo for expensive Bayesian
integrals. *Bayesian Statistics* 7, 651-659.

Radhakrishnan, A., Beaglehole, D., Pandit, P. and Belkin, M. (2024). Mechanism for feature
learning in neural networks and backpropagation-free machine learning models. *Science* 383,
1461-1467. (The average gradient outer product as a kernel's metric.)
"""

import itertools
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import (
    as_rows,
    check_choice,
    check_count,
    check_points,
    check_positive,
    check_weights,
    in_chunks,
)
from pymc_kmc.numerics.linear_algebra import symmetric, symmetric_power, triangular_solve
from pymc_kmc.numerics.samples import count_distinct, shrunk_covariance
from pymc_kmc.numerics.samples import whitening as whitening_of
from pymc_kmc.surrogates.evaluation import gradient_in, workspace
from pymc_kmc.surrogates.evidence import (
    GAUSSIAN,
    KERNEL_RIDGES,
    KERNELS,
    BayesianRegression,
    kernel_values,
    select_landmarks,
)
from pymc_kmc.surrogates.gp_evaluation import LogDensityGPParameters
from pymc_kmc.surrogates.kernels import squared_distances
from pymc_kmc.surrogates.online import OnlineRegression
from pymc_kmc.surrogates.protocol import check_fitted
from pymc_kmc.surrogates.scores import score_matching_loss, score_system, solve_with_scores

__all__ = ["LogDensityGP", "LogDensityGPParameters"]

#: Ridges of the trend's coefficients tried, and those of the comparisons on a subset.
TREND_RIDGES = 10.0 ** np.array([-8.0, -5.0, -2.0, 0.0, 2.0])
#: The same where the trend has more than so many features: each costs a factorisation of it.
FEW_TREND_RIDGES = 10.0 ** np.array([-11.0, -7.0, -3.0, 0.0])
MANY_FEATURES = 400
#: Length scales compared, in median distances, and around those of the last fit; the best is then
#: refined.
LENGTH_SCALES = (1.0, 3.0, 9.0, 27.0)
LENGTH_SCALES_AROUND = (0.5, 1.0, 2.0)
REFINEMENTS = (0.7, 1.0, 1.4)
#: Variances of the additive part compared, in those of the kernel part, and its length scales in
#: units of the grid's, with these factors on the kernel part's length scale; kernel functions a
#: coordinate, where there are so many values for each.
ADDITIVE_VARIANCES = (1.0, 30.0, 1000.0)
ADDITIVE_LENGTHS = (1.0, 3.0)
LENGTHS_BESIDE = (1.0, 3.0)
GRID = 8
FEWEST_COORDINATES = 3  # with fewer the kernel part has neighbours everywhere
VALUES_PER_GRID_POINT = 4
#: An additive part that loses is tried in every so many fits.
RETRIED = 4
#: The grid ends so many grid points outside of these quantiles of the points.
MARGIN = 1
GRID_ENDS = (0.005, 0.995)
#: Eigenvalues of the quadratic are at least this share of the smallest of the prior precision.
SMALLEST_EIGENVALUE = 0.02
#: Keeps directions without a gradient in the kernel's map, relative to the mean square.
FAINT = 1e-4
#: The quadratic's off-diagonal is fitted where there are so many values a coefficient.
VALUES_PER_COEFFICIENT = 1.1
#: So many a coefficient are never left out.
ENOUGH_VALUES = 1.2
#: The wall is so many times as far out as the farthest reference point, and half a unit.
WALL = 1.4
#: Or so many times farther where the surrogate is a concave quadratic.
FREE = 100.0
#: Outside, the surrogate is to be so much below the bulk, at these multiples of the wall's radius,
#: in the directions of so many reference points and the opposite ones.
BELOW_BULK = 20.0
RADII = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0)
N_RAYS = 100
#: Most reference points of a score-matching term.
N_SCORES = 400
#: Updates add kernel functions up to so many times `n_landmarks`.
MORE_LANDMARKS = 1.5
#: A new kernel function whose part outside the others' span is smaller, squared, is left out.
SMALLEST_REST = 1e-6
#: Points farther out than so many times the wall's radius are left out.
FARTHEST = 1.5
#: Updates are there to go outwards: they only leave out what would ruin the quadratic.
FARTHEST_UPDATE = 10.0


class LogDensityGP:
    r"""Gaussian-process regression of a log density; see the module's docstring.

    Parameters
    ----------
    n_landmarks : int
        Most kernel functions.
    kernels : sequence of {"gaussian", "rational_quadratic"}
        Those that compete.
    depth : float, optional
        Depth below the best values at which a value counts half, in nats; by default 5 + d / 2.
    drop : float
        Values deeper than so many times that are left out.
    radial : bool
        Whether radial terms are fitted.
    additive : bool
        Whether functions of single coordinates are tried beside the kernel part.
    score_weights : sequence of float
        Weights tried for score matching on the reference points beside the values, in independent
        draws that one point is worth (:mod:`pymc_kmc.surrogates.scores`); the one that predicts
        held-out values best is used. With (0,), values alone.
    n_comparison_points, n_comparison_landmarks : int
        Sizes of the comparisons that choose the kernel.
    rng : numpy.random.Generator, int or None
        Draws the points of the comparisons.

    Attributes
    ----------
    parameters_ : LogDensityGPParameters
        For compiled code.
    score_weight_ : float
        The weight of score matching that was chosen.
    variance_ : float
        Residual variance of a value that counts fully: noise and what the surrogate can't say.
    log_evidence_ : float
        Log marginal likelihood of a value, up to a constant that all fits share: compares fits to
        the same values, in other coordinates for example.
    n_features_in_ : int
        Dimension d.
    is_full_ : bool
        Whether the whole quadratic was fitted, not its diagonal alone.
    additive_variance_ : float
        Variance of the additive part in units of the kernel part's; 0 without one.
    kernel_, length_scale_ : str or None, float
        The kernel that was chosen, None where the trend alone was better, and its root mean square
        length scale in the surrogate's coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> log_density = -0.5 * X[:, 0] ** 2 - 0.5 * (X[:, 1] - X[:, 0] ** 2) ** 2
    >>> surrogate = LogDensityGP(rng=0).fit(X, log_density)
    >>> np.allclose(surrogate.gradient(np.array([0.5, 0.0])), [-0.75, 0.25], atol=0.01)
    True
    """

    def __init__(
        self,
        n_landmarks=300,
        *,
        kernels=("gaussian", "rational_quadratic"),
        depth=None,
        drop=10.0,
        radial=True,
        additive=True,
        score_weights=(0.0,),
        n_comparison_points=500,
        n_comparison_landmarks=100,
        rng=None,
    ):
        self.n_landmarks = n_landmarks
        self.kernels = kernels
        self.depth = depth
        self.drop = drop
        self.radial = radial
        self.additive = additive
        self.score_weights = score_weights
        self.n_comparison_points = n_comparison_points
        self.n_comparison_landmarks = n_comparison_landmarks
        self.rng = rng

    def fit(self, X, values, *, reference=None, whitening=None, bulk=None, last=None):
        """Fit to values of a log density.

        Parameters
        ----------
        X : array_like (n, d)
            Where the values were taken.
        values : array_like (n,)
            Log densities up to a constant, perhaps noisy; -inf and NaN are left out.
        reference : array_like (n', d), optional
            Points where the surrogate matters, a sampler's states: their moments are what the
            quadratic is shrunk towards, and the wall is outside of them. By default the half of X
            with the largest values.
        whitening : array_like (d, d), optional
            W of the surrogate's coordinates; by default the one that whitens `reference`.
        bulk : float, optional
            Depth is measured from here; by default from the .9 quantile of the values.
        last : LogDensityGP, optional
            An earlier fit, whose kernel part guides the choice of this one's.

        Returns
        -------
        LogDensityGP
            Itself.

        Raises
        ------
        ValueError
            If an argument is out of its range, shapes don't agree, or fewer than d + 2 values are
            finite.
        """
        self._check_arguments()
        X = check_points(X)
        values = _check_values(values, len(X))
        d = X.shape[1]
        finite = np.isfinite(values)
        if finite.sum() < d + 2:
            raise ValueError(
                f"{finite.sum()} of the values are finite; a surrogate in {d} dimensions needs at "
                f"least {d + 2}"
            )
        X, values = X[finite], values[finite]
        if reference is None:
            reference = X[values >= np.median(values)]
        reference = check_points(reference, "reference", d)
        if whitening is not None:
            whitening = check_points(whitening, "whitening", d)
            if whitening.shape != (d, d) or np.linalg.matrix_rank(whitening) < d:
                raise ValueError(
                    f"whitening must be an invertible ({d}, {d}) matrix, got shape "
                    f"{whitening.shape} and rank {np.linalg.matrix_rank(whitening)}"
                )
        if bulk is not None and not np.isfinite(bulk):
            raise ValueError(f"bulk={bulk!r} must be finite; leave it out to take it from values")
        if last is not None:
            check_fitted(last)
        rng = np.random.default_rng(self.rng)
        _Fit(self, X, values, reference, whitening, bulk, last, rng).run()
        self.n_features_in_ = d
        return self

    def _check_arguments(self):
        check_count(self.n_landmarks, "n_landmarks")
        check_count(self.n_comparison_points, "n_comparison_points")
        check_count(self.n_comparison_landmarks, "n_comparison_landmarks")
        check_positive(self.drop, "drop")
        if self.depth is not None:
            check_positive(self.depth, "depth")
        for name in self.kernels:
            check_choice(name, "kernels", tuple(KERNELS))
        if not np.all(np.asarray(self.score_weights, dtype=np.float64) >= 0):
            raise ValueError(
                f"score_weights={self.score_weights!r} must not be negative; pass e.g. (0.0, 0.1)"
            )

    def log_density(self, X):
        """Return the surrogate's log density at X, (d,) or (n, d)."""
        check_fitted(self)
        rows, single = as_rows(X, self.n_features_in_)
        p = self.parameters_
        out = in_chunks(lambda rows: _log_densities(p, rows), rows, len(p.coefficients))
        return float(out[0]) if single else out

    def gradient(self, X):
        """Return its gradient at X, (d,) or (n, d), in the shape of X."""
        check_fitted(self)
        rows, single = as_rows(X, self.n_features_in_)
        out, space = np.empty(rows.shape), workspace(self.parameters_)
        for row, gradient in zip(np.ascontiguousarray(rows), out, strict=True):
            gradient_in(self.parameters_, row, gradient, space)
        return out[0] if single else out

    def loss(self, X, sample_weight=None):
        """Return the empirical score-matching objective on X (n, d), a mean over its rows.

        Laplacians are central differences of the gradient.
        """
        check_fitted(self)
        X = check_points(X, d=self.n_features_in_)
        weights = check_weights(sample_weight, len(X))
        laplacians = np.zeros(len(X))
        for a, step in enumerate(1e-5 / np.linalg.norm(self.parameters_.whitening, axis=0)):
            shift = np.zeros(X.shape[1])
            shift[a] = step
            ahead, behind = self.gradient(X + shift), self.gradient(X - shift)
            laplacians += (ahead[:, a] - behind[:, a]) / (2.0 * step)
        return score_matching_loss(self.gradient(X), laplacians, weights)

    def update(self, X, values):
        """Take in more values, each with a kernel function at its point.

        The regression goes on where the fit left it: its kernel, coordinates and ridges stay as
        they were chosen. Kernel functions come on top of `n_landmarks`, half as many at most. As in
        a fit, values that are far below the others count little, and places out of all proportion
        not at all.

        Parameters
        ----------
        X : array_like, shape (d,) or (n, d)
        values : float or array_like, shape (n,)
            Log densities up to the same constant, finite.

        Returns
        -------
        LogDensityGP
            Itself.

        Raises
        ------
        ValueError
            If shapes don't agree or a value isn't finite.
        """
        check_fitted(self)
        rows, _ = as_rows(X, self.n_features_in_)
        values = _check_values(np.atleast_1d(values), len(rows))
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"values[{bad}] is {values[bad]}; leave values that aren't finite out")
        for row, value in zip(rows, values, strict=True):
            self.parameters_ = self._posterior.add(row, float(value), self.parameters_)
        return self

    def predict(self, X, return_std=False):
        """Predict values at X, (d,) or (n, d), the constant of the fitted ones included.

        Parameters
        ----------
        X : array_like, shape (d,) or (n, d)
        return_std : bool
            Whether to return the standard deviations too, as of :meth:`predictive_variance`.

        Returns
        -------
        mean : float or ndarray, shape (n,)
        std : float or ndarray, shape (n,)
            Only with `return_std`.
        """
        check_fitted(self)
        rows, single = as_rows(X, self.n_features_in_)
        mean, variances = self._posterior.predict(rows, self.parameters_, return_std)
        if single:
            mean = float(mean[0])
        if not return_std:
            return mean
        return mean, float(np.sqrt(variances[0])) if single else np.sqrt(variances)

    @property
    def constant_(self):
        """What values exceed the log density by."""
        check_fitted(self)
        return self._posterior.constant

    def weight(self, value):
        """Return how much a value counts in the fit, between 0 and 1; less with its depth."""
        check_fitted(self)
        return float(self._posterior.depth.weight(value))

    def predictive_variance(self, X):
        """Return the posterior variance of the log density at X, (d,) or (n, d).

        Up to the constant that densities are known to, so that it is the variance of the
        difference from the weighted mean of the fitted values; noise is not in it.
        """
        check_fitted(self)
        rows, single = as_rows(X, self.n_features_in_)
        _, out = self._posterior.predict(rows, self.parameters_, True)
        return float(out[0]) if single else out


def _check_values(values, n):
    """Values as an array (n,) of float64, or a ValueError."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"values has shape {values.shape}; pass one a row of X: ({n},)")
    return values


class _Depth(NamedTuple):
    """How deep values are, and what that leaves of their weight; see the module's docstring."""

    bulk: float
    scale: float

    def __call__(self, values):
        return np.maximum(self.bulk - values, 0.0) / self.scale

    def weight(self, values):
        return 1.0 / (1.0 + self(values) ** 2)


class _Posterior:
    """A fit's regression: what predictions and updates need besides the surrogate's parameters."""

    def __init__(self, fit, trend, features, kernel_part, landmark_factor, values, base, solution):
        self.trend, self.base, self.additive = trend, base, kernel_part.additive
        self.n_trend = len(solution.coefficients)
        self.n_before = self.n_trend + self.additive.n_features
        self.landmark_factor, self.U = landmark_factor, kernel_part.U
        self.kernel_ridge, self.variance = solution.kernel_ridge, solution.variance
        self.depth = fit.depth
        self.most_landmarks = int(MORE_LANDMARKS * fit.gp.n_landmarks)
        ridges = np.full(self.n_trend, solution.ridge)
        coefficients = solution.coefficients
        if len(solution.kernel_coefficients):
            features = np.hstack([features, kernel_part.features])
            n_others = kernel_part.features.shape[1]
            ridges = np.append(ridges, np.full(n_others, solution.kernel_ridge))
            coefficients = np.append(coefficients, solution.kernel_coefficients)
        self.regression = OnlineRegression(features, values, fit.weights, ridges, coefficients)
        self.constant = self.regression.constant  # of the parameters in use

    def _features(self, Z, p):
        """Features (n, k), and the part of a kernel function that they don't span (n,)."""
        features = self.trend(Z)
        if not len(self.landmark_factor):
            return features, np.zeros(len(Z))
        kernel = kernel_values(squared_distances(Z @ p.projection.T, p.landmarks.T), p.kernel)
        kernel = triangular_solve(self.landmark_factor, kernel.T).T
        rest = np.maximum(1.0 - np.einsum("nk,nk->n", kernel, kernel), 0.0)
        return np.hstack([features, self.additive(Z), kernel]), rest

    def predict(self, X, p, with_variances):
        Z = (X - p.centre) @ p.whitening.T
        features, rest = self._features(Z, p)
        mean = self.regression.predict(features) - 0.5 * _quadratic_form(Z, self.base)
        if not with_variances:
            return mean, None
        variances = self.regression.variances(features)
        if len(self.landmark_factor):
            variances = variances + rest / self.kernel_ridge
        return mean, self.variance * variances

    def add(self, x, value, p):
        """Take in a value at x; return the new parameters."""
        z = (x - p.centre) @ p.whitening.T
        if not np.abs(z).max() <= FARTHEST_UPDATE * p.radius:
            return p
        features, rest = self._features(z[None, :], p)
        features, landmarks = features[0], p.landmarks
        if len(self.landmark_factor):
            u = p.projection @ z
            if rest[0] > SMALLEST_REST and len(self.landmark_factor) < self.most_landmarks:
                features = self._add_landmark(features, u, np.sqrt(rest[0]), p.kernel)
                landmarks = np.ascontiguousarray(np.hstack([landmarks, u[:, None]]))
            self.U = np.vstack([self.U, u])
        weight = self.depth.weight(value)
        self.regression.add_point(features, value + 0.5 * z @ self.base @ z, weight)
        coefficients = self.regression.coefficients
        linear, radial, change = self.trend.split(coefficients[: self.n_trend])
        kernel_coefficients = triangular_solve(
            self.landmark_factor, coefficients[self.n_before :], transposed=True
        )
        additive = self.additive.split(coefficients[self.n_trend : self.n_before])
        precision = symmetric(self.base + change)
        is_density = np.isfinite(coefficients).all() and radial.sum() <= 0
        if not (is_density and np.linalg.eigvalsh(precision)[0] > 0):
            # What was there stays in use: the value waits for the next update.
            missing = np.zeros(landmarks.shape[1] - p.landmarks.shape[1])
            return p._replace(landmarks=landmarks, coefficients=np.append(p.coefficients, missing))
        self.constant = self.regression.constant
        radius = p.radius
        if weight > 0.5:
            radius = max(radius, WALL * np.linalg.norm(z) + 0.5)
        return p._replace(
            linear=np.ascontiguousarray(linear),
            precision=np.ascontiguousarray(precision),
            radial_coefficients=np.ascontiguousarray(radial),
            radius=float(radius),
            landmarks=landmarks,
            coefficients=np.ascontiguousarray(kernel_coefficients),
            additive_coefficients=additive,
        )

    def _add_landmark(self, features, u, root, kernel):
        """Add the kernel function at u, as what of it the others don't span, of norm `root`."""
        m = len(self.landmark_factor)
        spanned = features[self.n_before :]
        values = kernel_values(squared_distances(self.U, u[None, :]), kernel)[:, 0]
        combination = np.append(np.zeros(self.n_before), spanned / root)
        self.regression.add_feature(values / root, self.kernel_ridge, combination)
        factor = np.zeros((m + 1, m + 1))
        factor[:m, :m], factor[m, :m], factor[m, m] = self.landmark_factor, spanned, root
        self.landmark_factor = factor
        return np.append(features, root)


class _Trend:
    """Features of the trend in the surrogate's coordinates."""

    def __init__(self, d, full, radial):
        self.pairs = np.triu_indices(d) if full else (np.arange(d), np.arange(d))
        self.on_diagonal = self.pairs[0] == self.pairs[1]
        self.scales = np.array([d, 4.0 * d]) if radial else np.zeros(0)
        self.d = d

    def quadratic(self, Z):
        products = Z[:, self.pairs[0]] * Z[:, self.pairs[1]]
        # The ridge is then the Frobenius norm of the change of the precision.
        products[:, self.on_diagonal] *= np.sqrt(0.5)
        return products

    def others(self, Z):
        squares = np.einsum("nd,nd->n", Z, Z)[:, None]
        return np.hstack([Z, 0.5 * self.scales * np.log1p(squares / self.scales)])

    def __call__(self, Z):
        return np.hstack([self.others(Z), self.quadratic(Z)])

    def derivatives(self, Z):
        """Return the features' derivatives, one coordinate after another, and Laplacians."""
        n, d = Z.shape
        squares = np.einsum("nd,nd->n", Z, Z)[:, None]
        inverse = 1.0 / (self.scales + squares)
        rows, columns = self.pairs
        factors = np.where(self.on_diagonal, np.sqrt(0.5), 1.0)

        def gradients():
            for a in range(d):
                linear = np.zeros((n, d))
                linear[:, a] = 1.0
                radial = self.scales * inverse * Z[:, a : a + 1]
                quadratic = factors * ((rows == a) * Z[:, columns] + (columns == a) * Z[:, rows])
                yield np.hstack([linear, radial, quadratic])

        radial = self.scales * (d * inverse - 2.0 * squares * inverse**2)
        quadratic = np.tile(2.0 * factors * self.on_diagonal, (n, 1))
        return gradients(), np.hstack([np.zeros((n, d)), radial, quadratic])

    def split(self, coefficients):
        """Return linear coefficients, radial ones, and the change of the precision."""
        n = self.d + len(self.scales)
        linear, radial = coefficients[: self.d], 0.5 * self.scales * coefficients[self.d : n]
        change = np.zeros((self.d, self.d))
        quadratic = coefficients[n:]
        if len(quadratic):
            values = np.where(self.on_diagonal, np.sqrt(0.5), 1.0) * quadratic
            change[self.pairs] = -values
            change = change + change.T
        return linear, radial, change


class _OtherTrend(_Trend):
    """The trend without its quadratic, which has been settled."""

    def __init__(self, trend):
        none = np.zeros(0, dtype=int)
        self.pairs, self.on_diagonal = (none, none), none.astype(bool)
        self.scales, self.d = trend.scales, trend.d


class _Fit:
    """One fit, as a sequence of steps with shared variables."""

    def __init__(self, gp, X, values, reference, whitening, bulk, last, rng):
        self.gp, self.last, self.rng = gp, last, rng
        self.reference = reference
        d = X.shape[1]
        self.centre = reference.mean(axis=0)
        share = min(0.5, d / (count_distinct(reference) + 1.0))
        covariance = shrunk_covariance(reference, share=share)
        if whitening is None:
            whitening = whitening_of(covariance)
        self.whitening = np.ascontiguousarray(whitening, dtype=np.float64)
        self.covariance = self.whitening @ covariance @ self.whitening.T
        self.prior = symmetric(np.linalg.inv(self.covariance))
        inside = (reference - self.centre) @ self.whitening.T
        self.radius = WALL * np.sqrt(np.einsum("nd,nd->n", inside, inside).max()) + 0.5
        scale = gp.depth or 5.0 + 0.5 * d
        bulk = np.quantile(values, 0.9) if bulk is None else bulk
        self.depth = _Depth(bulk, scale)
        depth = self.depth(values)
        Z = (X - self.centre) @ self.whitening.T
        distance = np.linalg.norm(Z, axis=1)
        # At least as many as the quadratic has coefficients, however far away: a chain that comes
        # from far has most of its values far below the last ones.
        enough = min(len(X) - 1, max(20 + 3 * d, int(ENOUGH_VALUES * 0.5 * d * (d + 3))))
        kept = distance <= max(FARTHEST * self.radius, np.partition(distance, enough)[enough])
        kept &= depth <= max(gp.drop, np.partition(depth, enough)[enough])
        self.Z, self.values = Z[kept], values[kept]
        self.weights = self.depth.weight(self.values)
        self.n = len(self.values)
        self.kernel_parts = None  # those compared, once they are known

    def run(self):
        d = self.Z.shape[1]
        full = self.n >= VALUES_PER_COEFFICIENT * (0.5 * d * (d + 3))
        self.gp.is_full_ = bool(full)
        trend = _Trend(d, full, self.gp.radial)
        n_features = trend(self.Z[:1]).shape[1]
        self.ridges = TREND_RIDGES if n_features <= MANY_FEATURES else FEW_TREND_RIDGES
        # The trend alone where there are hardly more values than it has features.
        self.has_enough = self.n > 1.2 * n_features or n_features <= MANY_FEATURES
        self._fit_with(trend)

    def _fit_with(self, trend):
        residuals = self.values + 0.5 * _quadratic_form(self.Z, self.prior)
        features = trend(self.Z)
        regression = BayesianRegression(features, residuals, self.weights, self.ridges)
        fit, kernel_part = self._with_kernel_part(regression, features, residuals)
        base, is_free = self.prior, False
        precision = base + trend.split(fit.coefficients)[2]
        eigenvalues, vectors = np.linalg.eigh(precision)
        smallest = SMALLEST_EIGENVALUE * np.linalg.eigvalsh(self.prior)[0]
        if eigenvalues[0] < smallest:
            precision = (vectors * np.maximum(eigenvalues, smallest)) @ vectors.T
            residuals = self.values + 0.5 * _quadratic_form(self.Z, precision)
            base = precision
            features = trend.others(self.Z)
            again = BayesianRegression(features, residuals, self.weights, [fit.ridge])
            has_kernel = len(fit.kernel_coefficients) > 0
            fit = again.fit_with(kernel_part.features) if has_kernel else again.fit()
            trend = _OtherTrend(trend)
        elif not len(fit.kernel_coefficients):
            # A trend that is concave by itself needs no wall, which would hold a chain back whose
            # history has not seen the target's width yet.
            is_free = True
        weights = self.weights / self.weights.mean()
        self.gp.log_evidence_ = fit.log_evidence / self.n + 0.5 * float(np.log(weights).mean())
        fit = self._with_scores(trend, features, residuals, base, fit, kernel_part)
        linear, radial, change = trend.split(fit.coefficients)
        precision = base + change
        if radial.sum() > 0:  # a log density that rises for ever: the values didn't say that
            self._fit_with(_Trend(self.Z.shape[1], self.gp.is_full_, False))
            return
        if is_free:
            self.radius *= FREE
        self._finish(trend, features, residuals, base, fit, kernel_part, linear, radial, precision)

    def _with_kernel_part(self, regression, features, residuals):
        """Return the fit of the largest evidence, and its kernel part."""

        def fit_with(part):
            return regression.fit_with(part.features, ridges=[part.choice.ridge]), part

        def largest(fits):
            return max(fits, key=lambda pair: pair[0].log_evidence)

        alone = regression.fit(), _NoKernelPart(self.Z)
        if self.kernel_parts is None:
            choices = self._choose_kernels(features, residuals) if self.has_enough else []
            candidates = itertools.product(choices, REFINEMENTS)
            fits = [fit_with(_KernelPart(self, *candidate)) for candidate in candidates]
            self.kernel_parts = [part for _, part in fits]
        else:
            fits = [fit_with(part) for part in self.kernel_parts]
        return largest([alone, *fits])

    def _with_scores(self, trend, features, residuals, base, fit, kernel_part):
        """Return the fit with the reference points' score matching in it, where that is wanted."""
        gp = self.gp
        gp.score_weight_ = 0.0
        score_weights = np.asarray(gp.score_weights, dtype=np.float64)
        if not score_weights.any():
            return fit
        Z = self.reference[:: max(1, len(self.reference) // N_SCORES)] - self.centre
        Z = Z @ self.whitening.T
        n_trend = features.shape[1]
        ridges = np.full(n_trend, fit.ridge)
        trend_gradients, laplacians = trend.derivatives(Z)
        gradients = trend_gradients
        if len(fit.kernel_coefficients):
            features = np.hstack([features, kernel_part.features])
            ridges = np.append(ridges, np.full(kernel_part.features.shape[1], fit.kernel_ridge))
            kernel_gradients, kernel_laplacians = kernel_part.derivatives(Z)
            pairs = zip(trend_gradients, kernel_gradients, strict=True)
            gradients = (np.hstack(pair) for pair in pairs)
            laplacians = np.hstack([laplacians, kernel_laplacians])
        system = score_system(gradients, laplacians, -Z @ base)
        unit = len(self.reference) * fit.variance
        weights = self.weights / self.weights.mean()
        theta, scale = solve_with_scores(
            features, residuals, weights, ridges, system, unit * score_weights
        )
        if theta is None or scale == 0:
            return fit
        gp.score_weight_ = float(scale / unit)
        return fit._replace(coefficients=theta[:n_trend], kernel_coefficients=theta[n_trend:])

    def _choose_kernels(self, features, residuals):
        """Return kernels, maps and additive parts that are worth a fit to all points.

        Those of the largest evidence on a subset, of all without and of all with an additive part:
        that choice needs all points.
        """
        gp = self.gp
        subset = np.arange(self.n)
        if self.n > gp.n_comparison_points:
            subset = np.sort(self.rng.choice(self.n, gp.n_comparison_points, replace=False))
        Z, weights = self.Z[subset], self.weights[subset]
        regression = BayesianRegression(features[subset], residuals[subset], weights, self.ridges)

        def kernels(with_additive):
            return [
                (KERNELS[name], matrix / length)
                for matrix, lengths in self._maps(Z, with_additive)
                for name in gp.kernels
                for length in lengths
            ]

        def best(candidates, parts):
            """The choice of the largest evidence, and that."""
            largest, choice = -np.inf, None
            for additive in parts:
                along_coordinates = additive(Z)
                for kernel, matrix in candidates:
                    _, candidate = select_landmarks(
                        Z @ matrix.T, weights, gp.n_comparison_landmarks, kernel
                    )
                    candidate = np.hstack([along_coordinates, candidate])
                    fit = regression.fit_with(candidate, KERNEL_RIDGES[1::2], self.ridges[::2])
                    if fit.log_evidence > largest:
                        largest = fit.log_evidence
                        choice = _Choice(kernel, matrix, fit.ridge, additive)
            return choice, largest

        choice, evidence = best(kernels(False), [_AdditivePart.none(Z.shape[1])])
        choices = [choice] if evidence > regression.fit().log_evidence else []
        additive = self._additive_part()
        if additive is not None and choice is not None:
            if self.last is not None and self.last.additive_variance_ > 0:
                last = self.last._posterior.additive
                parts = [additive.scaled(last.variance, last.length)]
                choice = best(kernels(True), parts)[0] or choice
            around = [(choice.kernel, choice.map / length) for length in LENGTHS_BESIDE]
            scales = itertools.product(ADDITIVE_VARIANCES, ADDITIVE_LENGTHS)
            choice, _ = best(around, [additive.scaled(*scale) for scale in scales])
            if choice is not None:
                choices.append(choice)
        return choices

    def _additive_part(self):
        """The additive part that these points can determine, of variance one, if it is worth it."""
        n, d = self.Z.shape
        losses = self.last._n_additive_losses if self.last is not None else 0
        if losses > 1 and losses % RETRIED:  # what lost time and again is tried now and then
            return None
        if not self.gp.additive or d < FEWEST_COORDINATES or n < VALUES_PER_GRID_POINT * GRID * d:
            return None
        inverse = np.linalg.inv(self.whitening)
        X = (self.Z @ inverse.T)[self.weights > 0.5]
        if not len(X):
            return None
        low, high = np.quantile(X, GRID_ENDS, axis=0)
        spacing = (high - low) / (GRID - 1 - 2 * MARGIN)
        low = low - MARGIN * spacing
        if not np.all(spacing > 0):
            return None
        return _AdditivePart(inverse / spacing[:, None], low / spacing, GRID)

    def _maps(self, Z, with_additive):
        """Candidates for the kernel's map of the coordinates, each with length scales to try.

        Beside an additive part the kernel need not know what that part says.
        """
        d = Z.shape[1]
        inverse = np.linalg.inv(self.whitening)
        maps = [inverse / np.sqrt(np.trace(inverse @ inverse.T) / d), np.eye(d)]
        if not np.allclose(self.covariance, np.eye(d), atol=0.1):
            maps.append(symmetric_power(self.covariance, -0.5))
        candidates = [(matrix, LENGTH_SCALES) for matrix in maps]
        if self.last is not None and len(self.last.parameters_.coefficients):
            p = self.last.parameters_
            change = p.whitening @ inverse
            Zr = (self.reference[:: max(1, len(self.reference) // 400)] - p.centre) @ p.whitening.T
            gradients = _kernel_gradients(p, Zr)
            if not with_additive:
                gradients += _additive_gradients(p, Zr)
            gradients = gradients @ change
            product = gradients.T @ gradients
            if np.trace(product) > 0:
                product *= d / np.trace(product)
                product += FAINT * np.eye(d)
                candidates.append((symmetric_power(product, 0.5), LENGTH_SCALES))
                candidates.append((symmetric_power(product, 0.25), LENGTH_SCALES))
            candidates.append((p.projection @ change, None))
        sample = Z[:: max(1, len(Z) // 200)]
        for matrix, lengths in candidates:
            if lengths is None:
                yield matrix, LENGTH_SCALES_AROUND
            else:
                U = sample @ matrix.T
                scale = np.sqrt(np.median(squared_distances(U, U)))
                if scale > 0:
                    yield matrix, scale * np.array(lengths)

    def _finish(
        self, trend, features, residuals, base, fit, kernel_part, linear, radial, precision
    ):
        gp, d = self.gp, self.Z.shape[1]
        landmark_factor = kernel_part.landmark_factor
        additive, n_additive = kernel_part.additive, kernel_part.additive.n_features
        coefficients, additive_coefficients = np.zeros(0), np.zeros((d, 0))
        if len(kernel_part.indices):
            coefficients = triangular_solve(
                landmark_factor, fit.kernel_coefficients[n_additive:], transposed=True
            )
            additive_coefficients = additive.split(fit.kernel_coefficients[:n_additive])
        gp.parameters_ = LogDensityGPParameters(
            centre=np.ascontiguousarray(self.centre),
            whitening=self.whitening,
            linear=np.ascontiguousarray(linear),
            precision=np.ascontiguousarray(symmetric(precision)),
            radial_scales=trend.scales,
            radial_coefficients=np.ascontiguousarray(radial),
            radius=float(self.radius),
            stiffness=1.0,
            projection=np.ascontiguousarray(kernel_part.map),
            landmarks=np.ascontiguousarray(kernel_part.U[kernel_part.indices].T),
            coefficients=np.ascontiguousarray(coefficients),
            kernel=int(kernel_part.kernel),
            axes=additive.axes / additive.length,
            origin=additive.origin / additive.length,
            spacing=1.0 / additive.length,
            additive_coefficients=additive_coefficients,
        )
        gp.additive_variance_ = additive.variance
        losses = self.last._n_additive_losses if self.last is not None else 0
        gp._n_additive_losses = 0 if additive.variance > 0 else losses + 1
        gp.parameters_ = gp.parameters_._replace(stiffness=self._stiffness(gp.parameters_))
        gp.variance_ = float(fit.variance)
        has_kernel = len(coefficients) > 0
        names = {number: name for name, number in KERNELS.items()}
        gp.kernel_ = names[kernel_part.kernel] if has_kernel else None
        gp.length_scale_ = (
            float(np.sqrt(d) / np.linalg.norm(kernel_part.map)) if has_kernel else 0.0
        )
        gp._posterior = _Posterior(
            self, trend, features, kernel_part, landmark_factor, residuals, base, fit
        )

    def _stiffness(self, parameters):
        """Steepness c at which the surrogate stays below the bulk outside of the wall."""
        parameters = parameters._replace(centre=np.zeros(self.Z.shape[1]), stiffness=0.0)
        X = self.reference[:: max(1, len(self.reference) // N_RAYS)] - self.centre
        distance = np.linalg.norm(X @ self.whitening.T, axis=1)
        X, distance = X[distance > 0], distance[distance > 0]
        X, distance = np.vstack([X, -X]), np.tile(distance, 2)
        bulk = np.max(_log_densities(parameters, X[: len(X) // 2]), initial=-np.inf)
        stiffness = 1.0
        for factor in RADII if len(X) else ():
            beyond = (factor - 1.0) * self.radius
            rays = X * (factor * self.radius / distance)[:, None]
            excess = np.max(_log_densities(parameters, rays)) - bulk + BELOW_BULK
            stiffness = max(stiffness, 2.0 * excess / beyond**2)
        return float(stiffness)


class _Choice(NamedTuple):
    kernel: int
    map: np.ndarray
    ridge: float
    additive: "_AdditivePart"


class _AdditivePart:
    """Functions of single coordinates: features, orthonormal as those of the kernel part.

    Parameters
    ----------
    axes : ndarray (d, d)
    origin : ndarray (d,)
        Grid coordinates are axes @ z - origin: a kernel function at each integer from 0.
    size : int
        Kernel functions a coordinate.
    variance, length : float
        Of the kernel; the length scale in units of the grid.
    """

    JITTER = 1e-8

    def __init__(self, axes, origin, size, variance=1.0, length=1.0):
        self.axes, self.origin = np.ascontiguousarray(axes), np.ascontiguousarray(origin)
        self.size, self.variance, self.length = size, variance, length
        self.n_features = size * len(axes)
        self._grid = np.arange(size)
        gram = np.exp(-0.5 * ((self._grid[:, None] - self._grid) / length) ** 2)
        self._factor = np.linalg.cholesky(gram + self.JITTER * np.eye(size)) / np.sqrt(variance)

    @classmethod
    def none(cls, d):
        """No functions."""
        part = cls(np.zeros((d, d)), np.zeros(d), 0)
        part.variance = 0.0
        return part

    def scaled(self, variance, length):
        """Return functions on the same grid."""
        return type(self)(self.axes, self.origin, self.size, variance, length)

    def _orthonormal(self, values):
        """Combine the grid's functions (n, d, g); return features (n, d g)."""
        if not self.n_features:
            return np.zeros((len(values), 0))
        features = triangular_solve(self._factor, values.reshape(-1, self.size).T)
        return features.T.reshape(len(values), -1)

    def _distances(self, Z):
        return ((Z @ self.axes.T - self.origin)[:, :, None] - self._grid) / self.length

    def __call__(self, Z):
        return self._orthonormal(np.exp(-0.5 * self._distances(Z) ** 2))

    def derivatives(self, Z):
        """Return the features' derivatives, one coordinate after another, and Laplacians."""
        T = self._distances(Z)
        values = np.exp(-0.5 * T**2)
        gradients = (self._orthonormal(-T * values * a[:, None]) for a in self.axes.T / self.length)
        lengths = np.sum((self.axes / self.length) ** 2, axis=1)[:, None]
        return gradients, self._orthonormal((T**2 - 1.0) * values * lengths)

    def split(self, coefficients):
        """Return the coefficients (d, g) of the grid's functions."""
        if not self.n_features:
            return np.zeros((len(self.axes), 0))
        rows = coefficients.reshape(-1, self.size)
        return np.ascontiguousarray(triangular_solve(self._factor, rows.T, transposed=True).T)


class _KernelPart:
    """Kernel functions on landmarks among a fit's points, after those of single coordinates."""

    def __init__(self, fit, choice, length):
        self.choice = choice
        self.kernel, self.map, self.additive = choice.kernel, choice.map / length, choice.additive
        self.U = fit.Z @ self.map.T
        self.indices, features = select_landmarks(
            self.U, fit.weights, fit.gp.n_landmarks, self.kernel
        )
        self.landmark_factor = np.tril(features[self.indices])
        self.features = np.hstack([self.additive(fit.Z), features])

    def derivatives(self, Z):
        """Return the features' derivatives, one coordinate after another, and Laplacians."""
        landmarks, U = self.U[self.indices], Z @ self.map.T
        squares = squared_distances(U, landmarks)
        slopes, curvatures = _kernel_slopes(squares, self.kernel)
        back = self.map.T @ self.map
        pulled = [
            U @ self.map[:, a][:, None] - landmarks @ self.map[:, a] for a in range(Z.shape[1])
        ]
        lengths = sum(p**2 for p in pulled)
        laplacians = curvatures * lengths - np.trace(back) * slopes
        additive_gradients, additive_laplacians = self.additive.derivatives(Z)
        gradients = (
            np.hstack([additive, triangular_solve(self.landmark_factor, -(slopes * p).T).T])
            for additive, p in zip(additive_gradients, pulled, strict=True)
        )
        laplacians = triangular_solve(self.landmark_factor, laplacians.T).T
        return gradients, np.hstack([additive_laplacians, laplacians])


class _NoKernelPart:
    """No kernel functions."""

    def __init__(self, Z):
        self.kernel, self.map = GAUSSIAN, np.zeros((1, Z.shape[1]))
        self.additive = _AdditivePart.none(Z.shape[1])
        self.U, self.landmark_factor = np.zeros((len(Z), 1)), np.zeros((0, 0))
        self.indices, self.features = np.zeros(0, dtype=int), np.zeros((len(Z), 0))


def _quadratic_form(Z, matrix):
    return np.einsum("ni,ij,nj->n", Z, matrix, Z)


def _kernel_slopes(squares, kernel):
    """First derivatives of the kernel in half the squared distance, negated, and second ones."""
    if kernel == GAUSSIAN:
        slopes = np.exp(-0.5 * squares)
        return slopes, slopes
    q = 1.0 + squares / 3.0
    return q**-2.5, 5.0 / 3.0 * q**-3.5


def _kernel_gradients(p, Z):
    """Gradients in z of the kernel part at the rows of Z."""
    U = Z @ p.projection.T
    slopes = -_kernel_slopes(squared_distances(U, p.landmarks.T), p.kernel)[0] * p.coefficients
    return (slopes.sum(axis=1)[:, None] * U - slopes @ p.landmarks.T) @ p.projection


def _grid_distances(p, Z):
    """Distances (n, d, g) from the additive part's grid points, in its length scale."""
    grid = p.spacing * np.arange(p.additive_coefficients.shape[1])
    return (Z @ p.axes.T - p.origin)[:, :, None] - grid


def _additive_gradients(p, Z):
    """The same of the additive part."""
    T = _grid_distances(p, Z)
    return -np.einsum("ndg,dg->nd", T * np.exp(-0.5 * T**2), p.additive_coefficients) @ p.axes


def _log_densities(p, X):
    Z = (X - p.centre) @ p.whitening.T
    squares = np.einsum("nd,nd->n", Z, Z)
    out = Z @ p.linear - 0.5 * _quadratic_form(Z, p.precision)
    out += np.log1p(squares[:, None] / p.radial_scales) @ p.radial_coefficients
    out -= 0.5 * p.stiffness * np.maximum(np.sqrt(squares) - p.radius, 0.0) ** 2
    if len(p.coefficients):
        U = Z @ p.projection.T
        out += kernel_values(squared_distances(U, p.landmarks.T), p.kernel) @ p.coefficients
        values = np.exp(-0.5 * _grid_distances(p, Z) ** 2)
        out += np.einsum("ndg,dg->n", values, p.additive_coefficients)
    return out
