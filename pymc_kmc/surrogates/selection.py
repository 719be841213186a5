r"""Choice of bandwidth and regularisation by cross-validated score matching.

The held-out score-matching loss needs neither the target's gradient nor its normalising constant.
Its problems on a chain, and its cost, are met as follows:

- Repeated states make the loss unbounded below as :math:`\sigma \to 0`. :func:`unique_states`
  merges them, and the length of the chain's stay becomes a weight.
- Neighbouring states are alike, so that random folds leak. Folds are contiguous blocks of equal
  weight.
- Every fit is one linear system :math:`(A + \lambda P)\theta = b`. One eigen-decomposition a fold
  gives the held-out loss for *all* :math:`\lambda`. The search is over :math:`\sigma` alone, on a
  coarse grid in :math:`\log \sigma` and then, between the neighbours of the best, by Brent's
  method (``scipy.optimize``).
- An optimum at the edge of the range extends the range. A warning is given where that is not
  possible.
- Cost is bounded: at most ``max_points`` points and ``max_features`` features enter.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import (
    check_count,
    check_points,
    check_positive,
    check_rng,
    check_weights,
)
from pymc_kmc.numerics.samples import unique_rows
from pymc_kmc.surrogates.finite import KernelExpFinite
from pymc_kmc.surrogates.lite import KernelExpLite
from pymc_kmc.surrogates.selection_paths import (
    FinitePath,
    LitePath,
    contiguous_folds,
)
from pymc_kmc.surrogates.selection_search import Search, search_sigma

#: Most features where the regularisation is chosen again, once sigma is: more features, unlike more
#: points, can over-fit where few could not.
MOST_FINAL_FEATURES = 500

#: Features of the estimator that :func:`select` makes when it is given a name.
DEFAULT_FEATURES = 500


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
        A record for each bandwidth tried, in ascending order: ``sigma``, its best
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
    rng = check_rng(random_seed, "random_seed")
    family, template = _family(estimator)
    n_folds = check_count(n_folds, "n_folds")
    if n_folds < 2:
        raise ValueError("n_folds=1 leaves nothing to fit to; pass at least 2")
    max_features = check_count(max_features, "max_features")
    max_points = family.most_points if max_points is None else max_points
    max_points = check_count(max_points, "max_points")
    sigmas = _check_range(sigmas)

    X = check_points(X)
    X, weights = unique_rows(X, check_weights(sample_weight, len(X)))
    if len(X) > max_points:
        kept = np.sort(rng.choice(len(X), size=max_points, replace=False))
        X, weights = X[kept], weights[kept]
    if len(X) < 2 * n_folds:
        raise ValueError(
            f"X has {len(X)} distinct states for {n_folds} folds; pass more states, a larger "
            f"max_points, or n_folds={max(2, len(X) // 2)}"
        )
    folds = contiguous_folds(weights, n_folds)
    path = family.path(template, X, weights, folds, max_features, rng)

    search = Search(path)
    sigma_at_edge = search_sigma(search, X, sigmas, _warm_sigma(warm_start), rng)
    best = search.best()
    if not np.isfinite(best.loss):
        raise ValueError(
            "no sigma gave a finite held-out loss; rescale X so that its spread is near 1"
        )
    if family.path is FinitePath and min(template.n_features, MOST_FINAL_FEATURES) > max_features:
        path = FinitePath(template, X, weights, folds, MOST_FINAL_FEATURES, rng)
        final = Search(path)
        if np.isfinite(final.loss(best.sigma)):
            best = final.best()
    at_edge = sigma_at_edge or best.regularisation_at_edge
    if at_edge:
        which = "sigma" if sigma_at_edge else "regularisation"
        warnings.warn(
            f"the best {which} found, {getattr(best, which):.3g}, is at the edge of its range; "
            f"{'widen `sigmas`, ' if sigma_at_edge else ''}pass more states, or standardise X",
            UserWarning,
            stacklevel=2,
        )

    chosen = copy.copy(template)
    chosen.sigma, chosen.regularisation = best.sigma, best.regularisation
    return SelectionResult(
        sigma=best.sigma,
        regularisation=best.regularisation,
        loss=best.loss,
        fold_losses=best.fold_losses,
        standard_error=best.standard_error,
        at_edge=at_edge,
        table=search.table(),
        n_points=len(X),
        estimator=chosen,
    )


class _Family(NamedTuple):
    """A family of surrogates: class, path, default estimator, largest number of points."""

    estimator: type
    path: type
    default: Callable
    most_points: int


# Lite solves a system of the order of its points, finite only sums over them.
_FAMILIES = {
    "lite": _Family(KernelExpLite, LitePath, lambda: KernelExpLite(None, None), 300),
    "finite": _Family(
        KernelExpFinite, FinitePath, lambda: KernelExpFinite(DEFAULT_FEATURES, None, None), 2000
    ),
}


def _family(estimator):
    """Return the family of a surrogate or a name, and an unfitted surrogate of it to copy."""
    for name, family in _FAMILIES.items():
        if isinstance(estimator, family.estimator):
            unfitted = copy.copy(estimator)
            for key in [key for key in vars(unfitted) if key.endswith("_") or key.startswith("_")]:
                delattr(unfitted, key)
            return family, unfitted
        if isinstance(estimator, str) and estimator == name:
            return family, family.default()
    raise ValueError(f"estimator={estimator!r} is unknown; pass 'lite', 'finite' or a surrogate")


def _warm_sigma(warm_start):
    if warm_start is None:
        return None
    sigma = warm_start.sigma if isinstance(warm_start, SelectionResult) else warm_start[0]
    return check_positive(sigma, "warm_start's sigma")


def _check_range(sigmas):
    if sigmas is None:
        return None
    sigmas = np.atleast_1d(np.asarray(sigmas, dtype=np.float64))
    if sigmas.ndim != 1 or not len(sigmas) or not (np.isfinite(sigmas) & (sigmas > 0)).all():
        raise ValueError(
            f"sigmas={sigmas!r} must be positive and finite; pass e.g. sigmas=[0.1, 1.0]"
        )
    return np.unique(sigmas)
