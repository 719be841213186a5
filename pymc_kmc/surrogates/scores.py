r"""Score matching on a chain's states, beside a regression of values on the same features.

For :math:`f = \log q_0 + \theta^\top \varphi` the score-matching objective over n states
(Hyvärinen, 2005, see :mod:`pymc_kmc.surrogates.base_density`) is quadratic in the coefficients,

.. math:: J(\theta) = \tfrac12 \theta^\top G \theta + v^\top \theta + \text{const}, \qquad
          G = \frac1n \sum_{b, a} \partial_a \varphi(x_b)\, \partial_a \varphi(x_b)^\top, \qquad
          v = \frac1n \sum_b \left[\Delta \varphi(x_b)
              + \nabla \varphi(x_b) \cdot \nabla \log q_0(x_b)\right],

and so is the penalised sum of squared residuals of values with residual variance s^2. Their sum,
:math:`\tfrac{1}{2 s^2} |y - F \theta|^2_W + \tfrac{1}{2 s^2} \theta^\top \Lambda \theta + \tau n
J(\theta)`, is minimised by one linear system,

.. math:: (F^\top W F + \Lambda + \tau n s^2 G)\, \theta = F^\top W y - \tau n s^2 v .

The weight :math:`\tau` is the worth of a state in independent states. The squared error of held-out
values, in blocks of consecutive ones, chooses it.
"""

import numpy as np
import scipy.linalg

from pymc_kmc.numerics.linear_algebra import cholesky_factor

#: Blocks of values that are held out in turn.
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
    """Solve the joint system with the scale of its score-matching part that predicts values best.

    `features` have shape (n, k). `values` (n,) are in the order of evaluation, with `weights` (n,)
    of mean one. `ridges` (k,) is the diagonal of Lambda, and `system` is G and v. `scales` are
    values of tau n s^2 to try. The result is the coefficients (k,), None if there is no solution,
    and the chosen scale.
    """
    G, v = system
    n = len(values)
    total = weights.sum()

    def moments(rows):
        w = weights[rows, None]
        F, y = features[rows], values[rows]
        wF = w * F
        return wF.T @ F, wF.T @ y, wF.sum(axis=0), weights[rows] @ y, weights[rows].sum()

    def solution(FF, Fy, F1, y1, weight, scale):
        # The constant is profiled out.
        gram = FF - np.outer(F1, F1) / weight + np.diag(ridges) + scale * G
        rhs = Fy - F1 * y1 / weight - scale * v
        factor = cholesky_factor(gram)
        if factor is None:
            return None, 0.0
        theta = scipy.linalg.cho_solve((factor, True), rhs, check_finite=False)
        return theta, (y1 - F1 @ theta) / weight

    whole = moments(slice(None))
    scales = list(scales)
    errors = np.zeros(len(scales))
    if len(scales) > 1:
        for rows in np.array_split(np.arange(n), min(N_FOLDS, n)):
            rest = [a - b for a, b in zip(whole, moments(rows), strict=True)]
            for i, scale in enumerate(scales):
                theta, constant = solution(*rest, scale)
                if theta is None:
                    errors[i] = np.inf
                    continue
                residuals = values[rows] - features[rows] @ theta - constant
                errors[i] += weights[rows] @ residuals**2 / total
    best = int(np.argmin(errors))
    return solution(*whole, scales[best])[0], scales[best]


def score_matching_loss(gradients, laplacians, weights):
    """Return the weighted mean of laplacian + |gradient|^2 / 2 over points, gradients (n, d)."""
    pointwise = laplacians + 0.5 * np.einsum("nd,nd->n", gradients, gradients)
    return float(weights @ pointwise / weights.sum())
