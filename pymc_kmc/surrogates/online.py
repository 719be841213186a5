r"""A fitted ridge regression that takes in points and features one at a time.

With the features F and the values y of all points so far, weighted and centred at the weighted
means of the first ones, coefficients solve :math:`(F^\top F + \Lambda) \theta = F^\top y`. A new
point is a rank-one update of the Cholesky factor, a new feature a row more of it (Golub and Van
Loan, 2013, section 6.5.4): :math:`O(p^2)` and :math:`O(n p)` in place of :math:`O(n p^2)`.

References
----------
Golub, G. H. and Van Loan, C. F. (2013). *Matrix Computations*, 4th edition. Johns Hopkins.
"""

import numpy as np

from pymc_kmc.numerics.linear_algebra import cholesky_factor, cholesky_update, triangular_solve

__all__ = ["OnlineRegression"]


class OnlineRegression:
    """See the module's docstring.

    Parameters
    ----------
    features : ndarray (n, p)
    values : ndarray (n,)
    weights : ndarray (n,)
    ridges : ndarray (p,)
        The diagonal of Lambda, in units of the mean weight.
    coefficients : ndarray (p,)
        The solution to begin with. It may owe something to other data: what is added changes it as
        if it were that of a regression.

    Attributes
    ----------
    mean : ndarray (p,)
        Weighted means of the features.
    level : float
        Weighted mean of the values.
    coefficients : ndarray (p,)
        The solution.
    """

    def __init__(self, features, values, weights, ridges, coefficients):
        self._mean_weight = weights.mean()
        self._roots = np.sqrt(weights / self._mean_weight)
        shares = weights / weights.sum()
        self.mean, self.level = shares @ features, float(shares @ values)
        self._features = (features - self.mean) * self._roots[:, None]
        self._values = (values - self.level) * self._roots
        gram = self._features.T @ self._features
        gram[np.diag_indices_from(gram)] += ridges
        factor = cholesky_factor(gram)
        if factor is None:
            factor = np.diag(np.sqrt(np.diag(gram)))
        self._factor = np.ascontiguousarray(factor.T)  # upper triangular
        self._right = self._factor.T @ (self._factor @ coefficients)
        self.coefficients = coefficients

    @property
    def constant(self):
        """What predictions exceed features times coefficients by."""
        return self.level - float(self.mean @ self.coefficients)

    def _half_solve(self, rhs):
        """L^-1 rhs, L L' the matrix of the normal equations."""
        return triangular_solve(self._factor.T, rhs)

    def _solve(self):
        half = self._half_solve(self._right)
        self.coefficients = triangular_solve(self._factor.T, half, transposed=True)

    def predict(self, features):
        """Return predicted values (n,) for features (n, p)."""
        return self.level + (features - self.mean) @ self.coefficients

    def variances(self, features):
        """Return the posterior variances (n,) of features (n, p) times coefficients.

        In units of the residual variance; differences from the weighted mean.
        """
        half = self._half_solve((features - self.mean).T)
        return np.einsum("kn,kn->n", half, half)

    def add_point(self, features, value, weight):
        """Add one point: its features (p,), value and weight."""
        root = np.sqrt(weight / self._mean_weight)
        row = (features - self.mean) * root
        target = (value - self.level) * root
        cholesky_update(self._factor, row[None, :].copy())
        self._right = self._right + target * row
        self._features = np.vstack([self._features, row])
        self._values = np.append(self._values, target)
        self._roots = np.append(self._roots, root)
        self._solve()

    def add_feature(self, values, ridge, combination=None):
        """Add one feature: its values (n,) at all points so far, and its ridge.

        Parameters
        ----------
        values : ndarray (n,)
        ridge : float
        combination : ndarray (p,), optional
            Subtracts a linear combination of the other features.
        """
        shares = self._roots**2
        mean = shares @ values / shares.sum()
        column = (values - mean) * self._roots
        if combination is not None:
            column -= self._features @ combination
            mean -= self.mean @ combination
        row = self._half_solve(self._features.T @ column)
        p = len(row)
        factor = np.zeros((p + 1, p + 1))
        factor[:p, :p], factor[:p, p] = self._factor, row
        square = column @ column
        factor[p, p] = np.sqrt(max(square + ridge - row @ row, ridge + 1e-12 * square))
        self._factor = factor
        self._right = np.append(self._right, column @ self._values)
        self._features = np.hstack([self._features, column[:, None]])
        self.mean = np.append(self.mean, mean)
        self._solve()
