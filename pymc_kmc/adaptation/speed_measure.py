r"""The generalised speed measure: a proposal's scale and shape learned by following a gradient.

A proposal :math:`q_L` with a lower triangular factor L should be wide and accepted. The generalised
speed measure is :math:`\exp(\beta H(q_L))` times the acceptance probability, and

.. math:: F_L = E\left[\log\min\left(1, \frac{\pi(y) q_L(x | y)}{\pi(x) q_L(y | x)}\right)\right]
          + \beta \sum_i \log L_{ii}

bounds its logarithm from below (Titsias and Dellaportas, 2019, section 2). The weight beta is
driven to the wanted acceptance rate. The gradient in L of one proposal's log ratio is the lower
triangle of a sum of outer products :math:`\sum_k u_k v_k^\top`, computed by the steps
(:mod:`pymc_kmc.steps.gad`); it counts where the log ratio is negative.

The paper's *additive* rule scales every element of the gradient by the root of its mean square
(RMSprop); its step size and the floor of the diagonal are in the parameters' units. The
*multiplicative* rule, :math:`L \leftarrow L + \gamma_t L M`, moves :math:`L L^\top` along

.. math:: L (S + S^\top) L^\top / 2 + \beta L L^\top,
          \quad S = \sum_k (L^\top u_k) v_k^\top,

the natural gradient (Amari, 1998), so that the chain's path does not depend on the linear
coordinates of the target.

References
----------
Titsias, M. K. and Dellaportas, P. (2019). Gradient-based adaptive Markov chain Monte Carlo.
*NeurIPS* 32.

Amari, S. (1998). Natural gradient works efficiently in learning. *Neural Computation* 10, 251-276.
"""

import numpy as np

from pymc_kmc.numerics.jit import njit


class SpeedMeasure:
    """A lower triangular `factor` L (d, d) that learns from proposals.

    `update` is the rule: "additive", with step size `rate`, or "multiplicative". `beta` is the
    weight of the entropy, driven to `target_acceptance`. `scale` is the geometric mean of L's
    diagonal.
    """

    # A proposal is one step of unit size.
    step_size, n_steps = 1.0, 1
    # The factor is not learned from windows of the chain.
    has_window = False

    # First L over the identity, times sqrt(d) (the authors' code).
    FIRST_SCALE = 0.1
    # Rate of beta <- beta (1 + rate (accepted - target)) (the authors' code).
    BETA_RATE = 0.02
    # Smallest beta of the additive rule (the authors' code).
    SMALLEST_BETA = 1e-4
    # gamma_0 of the multiplicative rule's gamma_t = GAIN / (1 + t / DELAY)^DECAY: with .1 and a
    # delay of 100 there were 10 to 20 % fewer effective draws.
    GAIN = 0.03
    # Iterations before gamma falls.
    DELAY = 300.0
    # Power of its fall: the sum of gamma diverges, that of its squares doesn't.
    DECAY = 0.7
    # Largest step, as a share of L. While steps are cut, beta may fall but not rise: shrinking L
    # far from the mode takes tens of proposals, in which beta would wind up.
    LARGEST_STEP = 0.1
    # Bounds of the multiplicative rule's beta.
    BETA_RANGE = (1e-3, 1e2)
    # Factor on L where a proposal had no finite log density.
    SHRINKAGE = 0.5

    def __init__(self, n_dimensions, target_acceptance, rate, update):
        self.target_acceptance = target_acceptance
        self.rate = rate
        self.update = update
        self.scale = self.FIRST_SCALE / np.sqrt(n_dimensions)
        self.factor = self.scale * np.eye(n_dimensions)
        self.beta = 1.0
        self.t = 0
        self.mean_square = np.zeros((n_dimensions, n_dimensions))

    def learn(self, U, V, acceptance_rate, accepted, weight=1.0):
        """Learn from a proposal, with the outer products' vectors U and V (k, d).

        They are None where they aren't finite. `weight` multiplies the step; it falls below 1 where
        adaptation dies out.
        """
        self.t += 1
        counts = acceptance_rate < 1.0
        if self.update == "additive":
            if U is not None:
                self.scale = additive_update(
                    self.factor,
                    self.mean_square,
                    U,
                    V,
                    counts,
                    self.beta,
                    weight * self.rate,
                    self.t == 1,
                )
            beta = self.beta * (1 + weight * self.BETA_RATE * (accepted - self.target_acceptance))
            self.beta = max(self.SMALLEST_BETA, beta)
            return
        if U is None:
            self.factor *= self.SHRINKAGE
            self.scale *= self.SHRINKAGE
            return
        gain = weight * self.GAIN / (1 + self.t / self.DELAY) ** self.DECAY
        self.scale, limited = multiplicative_update(
            self.factor, U, V, counts, self.beta, gain, self.LARGEST_STEP
        )
        error = acceptance_rate - self.target_acceptance
        if limited:
            error = min(error, 0.0)
        beta = self.beta * (1 + weight * self.BETA_RATE * error)
        self.beta = min(max(beta, self.BETA_RANGE[0]), self.BETA_RANGE[1])


# Smallest diagonal element of L under the additive rule (the authors' code).
SMALLEST_DIAGONAL = 1e-3
# RMSprop's memory (the authors' code).
SQUARE_MEMORY = 0.9


@njit
def additive_update(factor, mean_square, U, V, counts, beta, rate, first):
    """Step along the gradient in place, and return the geometric mean of the new diagonal of L.

    `factor` is L and `mean_square` the mean squares of the gradient's elements, both (d, d); if
    `first`, the latter is still empty. The outer products of U and V (k, d) enter if `counts`, that
    is if the log ratio was negative.
    """
    d = factor.shape[0]
    log_scale = 0.0
    for i in range(d):
        for j in range(i + 1):
            gradient = beta / factor[i, i] if i == j else 0.0
            if counts:
                for k in range(U.shape[0]):
                    gradient += U[k, i] * V[k, j]
            square = gradient * gradient
            if not first:
                square = SQUARE_MEMORY * mean_square[i, j] + (1.0 - SQUARE_MEMORY) * square
            mean_square[i, j] = square
            factor[i, j] += rate * gradient / (1.0 + np.sqrt(square))
        factor[i, i] = max(factor[i, i], SMALLEST_DIAGONAL)
        log_scale += np.log(factor[i, i])
    return np.exp(log_scale / d)


@njit
def multiplicative_update(factor, U, V, counts, beta, gain, largest_step):
    """Step along the natural gradient in place; return L's new scale and whether the step was cut.

    M is the lower triangular matrix whose symmetric part is that of S: only L L' matters, and to
    first order this M changes it like S. The other arguments are those of :func:`additive_update`;
    `gain` is gamma_t. A step's norm relative to L is at most `largest_step`.
    """
    d = factor.shape[0]
    size = beta
    if counts:
        U = U @ factor  # of L' u in the rows
        for k in range(U.shape[0]):
            size += np.sqrt(np.sum(U[k] ** 2) * np.sum(V[k] ** 2))
    limited = gain * size > largest_step
    if limited:
        gain = largest_step / size
    left, right = np.zeros(U.shape[0]), np.zeros(U.shape[0])
    log_scale = 0.0
    for i in range(d):
        left[:] = 0.0
        right[:] = 0.0
        for j in range(i, -1, -1):
            # (L M)_ij is a sum over j <= k <= i: partial sums from the diagonal to the left.
            element = factor[i, j]
            change = beta * element
            if counts:
                for k in range(U.shape[0]):
                    change += left[k] * V[k, j] + right[k] * U[k, j] + element * U[k, j] * V[k, j]
                    left[k] += element * U[k, j]
                    right[k] += element * V[k, j]
            factor[i, j] = element + gain * change
        log_scale += np.log(factor[i, i])
    return np.exp(log_scale / d), limited
