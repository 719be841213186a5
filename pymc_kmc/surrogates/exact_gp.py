r"""An exact Gaussian process for few values: of a log density, or of a function's many outputs.

Coordinates z are those in which the posterior has about unit covariance. An output has the prior
covariance

.. math:: k(z, z') = s^2 \left(c_0 + c_1 z^\top z' + c_2 (z^\top z')^2\right)
          + b^2 (t^3 + t^4)
          + a\, e^{-\frac12 \sum_j (z_j - z'_j)^2 / l_j^2} + (\sigma^2 + \sigma_i^2) \delta_{ii'},
    \qquad t = \sum_j z_j z'_j \, l_0^2 / l_j^2,

a quadratic trend with a weak Gaussian prior, a bend of cubic and quartic terms, a Gaussian kernel,
noise of a common variance and noise of value i alone (Rasmussen and Williams, 2006, sections 2.2,
2.7, 4.2.2 and 5.1; :class:`~pymc_kmc.surrogates.LogDensityGP` has the reference). The polynomial is
a kernel, and therefore defined with fewer values than coefficients. The scales s and b, the
kernel's variance a and length scales l and the noise sigma maximise the marginal likelihood
(equation 5.9) with weak priors. Outputs share the kernel; their covariances with each other are
those of the residuals, :math:`S = Y^\top K^{-1} Y / n`.

Each coordinate has a length scale, relative to :math:`l_0 = 2 \sqrt d` in the bend: some features
extend along few coordinates, such as the dent between two modes, and a kernel with one length scale
needs values in all directions. The bend extrapolates a curved ridge; on a banana's arms a Gaussian
kernel leaves only the trend, which is far off there.

The covariance may be extended by functions of single coordinates and of pairs
(:mod:`pymc_kmc.surrogates.additive_kernel`), or by terms for heavy tails
(:class:`~pymc_kmc.surrogates.covariance.RadialTerms`). The former's coordinates are those of x
itself, in standard deviations: such functions depend on parameters, not on combinations of them.

Costs, for n values in d coordinates with m outputs: :math:`O(n^3 + n^2 (d + m))` for each of some
15 trials of the parameters; :math:`O(n (d + m))` a mean and :math:`O(n^2)` a variance. Functions
of few coordinates have d exponentials in place of one, :math:`O(n^2 d)` a trial.
"""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, blas, lapack
from scipy.optimize import minimize

from pymc_kmc.numerics.linear_algebra import ROUNDING
from pymc_kmc.surrogates.additive_kernel import LOG_LENGTH, LOG_VARIANCE, AdditiveKernel
from pymc_kmc.surrogates.covariance import Covariances, Hyperparameters, RadialTerms

# Bounds of log s, log b and log sigma^2.
LOG_SCALE = (-6.0, 4.0)
LOG_BEND = (-16.0, 4.0)
LOG_NOISE = (-18.0, 6.0)
# log b without a bend: with short length scales the lower bound still bends.
NO_BEND = -60.0
# First values of log s, log b, log a and log sigma^2, for a trend bent by a kernel or a polynomial.
# A search from the first alone misses a banana's polynomial one time in three.
KERNEL_START, POLYNOMIAL_START = (0.0, -4.0, 0.0, -7.0), (0.0, 0.0, -4.0, -7.0)
# Standard deviation of the weak log-normal prior of each parameter, which few data leave open.
PRIOR_SD = 3.0
# Most iterations of a search, from a start and from the last fit's parameters.
N_TRIALS, N_TRIALS_AGAIN = 60, 12
# Largest coordinate, in standard deviations: covariances of quartic terms take its eighth power.
MOST_SDS = 1e30
# Loss where a covariance can't be factorised, or the function to maximise has no value.
NO_LOSS = 1e10
# Parameters with which any finite values have a fit: a trend, no bend, much noise.
SIMPLEST = (0.0, NO_BEND, 0.0, LOG_NOISE[1])
# Fewest rows at which a triangular product is faster than a full one.
FEWEST_ROWS = 8


class Prediction(NamedTuple):
    """Predicted outputs at points: means (k, m), and factors (k,) of the outputs' covariance."""

    mean: np.ndarray
    variance: np.ndarray
    process: Any
    covariances: Covariances
    whitened: np.ndarray

    def pullback(self, of_mean, of_variance):
        """Return the gradient (k, d) of ``sum(of_mean * mean) + of_variance @ variance``."""
        process = self.process
        by_k = of_mean @ process.weights_.T
        if of_variance.any():
            solved = _whitened_rows(self.whitened, process.inverse_factor_, again=True)
            by_k -= 2.0 * of_variance[:, None] * solved
        return self.covariances.pullback(by_k, of_variance) @ process.whitening


class ExactGP:
    """Gaussian-process regression with all points as centres and a quadratic trend.

    Coordinates are ``(x - centre) @ whitening.T``. If `deterministic`, values have no noise but the
    given one, and the shared noise is rounding. A fit has the points' coordinates `Z_` (n, d),
    outputs `Y_` (n, m), each value's own noise variance `noise_` (n,), the log marginal likelihood
    of all outputs, and an `output_factor_` (min(n, m), m): the outputs' covariance with each other
    is ``output_factor_.T @ output_factor_``, in units of their variance factor.
    """

    def __init__(self, whitening, centre, deterministic=True):
        self.whitening = whitening
        self.centre = centre
        self.deterministic = deterministic

    def coordinates(self, X):
        return np.clip((X - self.centre) @ self.whitening.T, -MOST_SDS, MOST_SDS)

    @property
    def extension(self):
        extension = self.hyperparameters_.extension
        return extension and extension.name

    @property
    def scales(self):
        """Standard deviations (d,) of the coordinates of x, according to the whitening."""
        return np.linalg.norm(np.linalg.inv(self.whitening), axis=1)

    def axes(self, extension):
        """Return the map (d, d) from the coordinates to an extension's own."""
        if extension != AdditiveKernel.name:
            return np.eye(len(self.centre))
        return np.linalg.inv(self.whitening) / self.scales[:, None]

    def fit(self, X, Y, noise=None, last=None, extension=None, n_trials=N_TRIALS_AGAIN):
        """Fit to outputs Y (n, m) at points X (n, d), and return the process itself.

        Outputs are centred and scaled, so that values of interest are some units about zero.
        `noise` (n,) is the variance of each value's own noise. `last` is a fit to fewer points, or
        to more, with the same extension, whose parameters the search starts from, with at most
        `n_trials` iterations. `extension` is None, "additive" or "radial". A LinAlgError is raised
        if even the simplest parameters have no fit: something isn't finite, or overflows.
        """
        noise = np.zeros(len(X)) if noise is None else noise
        Z = self.coordinates(X)
        likelihood = MarginalLikelihood(Z, Y, noise, extension, self.axes(extension))
        bends = extension != RadialTerms.name  # a quartic overrules the terms where tails are
        if last is None or last.Z_.shape[1] != Z.shape[1]:
            starts = [
                Hyperparameters.start(values, Z.shape[1], extension)
                for values in (KERNEL_START, POLYNOMIAL_START)[: 1 + bends]
            ]
            most = N_TRIALS
        else:
            starts, most = [last.hyperparameters_], n_trials
        log_noise = (-18.0, -12.0) if self.deterministic else LOG_NOISE
        log_bend = LOG_BEND if bends else (NO_BEND, NO_BEND)
        bounds = [LOG_SCALE, log_bend, LOG_VARIANCE, log_noise, *[LOG_LENGTH] * Z.shape[1]]
        if extension is not None:
            bounds += starts[0].extension.bounds
        searches = [
            minimize(
                likelihood.loss,
                np.clip(start.packed, *np.transpose(bounds)),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": most, "maxfun": most + most // 2},
            )
            for start in starts
        ]
        found = min(searches, key=lambda search: search.fun)
        try:
            return self.given(Z, Y, noise, Hyperparameters.unpacked(found.x, Z.shape[1], extension))
        except LinAlgError:
            return self.given(Z, Y, noise, Hyperparameters.start(SIMPLEST, Z.shape[1]))

    def given(self, Z, Y, noise, hyperparameters):
        """Fit to outputs (n, m) at Z (n, d) with given hyperparameters, or raise LinAlgError."""
        self.hyperparameters_ = hyperparameters
        self.axes_ = self.axes(self.extension)
        self.Z_, self.Y_, self.noise_ = Z, Y, noise
        factor, (n, m) = _factor(self._covariances(Z, Z), hyperparameters, noise), Y.shape
        self.weights_ = lapack.dpotrs(factor, Y, lower=1)[0]
        log_determinant = 2.0 * np.log(np.diag(factor)).sum() + n * np.log(2.0 * np.pi)
        evidence = -0.5 * (np.sum(Y * self.weights_) + m * log_determinant)
        self.log_evidence_ = evidence if np.isfinite(evidence) else -np.inf
        # By the inverse of the factor, not of K: variances are small differences of large numbers.
        self.inverse_factor_ = lapack.dtrtri(factor, lower=1)[0]
        self.output_factor_ = np.eye(1)
        if m > 1:
            self.output_factor_ = _compressed(self.inverse_factor_ @ Y) / np.sqrt(n)
        for array in (self.weights_, self.inverse_factor_, self.output_factor_):
            if not np.isfinite(array).all():
                raise LinAlgError("the values, or the inverse of their covariance, overflow")
        return self

    def predict(self, X, with_variance=True):
        """Return the :class:`Prediction` at points X (k, d), variances 0 if not asked for."""
        covariances = self._covariances(self.coordinates(X), self.Z_)
        k = covariances.values
        if not with_variance:
            return Prediction(k @ self.weights_, np.zeros(len(X)), self, covariances, k[:0])
        whitened = _whitened_rows(k, self.inverse_factor_)
        variance = covariances.prior - np.einsum("ij,ij->i", whitened, whitened)
        return Prediction(k @ self.weights_, np.maximum(variance, 0.0), self, covariances, whitened)

    def leave_one_out(self):
        """Return leave-one-out predictions (n, m) and variance factors (n,), noise included.

        See Rasmussen and Williams (2006), equation 5.12.
        """
        precisions = np.einsum("ij,ij->j", self.inverse_factor_, self.inverse_factor_)
        return self.Y_ - self.weights_ / precisions[:, None], 1.0 / precisions

    def covariance(self, X):
        """Return the covariance (k, k) of an output's values at points (k, d), without noise."""
        Z = self.coordinates(X)
        whitened = self._covariances(Z, self.Z_).values @ self.inverse_factor_.T
        return self._covariances(Z, Z).values - whitened @ whitened.T

    def _covariances(self, A, B):
        return Covariances(self.hyperparameters_, A, B, self.axes_)


class MarginalLikelihood:
    """The loss of the parameters, -log evidence with a weak prior, and its gradient."""

    def __init__(self, Z, Y, noise, extension=None, axes=None):
        # Of more outputs than values the products with each other are all that counts.
        self.Y, self.noise, self.n_outputs = _compressed(Y.T).T, noise, Y.shape[1]
        self.Z, self.extension, self.axes, self.inner = Z, extension, axes, Z @ Z.T
        self.start = Hyperparameters.start(KERNEL_START, Z.shape[1], extension).packed

    def loss(self, vector):
        with suppress(LinAlgError):
            loss, gradient = self._loss(vector)
            if np.isfinite(loss) and np.isfinite(gradient).all():
                return loss, gradient
        return NO_LOSS, np.zeros_like(vector)

    def _loss(self, vector):
        d = self.Z.shape[1]
        parameters = Hyperparameters.unpacked(vector, d, self.extension)
        covariances = Covariances(parameters, self.Z, self.Z, self.axes, self.inner)
        factor = _factor(covariances, parameters, self.noise)
        weights = lapack.dpotrs(factor, self.Y, lower=1)[0]
        loss = 0.5 * np.sum(self.Y * weights) + self.n_outputs * np.log(np.diag(factor)).sum()
        # By the entries of K's lower triangle, each of which stands for two but the diagonal's.
        inverse, info = lapack.dpotri(factor, lower=1, overwrite_c=1)
        if info:
            raise LinAlgError("the covariance of the values is singular")
        slope = blas.dsyrk(-1.0, weights, self.n_outputs, inverse, lower=1, overwrite_c=1)
        np.einsum("ii->i", slope)[:] *= 0.5
        gradient = covariances.parameters_gradient(slope)
        gradient[3] = np.exp(parameters.log_noise) * np.trace(slope)
        away = (vector - self.start) / PRIOR_SD
        loss += 0.5 * np.sum(away**2)
        gradient += away / PRIOR_SD
        lengths = [slice(4, 4 + d)]
        if self.extension == AdditiveKernel.name:
            lengths.append(slice(-d, None))
        for each in lengths:
            # About their mean they have a standard deviation of one: few values can't tell more.
            spread = vector[each] - vector[each].mean()
            loss += 0.5 * np.sum(spread**2)
            gradient[each] += spread
        return loss, gradient


def _compressed(A):
    """Return B with the same ``B.T @ B`` as A (n, m), and at most m rows."""
    return A if len(A) <= A.shape[1] else np.linalg.qr(A, mode="r")


def _factor(covariances, parameters, noise):
    K = covariances.triangle
    # Each value's own: of quartic terms far ones have prior variances of 1e13 and more.
    diagonal = np.einsum("ii->i", K)
    diagonal += np.exp(parameters.log_noise) + noise + ROUNDING * diagonal
    factor, info = lapack.dpotrf(K, lower=1, clean=0, overwrite_a=1)
    if info or not np.isfinite(factor.diagonal()).all():
        raise LinAlgError("the covariance of the values is not finite, or not positive definite")
    return factor


def _whitened_rows(A, inverse_factor, again=False):
    """Return rows (k, n) times the transposed inverse factor, untransposed if `again`."""
    if len(A) < FEWEST_ROWS:
        return A @ (inverse_factor if again else inverse_factor.T)
    return blas.dtrmm(1.0, inverse_factor, A.T, lower=1, trans_a=int(again)).T
