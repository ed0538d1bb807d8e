"""Which dtypes a tensor may have, and how two of them meet."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from minigrad.arguments import PYTHON_NUMBERS
from minigrad.errors import ArgumentError, DtypeError

Array = Any  # an ndarray of NumPy or of CuPy, which ships no usable stubs
DtypeLike = Any  # what numpy.dtype() takes, or "bfloat16"

_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")

bool_, uint8, int8, int16 = np.dtype(np.bool_), np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.int16)
int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
float16, float32, float64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
half, double, short, long = float16, float64, int16, int64  # PyTorch's other names


def as_dtype(dtype: DtypeLike) -> np.dtype[Any]:
    """The NumPy dtype for a name, a scalar type (float means float32, int means int64) or a dtype.

    Raises:
        DtypeError: not one of the dtypes that a tensor can have.
    """
    if dtype is None or dtype.__hash__ is None:
        raise DtypeError(f"dtype: expected one of {', '.join(_NAMES)}, got {dtype!r}")
    return _find_dtype(dtype)


@functools.lru_cache(maxsize=64)
def _find_dtype(dtype: DtypeLike) -> np.dtype[Any]:
    if dtype is float:
        return np.dtype(np.float32)
    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise DtypeError(f"dtype: expected one of {', '.join(_NAMES)}, got {dtype!r}") from error
    if found.name not in _NAMES:
        raise DtypeError(f"dtype: expected one of {', '.join(_NAMES)}, got {found.name}")
    return found


def get_default_dtype() -> np.dtype[Any]:
    """The dtype of new tensors of Python floats: float32."""
    return float32


def set_default_dtype(dtype: DtypeLike) -> None:
    """Nothing for float32, which is the default; no other one can be set, since no global changes what code does.

    Raises:
        ArgumentError: another dtype.
    """
    if as_dtype(dtype) != float32:
        raise ArgumentError(
            f"set_default_dtype: expected float32, got {as_dtype(dtype).name}: write dtype= where a tensor or a layer "
            "is made, or module.double()"
        )


def finfo(dtype: DtypeLike = float) -> Any:
    """The limits of a float dtype: eps, max, min, tiny, bits.

    Raises:
        DtypeError: not a float dtype.
    """
    found = as_dtype(dtype)
    if not is_float(found):
        raise DtypeError(f"finfo: expected a float dtype, got {found.name}: write iinfo")
    if found.name != "bfloat16":
        return np.finfo(found)
    import ml_dtypes

    return ml_dtypes.finfo(found)  # type: ignore[no-untyped-call]


def iinfo(dtype: DtypeLike) -> Any:
    """The limits of an integer dtype: min, max, bits.

    Raises:
        DtypeError: not an integer dtype.
    """
    found = as_dtype(dtype)
    if found.kind not in "iu":
        raise DtypeError(f"iinfo: expected an integer dtype, got {found.name}")
    return np.iinfo(found)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype can carry a gradient: float16, bfloat16, float32 or float64."""
    kind = dtype.kind
    return kind == "f" or (kind == "V" and dtype.name == "bfloat16")


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is float16 or bfloat16, whose sums are taken in float32."""
    return dtype.itemsize == 2 and is_float(dtype)


def python_scalar(value: Any) -> bool | int | float:
    """A number as a plain Python scalar, so that np.float64(2.0) does not widen a float32 tensor."""
    if value.__class__ in PYTHON_NUMBERS:
        return value
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def scalar_dtype(value: bool | int | float, partner: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of `tensor op scalar`: the tensor's, unless the scalar is of a wider kind."""
    if isinstance(value, bool) or is_float(partner):
        return partner
    if isinstance(value, int):
        return np.dtype(np.int64) if partner.kind == "b" else partner
    return np.dtype(np.float32)


_mixed: ContextVar[bool] = ContextVar("minigrad_mixed_floats", default=False)


@contextmanager
def float_dtypes_mixed(mixed: bool) -> Iterator[None]:
    """Let two float dtypes meet in the wider one inside the block, in this context, instead of raising an error."""
    token = _mixed.set(mixed)
    try:
        yield
    finally:
        _mixed.reset(token)


def common_dtype(who: str, x: np.dtype[Any], y: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which two tensors meet: int with float gives the float; two floats must be equal.

    Raises:
        DtypeError: two different float dtypes, unless `float_dtypes_mixed`; both are named.
    """
    if x == y:
        return x
    x_float, y_float = is_float(x), is_float(y)
    if x_float and y_float:
        if _mixed.get():
            return np.dtype(np.float32) if x.itemsize == y.itemsize else max(x, y, key=lambda dtype: dtype.itemsize)
        raise DtypeError(
            f"{who}: expected operands of one float dtype, got {x.name} and {y.name}: "
            f"convert one, for example x.to({x.name!r})"
        )
    if x_float or y_float:
        return x if x_float else y
    return np.promote_types(x, y)


def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which elements are summed: float32 for half precision, int64 for integers and bools."""
    if not is_float(dtype):
        return np.dtype(np.int64)
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """A copy in another dtype. What float16 can't hold becomes infinite, as on a GPU, without NumPy's warning."""
    if dtype.char != "e":
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def widened(array: Array) -> Array:
    """An array of half precision in float32; any other as it is."""
    return array.astype(np.float32) if is_half(array.dtype) else array
