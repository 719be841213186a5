"""How far draws are from a posterior: the measures that papers of this field report.

Both arguments are draws, (n, d) and (m, d), the second many of the true posterior. A few thousand
draws are at some distance from their own posterior: compare with that of as many true draws.

References
----------
Acerbi, L. (2020). Variational Bayesian Monte Carlo with noisy likelihoods. *Advances in Neural
    Information Processing Systems* 33.
Li, C., Huggins, B., Mikkola, P. and Acerbi, L. (2025). Normalizing flow regression for Bayesian
    inference with offline likelihood evaluations. arXiv:2504.11554, appendix A.2.
Lopez-Paz, D. and Oquab, M. (2017). Revisiting classifier two-sample tests. *ICLR*.
"""

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.spatial import cKDTree

#: Cells of the grid that densities are compared on, some 500 a standard deviation of a Gaussian.
N_CELLS = 4096
#: Silverman's factor of the bandwidth, in standard deviations times n^(-1/5).
SILVERMAN = 0.9
#: Folds of the cross-validation, as in sbibm, and neighbours that vote; an odd number has no ties.
FOLDS, NEIGHBOURS = 5, 31


def mmtv(draws, reference):
    """Mean over coordinates of the total variation between marginals, 0 to 1.

    Marginals are kernel estimates, both with the bandwidth of `draws`.
    """
    pairs = zip(draws.T, reference.T, strict=True)
    return float(np.mean([_total_variation(x, y) for x, y in pairs]))


def _total_variation(x, y):
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    spread = min(x.std(), np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349) or x.std()
    margin = 5.0 * SILVERMAN * spread * len(x) ** -0.2
    edges = np.linspace(low - margin, high + margin, N_CELLS + 1)
    shares = [np.histogram(values, edges)[0] / len(values) for values in (x, y)]
    difference = gaussian_filter1d(shares[0] - shares[1], margin / 5.0 / (edges[1] - edges[0]))
    return 0.5 * np.abs(difference).sum()


def gskl(draws, reference):
    """Symmetrised Kullback-Leibler divergence of Gaussians with their moments, by dimension.

    Half the sum of both directions over d (Li et al., 2025); Acerbi (2020) doesn't divide by d.
    """
    shift = draws.mean(axis=0) - reference.mean(axis=0)
    S, T = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (draws, reference))
    d = len(shift)
    traces = np.trace(np.linalg.solve(S, T)) + np.trace(np.linalg.solve(T, S)) - 2 * d
    distances = shift @ (np.linalg.solve(S, shift) + np.linalg.solve(T, shift))
    return float((traces + distances) / (4 * d))


def c2st(draws, reference, rng):
    """Accuracy of a classifier that tells draws from as many others, .5 where it can't.

    The larger of two, cross-validated: a vote of nearest neighbours, and Gaussians with the moments
    of each. sbibm has a neural network. Repeated draws, which would tell a chain, count once.
    """
    draws = np.unique(draws, axis=0)
    n = min(len(draws), len(reference))
    X = np.concatenate([rng.permutation(draws)[:n], rng.permutation(reference)[:n]])
    X = (X - X[n:].mean(axis=0)) / X[n:].std(axis=0)
    label = np.repeat([True, False], n)
    fold = rng.permutation(2 * n) % FOLDS
    right = np.zeros((2, 2 * n), dtype=bool)
    for k in range(FOLDS):
        test, train = fold == k, fold != k
        _, near = cKDTree(X[train]).query(X[test], min(NEIGHBOURS, train.sum()))
        right[0, test] = (label[train][near].mean(axis=1) > 0.5) == label[test]
        scores = [_log_gaussian(X[test], X[train & (label == one)]) for one in (True, False)]
        right[1, test] = (scores[0] > scores[1]) == label[test]
    return float(right.mean(axis=1).max())


def _log_gaussian(X, fitted):
    factor = np.linalg.cholesky(np.atleast_2d(np.cov(fitted, rowvar=False)))
    z = np.linalg.solve(factor, (X - fitted.mean(axis=0)).T)
    return -0.5 * np.sum(z**2, axis=0) - np.log(np.diag(factor)).sum()
