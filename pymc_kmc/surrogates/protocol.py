"""What samplers ask of a surrogate."""

from typing import Any, Protocol, runtime_checkable

__all__ = ["NotFittedError", "Surrogate", "check_fitted"]


class NotFittedError(ValueError, AttributeError):
    """A surrogate was asked for a value before it was fitted."""


@runtime_checkable
class Surrogate(Protocol):
    """What samplers ask of a surrogate. Arrays in, arrays out; nothing here knows of MCMC.

    ``fit`` returns the surrogate itself. ``log_density`` and ``gradient`` take one point (d,) or
    many (n, d). ``loss`` is the empirical score-matching objective, the mean over rows.
    ``parameters_`` is what :func:`log_density_at` and :func:`gradient_at` evaluate in compiled
    code.
    """

    parameters_: Any

    def fit(self, X, sample_weight=None) -> "Surrogate": ...

    def log_density(self, X): ...

    def gradient(self, X): ...

    def loss(self, X, sample_weight=None) -> float: ...


def check_fitted(estimator):
    """Raise :class:`NotFittedError` unless the estimator has been fitted."""
    if not hasattr(estimator, "parameters_"):
        name = type(estimator).__name__
        raise NotFittedError(f"this {name} is not fitted yet; call `fit(X)` first")
