"""The members that samplers need of a surrogate, and surrogates in other coordinates."""

from typing import Protocol, runtime_checkable

import numpy as np

from pymc_kmc.numerics.checks import as_rows


class NotFittedError(ValueError, AttributeError):
    """A surrogate was asked for a value before it was fitted."""


@runtime_checkable
class Surrogate(Protocol):
    """A function that resembles a log density, with its gradient.

    Any object with these members can be a step's ``surrogate=``. Values may be off by a constant.
    NaN and infinity end a trajectory. One more member is optional: ``parameters_``, a named tuple
    whose class is registered for evaluation in compiled code, which is some hundred times faster.

    Attributes
    ----------
    n_features_in_ : int
        Dimension d.

    Examples
    --------
    >>> from pymc_kmc.surrogates import Surrogate
    >>> class StandardNormal:
    ...     n_features_in_ = 2
    ...
    ...     def log_density(self, X):
    ...         return -0.5 * (X**2).sum(axis=-1)
    ...
    ...     def gradient(self, X):
    ...         return -X
    >>> isinstance(StandardNormal(), Surrogate)
    True
    """

    n_features_in_: int

    def log_density(self, X):
        """Return the log density at X (d,), a float, or at the rows of X (n, d), shape (n,)."""

    def gradient(self, X):
        """Return the gradient at X, (d,) or (n, d), in the shape of X."""


class AtPoints:
    """Log densities and gradients at one point or many, of a class that has them at rows (n, d)."""

    n_features_in_: int

    def log_density(self, X):
        """Return the log density at X, (d,) or (n, d): a float or (n,)."""
        rows, single = self._rows(X)
        values = self._log_densities(rows)
        return float(values[0]) if single else values

    def gradient(self, X):
        """Return the gradient of the log density at X, (d,) or (n, d), in the shape of X."""
        rows, single = self._rows(X)
        gradients = self._gradients(rows)
        return gradients[0] if single else gradients

    def _rows(self, X):
        check_fitted(self)
        return as_rows(X, self.n_features_in_)


class Predictor(AtPoints):
    """AtPoints of a class that predicts values, with standard deviations, at rows (n, d)."""

    def predict(self, X, return_std=False):
        """Return predictions at X, (d,) or (n, d), with the constant; `return_std` adds stds."""
        rows, single = self._rows(X)
        means, stds = self._predictions(rows)
        if single:
            means, stds = float(means[0]), float(stds[0])
        return (means, stds) if return_std else means


def check_fitted(estimator):
    """Raise :class:`NotFittedError` unless the estimator has been fitted."""
    if not hasattr(estimator, "n_features_in_"):
        name = type(estimator).__name__
        raise NotFittedError(f"this {name} is not fitted yet; call `fit(X)` first")


def check_surrogate(surrogate, n_dimensions):
    """Return the argument if it is a fitted surrogate of `n_dimensions` values, or raise."""
    if isinstance(surrogate, type):
        raise TypeError(
            f"surrogate is the class {surrogate.__name__} itself; pass a fitted instance of it"
        )
    methods = ("log_density", "gradient")
    missing = [name for name in methods if not callable(getattr(surrogate, name, None))]
    is_fitted = hasattr(surrogate, "n_features_in_")
    if not missing and not is_fitted and callable(getattr(surrogate, "fit", None)):
        raise NotFittedError(f"surrogate={surrogate!r} is not fitted yet; call its fit(X) first")
    if missing or not is_fitted:
        missing = [f"{name}(X)" for name in missing] + ["n_features_in_"] * (not is_fitted)
        raise TypeError(
            f"surrogate={surrogate!r} has no {' and no '.join(missing)}; pass a fitted surrogate, "
            "such as LogDensityGP().fit(X, values), or an object with log_density(X), gradient(X) "
            "and n_features_in_"
        )
    if surrogate.n_features_in_ != n_dimensions:
        raise ValueError(
            f"surrogate was fitted to points with {surrogate.n_features_in_} coordinates; the "
            f"step's variables have {n_dimensions} unconstrained values."
        )
    return surrogate


# Step of central differences for the warp's derivatives, relative to max(1, |x_i|).
WARP_STEP = 1e-6


class WarpedSurrogate(AtPoints):
    """The density of x for a fitted surrogate of the density of y = warp.forward(x)."""

    def __init__(self, surrogate, warp):
        self.surrogate, self.warp = surrogate, warp
        self.n_features_in_ = surrogate.n_features_in_

    def _log_densities(self, rows):
        return self.surrogate.log_density(self.warp.forward(rows)) - self.warp.log_volume(rows)

    def _gradients(self, rows):
        gradients = self.surrogate.gradient(self.warp.forward(rows))
        out = np.empty(rows.shape)
        for i in range(rows.shape[1]):
            step = np.zeros(rows.shape)
            step[:, i] = WARP_STEP * np.maximum(1.0, np.abs(rows[:, i]))
            ahead, behind = rows + step, rows - step
            change = self.warp.forward(ahead) - self.warp.forward(behind)
            growth = self.warp.log_volume(ahead) - self.warp.log_volume(behind)
            out[:, i] = (np.sum(gradients * change, axis=1) - growth) / (2.0 * step[:, i])
        return out


class WarpedPredictor(WarpedSurrogate, Predictor):
    """A WarpedSurrogate with predictions and their standard deviations."""

    def _predictions(self, rows):
        means, stds = self.surrogate.predict(self.warp.forward(rows), return_std=True)
        return means - self.warp.log_volume(rows), stds
