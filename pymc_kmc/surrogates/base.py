r"""What every surrogate has in common: its protocol, its input checks, and compiled evaluation.

A surrogate is an unnormalised log density

.. math:: f(x) = \log q_0(x) + \sum_j \theta_j \varphi_j(x)

fitted by score matching (Hyvärinen, 2005): the empirical objective over points :math:`x_b` with
weights :math:`w_b` is

.. math:: J(f) = \frac{1}{\sum_b w_b} \sum_b w_b \sum_a
          \left[ \partial_a^2 f(x_b) + \tfrac12 (\partial_a f(x_b))^2 \right],

which needs no normalising constant and no gradient of the target. :math:`q_0` is constant
(``base=None``) or a Gaussian fitted to the points (``base="gaussian"``). Either way the objective
is quadratic in :math:`\theta`, so that a fit is one linear system: with a base density the cross
term :math:`\partial_a \log q_0(x_b)\, \partial_a \varphi_j(x_b)` joins its right-hand side.

Compiled evaluation
-------------------
A fitted surrogate carries ``parameters_``, a named tuple of arrays and scalars, never modified
after it was made. :func:`log_density_at` and :func:`gradient_at` evaluate it, from Python and
from any function compiled with numba, which is specialised (and cached on disk) once per
surrogate class; :func:`log_density_in` and :func:`gradient_in`, for loops, are given their
:func:`workspace`:

>>> import numpy as np
>>> from pymc_kmc.surrogates import KernelExpLite
>>> from pymc_kmc.surrogates.base import gradient_at
>>> X = np.random.default_rng(0).normal(size=(50, 2))
>>> surrogate = KernelExpLite(sigma=4.0, regularisation=1.0).fit(X)
>>> out = np.empty(2)
>>> gradient_at(surrogate.parameters_, X[0], out)
>>> np.allclose(out, surrogate.gradient(X[0]))
True
"""

import warnings
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numba
import numpy as np
import scipy.linalg
from numba.extending import overload

#: fastmath flags for sums in hot loops: they may be re-ordered and fused, which is what vectorises
#: them. NaN and infinity keep their meaning ("nnan" and "ninf" are left out on purpose).
SUM_FLAGS = {"reassoc", "contract", "arcp", "nsz"}

#: Points handled at a time in hot loops: the block's rows of an 8-d surrogate fill 16 kB, half of a
#: usual first-level cache.
BLOCK = 256

#: First jitter added to a matrix that a Cholesky factorisation refuses, relative to its mean
#: diagonal; multiplied by 100 until the factorisation passes.
FIRST_JITTER = 1e-14
LAST_JITTER = 1e-4

#: Rows of a NumPy evaluation are handled in chunks of about this many matrix entries (32 MB).
CHUNK_ENTRIES = 4_000_000


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


# --------------------------------------------------------------------------------------------------
# Compiled evaluation
# --------------------------------------------------------------------------------------------------


def evaluation(function):
    """Compile a function of a surrogate's parameters, to be inlined.

    It can't allocate: numba's counts of references to each array of the parameters, with which
    arrays are freed, took half of the time of a gradient.
    """
    return numba.njit(
        cache=True, fastmath=SUM_FLAGS, error_model="numpy", forceinline=True, _nrt=False
    )(function)


class _Evaluation(NamedTuple):
    log_density: Any
    gradient: Any
    workspace_size: Any


_EVALUATIONS: dict[type, _Evaluation] = {}


def register(parameters_class, *, log_density, gradient, workspace_size):
    """Tell :func:`log_density_at` and :func:`gradient_at` how to evaluate a surrogate's parameters.

    Parameters
    ----------
    parameters_class : type
        A ``typing.NamedTuple`` class.
    log_density, gradient, workspace_size : numba dispatchers
        Functions ``(parameters, x, workspace) -> float``, ``(parameters, x, out, workspace) ->
        None`` and ``(parameters) -> int``, compiled with :func:`evaluation`.
    """
    _EVALUATIONS[parameters_class] = _Evaluation(log_density, gradient, workspace_size)


def log_density_at(parameters, x):
    """Log density of a fitted surrogate at one point, from Python or from compiled code.

    Parameters
    ----------
    parameters : NamedTuple
        The ``parameters_`` of a fitted surrogate.
    x : ndarray (d,)
        Contiguous, float64; not checked.

    Returns
    -------
    float
    """
    return log_density_in(parameters, x, workspace(parameters))


def gradient_at(parameters, x, out):
    """Write the gradient of a fitted surrogate's log density at ``x`` (d,) into ``out`` (d,).

    The arguments are those of :func:`log_density_at`; nothing is returned.
    """
    gradient_in(parameters, x, out, workspace(parameters))


def workspace(parameters):
    """Return an array that evaluations of these parameters can write to."""
    return np.empty(_evaluation_of(type(parameters)).workspace_size(parameters))


def log_density_in(parameters, x, workspace):
    """As :func:`log_density_at`, with a :func:`workspace`."""
    return _evaluation_of(type(parameters)).log_density(parameters, x, workspace)


def gradient_in(parameters, x, out, workspace):
    """As :func:`gradient_at`, with a :func:`workspace`."""
    _evaluation_of(type(parameters)).gradient(parameters, x, out, workspace)


def _evaluation_of(parameters_class):
    try:
        return _EVALUATIONS[parameters_class]
    except KeyError:
        raise TypeError(
            f"parameters of type {parameters_class.__name__} belong to no registered surrogate; "
            "pass the `parameters_` of a fitted one"
        ) from None


# Overloads compile with the caller, so that its on-disk cache contains them. All that they call is
# inlined by force: of a function that isn't, a process that compiles has one copy, optimised by
# itself, and one that loads from disk another, optimised with its caller. With re-ordered sums the
# two round differently, and the same seed would give other draws in the second process.
INLINED = {"forceinline": True}


def _typed(parameters):
    return _EVALUATIONS.get(getattr(parameters, "instance_class", None))


@overload(log_density_at, jit_options=INLINED)
def _overload_log_density_at(parameters, x):
    if _typed(parameters) is None:
        return None
    return lambda parameters, x: log_density_in(parameters, x, workspace(parameters))


@overload(gradient_at, jit_options=INLINED)
def _overload_gradient_at(parameters, x, out):
    if _typed(parameters) is None:
        return None
    return lambda parameters, x, out: gradient_in(parameters, x, out, workspace(parameters))


@overload(workspace, jit_options=INLINED)
def _overload_workspace(parameters):
    if _typed(parameters) is None:
        return None
    workspace_size = _typed(parameters).workspace_size
    return lambda parameters: np.empty(workspace_size(parameters))


@overload(log_density_in, jit_options=INLINED | {"_nrt": False})
def _overload_log_density_in(parameters, x, workspace):
    if _typed(parameters) is None:
        return None
    log_density = _typed(parameters).log_density
    return lambda parameters, x, workspace: log_density(parameters, x, workspace)


@overload(gradient_in, jit_options=INLINED | {"_nrt": False})
def _overload_gradient_in(parameters, x, out, workspace):
    if _typed(parameters) is None:
        return None
    gradient = _typed(parameters).gradient
    return lambda parameters, x, out, workspace: gradient(parameters, x, out, workspace)


# --------------------------------------------------------------------------------------------------
# Gaussian base density
# --------------------------------------------------------------------------------------------------


class GaussianBase(NamedTuple):
    """An unnormalised Gaussian, log q0(x) = -(x - mean)' precision (x - mean) / 2."""

    mean: np.ndarray
    precision: np.ndarray

    def log_density(self, X):
        """Values at the rows of X (n, d)."""
        centred = X - self.mean
        return -0.5 * np.einsum("ni,ij,nj->n", centred, self.precision, centred)

    def gradient(self, X):
        """Gradients (n, d) at the rows of X (n, d)."""
        return -(X - self.mean) @ self.precision

    @property
    def laplacian(self):
        """Sum of the second derivatives, the same everywhere."""
        return -np.trace(self.precision)


def no_base(d):
    """The constant base density as a Gaussian of precision zero."""
    return GaussianBase(np.zeros(d), np.zeros((d, d)))


def gaussian_base(mean, covariance, total_weight):
    """The Gaussian of given moments, its covariance shrunk lightly so that it is positive definite.

    The covariance moves by 1 / (1 + total weight) of the way towards its own diagonal, like one
    additional independent observation. A coordinate without spread gets a millionth of the
    largest variance.
    """
    variance = np.diag(covariance)
    floor = 1e-6 * variance.max()
    shrinkage = 1.0 / (1.0 + total_weight)
    shrunk = (1.0 - shrinkage) * covariance
    shrunk[np.diag_indices_from(shrunk)] = np.maximum(variance, floor)
    precision = solve_positive(shrunk, np.eye(len(mean)))
    return GaussianBase(np.ascontiguousarray(mean), np.ascontiguousarray(symmetric(precision)))


def check_base(base):
    """The argument if it is None, "gaussian" or a :class:`GaussianBase`, or a ValueError."""
    if not isinstance(base, GaussianBase):
        check_choice(base, "base", (None, "gaussian"))
    return base


def fit_base(base, X, weights):
    """The base density that ``base`` stands for, given X (n, d) and weights (n,)."""
    if isinstance(base, GaussianBase):
        return base
    if base is None:
        return no_base(X.shape[1])
    total = weights.sum()
    mean = weights @ X / total
    centred = X - mean
    return gaussian_base(mean, (centred.T * weights) @ centred / total, total)


def symmetric(A):
    """The symmetric part of a matrix."""
    return 0.5 * (A + A.T)


@evaluation
def base_log_density_at(mean, precision, x):
    """Compiled twin of :meth:`GaussianBase.log_density` for one point."""
    total = 0.0
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        total -= 0.5 * row * (x[i] - mean[i])
    return total


@evaluation
def base_gradient_at(mean, precision, x, out):
    """Compiled twin of :meth:`GaussianBase.gradient` for one point; overwrites ``out``."""
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[0]):
            row += precision[i, j] * (x[j] - mean[j])
        out[i] = -row


# --------------------------------------------------------------------------------------------------
# Checks at the door
# --------------------------------------------------------------------------------------------------


def check_fitted(estimator):
    """Raise :class:`NotFittedError` unless the estimator has been fitted."""
    if not hasattr(estimator, "parameters_"):
        name = type(estimator).__name__
        raise NotFittedError(f"this {name} is not fitted yet; call `fit(X)` first")


def check_positive(value, name):
    """The argument as a positive finite float, or a ValueError naming it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is not a number; pass a positive number") from None
    if not (np.isfinite(number) and number > 0):
        raise ValueError(f"{name}={value!r} must be positive and finite; pass e.g. {name}=1.0")
    return number


def check_count(value, name):
    """The argument as an integer of at least 1, or a ValueError naming it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1; pass e.g. {name}=100")
    return int(value)


def check_choice(value, name, choices):
    """The argument if it is among the choices, or a ValueError naming both."""
    if value not in choices:
        options = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}={value!r} is unknown; pass {options}")
    return value


def check_points(X, name="X", d=None):
    """Points as a contiguous finite (n, d) array of float64.

    Parameters
    ----------
    X : array_like (n, d)
    name : str
        What error messages call it.
    d : int, optional
        The number of columns it must have.

    Raises
    ------
    ValueError
        If the shape is wrong, there are no rows, or an entry is NaN or infinite.
    """
    try:
        X = np.ascontiguousarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} could not be read as an array of real numbers; pass an (n, d) array"
        ) from None
    if X.ndim != 2:
        raise ValueError(
            f"{name} has shape {X.shape}; pass an (n, d) array, one point a row "
            f"(`{name}[:, None]` for n points in one dimension)"
        )
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"{name} has shape {X.shape}; pass at least one point and one dimension")
    if d is not None and X.shape[1] != d:
        raise ValueError(
            f"{name} has {X.shape[1]} columns, the surrogate {d}; pass points in {d}-d"
        )
    bad = ~np.isfinite(X)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name}[{row}, {column}] is {X[row, column]}; remove or repair the "
            f"{bad.any(axis=1).sum()} row(s) that are not finite"
        )
    return X


def check_weights(sample_weight, n):
    """Weights (n,) as float64, ones if None; they act as multiplicities.

    Raises
    ------
    ValueError
        If the shape is wrong, a weight is negative or not finite, or all are zero.
    """
    if sample_weight is None:
        return np.ones(n)
    try:
        weights = np.ascontiguousarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("sample_weight could not be read as an array of real numbers") from None
    if weights.shape != (n,):
        raise ValueError(f"sample_weight has shape {weights.shape}; pass one weight a row: ({n},)")
    bad = ~np.isfinite(weights) | (weights < 0)
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"sample_weight[{index}] is {weights[index]}; weights are multiplicities: pass finite "
            "numbers of at least 0"
        )
    if not weights.any():
        raise ValueError("sample_weight is zero everywhere; give at least one point a weight")
    return weights


def unique_rows(X, weights):
    """Distinct rows of X in order of first appearance, their summed weights, zero weights dropped.

    Returns
    -------
    X_unique : ndarray (k, d)
    weights : ndarray (k,)
    """
    _, first, inverse = np.unique(X + 0.0, axis=0, return_index=True, return_inverse=True)
    totals = np.bincount(inverse.ravel(), weights=weights, minlength=len(first))
    order = np.argsort(first)
    order = order[totals[order] > 0]
    return np.ascontiguousarray(X[first[order]]), totals[order]


def check_distinct(n_distinct, minimum=2):
    """Raise unless there are enough distinct points to fit to."""
    if n_distinct < minimum:
        raise ValueError(
            f"X has {n_distinct} distinct point(s) of positive weight; pass at least {minimum} "
            "(a chain that has not moved yet teaches a surrogate nothing)"
        )


def as_rows(X, d):
    """Evaluation points as (n, d), and whether a single point (d,) was passed.

    Values may be NaN or infinite here: a trajectory that diverged asks for them, and gets NaN.
    """
    try:
        X = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("X could not be read as an array of real numbers") from None
    if X.ndim not in (1, 2) or X.shape[-1] != d:
        raise ValueError(f"X has shape {X.shape}; the surrogate takes ({d},) or (n, {d})")
    return (X[None, :], True) if X.ndim == 1 else (X, False)


def in_chunks(function, X, row_entries):
    """Apply ``function`` to slices of X's rows, so that no temporary outgrows CHUNK_ENTRIES."""
    rows = max(1, CHUNK_ENTRIES // max(1, row_entries))
    if len(X) <= rows:
        return function(X)
    return np.concatenate([function(X[i : i + rows]) for i in range(0, len(X), rows)])


# --------------------------------------------------------------------------------------------------
# Linear algebra that does not fail
# --------------------------------------------------------------------------------------------------


def cholesky_factor(A):
    """Lower Cholesky factor of a symmetric matrix, with jitter relative to its diagonal if needed.

    Returns
    -------
    L : ndarray or None
        None if the matrix is too far from positive semi-definite.
    """
    scale = np.trace(A) / len(A)
    jitter = 0.0
    while jitter <= LAST_JITTER:
        shifted = A if jitter == 0.0 else A + jitter * scale * np.eye(len(A))
        L, info = scipy.linalg.lapack.dpotrf(shifted, lower=1, clean=1)
        if info == 0 and np.isfinite(L[-1, -1]):
            return L
        jitter = FIRST_JITTER if jitter == 0.0 else 100.0 * jitter
    return None


def solve_positive(A, b):
    """Solve A x = b for a symmetric positive semi-definite A, whatever its condition.

    Cholesky with as little jitter as it takes; where that does not do, the pseudo-inverse on the
    eigenvectors of non-negligible eigenvalues.
    """
    L = cholesky_factor(A)
    if L is not None:
        x = scipy.linalg.cho_solve((L, True), b, check_finite=False)
        if np.isfinite(x).all():
            return x
    if not np.isfinite(A).all():
        raise ValueError(
            "the score-matching system overflows; rescale X (its spread should be near 1) or "
            "choose sigma on the scale of its squared distances"
        )
    values, vectors = np.linalg.eigh(A)
    keep = values > len(A) * np.finfo(float).eps * np.abs(values).max()
    return (vectors[:, keep] / values[keep]) @ (vectors[:, keep].T @ b)


def solve_symmetric(A, b):
    """Solve A x = b for a symmetric A that may be indefinite; least squares if it is singular."""
    if not np.isfinite(A).all():
        return solve_positive(A, b)  # raises
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", scipy.linalg.LinAlgWarning)
            return scipy.linalg.solve(A, b, assume_a="symmetric")
    except (scipy.linalg.LinAlgError, scipy.linalg.LinAlgWarning):
        return scipy.linalg.lstsq(A, b)[0]


def score_matching_loss(gradients, laplacians, weights):
    """Weighted mean of laplacian + |gradient|^2 / 2 over points; gradients is (n, d)."""
    pointwise = laplacians + 0.5 * np.einsum("nd,nd->n", gradients, gradients)
    return float(weights @ pointwise / weights.sum())
