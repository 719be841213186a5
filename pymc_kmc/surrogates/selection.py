r"""Choice of bandwidth and regularisation by cross-validated score matching.

The held-out score-matching loss needs neither the target's gradient nor its normalising constant.

- Repeated states would make the loss unbounded below as :math:`\sigma \to 0`.
  :func:`unique_states` merges them, and the length of the chain's stay becomes a weight.
- Folds are contiguous blocks of equal weight: neighbouring states are alike, and random folds leak.
- Every fit is one linear system :math:`(A + \lambda P)\theta = b`. One eigen-decomposition of a
  bandwidth's system gives the loss on a block for *all* :math:`\lambda`. The search is over
  :math:`\sigma` alone: a coarse grid in :math:`\log \sigma`, then steps of a factor 2 as long as
  the loss falls.
- The one-standard-error rule chooses :math:`\lambda`: of the bandwidth with the least loss, the
  largest whose loss is within one standard error of it.
- At most ``max_points`` points and ``max_features`` features enter.
"""

import copy
import dataclasses
import functools
import operator
import reprlib
import warnings
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_kmc.numerics.checks import (
    check_choice,
    check_count,
    check_points,
    check_positive,
    check_rng,
    check_weights,
)
from pymc_kmc.numerics.samples import JITTER, unique_rows
from pymc_kmc.surrogates.exponential_family import check_base, fit_base, score_matching_loss
from pymc_kmc.surrogates.finite import (
    FEATURE_KERNELS,
    KernelExpFinite,
    ScoreMatchingSums,
    scale_basis,
    standard_basis,
)
from pymc_kmc.surrogates.kernels import gaussian_kernel, median_squared_distance
from pymc_kmc.surrogates.lite import PENALTIES, KernelExpLite, penalty_matrix, score_matching_system

#: Features of the estimator that :func:`select` makes when it is given a name.
DEFAULT_FEATURES = 500
#: Most distinct states by default, for finite (False), which only sums over them, and for lite
#: (True), which solves a system of their order.
MOST_POINTS = {False: 2000, True: 300}
#: Bandwidths tried first, in median squared distances: from half the distance between neighbours in
#: some dimensions to a kernel that is a parabola on the states.
COARSE_GRID = 4.0 ** np.arange(-2, 4)
#: Ratio of bandwidths in the last steps: the loss is flat near its minimum.
RATIO = 2.0
#: Bounds of bandwidths, in median squared distances; beyond them the loss no longer changes.
RANGE = (4.0**-8, 4.0**9)
#: Regularisations tried, in units of the system's mean eigenvalue: quarter decades from small
#: rounding errors of the loss to a fit that is switched off.
RELATIVE_REGULARISATIONS = 10.0 ** np.arange(-9.0, 3.01, 0.25)


@dataclasses.dataclass(frozen=True)
class SelectionResult:
    """The choice of :func:`select`, and the losses behind it.

    Attributes
    ----------
    sigma, regularisation : float
        The choice.
    loss : float
        Cross-validated score-matching loss of the choice, a weighted mean over held-out states.
    fold_losses : ndarray (n_folds,)
        Loss of each fold. An outlier shows a part of the chain that is unlike the others.
    standard_error : float
        Standard error of ``loss``, from the spread between folds.
    at_edge : bool
        Whether the choice lies at the edge of the range searched.
    table : ndarray
        A record for each bandwidth tried, in ascending order: ``sigma``, its
        ``regularisation``, ``loss``, ``standard_error``.
    n_points : int
        Number of distinct states used.
    estimator : surrogate
        An unfitted surrogate with the chosen values.
    """

    sigma: float
    regularisation: float
    loss: float
    fold_losses: np.ndarray
    standard_error: float
    at_edge: bool
    table: np.ndarray
    n_points: int
    estimator: object


def unique_states(chain):
    """Return the distinct states of a chain and the number of iterations spent in each.

    Parameters
    ----------
    chain : array_like (n, d)
        States in order, repeated where a proposal was rejected.

    Returns
    -------
    X : ndarray (k, d)
        Distinct states in the order of their first visit.
    weights : ndarray (k,)
        Number of iterations spent in each.

    Examples
    --------
    >>> X, weights = unique_states([[0.0], [0.0], [1.0], [0.0]])
    >>> X.ravel(), weights
    (array([0., 1.]), array([3., 1.]))
    """
    chain = check_points(chain, "chain")
    return unique_rows(chain, np.ones(len(chain)))


def select(
    X,
    estimator="lite",
    sample_weight=None,
    *,
    sigmas=None,
    n_folds=5,
    warm_start=None,
    max_points=None,
    max_features=200,
    random_seed=None,
):
    """Choose sigma and the regularisation by cross-validated score matching.

    Parameters
    ----------
    X : array_like (n, d)
        States in chain order; repeated ones are merged and weighted.
    estimator : {"lite", "finite"} or unfitted surrogate
        A surrogate's own sigma and regularisation are ignored; its other arguments are used.
    sample_weight : array_like (n,), optional
        Multiplicities of the rows of X.
    sigmas : array_like, optional
        Range of bandwidths: the search stays between the smallest and the largest. A single
        bandwidth is kept. By default the range follows from the median squared distance.
    n_folds : int
        Number of contiguous blocks that are held out in turn.
    warm_start : SelectionResult or (sigma, regularisation), optional
        An earlier choice to search around.
    max_points : int, optional
        Most distinct states used, drawn at random; by default 300 (lite) or 2000 (finite).
    max_features : int
        Most random features used while choosing sigma.
    random_seed : None, int or numpy.random.Generator
        Draws the states and features that are used.

    Returns
    -------
    SelectionResult

    Warns
    -----
    UserWarning
        If the choice lies at the edge of its range.

    Raises
    ------
    ValueError
        If an argument is out of its range, or there are fewer than two distinct states a fold.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> result = select(X, "finite", random_seed=1)
    >>> result.at_edge
    False
    >>> surrogate = result.estimator.fit(X)
    """
    rng, X = check_rng(random_seed, "random_seed"), check_points(X)
    chosen = _unfitted(estimator)
    is_lite = isinstance(chosen, KernelExpLite)
    max_features = check_count(max_features, "max_features")
    if max_points is None:
        max_points = MOST_POINTS[is_lite]
    X, weights, folds = _states(X, sample_weight, n_folds, max_points, rng)
    starts, bounds = _starts(sigmas, warm_start, X, rng)
    if is_lite:
        systems = functools.partial(lite_systems, chosen, X, weights, folds)
    else:
        copied = _with_basis(chosen, X.shape[1], max_features, rng)
        systems = functools.partial(finite_systems, copied, X, weights, folds)
    trials = _search(systems, starts, *bounds)
    best = min(trials, key=lambda trial: trial.least)
    if not np.isfinite(best.least):
        raise ValueError(
            "no sigma gave a finite held-out loss; rescale X so that its spread is near 1"
        )
    sigma_at_edge = bounds[0] < bounds[1] and best.sigma in bounds
    if sigma_at_edge or best.regularisation_at_edge:
        which = "sigma" if sigma_at_edge else "regularisation"
        warnings.warn(
            f"the best {which} found, {getattr(best, which):.3g}, is at the edge of its range; "
            f"{'widen `sigmas`, ' if sigma_at_edge else ''}pass more states, or standardise X",
            UserWarning,
            stacklevel=2,
        )
    chosen.sigma, chosen.regularisation = best.sigma, best.regularisation
    columns = ("sigma", "regularisation", "loss", "standard_error")
    rows = sorted(tuple(getattr(trial, column) for column in columns) for trial in trials)
    return SelectionResult(
        **{column: getattr(best, column) for column in (*columns, "fold_losses")},
        at_edge=sigma_at_edge or best.regularisation_at_edge,
        table=np.array(rows, dtype=[(column, float) for column in columns]),
        n_points=len(X),
        estimator=chosen,
    )


def _states(X, sample_weight, n_folds, max_points, rng):
    """Return distinct states (n, d), at most `max_points`, their weights (n,) and the folds."""
    n_folds, max_points = check_count(n_folds, "n_folds"), check_count(max_points, "max_points")
    if n_folds < 2:
        raise ValueError("n_folds=1 leaves nothing to fit to; pass at least 2")
    X, weights = unique_rows(X, check_weights(sample_weight, len(X)))
    if len(X) > max_points:
        kept = np.sort(rng.choice(len(X), size=max_points, replace=False))
        X, weights = X[kept], weights[kept]
    if len(X) < 2 * n_folds:
        raise ValueError(
            f"X has {len(X)} distinct states for {n_folds} folds; pass more states, a larger "
            f"max_points, or n_folds={max(2, len(X) // 2)}"
        )
    return X, weights, contiguous_folds(weights, n_folds)


def _unfitted(estimator):
    if isinstance(estimator, str) and estimator == "lite":
        return KernelExpLite(None, None)
    if isinstance(estimator, str) and estimator == "finite":
        return KernelExpFinite(DEFAULT_FEATURES, None, None)
    if not isinstance(estimator, KernelExpLite | KernelExpFinite):
        raise ValueError(
            f"estimator={reprlib.repr(estimator)} is unknown; pass 'lite', 'finite' or a "
            "surrogate: select(X, 'lite')"
        )
    check_base(estimator.base)
    if isinstance(estimator, KernelExpLite):
        check_choice(estimator.penalty, "penalty", PENALTIES)
    unfitted = copy.copy(estimator)
    for key in [key for key in vars(unfitted) if key.endswith("_") or key.startswith("_")]:
        delattr(unfitted, key)
    return unfitted


def _with_basis(surrogate, d, max_features, rng):
    if surrogate.basis is not None:
        raise ValueError(
            "estimator has a basis of its own, which fixes sigma; pass KernelExpFinite(...) "
            "instead of KernelExpFinite.from_basis(...)"
        )
    m = min(check_count(surrogate.n_features, "n_features"), max_features)
    kernel = check_choice(surrogate.kernel, "kernel", FEATURE_KERNELS)
    copied = copy.copy(surrogate)
    copied.basis = standard_basis(m, d, kernel, rng)
    return copied


# --------------------------------------------------------------------------------------------------
# Search
# --------------------------------------------------------------------------------------------------


def _starts(sigmas, warm_start, X, rng):
    if sigmas is not None:
        sigmas = sorted(check_positive(sigma, "sigmas") for sigma in np.ravel(sigmas))
        if not sigmas:
            raise ValueError("sigmas is empty; pass e.g. sigmas=[0.1, 1.0]")
        return sigmas, (sigmas[0], sigmas[-1])
    unit = median_squared_distance(X, rng)
    bounds = RANGE[0] * unit, RANGE[1] * unit
    if warm_start is None:
        return unit * COARSE_GRID, bounds
    if isinstance(warm_start, SelectionResult):
        warm_start = warm_start.sigma, warm_start.regularisation
    if np.shape(warm_start) != (2,):
        raise TypeError(
            f"warm_start={warm_start!r} must be what select has returned, or a pair (sigma, "
            "regularisation)"
        )
    warm = check_positive(warm_start[0], "warm_start's sigma")
    # Beside the earlier choice, which may have been a local minimum, two of the coarse grid.
    return [warm, *unit * COARSE_GRID[2::2]], bounds


class _Trial(NamedTuple):
    """The regularisation chosen for one bandwidth; `least` is the least loss of any."""

    sigma: float
    least: float
    regularisation: float
    loss: float
    standard_error: float
    fold_losses: np.ndarray
    regularisation_at_edge: bool


def _search(systems, starts, low, high):
    trials = {}
    untried = starts
    while len(untried):
        trials |= {sigma: _try(list(systems(sigma)), sigma) for sigma in map(float, untried)}
        best = min(trials, key=lambda sigma: trials[sigma].least)
        nearby = {float(np.clip(sigma, low, high)) for sigma in (best / RATIO, best * RATIO)}
        untried = sorted(nearby - trials.keys())
    return list(trials.values())


def _try(systems, sigma):
    """Return the :class:`_Trial` of a bandwidth, by the one-standard-error rule."""
    weights = np.array([system.weight for system in systems])
    weights = weights / weights.sum()
    scale = np.mean([np.trace(system.A) / np.trace(system.P) for system in systems])
    regularisations = scale * RELATIVE_REGULARISATIONS
    losses = np.array([held_out_losses(system, regularisations) for system in systems])
    means = weights @ losses
    best = chosen = int(np.argmin(means))
    if np.isfinite(means[best]):
        errors = [_standard_error(loss - losses[:, best], weights) for loss in losses.T]
        chosen = int(np.flatnonzero(means - means[best] <= errors)[-1])
    return _Trial(
        sigma=sigma,
        least=means[best],
        regularisation=float(regularisations[chosen]),
        loss=float(means[chosen]),
        standard_error=_standard_error(losses[:, chosen], weights),
        fold_losses=losses[:, chosen],
        regularisation_at_edge=chosen in (0, len(means) - 1),
    )


def _standard_error(fold_losses, weights):
    """Return the weighted mean's standard error from the spread of folds; weights have sum 1."""
    spread = fold_losses - weights @ fold_losses
    return float(np.sqrt(weights @ spread**2 / (len(weights) - 1)))


# --------------------------------------------------------------------------------------------------
# Systems of the folds
# --------------------------------------------------------------------------------------------------


def contiguous_folds(weights, n_folds):
    """Return a list of slices of about equal weight that cover the states in order."""
    middle = np.cumsum(weights) - 0.5 * weights
    inside = middle * (n_folds / weights.sum())
    bounds = np.searchsorted(inside, np.arange(n_folds + 1))
    if (np.diff(bounds) == 0).any():  # a single state outweighs a fold
        bounds = np.linspace(0, len(weights), n_folds + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


class System(NamedTuple):
    """One fold: coefficients c = (A + lambda P)^-1 b, held-out loss c'T c / 2 - t'c + constant."""

    A: np.ndarray
    P: np.ndarray
    b: np.ndarray
    T: np.ndarray
    t: np.ndarray
    constant: float
    weight: float


def held_out_losses(system, regularisations):
    """Return a fold's losses for all regularisations by one eigen-decomposition; inf on failure."""
    A, P, b, T, t, constant, _ = system
    try:
        # In the eigenvectors' coordinates the penalty is the identity and A is diagonal.
        values, vectors = scipy.linalg.eigh(A, P + JITTER * np.eye(len(P)), driver="gvd")
    except (ValueError, np.linalg.LinAlgError):
        return np.full(len(regularisations), np.inf)
    c = vectors @ ((vectors.T @ b)[:, None] / (np.maximum(values, 0.0)[:, None] + regularisations))
    return np.nan_to_num(0.5 * np.einsum("ml,ml->l", c, T @ c) - t @ c + constant, nan=np.inf)


def _base_loss(base, X, weights):
    laplacians = np.full(len(X), base.laplacian)
    return score_matching_loss(base.gradient(X), laplacians, weights)


def lite_systems(surrogate, X, weights, folds, sigma):
    """Yield the system of each fold of a KernelExpLite, whose basis is the training points."""
    for fold in folds:
        rest = np.delete(np.arange(len(X)), fold)
        points, total = X[rest], weights[fold].sum()
        base = fit_base(surrogate.base, points, weights[rest])
        b, A = score_matching_system(points, weights[rest], points, sigma, base)
        t, T = score_matching_system(X[fold], weights[fold], points, sigma, base)
        P = penalty_matrix(surrogate.penalty, gaussian_kernel(points, points, sigma))
        constant = _base_loss(base, X[fold], weights[fold])
        yield System(A, P, b, T / total, t / total, constant, total)


def finite_systems(surrogate, X, weights, folds, sigma):
    """Yield the system of each fold of a KernelExpFinite, whose `basis` is that of sigma = 1."""
    omega, phase = surrogate.basis
    basis = scale_basis(omega, sigma), phase
    origin = X.mean(axis=0)
    parts = [ScoreMatchingSums(*basis, X[fold], weights[fold], origin) for fold in folds]
    for fold, part in zip(folds, parts, strict=True):
        rest = functools.reduce(operator.add, (other for other in parts if other is not part))
        total, base = part.total_weight, rest.base(surrogate.base)
        yield System(
            A=rest.second_moment() / rest.total_weight,
            P=np.eye(len(phase)),
            b=rest.right_hand_side(base) / rest.total_weight,
            T=part.second_moment() / total,
            t=part.right_hand_side(base) / total,
            constant=_base_loss(base, X[fold], weights[fold]),
            weight=total,
        )
