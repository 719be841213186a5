r"""Maximum mean discrepancy of draws from other draws, or from known moments.

For a kernel k the squared discrepancy of distributions P and Q is

.. math:: \mathrm{MMD}^2 = E\,k(x, x') - 2\,E\,k(x, y) + E\,k(y, y'),

with independent draws x, x' of P and y, y' of Q (Gretton et al., 2012, Lemma 6). With the kernel
:math:`k(x, y) = (1 + x^\top y)^p` it is a weighted sum of the squared differences of all mixed
moments up to order p; the KMC and KAMH papers have p = 3. The quadratic-time estimate uses all
pairs of draws, the linear-time one n / 2 of them (Gretton et al., 2012, Lemmas 6 and 14), the block
estimate the pairs within blocks (Zaremba et al., 2013). All three are unbiased for independent
draws, and may therefore be negative.

References
----------
Gretton, A., Borgwardt, K. M., Rasch, M. J., Schölkopf, B. and Smola, A. (2012). A kernel two-sample
test. *Journal of Machine Learning Research* 13, 723-773.

Zaremba, W., Gretton, A. and Blaschko, M. (2013). B-tests: low variance kernel two-sample tests.
*NeurIPS* 26.

Examples
--------
>>> import numpy as np, pymc_kmc as kmc
>>> rng = np.random.default_rng(0)
>>> x, y = rng.normal(0.5, 1.0, size=(1000, 2)), rng.normal(size=(1000, 2))
>>> found = kmc.mmd(x, y)
>>> bool(found.estimate > 5 * found.standard_error)
True
>>> kmc.mmd(x, y, at=[100, 1000]).estimate.shape
(2,)
"""

from math import comb
from typing import NamedTuple

import numpy as np

from pymc_kmc.numerics.checks import CHUNK_ENTRIES, check_choice, check_count, check_points

# Largest order of the moments that are compared by default (the papers').
DEGREE = 3


class MMD(NamedTuple):
    """A squared maximum mean discrepancy.

    Attributes
    ----------
    estimate : float or ndarray, shape (k,)
        Estimate of the squared discrepancy; an array where `at` was given.
    standard_error : float or ndarray, shape (k,)
        Standard deviation of the estimate, for independent draws; NaN where draws are too few.
    """

    estimate: float | np.ndarray
    standard_error: float | np.ndarray


def mmd(x, y, *, estimate="quadratic", degree=DEGREE, kernel=None, block_size=None, at=None):
    r"""Estimate the squared maximum mean discrepancy of two sets of draws.

    Moments are in the units of the draws: divide coordinates of different scales by the reference's
    standard deviations first.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Draws, in the order in which they were made.
    y : array_like, shape (m, d), or sequence of array_like
        Reference draws, or the reference's exact moments :math:`E\,y`, :math:`E\,y y^\top`,
        :math:`E\,y \otimes y \otimes y`, ..., of shapes (d,), (d, d), (d, d, d), ..., one for each
        order up to `degree`.
    estimate : {"quadratic", "linear", "block"}
        "quadratic" uses all pairs of draws, in time n^2, and is the most precise. "linear" uses
        pairs of neighbours, in time n, "block" pairs within blocks; both use the first min(n, m)
        draws of x and y.
    degree : int
        Degree of the kernel :math:`(1 + x^\top y)^{degree}`: moments up to this order are compared.
    kernel : callable, optional
        Another kernel: ``kernel(X, Y)`` returns its values (n, m) for rows of X (n, d), Y (m, d).
    block_size : int, optional
        Number of draws in a block; by default the square root of the number of draws.
    at : sequence of int, optional
        Numbers of first draws of `x`, each with an estimate: the discrepancy over iterations.

    Returns
    -------
    MMD
        The standard error is for independent draws: thin a chain's draws to their effective sample
        size first.

    Raises
    ------
    ValueError
        If an argument is out of its range, or shapes don't agree.
    """
    check_choice(estimate, "estimate", ("quadratic", "linear", "block"))
    if block_size is not None and estimate != "block":
        raise ValueError(
            f"block_size={block_size!r} has no meaning with estimate={estimate!r}; pass "
            "estimate='block'"
        )
    if kernel is None:
        degree = check_count(degree, "degree")
    elif not callable(kernel):
        raise ValueError(f"kernel={kernel!r} must be callable; pass a function of X and Y")
    x = check_points(x, "x")
    moments = _as_moments(y, x.shape[1], degree)
    if moments is None:
        y = check_points(y, "y")
        if y.shape[1] != x.shape[1]:
            raise ValueError(
                f"y has {y.shape[1]} columns and x {x.shape[1]}; pass draws of the same variables"
            )
    elif estimate != "quadratic" or kernel is not None:
        raise ValueError(
            "y is a sequence of moments, which estimate='quadratic' with the polynomial kernel "
            "alone can use; pass reference draws"
        )
    ends = _ends(at, len(x) if estimate == "quadratic" else min(len(x), len(y)))
    function = kernel or (lambda X, Y: (1.0 + X @ Y.T) ** degree)
    if moments is not None:
        found = _against_moments(x, moments, ends, function)
    elif estimate == "quadratic":
        found = _of_all_pairs(x, y, ends, function)
    else:
        size = block_size if block_size is None else check_count(block_size, "block_size")
        size = 2 if estimate == "linear" else size
        found = [_of_blocks(x[:n], y[:n], size or int(np.sqrt(n)), function) for n in ends]
    estimates, errors = np.array(found).T
    if at is None:
        return MMD(float(estimates[0]), float(errors[0]))
    return MMD(estimates, errors)


def _as_moments(y, d, degree):
    """Return y as a list of moments (ValueError for wrong ones), or None if it has draws."""
    if not isinstance(y, list | tuple) or np.ndim(y[0] if len(y) else 0.0) != 1:
        return None
    shapes = [np.shape(moment) for moment in y]
    if len(set(shapes)) == 1 and len(y) > 1:
        return None  # draws as a list of rows
    expected = [(d,) * order for order in range(1, degree + 1)]
    if shapes != expected:
        raise ValueError(
            f"y has moments of shapes {shapes}; pass one for each order up to degree={degree}, "
            f"{expected}"
        )
    moments = [np.asarray(moment, dtype=np.float64) for moment in y]
    for order, moment in enumerate(moments, 1):
        if not np.isfinite(moment).all():
            raise ValueError(f"the moments of order {order} in y aren't all finite; mend them")
    return moments


def _ends(at, n):
    """Return the list of numbers of draws after which to estimate, or raise a ValueError."""
    ends = [n] if at is None else [check_count(end, "at") for end in at]
    if not ends or min(ends) < 2 or max(ends) > n:
        raise ValueError(f"at={at!r} must be numbers of draws from 2 to {n}; x and y have {n}")
    return ends


# Quadratic time. The estimate is a two-sample U-statistic. Its Hoeffding decomposition into sums
# over draws and over pairs, which are uncorrelated, gives the variance exactly:
#     4 var a / n + 4 var b / m + 2 s_xx / (n (n - 1)) + 2 s_yy / (m (m - 1)) + 4 s_xy / (n m)
# with a(x) = E k(x, x') - E k(x, y), b(y) likewise, and s the mean squares of the centred kernel.


class _Pairs:
    """Sums over the kernel's matrix of the first `n` draws, which grows by rows and columns.

    `rows` (n_all,) has each draw's sum over the others, `squares` the sum of the squared kernel
    over all ordered pairs.
    """

    def __init__(self, X, kernel):
        self.X, self.kernel = X, kernel
        self.n, self.rows, self.squares = 0, np.zeros(len(X)), 0.0

    def grow(self, n):
        for first, last in _chunks(self.n, n, n):
            K = self.kernel(self.X[:last], self.X[first:last])
            diagonal = np.arange(last - first)
            K[first + diagonal, diagonal] = 0.0
            self.rows[:first] += K[:first].sum(axis=1)
            self.rows[first:last] += K.sum(axis=0)
            self.squares += 2.0 * np.sum(K[:first] ** 2) + np.sum(K[first:] ** 2)
        self.n = n

    def means(self):
        """Return each draw's mean over the others (n,), and the centred kernel's mean square."""
        means = self.rows[: self.n] / (self.n - 1)
        square = self.squares / (self.n * (self.n - 1))
        return means, max(0.0, square - 2.0 * np.mean(means**2) + means.mean() ** 2)


def _chunks(first, last, width):
    """Yield ends of slices from `first` to `last` that hold few enough rows of `width` entries."""
    size = max(1, CHUNK_ENTRIES // width)
    for begin in range(first, last, size):
        yield begin, min(begin + size, last)


def _of_all_pairs(x, y, ends, kernel):
    """Return a list of (estimate, standard error) after each number of draws of x."""
    m = len(y)
    if m < 2:
        raise ValueError(f"y has {m} draw(s); pass at least 2")
    pairs_x, pairs_y = _Pairs(x, kernel), _Pairs(y, kernel)
    pairs_y.grow(m)
    means_yy, square_yy = pairs_y.means()
    rows, columns, square, n_before = np.zeros(len(x)), np.zeros(m), 0.0, 0
    found = {}
    for n in sorted(set(ends)):
        pairs_x.grow(n)
        for first, last in _chunks(n_before, n, m):
            K = kernel(x[first:last], y)
            rows[first:last] = K.mean(axis=1)
            columns += K.sum(axis=0)
            square += np.sum(K**2)
        n_before = n
        means_xx, square_xx = pairs_x.means()
        xy, yx = rows[:n], columns / n
        mean = xy.mean()
        square_xy = square / (n * m) - np.mean(xy**2) - np.mean(yx**2) + mean**2
        estimate = means_xx.mean() + means_yy.mean() - 2.0 * mean
        of_pairs = (
            2.0 * square_xx / (n * (n - 1))
            + 2.0 * square_yy / (m * (m - 1))
            + 4.0 * max(0.0, square_xy) / (n * m)
        )
        # The variances of a and b over draws have those of the pairs' sums in them, twice. What is
        # left can't be below the latter: near zero discrepancy the error is on the safe side.
        of_draws = 4.0 * np.var(means_xx - xy, ddof=1) / n + 4.0 * np.var(means_yy - yx, ddof=1) / m
        found[n] = estimate, np.sqrt(max(of_draws - of_pairs, of_pairs))
    return [found[n] for n in ends]


def _against_moments(x, moments, ends, kernel):
    """Return a list of (estimate, standard error) after each number of draws of x."""
    degree = len(moments)
    rows, square_y = np.ones(len(x)), 1.0
    for order, moment in enumerate(moments, 1):
        products = np.broadcast_to(moment, (len(x), *moment.shape))
        for _ in range(order):
            products = np.einsum("n...i,ni->n...", products, x)
        rows += comb(degree, order) * products
        square_y += comb(degree, order) * np.sum(moment**2)
    pairs, found = _Pairs(x, kernel), {}
    for n in sorted(set(ends)):
        pairs.grow(n)
        means, square = pairs.means()
        estimate = means.mean() - 2.0 * rows[:n].mean() + square_y
        of_pairs = 2.0 * square / (n * (n - 1))
        of_draws = 4.0 * np.var(means - rows[:n], ddof=1) / n
        found[n] = estimate, np.sqrt(max(of_draws - of_pairs, of_pairs))
    return [found[n] for n in ends]


def _of_blocks(x, y, size, kernel):
    """Return (estimate, standard error) from pairs within blocks of draws."""
    n_blocks = len(x) // size if size > 1 else 0
    if n_blocks < 1:
        raise ValueError(f"blocks of {size} draws don't fit {len(x)} draws; pass block_size >= 2")
    values = np.empty(n_blocks)
    for i in range(n_blocks):
        X, Y = x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]
        H = kernel(X, X) + kernel(Y, Y) - kernel(X, Y) - kernel(Y, X)
        values[i] = (H.sum() - np.trace(H)) / (size * (size - 1))
    error = values.std(ddof=1) / np.sqrt(n_blocks) if n_blocks > 1 else np.nan
    return values.mean(), error
