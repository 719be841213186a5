r"""Choosing bandwidth and regularisation by cross-validated score matching.

The held-out score-matching loss needs neither the target's gradient nor its normalising constant.
What makes it treacherous on a chain, and what is done about it:

- Repeated states make the loss unbounded below as :math:`\sigma \to 0`. :func:`unique_states`
  merges them and keeps how long the chain stayed as a weight.
- Neighbouring states are alike, so that random folds leak. Folds are contiguous blocks of equal
  weight.
- Every fit is one linear system :math:`(A + \lambda P)\theta = b`. One eigen-decomposition a fold
  gives the held-out loss for *all* :math:`\lambda`; only :math:`\sigma` is searched for, on a
  coarse grid in :math:`\log \sigma` and then, between the neighbours of the best, by Brent's
  method (``scipy.optimize``).
- An optimum at the edge of the range extends the range, and is warned about where that is not
  possible.
- Cost is bounded: at most ``max_points`` points and ``max_features`` features enter.
"""

import copy
import dataclasses
import math
import warnings

import numpy as np
import scipy.linalg
import scipy.optimize

from pymc_kmc.numerics.checks import (
    check_choice,
    check_count,
    check_points,
    check_positive,
    check_weights,
)
from pymc_kmc.numerics.samples import unique_rows
from pymc_kmc.surrogates import features as _features
from pymc_kmc.surrogates import lite as _lite
from pymc_kmc.surrogates import nystrom as _nystrom
from pymc_kmc.surrogates.base_density import fit_base
from pymc_kmc.surrogates.finite import KernelExpFinite, ScoreMatchingSums
from pymc_kmc.surrogates.kernels import squared_distances
from pymc_kmc.surrogates.lite import KernelExpLite
from pymc_kmc.surrogates.nystrom import KernelExpNystrom
from pymc_kmc.surrogates.scores import score_matching_loss

#: Bandwidths tried first, in units of the median squared distance.
COARSE_GRID = 4.0 ** np.arange(-2, 4)
WARM_GRID = 4.0 ** np.arange(-1, 2)
#: Entries of the coarse grid at which a warm-started search looks too.
COLD_CHECKS = [2, 4]
GRID_STEP = 4.0

#: Grid steps by which the default range may grow on either side.
MOST_EXTENSIONS = 6

#: Evaluations spent on refining log sigma, and the accuracy at which refining stops: the loss is
#: flat near its minimum, 10 % in sigma are not to be seen in it.
REFINEMENTS = 8
LOG_SIGMA_TOLERANCE = 0.1

#: Regularisations tried, in units of the system's mean eigenvalue: quarter decades from rounding
#: error to a fit that is switched off.
RELATIVE_REGULARISATIONS = 10.0 ** np.arange(-12.0, 3.01, 0.25)

#: Default caps on points: lite solves a system of that order, finite only sums over them.
MOST_POINTS = {"lite": 300, "finite": 2000, "nystrom": 1000}

#: A loss whose rounding error may exceed this share of it is not used (the bound is a generous
#: one).
ROUNDING_SHARE = 1e-2

#: Directions whose penalty is below this share of the largest add nothing but rounding error.
NEGLIGIBLE_DIRECTION = 1e-8

#: Of regularisations whose held-out losses differ by less than this many standard errors of the
#: difference (over folds) the largest is taken: it transfers better to other numbers of points
#: and features.
INDISTINCT = 0.5

#: Once sigma is chosen, the regularisation is chosen again with this many features at most: more
#: features, unlike more points, can over-fit where few could not.
MOST_FINAL_FEATURES = 500

#: The range of sigma stops growing when a step gains less than this share of the standard error.
PLATEAU = 0.05

#: Points among which the median squared distance is taken.
MEDIAN_POINTS = 400

#: Sizes of the estimators that :func:`select` makes when it is given a name only.
DEFAULT_FEATURES = 500
DEFAULT_LANDMARKS = 100


@dataclasses.dataclass(frozen=True)
class SelectionResult:
    """What :func:`select` found.

    Attributes
    ----------
    sigma, regularisation : float
        The choice.
    loss : float
        Its cross-validated score-matching loss, a weighted mean over held-out states.
    fold_losses : ndarray (n_folds,)
        The same for each fold. One that stands out is a part of the chain unlike the others.
    standard_error : float
        Of ``loss``, from the spread between folds.
    at_edge : bool
        Whether the choice lies at the edge of the range searched.
    table : ndarray
        A record for each bandwidth tried, in ascending order: ``sigma``, the ``regularisation``
        best for it, ``loss``, ``standard_error``.
    n_points : int
        Distinct states used.
    estimator : surrogate
        Unfitted, with the chosen values.
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
    """Distinct states of a chain and how long it stayed in each.

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
    regularisations=None,
    n_folds=5,
    warm_start=None,
    max_points=None,
    max_features=200,
    rng=None,
):
    """Choose sigma and the regularisation by cross-validated score matching.

    Parameters
    ----------
    X : array_like (n, d)
        States in chain order; repeated ones are merged and weighted.
    estimator : {"lite", "finite", "nystrom"} or unfitted surrogate
        A surrogate's own sigma and regularisation are ignored, its other arguments count. For
        Nystrom the held-out loss is that of ``mean_element=None``.
    sample_weight : array_like (n,), optional
        Multiplicities of the rows of X.
    sigmas : array_like, optional
        Range of bandwidths: the search stays between the smallest and the largest. A single one
        is kept. By default the range is found from the median squared distance.
    regularisations : array_like, optional
        Values to choose among. By default wide, relative to the system's scale.
    n_folds : int
    warm_start : SelectionResult or (sigma, regularisation), optional
        An earlier choice to search around.
    max_points : int, optional
        Most distinct states used, drawn at random; by default 300 (lite), 2000 (finite) or 1000
        (Nystrom).
    max_features : int
        Most random features or landmark coordinates used while choosing sigma.
    rng : None, int or numpy.random.Generator

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
        On bad arguments or fewer than two distinct states a fold.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> result = select(X, "finite", rng=1)
    >>> result.at_edge
    False
    >>> surrogate = result.estimator.fit(X)
    """
    rng = np.random.default_rng(rng)
    template = _as_template(estimator)
    kind = _kind(template)
    n_folds = check_count(n_folds, "n_folds")
    if n_folds < 2:
        raise ValueError("n_folds=1 leaves nothing to fit to; pass at least 2")
    max_features = check_count(max_features, "max_features")
    max_points = MOST_POINTS[kind] if max_points is None else max_points
    max_points = check_count(max_points, "max_points")
    sigmas = _check_range(sigmas, "sigmas")
    regularisations = _check_range(regularisations, "regularisations")

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
    folds = _contiguous_folds(weights, n_folds)
    path = _PATHS[kind](template, X, weights, folds, max_features, rng)

    search = _Search(path, regularisations)
    sigma_at_edge = _search_sigma(search, X, sigmas, warm_start, rng)
    best = search.best()
    if not np.isfinite(best.loss):
        raise ValueError(
            "no sigma gave a finite held-out loss; rescale X so that its spread is near 1"
        )
    if kind == "finite" and min(template.n_features, MOST_FINAL_FEATURES) > max_features:
        path = _FinitePath(template, X, weights, folds, MOST_FINAL_FEATURES, rng)
        final = _Search(path, regularisations)
        if np.isfinite(final.loss(best.sigma)):
            best = final.best()
    at_edge = sigma_at_edge or best.regularisation_at_edge
    if at_edge:
        which = "sigma" if sigma_at_edge else "regularisation"
        value = best.sigma if sigma_at_edge else best.regularisation
        warnings.warn(
            f"the best {which} found, {value:.3g}, is at the edge of its range; widen "
            f"`{which}s`, pass more states, or standardise X",
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


# --------------------------------------------------------------------------------------------------
# The search
# --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Trial:
    """The best regularisation for one bandwidth."""

    sigma: float
    regularisation: float
    loss: float
    standard_error: float
    fold_losses: np.ndarray
    regularisation_at_edge: bool


class _Search:
    """Held-out loss as a function of sigma, each value computed once."""

    def __init__(self, path, regularisations):
        self.path, self.regularisations = path, regularisations
        self.trials = {}

    def loss(self, sigma):
        if sigma not in self.trials:
            self.trials[sigma] = self._try(sigma)
        return self.trials[sigma].loss

    def best(self):
        return min(self.trials.values(), key=lambda trial: trial.loss)

    def table(self):
        fields = ("sigma", "regularisation", "loss", "standard_error")
        rows = sorted(tuple(getattr(t, field) for field in fields) for t in self.trials.values())
        return np.array(rows, dtype=[(field, float) for field in fields])

    def _try(self, sigma):
        systems = list(self.path.systems(sigma))
        if self.regularisations is None:
            scale = np.mean([np.trace(s.A) / np.trace(s.P) for s in systems])
            regularisations = scale * RELATIVE_REGULARISATIONS
        else:
            regularisations = self.regularisations
        with np.errstate(all="ignore"):
            losses = np.array([_regularisation_path(s, regularisations) for s in systems])
        losses[~np.isfinite(losses)] = np.inf
        weights = np.array([s.weight for s in systems])
        weights = weights / weights.sum()
        means = weights @ losses
        index = _largest_indistinct(losses, weights, int(np.argmin(means)))
        with np.errstate(invalid="ignore"):
            error = _standard_error(losses[:, index], weights)
        usable = np.flatnonzero(np.isfinite(means))
        return _Trial(
            sigma=sigma,
            regularisation=float(regularisations[index]),
            loss=float(means[index]),
            standard_error=error,
            fold_losses=losses[:, index],
            regularisation_at_edge=len(usable) > 1 and index in (usable[0], usable[-1]),
        )


def _largest_indistinct(losses, weights, best):
    """Index of the largest regularisation whose losses are like those of ``best``."""
    for index in range(losses.shape[1] - 1, best, -1):
        if np.isfinite(losses[:, index]).all():
            difference = losses[:, index] - losses[:, best]
            if weights @ difference <= INDISTINCT * _standard_error(difference, weights):
                return index
    return best


def _standard_error(fold_losses, weights):
    """Of the weighted mean (weights of sum 1), from the spread between folds."""
    spread = fold_losses - weights @ fold_losses
    return math.sqrt(float(weights @ spread**2) / (len(weights) - 1))


def _search_sigma(search, X, sigmas, warm_start, rng):
    """Try bandwidths; returns whether the best lies at the edge of what may be tried."""
    if sigmas is not None:
        for sigma in sigmas:
            search.loss(float(sigma))
        grid = sigmas
    else:
        if warm_start is None:
            grid = median_squared_distance(X, rng) * COARSE_GRID
        else:
            grid = _warm_sigma(warm_start) * WARM_GRID
        grid = _extended_grid(search, grid)
        if warm_start is not None:
            # The loss can have several minima: leave a stale one if a cold start begins lower.
            warm = min(search.loss(sigma) for sigma in grid)
            cold = median_squared_distance(X, rng) * COARSE_GRID
            if min(search.loss(float(sigma)) for sigma in cold[COLD_CHECKS]) < warm:
                grid = _extended_grid(search, cold)
    losses = [search.loss(float(sigma)) for sigma in grid]
    index = int(np.argmin(losses))
    if 0 < index < len(grid) - 1:
        _refine(search, grid[index - 1], grid[index + 1])
        return False
    if len(grid) > 1 and sigmas is not None:
        # A range may have its best value inside and yet next to the edge of the grid.
        neighbours = (0, 1) if index == 0 else (-2, -1)
        _refine(search, *(grid[i] for i in neighbours))
        return search.best().sigma in (float(grid[0]), float(grid[-1]))
    return len(grid) > 1


def _extended_grid(search, grid):
    """The grid, longer by steps on the side where its best value is at the edge."""
    grid = [float(sigma) for sigma in grid]
    for _ in range(MOST_EXTENSIONS):
        losses = [search.loss(sigma) for sigma in grid]
        index = int(np.argmin(losses))
        if 0 < index < len(grid) - 1:
            break
        neighbour = losses[1] if index == 0 else losses[-2]
        if neighbour - losses[index] < PLATEAU * search.best().standard_error:
            break
        if index == 0:
            grid.insert(0, grid[0] / GRID_STEP)
        else:
            grid.append(grid[-1] * GRID_STEP)
    return grid


def _refine(search, low, high):
    scipy.optimize.minimize_scalar(
        lambda log_sigma: min(search.loss(math.exp(log_sigma)), np.finfo(float).max),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"maxiter": REFINEMENTS, "xatol": LOG_SIGMA_TOLERANCE},
    )


def median_squared_distance(X, rng):
    """Median over pairs of distinct rows of X (n, d), some hundreds of rows at most; 1 if none."""
    if len(X) > MEDIAN_POINTS:
        X = X[rng.choice(len(X), size=MEDIAN_POINTS, replace=False)]
    D = squared_distances(X, X)[np.triu_indices(len(X), 1)]
    return float(np.median(D[D > 0])) if (D > 0).any() else 1.0


def _warm_sigma(warm_start):
    sigma = warm_start.sigma if isinstance(warm_start, SelectionResult) else warm_start[0]
    return check_positive(sigma, "warm_start's sigma")


def _check_range(values, name):
    if values is None:
        return None
    values = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(
            f"{name}={values!r} must be positive and finite; pass e.g. {name}=[0.1, 1.0]"
        )
    return np.unique(values)


def _contiguous_folds(weights, n_folds):
    """A list of slices of about equal weight that cover the states in order."""
    middle = np.cumsum(weights) - 0.5 * weights
    inside = middle * (n_folds / weights.sum())
    bounds = np.searchsorted(inside, np.arange(n_folds + 1))
    if (np.diff(bounds) == 0).any():  # a single state outweighs a fold
        bounds = np.linspace(0, len(weights), n_folds + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


# --------------------------------------------------------------------------------------------------
# Linear systems of the folds
# --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _System:
    """One fold: coefficients (A + lambda P)^-1 b, held-out loss c'T c / 2 - t'c + constant."""

    A: np.ndarray
    P: np.ndarray
    b: np.ndarray
    T: np.ndarray
    t: np.ndarray
    constant: float
    weight: float


def _regularisation_path(system, regularisations):
    """Held-out losses for all regularisations, from one eigen-decomposition.

    Infinite where rounding would drown the loss: coefficients that nearly cancel are no model.
    """
    A, P, b, T, t = system.A, system.P, system.b, system.T, system.t
    if not (np.isfinite(A).all() and np.isfinite(T).all() and np.isfinite(P).all()):
        return np.full(len(regularisations), np.inf)
    size_T, size_t = np.linalg.norm(T), np.linalg.norm(t)
    if (P != np.eye(len(P))).any():
        # Coordinates in which the penalty is the identity, those of no weight left out.
        sizes, directions = scipy.linalg.eigh(P, driver="evd", check_finite=False)
        kept = sizes > NEGLIGIBLE_DIRECTION * sizes[-1]
        basis = directions[:, kept] / np.sqrt(sizes[kept])
        A, T = basis.T @ A @ basis, basis.T @ T @ basis
        b, t = basis.T @ b, basis.T @ t
        size_T, size_t = size_T / sizes[kept][0], size_t / math.sqrt(sizes[kept][0])
    values, vectors = scipy.linalg.eigh(A, driver="evd", check_finite=False)
    values = np.maximum(values, 0.0)
    coefficients = vectors @ ((vectors.T @ b)[:, None] / (values[:, None] + regularisations))
    losses = 0.5 * np.einsum("ml,ml->l", coefficients, T @ coefficients) - t @ coefficients
    norms = np.linalg.norm(coefficients, axis=0)
    rounding = np.finfo(float).eps * norms * (size_T * norms + size_t)
    # From the largest regularisation down, as long as rounding is small beside losses so far: those
    # beyond may be anything, and large for no other reason.
    scale = 0.0
    usable = np.full(len(losses), np.inf)
    for index in np.argsort(regularisations)[::-1]:
        if not rounding[index] <= ROUNDING_SHARE * (scale or abs(losses[index])):
            break
        scale = max(scale, abs(losses[index]))
        usable[index] = losses[index] + system.constant
    return usable


def _base_loss(base, X, weights):
    """Held-out loss of the base density alone."""
    laplacians = np.full(len(X), base.laplacian)
    return score_matching_loss(base.gradient(X), laplacians, weights)


def _rest(n, fold):
    kept = np.ones(n, dtype=bool)
    kept[fold] = False
    return kept


class _LitePath:
    """Systems of :class:`KernelExpLite`, whose basis is the training points."""

    def __init__(self, template, X, weights, folds, max_features, rng):
        self.template, self.X, self.weights, self.folds = template, X, weights, folds
        self.D = squared_distances(X, X)

    def systems(self, sigma):
        X, weights, D = self.X, self.weights, self.D
        K = np.exp(-D / sigma)
        KD = K * D
        everything = _gram(K, KD, D, weights, slice(None))
        for fold in self.folds:
            rest = _rest(len(X), fold)
            base = fit_base(self.template.base, X[rest], weights[rest])
            held_out = _gram(K, KD, D, weights, fold)
            terms = _pointwise_terms(X, K, D, sigma, base)
            total = weights[fold].sum()
            yield _System(
                A=(everything - held_out)[np.ix_(rest, rest)],
                P=_lite.penalty_matrix(self.template.penalty, K[np.ix_(rest, rest)]),
                b=weights[rest] @ terms[np.ix_(rest, rest)],
                T=held_out[np.ix_(rest, rest)] / total,
                t=weights[fold] @ terms[fold][:, rest] / total,
                constant=_base_loss(base, X[fold], weights[fold]),
                weight=total,
            )


def _gram(K, KD, D, weights, rows):
    """C of Proposition 1, the sum over b restricted to ``rows``."""
    weighted = weights[rows, None] * K[rows]
    half = KD[rows].T @ weighted
    return 0.5 * (half + half.T - D * (K[rows].T @ weighted))


def _pointwise_terms(X, K, D, sigma, base):
    """Terms (b, i) of b in Proposition 1, without weights."""
    slopes = base.gradient(X)
    along = np.einsum("nd,nd->n", X, slopes)[:, None] - slopes @ X.T
    return K * ((2.0 / sigma) * D - X.shape[1] - along)


class _FinitePath:
    """Systems of :class:`KernelExpFinite`: one basis, scaled by sigma, for all folds."""

    def __init__(self, template, X, weights, folds, max_features, rng):
        if template.basis is not None:
            raise ValueError(
                "estimator has a basis of its own, which fixes sigma; pass KernelExpFinite(...) "
                "instead of KernelExpFinite.from_basis(...)"
            )
        m = min(check_count(template.n_features, "n_features"), max_features)
        kernel = check_choice(template.kernel, "kernel", _features.KERNELS)
        self.omega, self.phase = _features.standard_basis(m, X.shape[1], kernel, rng)
        self.template, self.X, self.weights, self.folds = template, X, weights, folds

    def systems(self, sigma):
        X, weights = self.X, self.weights
        omega = _features.scale_basis(self.omega, sigma)
        origin = X.mean(axis=0)
        parts = [
            ScoreMatchingSums(omega, self.phase, X[fold], weights[fold], origin)
            for fold in self.folds
        ]
        everything = ScoreMatchingSums(omega, self.phase, X, weights, origin)
        identity = np.eye(len(self.phase))
        for fold, part in zip(self.folds, parts, strict=True):
            rest = everything.without(part)
            base = rest.base(self.template.base)
            yield _System(
                A=rest.second_moment() / rest.total_weight,
                P=identity,
                b=rest.right_hand_side(base) / rest.total_weight,
                T=part.second_moment() / part.total_weight,
                t=part.right_hand_side(base) / part.total_weight,
                constant=_base_loss(base, X[fold], weights[fold]),
                weight=part.total_weight,
            )


class _NystromPath:
    """Systems of :class:`KernelExpNystrom` without a mean element, on the same landmarks."""

    def __init__(self, template, X, weights, folds, max_features, rng):
        most = max(1, max_features // X.shape[1])
        if template.landmarks is not None:
            Z = check_points(template.landmarks, "landmarks", d=X.shape[1])
        else:
            most = min(most, check_count(template.n_landmarks, "n_landmarks"))
            Z = X
        if len(Z) > most:
            Z = Z[np.sort(rng.choice(len(Z), size=most, replace=False))]
        self.Z = Z
        self.template, self.X, self.weights, self.folds = template, X, weights, folds

    def systems(self, sigma):
        X, Z, weights = self.X, self.Z, self.weights
        d = X.shape[1]
        jacobian = _nystrom.cross_derivatives(X, Z, sigma)
        jacobian *= np.repeat(np.sqrt(weights), d)[:, None]
        everything = jacobian.T @ jacobian
        inner = _nystrom.cross_derivatives(Z, Z, sigma)
        total = weights.sum()
        for fold in self.folds:
            rest = _rest(len(X), fold)
            base = fit_base(self.template.base, X[rest], weights[rest])
            rows = jacobian[fold.start * d : fold.stop * d]
            part, held_out = weights[fold].sum(), rows.T @ rows
            yield _System(
                A=(everything - held_out) / (total - part),
                P=inner,
                b=self._right_hand_side(X[rest], weights[rest], base, sigma),
                T=held_out / part,
                t=self._right_hand_side(X[fold], weights[fold], base, sigma),
                constant=_base_loss(base, X[fold], weights[fold]),
                weight=part,
            )

    def _right_hand_side(self, X, weights, base, sigma):
        mean = _nystrom.MeanElement(X, weights / weights.sum(), base, sigma)
        return -mean.gradient(self.Z).ravel()


_PATHS = {"lite": _LitePath, "finite": _FinitePath, "nystrom": _NystromPath}


def _as_template(estimator):
    """An unfitted surrogate to copy, from a name or a surrogate."""
    if isinstance(estimator, KernelExpLite | KernelExpFinite | KernelExpNystrom):
        unfitted = copy.copy(estimator)
        for name in [name for name in vars(unfitted) if name.endswith("_") or name.startswith("_")]:
            delattr(unfitted, name)
        return unfitted
    made = {
        "lite": lambda: KernelExpLite(None, None),
        "finite": lambda: KernelExpFinite(DEFAULT_FEATURES, None, None),
        "nystrom": lambda: KernelExpNystrom(None, None, DEFAULT_LANDMARKS, mean_element=None),
    }
    if not isinstance(estimator, str) or estimator not in made:
        raise ValueError(
            f"estimator={estimator!r} is unknown; pass 'lite', 'finite', 'nystrom' or a surrogate"
        )
    return made[estimator]()


def _kind(template):
    if isinstance(template, KernelExpLite):
        return "lite"
    return "finite" if isinstance(template, KernelExpFinite) else "nystrom"
