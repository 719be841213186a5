r"""A Gaussian-process surrogate of a log density, fitted to its values.

In coordinates :math:`z = W (x - m)` the surrogate is

.. math:: f(x) = h^\top z - \tfrac12 z^\top P z
          + \sum_k b_k \log\left(1 + |z|^2 / \nu_k\right) + \sum_i g_i(x_i)
          + \sum_j a_j k(B z, u_j) - \tfrac c2 \max(|z| - R, 0)^2,

a quadratic trend, radial terms, functions of single coordinates, a kernel expansion on landmarks
and a wall. Fitted to values :math:`y_i \approx \log\pi(x_i) + \text{const}` it is the posterior
mean of a Gaussian process with those trends (Rasmussen and Williams, 2006, section 2.7), computed
from a subset of its kernel functions.

- *Quadratic*: shrunk towards a given precision. Its eigenvalues are kept positive, and the other
  parts are then fitted again. With fewer values than coefficients only its diagonal is fitted, and
  the evidence decides whether the points' correlations are used or shrunk.
- *Radial terms*, :math:`\nu = d, 4 d`: log densities with heavy tails grow like
  :math:`\log |z|`, which no quadratic does. A Student t is represented nearly exactly.
- *Additive part*: a function of each coordinate x_i, Gaussian kernel functions on a grid over the
  points (Duvenaud, Nickisch and Rasmussen, 2011, order one). A bend along a single coordinate
  needs no neighbours in the others. The marginal likelihood chooses whether there is one, its
  variance in units of the kernel part's and its length scale.
- *Kernel part*: a Gaussian or rational quadratic kernel in a linear map B of the coordinates,
  chosen by the marginal likelihood (:mod:`pymc_kmc.surrogates.gp_parts`).
- *Wall*: beyond R, a multiple of the farthest reference point, the surrogate falls at least
  quadratically. It is integrable for any data, and steep enough to keep kernel functions that
  extrapolate upwards below the bulk.

A value far below the others says little about the place of the mass. Its weight is
:math:`1 / (1 + (\text{depth} / c)^2)`, and far-away points have none.

Costs, for n values, p trend features and m landmarks: a fit
:math:`O(n (p + m)^2 + (p + m)^3)` and a constant number of comparisons of size
:math:`O(n' m'^2)`; an update :math:`O((n + m) (p + m))`; a gradient :math:`O(d m + d^2)`.

References
----------
Duvenaud, D., Nickisch, H. and Rasmussen, C. E. (2011). Additive Gaussian processes. *NeurIPS* 24.

Rasmussen, C. E. (2003). Gaussian processes to speed up hybrid Monte Carlo for expensive Bayesian
integrals. *Bayesian Statistics* 7, 651-659.
"""

import copy

import numpy as np

from pymc_kmc.numerics.checks import (
    as_number,
    check_choice,
    check_count,
    check_points,
    check_rng,
)
from pymc_kmc.surrogates.gp_evaluation import values_and_gradients
from pymc_kmc.surrogates.gp_fit import fit_log_density
from pymc_kmc.surrogates.kernels import KERNELS
from pymc_kmc.surrogates.protocol import Predictor, check_fitted


class LogDensityGP(Predictor):
    r"""Gaussian-process regression of a log density.

    The surrogate is the sum of a quadratic, radial terms for heavy tails, functions of single
    coordinates, kernel functions on landmarks and a wall outside of which it falls. The marginal
    likelihood chooses among these parts and kernels.

    ``predict(X, return_std=False)`` returns predictions of values at X, (d,) or (n, d), with the
    constant of the fitted ones, and their standard deviations with `return_std`. These are of
    differences from the weighted mean of the fitted values, because densities are known up to a
    constant, without noise.

    Parameters
    ----------
    n_landmarks : int
        Largest number of kernel functions.
    kernels : sequence of {"gaussian", "rational_quadratic"}
        Kernels that compete.
    score_weights : sequence of float
        Weights to try for score matching on the reference points beside the values: the worth of
        one point in independent draws. The weight that predicts held-out values best is used. With
        (0,) the fit is to values alone.
    rng : numpy.random.Generator, int or None
        Draws the points of the comparisons that choose the kernel.

    Attributes
    ----------
    parameters_ : LogDensityGPParameters
        For compiled code.
    variance_ : float
        Residual variance of a value that counts fully: noise, and the surrogate's error.
    log_evidence_ : float
        Log marginal likelihood of a value, up to a constant that all fits share. It compares fits
        to the same values, in other coordinates for example.
    n_features_in_ : int
        Dimension d.
    is_full_ : bool
        Whether the whole quadratic was fitted, not its diagonal alone.
    additive_variance_ : float
        Variance of the additive part in units of the kernel part's; 0 without one.
    kernel_ : str or None
        The kernel that was chosen; None where the trend alone was better.
    length_scale_ : float
        The kernel's root mean square length scale in the surrogate's coordinates; 0 without one.

    References
    ----------
    Rasmussen, C. E. and Williams, C. K. I. (2006). *Gaussian Processes for Machine Learning*. MIT
    Press.

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
        score_weights=(0.0,),
        rng=None,
    ):
        self.n_landmarks = n_landmarks
        self.kernels = kernels
        self.score_weights = score_weights
        self.rng = rng

    def fit(self, X, values, *, reference=None, whitening=None, bulk=None, last=None):
        """Fit to values of a log density.

        Parameters
        ----------
        X : array_like (n, d)
            Points of the values.
        values : array_like (n,)
            Log densities up to a constant, perhaps noisy; -inf and NaN are left out.
        reference : array_like (n', d), optional
            Points where the surrogate matters, such as a sampler's states. The quadratic is shrunk
            towards their moments, and the wall is outside of them. By default they are the half of
            X with the largest values.
        whitening : array_like (d, d), optional
            Matrix of the surrogate's coordinates; by default the one that whitens `reference`.
        bulk : float, optional
            Value from which depth is measured; by default the .9 quantile of the values.
        last : LogDensityGP, optional
            An earlier fit, whose kernel part guides the choice of this one's; not changed.

        Returns
        -------
        self : LogDensityGP

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
            if whitening.shape != (d, d) or not is_invertible(whitening):
                raise ValueError(
                    f"whitening must be an invertible ({d}, {d}) matrix, got shape "
                    f"{whitening.shape} and {whitening}"
                )
        if bulk is not None and not np.isfinite(as_number(bulk)):
            raise ValueError(f"bulk={bulk!r} must be a finite number; leave it out if unknown")
        if last is not None:
            check_fitted(last)
        fit = fit_log_density(
            self,
            X,
            values,
            reference,
            whitening=whitening,
            bulk=bulk,
            last=None if last is None else last._fit,
            rng=check_rng(self.rng),
        )
        self._fit = fit
        self.parameters_ = fit.parameters
        self.variance_ = fit.variance
        self.log_evidence_ = fit.log_evidence
        self.n_features_in_ = d
        self.is_full_ = fit.is_full
        self.additive_variance_ = fit.choice.additive.variance
        self.kernel_ = fit.choice.kernel.name if len(fit.part.indices) else None
        self.length_scale_ = 0.0
        if self.kernel_ is not None:
            self.length_scale_ = float(np.sqrt(d) / np.linalg.norm(fit.choice.map))
        return self

    def _check_arguments(self):
        check_count(self.n_landmarks, "n_landmarks")
        for name in self.kernels:
            check_choice(name, "kernels", tuple(KERNELS))
        weights = self.score_weights
        if np.ndim(weights) == 0:
            raise TypeError(f"score_weights={weights!r} must be a sequence; pass e.g. (0.0, 0.1)")
        if len(weights) == 0 or not all(as_number(weight) >= 0 for weight in weights):
            raise ValueError(
                f"score_weights={weights!r} must be numbers of at least 0; pass e.g. (0.0, 0.1)"
            )

    def _log_densities(self, rows):
        return values_and_gradients(self.parameters_, np.ascontiguousarray(rows))[0]

    def _gradients(self, rows):
        return values_and_gradients(self.parameters_, np.ascontiguousarray(rows))[1]

    def updated(self, X, values):
        """Return a surrogate that has learned more values.

        Each value adds a kernel function at its point, at most half of `n_landmarks` in all.
        Kernel, coordinates and ridges stay those of the fit. As in a fit, values far below the
        others count little, and extremely distant points don't count. A value that would make the
        surrogate no density changes nothing yet; it is kept for the next update.

        Parameters
        ----------
        X : array_like, shape (d,) or (n, d)
        values : float or array_like, shape (n,)
            Log densities up to the same constant, finite.

        Returns
        -------
        LogDensityGP
            A new surrogate; this one is unchanged.

        Raises
        ------
        ValueError
            If shapes don't agree or a value isn't finite.
        """
        rows, _ = self._rows(X)
        values = _check_values(np.atleast_1d(values), len(rows))
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"values[{bad}] is {values[bad]}; leave values that aren't finite out")
        fit = self._fit
        for row, value in zip(rows, values, strict=True):
            fit = fit.updated(row, float(value))
        surrogate = copy.copy(self)
        surrogate._fit, surrogate.parameters_ = fit, fit.parameters
        return surrogate

    def _predictions(self, rows):
        means, variances = self._fit.predict(rows)
        return means, np.sqrt(variances)

    @property
    def constant_(self):
        """Values less log densities, a float."""
        return self._fit.constant

    def weight(self, value):
        """Return the weight of a value in the fit, between 0 and 1; deeper values have less."""
        return float(self._fit.depth.weight(value))


def _check_values(values, n):
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"values has shape {values.shape}; pass one a row of X: ({n},)")
    return values


def is_invertible(matrix):
    """Return whether a square matrix has full rank, whatever its columns' units."""
    sizes = np.linalg.norm(matrix, axis=0)
    return bool(sizes.all()) and np.linalg.matrix_rank(matrix / sizes) == len(matrix)
