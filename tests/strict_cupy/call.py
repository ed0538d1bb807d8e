"""How a call reaches NumPy: stand-in arrays go down to their memory after a check, results come up again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.strict_cupy import array as arrays
from tests.strict_cupy.device import current_id, syncs
from tests.strict_cupy.errors import RefusedError, StrictError
from tests.strict_cupy.names import CUBLAS, KEEPING_ORDER, REFUSED_KEYWORDS, SORTS, WAITING
from tests.strict_cupy.streams import perform, refuse_while_capturing


def lower(who: str, value: Any) -> Any:
    """The memory of stand-in arrays, also within lists and tuples; scalars as they are.

    Raises:
        RefusedError: a NumPy array, even one of no axes.
        StrictError: an array on another than the current device.
    """
    if isinstance(value, arrays.ndarray):
        check_current(who, value)
        return value.memory
    if isinstance(value, np.ndarray):
        raise RefusedError(f"{who}: expected device arrays, got a NumPy array of shape {value.shape}")
    if isinstance(value, (list, tuple)):
        return type(value)([lower(who, part) for part in value])
    return value


def check_current(who: str, array: Any) -> None:
    """Refuse an array on another than the current device: a mix of devices, or a kernel on the wrong one."""
    if array.device.id != current_id():
        raise StrictError(
            f"{who}: expected arrays on the current device cuda:{current_id()}, got one on cuda:{array.device.id}"
        )


def lift(result: Any) -> Any:
    """NumPy's arrays and scalars as arrays of the current device, also within lists and (named) tuples."""
    if isinstance(result, (np.ndarray, np.generic)):
        return arrays.ndarray(in_c_order(np.asarray(result)), current_id())
    if isinstance(result, tuple):
        parts = [lift(part) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return [lift(part) for part in result] if isinstance(result, list) else result


def call(function: Callable[..., Any], who: str, args: Any, options: dict[str, Any]) -> Any:
    """One call of a NumPy function on the current device, under CuPy's rules for its arguments."""
    refused = REFUSED_KEYWORDS.get(who, frozenset()) & options.keys()
    if refused:
        raise RefusedError(f"{who}: expected no keyword {', '.join(sorted(refused))}: CuPy does not take it")
    if who in SORTS:
        check_sort(who, args[0], options.get("kind"))
    if who in WAITING:
        syncs.note(who)
    if who in CUBLAS:
        refuse_while_capturing(who, "call of cuBLAS")
    low_args = [lower(who, arg) for arg in args]
    low_options = {name: lower(who, value) for name, value in options.items()}
    result = run(function, who, low_args, low_options)
    out = options.get("out")
    if who in KEEPING_ORDER:
        return arrays.ndarray(result, current_id())
    return out if isinstance(out, arrays.ndarray) else lift(result)


def check_sort(who: str, array: Any, kind: Any) -> None:
    """Refuse another kind than the stable one, an array of no axes, and bfloat16, which Thrust does not know.

    Raises:
        RefusedError: it is that.
    """
    if kind not in (None, "stable") or array.ndim == 0 or array.dtype.name == "bfloat16":
        got = f"{array.dtype.name} {array.shape} and {kind!r}"
        raise RefusedError(f"{who}: expected an array with axes, no bfloat16, and kind None or 'stable', got {got}")


def run(function: Callable[..., Any], who: str, args: Any, options: dict[str, Any], indexes: bool = True) -> Any:
    """A NumPy function on plain memory, on the current stream, without floating-point warnings.

    Args:
        indexes: An index out of range comes from an index array, which CuPy would wrap around without a word.

    Raises:
        StrictError: such an index, or a write into memory that is read-only.
    """
    arguments = [*args, *options.values(), getattr(function, "__self__", None)]
    return perform(lambda: _run(function, who, args, options, indexes), who, arguments, options.get("out"))


def _run(function: Callable[..., Any], who: str, args: Any, options: dict[str, Any], indexes: bool) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(*args, **options)
    except np.exceptions.AxisError:
        raise
    except ValueError as error:
        if "read-only" in str(error):
            raise StrictError(f"{who}: wrote into memory that is shared, or must not change") from error
        raise
    except IndexError as error:
        if indexes and "out of bounds" in str(error):
            if _wraps:
                return _run_wrapped(function, who, args, options)
            raise StrictError(f"{who}: {error}: CuPy would wrap around without a word") from error
        raise


_wraps: list[bool] = []  # of the blocks that are open


@contextlib.contextmanager
def wrapping() -> Iterator[None]:
    """Let indexes that are out of range wrap around inside the block, as CuPy does, instead of raising an error."""
    _wraps.append(True)
    try:
        yield
    finally:
        _wraps.pop()


def _run_wrapped(function: Any, who: str, args: Any, options: dict[str, Any]) -> Any:
    """`take`, or picking by integer arrays and slices: by `[...]`, or by `at` of a ufunc."""
    if who == "take":
        return function(*args, **options, mode="wrap")
    before, index, after = ([], args[0], args[1:]) if not who.endswith(".at") else ([args[0]], args[1], args[2:])
    shape = (before[0] if before else function.__self__).shape
    axis, found = 0, list[Any]()
    for part in index if isinstance(index, tuple) else (index,):
        found.append(part % shape[axis] if isinstance(part, np.ndarray) else part)
        axis += part is not None
    return function(*before, tuple(found), *after)


def in_c_order(result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """New memory in C order: NumPy keeps the order of the inputs, CuPy need not."""
    return result.copy(order="C") if result.base is None and not result.flags.c_contiguous else result
