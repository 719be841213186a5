"""The members that samplers need of a surrogate."""

from typing import Protocol, runtime_checkable


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


def check_fitted(estimator):
    """Raise :class:`NotFittedError` unless the estimator has been fitted."""
    if not hasattr(estimator, "parameters_"):
        name = type(estimator).__name__
        raise NotFittedError(f"this {name} is not fitted yet; call `fit(X)` first")


def check_surrogate(surrogate, n_dimensions):
    """Return the argument if it is a fitted surrogate of `n_dimensions` values.

    A TypeError names missing members. NotFittedError and ValueError are for a surrogate that isn't
    fitted, or has another dimension.
    """
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
