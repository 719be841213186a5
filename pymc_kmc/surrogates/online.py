r"""A fitted ridge regression with additions of points and features, one at a time.

With the features F and the values y of all points, weighted and centred at the weighted means of
the first ones, the coefficients solve :math:`(F^\top F + \Lambda) \theta = F^\top y`. A new point
is a rank-one update of the Cholesky factor, and a new feature is one more row of it (Golub and Van
Loan, 2013, section 6.5.4). That costs :math:`O(p^2)` and :math:`O(n p)` in place of :math:`O(n
p^2)`.

References
----------
Golub, G. H. and Van Loan, C. F. (2013). *Matrix Computations*, 4th edition. Johns Hopkins.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.linear_algebra import cholesky_factor, cholesky_update, triangular_solve

#: Smallest square of the factor's new diagonal entry, relative to the new feature's: rounding
#: errors of a feature that others span.
SMALLEST_SQUARE = 1e-12


class NewFeature(NamedTuple):
    """A new feature for a regression, with its values (n,) at all points so far and its ridge.

    A linear combination of the other features, with coefficients `combination` (p,), is subtracted.
    """

    values: np.ndarray
    ridge: float
    combination: np.ndarray


class OnlineRegression(NamedTuple):
    """A fitted regression. Its arrays are never written to: an addition makes a new one.

    `mean` (p,) and `level` are the weighted means of the first points' features and values, and
    `mean_weight` their mean weight, the unit of the ridges. `roots` (n,) are those of the weights
    in this unit. `features` (n, p) and `values` (n,) are centred, times the roots. With the upper
    triangular `factor` U, U'U is the matrix of the normal equations; `right` is their right-hand
    side and `coefficients` their solution.
    """

    mean: np.ndarray
    level: float
    mean_weight: float
    roots: np.ndarray
    features: np.ndarray
    values: np.ndarray
    factor: np.ndarray
    right: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def of(cls, features, values, weights, ridges, coefficients):
        """Return a regression that begins with given coefficients (p,).

        `features` (n, p), `values` and `weights` (n,) are those of the first points. `ridges` (p,)
        is the diagonal of Lambda, in units of the mean weight. Where the coefficients depend on
        other data too, further points change them as they would change a regression's.
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

    def predict(self, features):
        return self.level + (features - self.mean) @ self.coefficients

    def variances(self, features):
        """Return variances (n,) of features (n, p) times coefficients, over the residual one."""
        half = self._half_solve((features - self.mean).T)
        return np.einsum("kn,kn->n", half, half)

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
        return OnlineRegression(
            mean=mean,
            level=self.level,
            mean_weight=self.mean_weight,
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
        row = self._half_solve(self.features.T @ column)
        p = len(row)
        square = column @ column
        factor = np.zeros((p + 1, p + 1))
        factor[:p, :p], factor[:p, p] = self.factor, row
        rest = square + new.ridge - row @ row
        factor[p, p] = np.sqrt(max(rest, new.ridge + SMALLEST_SQUARE * square))
        return column, mean, factor

    def _half_solve(self, rhs):
        return triangular_solve(self.factor.T, rhs)
