"""Linear systems of cross-validated score matching: every regularisation from one decomposition.

A path has, for one family of surrogates, the linear system of each fold's fit and the quadratic
form of its held-out loss.
"""

import dataclasses
import math

import numpy as np
import scipy.linalg

from pymc_kmc.numerics.checks import check_choice, check_count
from pymc_kmc.surrogates import features as _features
from pymc_kmc.surrogates.base_density import fit_base
from pymc_kmc.surrogates.finite_sums import ScoreMatchingSums
from pymc_kmc.surrogates.kernels import squared_distances
from pymc_kmc.surrogates.lite import penalty_matrix
from pymc_kmc.surrogates.scores import score_matching_loss

#: Share of a loss that its rounding error may be, by a generous bound, for the loss to be used.
ROUNDING_SHARE = 1e-2

#: Penalty of a direction, relative to the largest, below which it adds nothing but rounding error.
NEGLIGIBLE_DIRECTION = 1e-8


def contiguous_folds(weights, n_folds):
    """Return a list of slices of about equal weight that cover the states in order."""
    middle = np.cumsum(weights) - 0.5 * weights
    inside = middle * (n_folds / weights.sum())
    bounds = np.searchsorted(inside, np.arange(n_folds + 1))
    if (np.diff(bounds) == 0).any():  # a single state outweighs a fold
        bounds = np.linspace(0, len(weights), n_folds + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


@dataclasses.dataclass(frozen=True)
class System:
    """One fold: coefficients c = (A + lambda P)^-1 b, held-out loss c'T c / 2 - t'c + constant."""

    A: np.ndarray
    P: np.ndarray
    b: np.ndarray
    T: np.ndarray
    t: np.ndarray
    constant: float
    weight: float


def regularisation_path(system, regularisations):
    """Return held-out losses for all regularisations, from one eigen-decomposition.

    They are infinite where rounding would drown them: coefficients that nearly cancel are no model.
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
    laplacians = np.full(len(X), base.laplacian)
    return score_matching_loss(base.gradient(X), laplacians, weights)


def _rest(n, fold):
    kept = np.ones(n, dtype=bool)
    kept[fold] = False
    return kept


class LitePath:
    """Systems of :class:`KernelExpLite`, whose basis is the training points."""

    def __init__(self, template, X, weights, folds, max_features, rng):
        self.template, self.X, self.weights, self.folds = template, X, weights, folds
        self.D = squared_distances(X, X)

    def systems(self, sigma):
        """Yield the system of each fold for a bandwidth."""
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
            yield System(
                A=(everything - held_out)[np.ix_(rest, rest)],
                P=penalty_matrix(self.template.penalty, K[np.ix_(rest, rest)]),
                b=weights[rest] @ terms[np.ix_(rest, rest)],
                T=held_out[np.ix_(rest, rest)] / total,
                t=weights[fold] @ terms[fold][:, rest] / total,
                constant=_base_loss(base, X[fold], weights[fold]),
                weight=total,
            )


def _gram(K, KD, D, weights, rows):
    """Return C of Proposition 1, the sum over b restricted to ``rows``."""
    weighted = weights[rows, None] * K[rows]
    half = KD[rows].T @ weighted
    return 0.5 * (half + half.T - D * (K[rows].T @ weighted))


def _pointwise_terms(X, K, D, sigma, base):
    """Return terms (b, i) of b in Proposition 1, without weights."""
    slopes = base.gradient(X)
    along = np.einsum("nd,nd->n", X, slopes)[:, None] - slopes @ X.T
    return K * ((2.0 / sigma) * D - X.shape[1] - along)


class FinitePath:
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
            yield System(
                A=rest.second_moment() / rest.total_weight,
                P=identity,
                b=rest.right_hand_side(base) / rest.total_weight,
                T=part.second_moment() / part.total_weight,
                t=part.right_hand_side(base) / part.total_weight,
                constant=_base_loss(base, X[fold], weights[fold]),
                weight=part.total_weight,
            )
