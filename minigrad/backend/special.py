"""The error function, which NumPy lacks, and the sign with PyTorch's value for NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.backend.blocks import filled, in_blocks
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, widened

# erf(x) = x · T(x²)/U(x²) for |x| <= 1, and 1 - exp(-x²) · P(x)/Q(x) for 1 <= x < 6: the rational approximations of
# S. L. Moshier, "Methods and Programs for Mathematical Functions" (the Cephes library); beyond 6 it rounds to 1.
_T = (9.60497373987051638749, 90.0260197203842689217, 2232.00534594684319226, 7003.32514112805075473,
      55592.3013010394962768)
_U = (1.0, 33.5617141647503099647, 521.357949780152679795, 4594.32382970980127987, 22629.0000613890934246,
      49267.3942608635921086)
_P = (2.46196981473530512524e-10, 0.564189564831068821977, 7.46321056442269912687, 48.6371970985681366614,
      196.520832956077098242, 526.445194995477358631, 934.528527171957607540, 1027.55188689515710272,
      557.535335369399327526)
_Q = (1.0, 13.2281951154744992508, 86.7072140885989742329, 354.937778887819891062, 975.708501743205489753,
      1823.90916687909736289, 2246.33760818710981792, 1656.66309194161350182, 557.535340817727675546)

# erf(x) = x · A(x²)/B(x²) in single precision on [-4, 4], within 5e-7: the coefficients of Eigen's erf.
_A = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
      -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
_B = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
      -1.42647390514189e-02)


def erf(x: Array) -> Array:
    """2/√π times the integral of exp(-t²) from 0 to x, for a float array.

    Accurate to 5e-16 in float64, 5e-7 in float32; half precision is computed in float32.
    """
    if array_module(x).__name__ == "cupy":
        from cupyx.scipy.special import erf as device_erf

        return device_erf(widened(x)).astype(x.dtype, copy=False)
    return in_blocks(_erf_double if x.dtype == np.float64 else _erf_single, x)


def sign(x: Array) -> Array:
    """-1, 0 or 1 in the dtype of an array of numbers; 0 of NaN, for which NumPy's is NaN."""
    if x.dtype.kind in "iu":
        return array_module(x).sign(x)
    zero = filled(0, x)
    signs = (x > zero).astype(x.dtype)
    signs -= x < zero
    return signs


def _erf_double(out: Array, x: Array) -> None:
    xp = array_module(x)
    size = xp.abs(x)
    inner = xp.minimum(size, filled(1.0, x))
    square = inner * inner
    inner *= _polynomial(square, _T)
    inner /= _polynomial(square, _U)
    outer = xp.minimum(xp.maximum(size, filled(1.0, x)), filled(6.0, x))
    tail = xp.exp(-outer * outer)
    tail *= _polynomial(outer, _P)
    tail /= _polynomial(outer, _Q)
    beyond = size > 1
    inner *= ~beyond
    inner += (1 - tail) * beyond
    xp.copysign(inner, x, out=out)


def _erf_single(out: Array, x: Array) -> None:
    xp = array_module(x)
    clipped = xp.maximum(xp.minimum(x, filled(4.0, x)), filled(-4.0, x))
    square = clipped * clipped
    clipped *= _polynomial(square, _A)
    clipped /= _polynomial(square, _B)
    xp.minimum(clipped, filled(1.0, x), out=clipped)
    xp.maximum(clipped, filled(-1.0, x), out=out)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """By Horner's rule, the highest power first."""
    total = x * coefficients[0]
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= x
        total += coefficient
    return total
