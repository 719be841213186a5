r"""Regressions of log-density values: on two groups of features, online, beside scores, and ridge.

*Bayesian regression* on two groups of features, weighted by marginal likelihood: values are
:math:`y_i = c + q_i^\top \beta + \varphi_i^\top \theta + \varepsilon_i` with weights :math:`w_i`, a
constant c that is profiled out, :math:`\beta \sim N(0, \tfrac{s^2}{\lambda} I)`,
:math:`\theta \sim N(0, \tfrac{s^2}{\kappa} I)` and :math:`\varepsilon_i \sim N(0, s^2 / w_i)`. For
given ridges :math:`\lambda, \kappa` the marginal likelihood, maximised over :math:`s^2`, is

.. math:: \log p(y) = -\tfrac n2 \log \hat s^2 - \tfrac12 \log\det(I + F^\top W F / \Lambda)
          + \text{const}, \qquad
          n \hat s^2 = y^\top W y - y^\top W F (F^\top W F + \Lambda)^{-1} F^\top W y

with F = (q, phi) centred (Rasmussen and Williams, 2006, sections 2.7 and 5.4, see
:class:`~pymc_kmc.surrogates.LogDensityGP`). Each :math:`\lambda` takes a Cholesky factorisation,
and each :math:`\kappa` with it one of the second group's Schur complement.

*Online*: the coefficients of a fitted regression solve :math:`(F^\top F + \Lambda) \theta =
F^\top y`, with the features F and the values y of all points, weighted and centred at the weighted
means of the first ones. A new point is a rank-one update of the Cholesky factor, and a new feature
is one more row of it (Golub and Van Loan, 2013, section 6.5.4). That costs :math:`O(p^2)` and
:math:`O(n p)` in place of :math:`O(n p^2)`.

*Score matching* on a chain's states: for :math:`f = \log q_0 + \theta^\top \varphi` the objective
over n states (Hyvärinen, 2005, see :mod:`pymc_kmc.surrogates.exponential_family`) is

.. math:: J(\theta) = \tfrac12 \theta^\top G \theta + v^\top \theta + \text{const}, \qquad
          G = \frac1n \sum_{b, a} \partial_a \varphi(x_b)\, \partial_a \varphi(x_b)^\top, \qquad
          v = \frac1n \sum_b \left[\Delta \varphi(x_b)
              + \nabla \varphi(x_b) \cdot \nabla \log q_0(x_b)\right].

Its sum with the penalised squared residuals of values of residual variance s^2,
:math:`\tfrac{1}{2 s^2} |y - F \theta|^2_W + \tfrac{1}{2 s^2} \theta^\top \Lambda \theta + \tau n
J(\theta)`, is minimised by one linear system,

.. math:: (F^\top W F + \Lambda + \tau n s^2 G)\, \theta = F^\top W y - \tau n s^2 v .

The weight :math:`\tau` is the worth of a state in independent states. The squared error of held-out
values, in blocks of consecutive ones, chooses it.

*Ridge regression*, the ridge chosen by generalised cross-validation (Golub, Heath and Wahba, 1979,
equation 1.4): one eigen-decomposition gives its whole path.

References
----------
Golub, G. H., Heath, M. and Wahba, G. (1979). Generalized cross-validation as a method for
choosing a good ridge parameter. *Technometrics* 21, 215-223.

Golub, G. H. and Van Loan, C. F. (2013). *Matrix Computations*, 4th edition. Johns Hopkins.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from pymc_kmc.numerics.linear_algebra import (
    LAST_DIGITS,
    ROUNDING,
    cholesky_factor,
    cholesky_update,
    triangular_solve,
)

#: Level of the values' quantile that depth is measured from.
BULK = 0.9

#: Ridges of the second group tried: from rounding error to a fit that is switched off.
MORE_RIDGES = 10.0 ** np.arange(-12.0, 4.0)

#: Smallest ridge, in units of a bound of the largest eigenvalue: less would fit rounding errors.
SMALLEST_RIDGE = 1e-15


class Depth(NamedTuple):
    """Depths of values below `bulk`, in units of the depth `scale` at which a value counts half."""

    bulk: float
    scale: float

    def __call__(self, values):
        return np.maximum(self.bulk - values, 0.0) / self.scale

    def weight(self, values):
        return 1.0 / (1.0 + self(values) ** 2)


class RegressionFit(NamedTuple):
    """A fitted regression on two groups of features."""

    log_evidence: float  # up to a constant; -inf for a fit that failed
    ridge: float  # of the first group
    more_ridge: float  # of the second group
    variance: float  # residual, at weight one
    coefficients: np.ndarray  # (k + m,), of both groups


class BayesianRegression:
    """Regression on a first group of features (n, k), to which second groups may be added.

    Weights (n,) are positive; their scale doesn't matter. `ridges` are the first group's to try.
    """

    def __init__(self, features, values, weights, ridges):
        self.n = len(values)
        self._weights = weights / weights.mean()
        self._root = np.sqrt(self._weights)
        self._values = self._centred(values[:, None])[:, 0]
        self._square = float(self._values @ self._values)
        self._features = self._centred(features)
        gram = self._features.T @ self._features
        projected = self._features.T @ self._values
        self._factors = []
        for ridge in ridges:
            factor, determinant = _shifted_factor(gram, ridge)
            if factor is not None:
                solution = triangular_solve(factor, projected)
                self._factors.append((ridge, factor, solution, determinant))

    def _centred(self, features):
        mean = self._weights @ features / self._weights.sum()
        return (features - mean) * self._root[:, None]

    def _variance(self, squared_residuals):
        floor = LAST_DIGITS * self._square + np.finfo(float).tiny
        return np.maximum(squared_residuals, floor) / self.n

    def fit(self, features, more_ridges=MORE_RIDGES, ridges=None):
        """Return the :class:`RegressionFit` of largest evidence with a second group (n, m).

        `more_ridges` are the second group's to try, in ascending order, `ridges` some of the first
        group's, None for all. With m = 0 the first group is fitted alone.
        """
        features = self._centred(features)
        m, k = features.shape[1], self._features.shape[1]
        cross, gram = self._features.T @ features, features.T @ features
        projected = features.T @ self._values
        best = RegressionFit(-np.inf, 1.0, np.inf, self._variance(self._square), np.zeros(k + m))
        for ridge, factor, solution, determinant in self._factors:
            if ridges is not None and ridge not in ridges:
                continue
            explained = triangular_solve(factor, cross)
            rest = projected - explained.T @ solution
            schur = gram - explained.T @ explained
            if not (np.isfinite(schur).all() and np.isfinite(rest).all()):
                continue
            smallest, last = SMALLEST_RIDGE * np.linalg.norm(schur), -np.inf
            for more_ridge in more_ridges if m else (np.inf,):
                if more_ridge < smallest:
                    continue
                more, more_determinant = _shifted_factor(schur, more_ridge)
                if more is None:
                    continue
                theta = lapack.dpotrs(more, rest, lower=1)[0] if m else rest
                variance = self._variance(self._square - solution @ solution - rest @ theta)
                evidence = -0.5 * (self.n * np.log(variance) + determinant + more_determinant)
                if evidence < last:  # it has one maximum, as a rule
                    break
                last = evidence
                if evidence > best.log_evidence:
                    beta = triangular_solve(factor, solution - explained @ theta, transposed=True)
                    coefficients = np.append(beta, theta)
                    best = RegressionFit(evidence, ridge, more_ridge, variance, coefficients)
        return best


def _shifted_factor(gram, ridge):
    """Return the Cholesky factor of ``gram + ridge * I``, or None, and log |I + gram / ridge|."""
    if not len(gram):
        return gram, 0.0
    shifted = np.array(gram, order="F")
    shifted.T.flat[:: len(gram) + 1] += ridge
    factor, info = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
    if info != 0 or not np.isfinite(factor[-1, -1]):
        return None, np.inf
    return factor, 2.0 * np.log(np.diag(factor)).sum() - len(gram) * np.log(ridge)


class NewFeature(NamedTuple):
    """A feature: its values (n,), ridge, and the combination (p,) of the others to subtract."""

    values: np.ndarray  # at all points so far
    ridge: float
    combination: np.ndarray


class OnlineRegression(NamedTuple):
    """A fitted regression. Its arrays are never written to: an addition makes a new one."""

    mean: np.ndarray  # (p,): weighted mean of the first points' features
    level: float  # weighted mean of their values
    mean_weight: float  # of the first points; the unit of ridges
    roots: np.ndarray  # (n,): of the weights, in this unit
    features: np.ndarray  # (n, p), centred, times the roots
    values: np.ndarray  # (n,), centred, times the roots
    factor: np.ndarray  # U, upper triangular: U'U is the matrix of the normal equations
    right: np.ndarray  # their right-hand side
    coefficients: np.ndarray  # their solution

    @classmethod
    def of(cls, features, values, weights, ridges, coefficients):
        """Return a regression that begins with given coefficients (p,).

        `features` (n, p), `values` and `weights` (n,) are those of the first points. `ridges` (p,)
        is the diagonal of Lambda, in units of the mean weight. If the coefficients depend on other
        data too, further points change them as they would change a regression's.
        """
        mean_weight = weights.mean()
        roots = np.sqrt(weights / mean_weight)
        shares = weights / weights.sum()
        mean, level = shares @ features, float(shares @ values)
        features = (features - mean) * roots[:, None]
        gram = features.T @ features
        gram[np.diag_indices_from(gram)] += ridges
        lower = cholesky_factor(gram)
        if lower is None:
            lower = np.diag(np.sqrt(np.diag(gram)))
        factor = np.ascontiguousarray(lower.T)
        return cls(
            mean=mean,
            level=level,
            mean_weight=mean_weight,
            roots=roots,
            features=features,
            values=(values - level) * roots,
            factor=factor,
            right=factor.T @ (factor @ coefficients),
            coefficients=coefficients,
        )

    @property
    def constant(self):
        """Predictions less features times coefficients, a float."""
        return self.level - float(self.mean @ self.coefficients)

    def with_point(self, features, value, weight, new_feature=None):
        """Return the regression with one more point; a new feature is the last of features (p,)."""
        n, p = self.features.shape
        mean, right = self.mean, self.right
        if new_feature is None:
            factor = self.factor.copy()
        else:
            column, column_mean, factor = self._with_feature(new_feature)
            mean, right = np.append(mean, column_mean), np.append(right, column @ self.values)
        root = np.sqrt(weight / self.mean_weight)
        row = (features - mean) * root
        target = (value - self.level) * root
        cholesky_update(factor, row[None, :].copy())
        right = right + target * row
        grown = np.empty((n + 1, len(row)))
        grown[:n, :p], grown[n] = self.features, row
        if new_feature is not None:
            grown[:n, p] = column
        half = triangular_solve(factor.T, right)
        return self._replace(
            mean=mean,
            roots=np.append(self.roots, root),
            features=grown,
            values=np.append(self.values, target),
            factor=factor,
            right=right,
            coefficients=triangular_solve(factor.T, half, transposed=True),
        )

    def _with_feature(self, new):
        """Return a new feature's centred, weighted values (n,), its mean and the larger factor."""
        shares = self.roots**2
        mean = shares @ new.values / shares.sum()
        column = (new.values - mean) * self.roots
        column -= self.features @ new.combination
        mean -= self.mean @ new.combination
        row = triangular_solve(self.factor.T, self.features.T @ column)
        p = len(row)
        square = column @ column
        factor = np.pad(self.factor, (0, 1))
        factor[:p, p] = row
        rest = square + new.ridge - row @ row  # rounding error if others span the feature
        factor[p, p] = np.sqrt(max(rest, new.ridge + ROUNDING * square))
        return column, mean, factor


#: Blocks of values that are held out in turn to choose the weight of score matching.
N_FOLDS = 5


def score_system(gradients, laplacians, base_gradient):
    """Return G (k, k) and v (k,) of the objective theta' G theta / 2 + v' theta.

    `gradients` yields derivatives (n, k) of the features at the states, one coordinate after
    another. `laplacians` has shape (n, k), and `base_gradient` (n, d) is that of log q0.
    """
    n, k = laplacians.shape
    G, v = np.zeros((k, k)), laplacians.mean(axis=0)
    for a, gradient in enumerate(gradients):
        G += gradient.T @ gradient / n
        v = v + base_gradient[:, a] @ gradient / n
    return G, v


def solve_with_scores(features, values, weights, ridges, system, scales):
    """Return coefficients (k,), or None, and the scale of score matching that predicts values best.

    `features` have shape (n, k). `values` (n,) are in the order of evaluation, with `weights` (n,)
    of mean one. `ridges` (k,) is the diagonal of Lambda, and `system` is G and v. `scales` are
    values of tau n s^2 to try.
    """
    (G, v), (n, k) = system, features.shape
    augmented = np.column_stack([features, values, np.ones(n)])

    def moments(rows):
        return (augmented[rows].T * weights[rows]) @ augmented[rows]

    def solution(M, scale):
        # The constant is profiled out.
        sums, weight = M[:-1, -1], M[-1, -1]
        M = M[:-1, :-1] - np.outer(sums, sums) / weight
        factor = cholesky_factor(M[:k, :k] + np.diag(ridges) + scale * G)
        if factor is None:
            return None, 0.0
        theta = scipy.linalg.cho_solve((factor, True), M[:k, k] - scale * v, check_finite=False)
        return theta, (sums[k] - sums[:k] @ theta) / weight

    whole, scales = moments(slice(None)), list(scales)
    errors = np.zeros(len(scales))
    for rows in np.array_split(np.arange(n), min(N_FOLDS, n)) if len(scales) > 1 else ():
        rest = whole - moments(rows)
        for i, scale in enumerate(scales):
            theta, constant = solution(rest, scale)
            if theta is None:
                errors[i] = np.inf
                continue
            residuals = values[rows] - features[rows] @ theta - constant
            errors[i] += weights[rows] @ residuals**2
    best = int(np.argmin(errors))
    return solution(whole, scales[best])[0], scales[best]


#: Ridges tried, relative to the largest eigenvalue of the weighted Gram matrix: from rounding
#: error to a fit that is switched off.
RELATIVE_RIDGES = 10.0 ** np.arange(-14.0, 3.0)


class RidgeFit(NamedTuple):
    """A ridge regression; `score` is cross-validation's estimate of its mean squared error."""

    coefficients: np.ndarray
    score: float
    ridge: float


def ridge_regression(features, values, weights, relative_ridges=RELATIVE_RIDGES):
    """Fit a weighted ridge regression, the ridge chosen by generalised cross-validation.

    `features` have shape (n, k), `values` and `weights` (n,). Weights are positive; their scale
    doesn't matter. Ridges are relative to the largest eigenvalue of the weighted Gram matrix.
    """
    root = np.sqrt(weights / weights.mean())
    F = (features - np.average(features, axis=0, weights=weights)) * root[:, None]
    y = (values - np.average(values, weights=weights)) * root
    n, k = F.shape
    gram = F.T @ F if k <= n else F @ F.T
    eigenvalues, vectors = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    largest = eigenvalues[-1]
    if not largest > 0:
        return RidgeFit(np.zeros(k), float(y @ y / n), np.inf)
    kept = eigenvalues > np.finfo(float).eps * len(gram) * largest
    eigenvalues, vectors = eigenvalues[kept], vectors[:, kept]
    projected = vectors.T @ (F.T @ y if k <= n else y)
    squares = projected**2 / eigenvalues if k <= n else projected**2
    ridges = relative_ridges[:, None] * largest
    shrinkage = eigenvalues / (eigenvalues + ridges)
    unexplained = max(float(y @ y - squares.sum()), 0.0)
    residual = unexplained + ((1.0 - shrinkage) ** 2 * squares).sum(axis=1)
    # Below the rounding error of y'y residuals are not to be told from one another.
    residual = np.maximum(residual, n * np.finfo(float).eps * float(y @ y))
    freedom = 1.0 - (1.0 + shrinkage.sum(axis=1)) / n
    # Towards interpolation both vanish; their ratio keeps its limit.
    scores = residual / n / np.maximum(freedom, np.finfo(float).eps) ** 2
    best = int(np.argmin(scores))
    solution = vectors @ (projected / (eigenvalues + ridges[best]))
    return RidgeFit(
        solution if k <= n else F.T @ solution, float(scores[best]), float(ridges[best, 0])
    )
