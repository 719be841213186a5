r"""Random Fourier features (Rahimi and Recht, 2007), and vectorising sine and cosine for them.

.. math:: \phi_j(x) = \sqrt{2/m}\, \cos(\omega_j^\top x + u_j), \qquad u_j \sim U(0, 2\pi),

so that :math:`E\, \phi(x)^\top \phi(y) = k(x, y)` for

- ``"gaussian"``: :math:`k = \exp(-|x - y|^2/\sigma)`, :math:`\omega_j \sim N(0, 2/\sigma\, I)`;
- ``"rational_quadratic"``: :math:`k = (1 + |x - y|^2 / (a \sigma))^{-a}`, a mixture of Gaussian
  kernels over :math:`1/\sigma`: :math:`\omega_j \sim N(0, 2 g_j/\sigma\, I)` with :math:`g_j \sim
  \mathrm{Gamma}(a, 1/a)` of mean 1. As :math:`a \to \infty` it becomes the Gaussian kernel of the
  same :math:`\sigma`.
"""

import math

import numpy as np

from pymc_kmc.numerics.jit import njit

KERNELS = ("gaussian", "rational_quadratic")

#: a of the rational quadratic kernel: a = 1 is the Cauchy kernel, the mixture with the widest
#: spread of scales among those in common use.
RATIONAL_QUADRATIC_SHAPE = 1.0


def standard_basis(n_features, d, kernel, rng):
    """Draw a basis for sigma = 1; :func:`scale_basis` turns it into that of any sigma.

    Parameters
    ----------
    n_features, d : int
    kernel : {"gaussian", "rational_quadratic"}
    rng : numpy.random.Generator

    Returns
    -------
    omega : ndarray (d, n_features)
    phase : ndarray (n_features,)
    """
    omega = rng.normal(scale=math.sqrt(2.0), size=(d, n_features))
    phase = rng.uniform(0.0, 2.0 * math.pi, size=n_features)
    if kernel == "rational_quadratic":
        shape = RATIONAL_QUADRATIC_SHAPE
        omega *= np.sqrt(rng.gamma(shape, 1.0 / shape, size=n_features))
    return omega, phase


def scale_basis(omega, sigma):
    """Frequencies for bandwidth ``sigma`` from those of :func:`standard_basis`."""
    return omega / math.sqrt(sigma)


def random_basis(n_features, d, sigma, kernel="gaussian", rng=None):
    """Frequencies (d, n_features) and phases (n_features,) of random Fourier features.

    >>> import numpy as np
    >>> omega, phase = random_basis(4000, 2, sigma=2.0, rng=np.random.default_rng(0))
    >>> x, y = np.zeros(2), np.array([1.0, 1.0])
    >>> bool(abs(features(x, omega, phase) @ features(y, omega, phase) - np.exp(-1.0)) < 0.05)
    True
    """
    omega, phase = standard_basis(n_features, d, kernel, np.random.default_rng(rng))
    return scale_basis(omega, sigma), phase


def features(X, omega, phase):
    """Features of X (d,) or (n, d) for omega (d, m) and phase (m,): (m,) or (n, m)."""
    return math.sqrt(2.0 / len(phase)) * np.cos(X @ omega + phase)


# Cody & Waite reduction by pi, which is split in four; the first three parts have 28 bits each,
# so that their products with k are exact for |k| < 2^24 (the constants are those of SLEEF,
# Shibata & Petrogalli, 2020). What is left, |r| <= pi / 2, goes through the Taylor polynomial of
# the sine, whose remainder at degree 21 is below 2e-18.
_PI_A = 3.1415926218032836914
_PI_B = 3.1786509424591713469e-08
_PI_C = 1.2246467864107188502e-16
_PI_D = 1.2736634327021899816e-24
_INVERSE_PI = 0.31830988618379067154
_ROUNDING = 6755399441055744.0
#: Largest argument for the reduction; blocks with larger ones go through the C library.
LARGEST_ANGLE = 2.0**24
_S3, _S5, _S7, _S9, _S11, _S13, _S15, _S17, _S19, _S21 = (
    (-1.0) ** ((k - 1) // 2) / math.factorial(k) for k in range(3, 22, 2)
)


# No "reassoc" here: rounding by adding and subtracting a constant must not be simplified away.
@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def sin_in_place(values, n):
    """Replace ``values[:n]`` by their sines.

    Absolute error below 3e-16, relative error below 1e-15 also next to multiples of pi. NaN and
    infinities become NaN.
    """
    large = False
    for i in range(n):
        large |= not abs(values[i]) <= LARGEST_ANGLE
    if large:
        for i in range(n):
            values[i] = math.sin(values[i]) if math.isfinite(values[i]) else math.nan
        return
    for i in range(n):
        x = values[i]
        k = (x * _INVERSE_PI + _ROUNDING) - _ROUNDING
        values[i] = _signed_sine(_reduce(x, k), k)


@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def cos_in_place(values, n):
    """Replace ``values[:n]`` by their cosines; accuracy as for :func:`sin_in_place`."""
    large = False
    for i in range(n):
        large |= not abs(values[i]) <= LARGEST_ANGLE
    if large:
        for i in range(n):
            values[i] = math.cos(values[i]) if math.isfinite(values[i]) else math.nan
        return
    for i in range(n):
        # cos x = sin(x + pi/2): with k an integer plus a half, x - k pi is reduced directly.
        x = values[i]
        k = (x * _INVERSE_PI - 0.5 + _ROUNDING) - _ROUNDING
        values[i] = -_signed_sine(_reduce(x, k + 0.5), k)


@njit(fastmath={"contract"}, error_model="numpy", inline="always")
def _reduce(x, k):
    r = x - k * _PI_A
    r = r - k * _PI_B
    r = r - k * _PI_C
    return r - k * _PI_D


@njit(fastmath={"contract"}, error_model="numpy", inline="always")
def _signed_sine(r, k):
    """(-1)^k sin(r) for |r| <= pi / 2 and an integer-valued k."""
    s = r * r
    p = _S21 * s + _S19
    p = p * s + _S17
    p = p * s + _S15
    p = p * s + _S13
    p = p * s + _S11
    p = p * s + _S9
    p = p * s + _S7
    p = p * s + _S5
    p = p * s + _S3
    sine = r + r * (s * p)
    half = 0.5 * k
    return sine * (1.0 - 4.0 * (half - math.floor(half)))
