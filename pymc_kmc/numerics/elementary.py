"""Compiled elementary functions of whole arrays, which the compiler turns into vector instructions.

numba as installed from PyPI calls the C library once per entry. The functions here must not be
compiled with the fast-math flag "reassoc": it would simplify away the rounding by an added and
subtracted constant.
"""

import math

import numpy as np

from pymc_kmc.numerics.jit import njit

#: 1.5 * 2^52: adding it rounds to an integer, which stands in the low bits of the mantissa.
_ROUNDING = 6755399441055744.0
_ROUNDING_BITS = np.float64(_ROUNDING).view(np.int64).item()

# Cody & Waite (1980): x = k log 2 + r with log 2 split in two, |r| <= log(2) / 2, then the Taylor
# polynomial of exp(r), whose remainder at degree 13 is 5e-18 of the value.
_LOG2_HIGH = 6.93147180369123816490e-01
_LOG2_LOW = 1.90821492927058770002e-10
_INVERSE_LOG2 = 1.4426950408889634074
#: Arguments beyond which the result is 0 or infinity; clamping keeps the integers in range.
_EXP_LOW, _EXP_HIGH = -760.0, 720.0
_EXP_COEFFICIENTS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
_C13, _C12, _C11, _C10, _C9, _C8, _C7, _C6, _C5, _C4, _C3, _C2, _C1, _C0 = _EXP_COEFFICIENTS


@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def exp_in_place(values, scratch, n):
    """Replace ``values[:n]`` by their exponentials; ``scratch`` (float64) is at least as long.

    Relative error below 1e-15 for normal results; underflow is gradual, and NaN stays NaN.
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
        p = (((_C13 * r + _C12) * r + _C11) * r + _C10) * r + _C9
        p = (((p * r + _C8) * r + _C7) * r + _C6) * r + _C5
        p = (((p * r + _C4) * r + _C3) * r + _C2) * r + _C1
        values[i] = p * r + _C0
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


# exp(t) for t >= -32 is the 2^7-th power of exp(t / 128), for which the Taylor polynomial of degree
# nine around the middle of [-1/4, 0] has a remainder of 3e-16 of the value.
_GAUSSIAN_LOW, _GAUSSIAN_SQUARINGS = -32.0, 7
_GAUSSIAN_SHRINKING = 0.5**_GAUSSIAN_SQUARINGS
_GAUSSIAN_MIDDLE = -0.5 * _GAUSSIAN_LOW * _GAUSSIAN_SHRINKING
_G9, _G8, _G7, _G6, _G5, _G4, _G3, _G2, _G1, _G0 = (
    math.exp(-_GAUSSIAN_MIDDLE) / math.factorial(k) for k in range(9, -1, -1)
)


@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def gaussian_of(distance):
    """Return exp(-distance^2 / 2), or 1.3e-14 where it is less.

    Relative error below 1e-13; NaN stays NaN. It takes 2/3 of the time of :func:`exp_in_place`.
    """
    t = -0.5 * distance * distance
    t = _GAUSSIAN_LOW if t < _GAUSSIAN_LOW else t
    r = t * _GAUSSIAN_SHRINKING + _GAUSSIAN_MIDDLE
    p = (((_G9 * r + _G8) * r + _G7) * r + _G6) * r + _G5
    p = ((((p * r + _G4) * r + _G3) * r + _G2) * r + _G1) * r + _G0
    for _ in range(_GAUSSIAN_SQUARINGS):
        p *= p
    return p


# Cody & Waite reduction by pi, which is split in four; the first three parts have 28 bits each,
# so that their products with k are exact for |k| < 2^24 (the constants are those of SLEEF,
# Shibata & Petrogalli, 2020). What is left, |r| <= pi / 2, goes through the Taylor polynomial of
# the sine, whose remainder at degree 21 is below 2e-18.
_PI_A = 3.1415926218032836914
_PI_B = 3.1786509424591713469e-08
_PI_C = 1.2246467864107188502e-16
_PI_D = 1.2736634327021899816e-24
_INVERSE_PI = 0.31830988618379067154
#: Largest argument of the reduction; the C library handles blocks with larger ones.
LARGEST_ANGLE = 2.0**24
_S21, _S19, _S17, _S15, _S13, _S11, _S9, _S7, _S5, _S3 = (
    (-1.0) ** ((k - 1) // 2) / math.factorial(k) for k in range(21, 2, -2)
)


@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def sin_in_place(values, n):
    """Replace ``values[:n]`` by their sines; NaN and infinities become NaN.

    Absolute error below 3e-16, relative error below 1e-15 even next to multiples of pi.
    """
    _sines(values, n, 0.0)


@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
def cos_in_place(values, n):
    """Replace ``values[:n]`` by their cosines; accuracy as for :func:`sin_in_place`."""
    _sines(values, n, 0.5)


@njit(fastmath={"contract"}, error_model="numpy", inline="always")
def _sines(values, n, shift):
    """Replace ``values[:n]`` by the sines of x + shift pi; the shift is 0 or 1/2."""
    large = False
    for i in range(n):
        large |= not abs(values[i]) <= LARGEST_ANGLE
    if large:
        for i in range(n):
            x = values[i] if math.isfinite(values[i]) else math.nan
            values[i] = math.sin(x) if shift == 0.0 else math.cos(x)
        return
    for i in range(n):
        # With k an integer less the shift, x - k pi is reduced directly.
        x = values[i]
        k = (x * _INVERSE_PI - shift + _ROUNDING) - _ROUNDING
        sine = _signed_sine(_reduce(x, k + shift), k)
        values[i] = sine if shift == 0.0 else -sine


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
    p = (((_S21 * s + _S19) * s + _S17) * s + _S15) * s + _S13
    p = ((((p * s + _S11) * s + _S9) * s + _S7) * s + _S5) * s + _S3
    sine = r + r * (s * p)
    half = 0.5 * k
    return sine * (1.0 - 4.0 * (half - math.floor(half)))
