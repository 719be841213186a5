r"""The Gaussian kernel, and a vectorising exponential for it.

Everywhere :math:`k(x, y) = \exp(-|x - y|^2 / \sigma)` with :math:`\sigma` in squared units of the
points (Strathmann et al., 2015).

numba as installed from PyPI calls the C library's ``exp`` once per entry; :func:`exp_in_place` is
written so that the compiler turns it into vector instructions.
"""

import math

import numpy as np

from pymc_kmc.numerics.jit import njit


def squared_distances(X, Y):
    """Squared Euclidean distances (n, m) between the rows of X (n, d) and Y (m, d).

    Both are centred on Y first, so that points far from the origin lose no digits.
    """
    centre = Y.mean(axis=0)
    X, Y = X - centre, Y - centre
    D = np.einsum("nd,nd->n", X, X)[:, None] + np.einsum("md,md->m", Y, Y) - 2.0 * X @ Y.T
    return np.maximum(D, 0.0, out=D)


def gaussian_kernel(X, Y, sigma):
    """Kernel matrix (n, m) of the rows of X (n, d) and Y (m, d).

    >>> import numpy as np
    >>> gaussian_kernel(np.zeros((1, 2)), np.array([[1.0, 1.0]]), sigma=2.0).round(4)
    array([[0.3679]])
    """
    return np.exp(-squared_distances(X, Y) / sigma)


# Cody & Waite (1980): x = k log 2 + r with log 2 split in two, |r| <= log(2) / 2, then the Taylor
# polynomial of exp(r), whose remainder at degree 13 is 5e-18 of the value.
_LOG2_HIGH = 6.93147180369123816490e-01
_LOG2_LOW = 1.90821492927058770002e-10
_INVERSE_LOG2 = 1.4426950408889634074
#: Adding it rounds to an integer, which is then found in the low bits of the mantissa.
_ROUNDING = 6755399441055744.0
_ROUNDING_BITS = np.float64(_ROUNDING).view(np.int64).item()
#: Beyond these arguments the result is 0 or infinity; clamping keeps the integers in range.
_EXP_LOW, _EXP_HIGH = -760.0, 720.0
_EXP_COEFFICIENTS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
_C13, _C12, _C11, _C10, _C9, _C8, _C7, _C6, _C5, _C4, _C3, _C2, _C1, _C0 = _EXP_COEFFICIENTS


# No "reassoc" here: rounding by adding and subtracting a constant must not be simplified away.
@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def exp_in_place(values, scratch, n):
    """Replace ``values[:n]`` by their exponentials; ``scratch`` (float64) is at least as long.

    Relative error below 1e-15 where the result is a normal number; gradual underflow, overflow to
    infinity; NaN stays NaN.
    """
    bits = scratch.view(np.int64)
    for i in range(n):
        x = values[i]
        x = _EXP_LOW if x < _EXP_LOW else x
        x = _EXP_HIGH if x > _EXP_HIGH else x
        shifted = x * _INVERSE_LOG2 + _ROUNDING
        scratch[i] = shifted
        k = shifted - _ROUNDING
        r = (x - k * _LOG2_HIGH) - k * _LOG2_LOW
        p = _C13 * r + _C12
        p = p * r + _C11
        p = p * r + _C10
        p = p * r + _C9
        p = p * r + _C8
        p = p * r + _C7
        p = p * r + _C6
        p = p * r + _C5
        p = p * r + _C4
        p = p * r + _C3
        p = p * r + _C2
        p = p * r + _C1
        p = p * r + _C0
        values[i] = p
    # 2^k in two halves, each in the range of normal numbers: the product underflows gradually.
    for i in range(n):
        bits[i] = (((bits[i] - _ROUNDING_BITS) >> 1) + 1023) << 52 | (
            (bits[i] - _ROUNDING_BITS) & 1
        )
    for i in range(n):
        odd = bits[i] & 1
        bits[i] = bits[i] - odd
        half = scratch[i]
        values[i] = values[i] * half * (half * (1.0 + odd))
