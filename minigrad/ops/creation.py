"""New tensors: from data, filled, in sequence; those at random are in `sampling`.

All take dtype (float32 unless said otherwise), device (the CPU unless said otherwise) and requires_grad.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, is_number
from minigrad.backend.device import CPU, Device, to_device
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype, is_float, python_scalar
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.convert import to
from minigrad.ops.foreign import array_of, is_array, shared_array
from minigrad.ops.shape import MOST_ELEMENTS, sizes_of
from minigrad.tensor import Tensor

__all__ = [
    "arange", "as_tensor", "empty", "empty_like", "eye", "from_dlpack", "from_numpy", "full", "full_like", "linspace",
    "logspace", "ones", "ones_like", "tensor", "tril_indices", "triu_indices", "zeros",
    "zeros_like",
]

DeviceLike = Device | str | None
_FLOAT32 = np.dtype(np.float32)


def lengths_of(who: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape that was given as lengths or as one sequence.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    shape = sizes_of(who, size)
    if min(shape, default=0) < 0:
        raise ShapeError(f"{who}: expected lengths >= 0, got {shape}")
    if math.prod(shape) >= MOST_ELEMENTS:
        raise ShapeError(f"{who}: expected fewer than 2**48 elements, got {shape}")
    return shape


# ------------------------------------------------------------------------------------------------- from data


def tensor(data: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of Python numbers, nested lists, an array or a tensor, also one of another library.

    Args:
        data: What gets a gradient there is copied all the same, without the tie.
        dtype: By default an array's own; Python floats become float32, ints int64, bools bool.
        device: By default where an array is, else the CPU.

    Raises:
        ShapeError: ragged lists.
        DtypeError: data that are no numbers, or a dtype that a tensor can't have.

    Example:
        >>> tensor([[1, 2.5]])
        tensor([[1. , 2.5]], dtype=float32, device='cpu')
    """
    array = _as_array("tensor", data, dtype)
    copy = array.astype(array.dtype if dtype is None else as_dtype(dtype), copy=True)
    return Tensor(copy if device is None else to_device(copy, Device(device)), requires_grad)


def as_tensor(data: Any, dtype: DtypeLike = None, device: DeviceLike = None) -> Tensor:
    """Like `tensor`, but shares memory with an array where dtype and device allow it; a tensor is itself then.

    Raises:
        ShapeError, DtypeError: as `tensor`.
        AutogradError: another library's tensor that requires grad.
    """
    if hasattr(data, "__dlpack__") and not isinstance(data, Tensor) and not is_array(data):
        data = shared_array("as_tensor", data)
    x = data if isinstance(data, Tensor) else Tensor(_as_array("as_tensor", data, dtype))
    return to(x, dtype=dtype, device=device)


def _as_array(who: str, data: Any, dtype: DtypeLike) -> Array:
    """The array of data; Python floats as float32, but in full where they are to be of a dtype yet."""
    if not isinstance(data, (np.ndarray, np.generic)):
        found = array_of(who, data)
        if found is not None:
            return found
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"{who}: expected nested lists of equal lengths, got ragged ones: {error}") from error
    if array.dtype == np.float64 and not _holds_arrays(data):
        return array.astype(_FLOAT32) if dtype is None else array
    if array.dtype.kind in "OUSV" and array.dtype.name != "bfloat16":
        raise DtypeError(f"{who}: expected numbers, or lists or arrays of them, got {type(data).__name__} {data!r:.60}")
    return np.asarray(array, as_dtype(array.dtype))


def _holds_arrays(data: Any) -> bool:
    """Whether nested lists end in arrays, which keep their dtype, rather than in Python numbers."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return hasattr(data, "__dlpack__")


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the memory of a NumPy array.

    Raises:
        DtypeError: no NumPy array, or a dtype that a tensor can't have.
    """
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"from_numpy: expected a NumPy array, got {type(array).__name__}")
    return Tensor(array)


def from_dlpack(source: Any) -> Tensor:
    """A tensor on the memory of any object that speaks DLPack, such as another library's tensor.

    What is written there later shows here, and the other way round; the tape does not notice the former. bfloat16
    comes from PyTorch's tensors and from CuPy.

    Raises:
        DtypeError: the object does not speak DLPack, or has data that a tensor can't hold.
        AutogradError: a tensor that requires grad.
    """
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise DtypeError(f"from_dlpack: expected an object with __dlpack__, got {type(source).__name__}")
    return Tensor(shared_array("from_dlpack", source))


# ---------------------------------------------------------------------------------------------------- filled


def full(
    size: Any, fill_value: Any, *, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """One number everywhere; its kind gives the dtype: float32, int64 or bool.

    Args:
        size: A shape, or one length.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
        DtypeError: fill_value is no number, or does not fit into the dtype.
    """
    if not is_number(fill_value):
        raise DtypeError(f"full: expected a number, got {type(fill_value).__name__}")
    value = python_scalar(fill_value)
    return _filled("full", (size,), value, type(value) if dtype is None else dtype, device, requires_grad)


def _filled(
    who: str, size: tuple[Any, ...], value: Any, dtype: DtypeLike, device: DeviceLike, requires_grad: bool
) -> Tensor:
    shape, found = lengths_of(who, size), as_dtype(dtype)
    if not is_float(found) and not math.isfinite(value):
        raise DtypeError(f"{who}: expected a value that fits into {found.name}, got {value!r}")
    try:
        with _place(device).current() as xp:
            return Tensor(xp.full(shape, value, found), requires_grad)
    except OverflowError as error:
        raise DtypeError(f"{who}: expected a value that fits into {found.name}, got {value!r}") from error


def zeros(*size: Any, dtype: DtypeLike = float, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """Zeros of a shape: `zeros(2, 3)` or `zeros((2, 3))`.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    return _filled("zeros", size, 0, dtype, device, requires_grad)


def ones(*size: Any, dtype: DtypeLike = float, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """Ones of a shape: `ones(2, 3)` or `ones((2, 3))`.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    return _filled("ones", size, 1, dtype, device, requires_grad)


def _place(device: Device | str | None) -> Device:
    """The device that an argument names; the CPU where it names none."""
    return CPU if device is None else Device(device)


def empty(*size: Any, dtype: DtypeLike = float, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A tensor of a shape whose values are whatever lay in that memory.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    shape, found = lengths_of("empty", size), as_dtype(dtype)
    with _place(device).current() as xp:
        return Tensor(xp.empty(shape, found), requires_grad)


def eye(
    n: int, m: int | None = None, *, dtype: DtypeLike = float, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A matrix (n, m) with ones on its main diagonal; m = n by default.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    rows, columns = lengths_of("eye", (n, n if m is None else m))
    found = as_dtype(dtype)
    with _place(device).current() as xp:
        return Tensor(xp.eye(rows, columns, dtype=found), requires_grad)


# ------------------------------------------------------------------------------------------------ in sequence


def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: DtypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... up to but without end: `arange(5)`, `arange(2, 5)`; int64 if all three are integers.

    Args:
        dtype: With int64, start, end and step lose their fractions first, as in PyTorch.

    Raises:
        ArgumentError: a step of zero, one that leads away from end, or one with a fraction for integers.
        ShapeError: more elements than a tensor can have.
    """
    start, end = (0, start) if end is None else (start, end)
    numbers = _numbers("arange", start, end, step)
    found = None if dtype is None else as_dtype(dtype)
    if found is not None and not is_float(found) and int(numbers[2]) != numbers[2]:
        raise ArgumentError(f"arange: expected a step without fraction for {found.name}, got {numbers[2]}")
    start, end, step = numbers
    if step == 0 or (end - start) / step < 0:
        raise ArgumentError(f"arange: expected a step that leads from {start} to {end}, got {step}")
    if found == np.int64:
        start, end, step = numbers = [int(number) for number in numbers]
    whole = all(isinstance(number, int) for number in numbers)
    found = as_dtype(int if whole else float) if found is None else found
    count = max(-((start - end) // step), 0) if whole else math.ceil((end - start) / step)
    lengths_of("arange", (count,))
    values = np.arange(start, end, step) if whole else start + step * np.arange(count)
    return upload(values[: int(count)], found, device, requires_grad)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: DtypeLike = float,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """This many numbers at equal distances, from start to end, both included; a tensor of no axes is read as a number.

    With a dtype of integers start and end lose their fractions first, and the numbers between them theirs.

    Raises:
        ArgumentError: a negative number of steps, or too many, or a start or an end that is not finite.
    """
    steps = as_integer("linspace", "steps", steps, 0, MOST_ELEMENTS)
    start, end = _numbers("linspace", start, end)
    kind = as_dtype(dtype)
    if kind.kind not in "iu":
        return upload(np.linspace(float(start), float(end), steps), kind, device, requires_grad)
    start, end = int(start), int(end)
    numbers, step = np.arange(steps), (end - start) / max(steps - 1, 1)
    from_start = numbers < max(steps // 2, 1)  # from the nearer end, so that both are exact
    values = np.where(from_start, start + step * numbers, end - step * (steps - 1 - numbers))
    return upload(np.trunc(values), kind, device, requires_grad)


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DtypeLike = float,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """base to the powers of `linspace(start, end, steps)`.

    With a dtype of integers start and end lose their fractions first.

    Raises:
        ArgumentError: a negative number of steps, or too many, or arguments that are no finite numbers.
    """
    steps, kind = as_integer("logspace", "steps", steps, 0, MOST_ELEMENTS), as_dtype(dtype)
    start, end, base = _numbers("logspace", start, end, base)
    start, end = (int(n) if kind.kind in "iu" else float(n) for n in (start, end))
    return upload(np.logspace(start, end, steps, base=base), kind, device, requires_grad)


def _numbers(who: str, *values: Any) -> list[Any]:
    """Finite numbers, of which some may be tensors of no axes, as Python's.

    Raises:
        ArgumentError: something else.
    """
    values = tuple(value.item() if isinstance(value, Tensor) and not value.ndim else value for value in values)
    for value in values:
        if not is_number(value) or not math.isfinite(value):
            raise ArgumentError(f"{who}: expected finite numbers, got {value!r}")
    return [python_scalar(value) for value in values]


def upload(values: Array, dtype: np.dtype[Any], device: DeviceLike, requires_grad: bool) -> Tensor:
    """A tensor on a device from values computed on the host."""
    return Tensor(to_device(values.astype(dtype, copy=False), _place(device)), requires_grad)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: DtypeLike = int, device: DeviceLike = None) -> Tensor:
    """Where the lower triangle of a matrix (row, col) is: its rows above its columns, (2, N).

    Args:
        offset: The diagonal that it ends with: 0 the main one, positive above it, negative below.

    Raises:
        ShapeError, DtypeError: lengths that are negative, or no integers, nor offset.
    """
    rows, columns = lengths_of("tril_indices", (row, col))
    (above,) = sizes_of("tril_indices", (offset,))
    return upload(np.stack(np.tril_indices(rows, above, columns)), as_dtype(dtype), device, False)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: DtypeLike = int, device: DeviceLike = None) -> Tensor:
    """Where the upper triangle of a matrix (row, col) is: its rows above its columns, (2, N).

    Args:
        offset: The diagonal that it begins with: 0 the main one, positive above it, negative below.

    Raises:
        ShapeError, DtypeError: lengths that are negative, or no integers, nor offset.
    """
    rows, columns = lengths_of("triu_indices", (row, col))
    (above,) = sizes_of("triu_indices", (offset,))
    return upload(np.stack(np.triu_indices(rows, above, columns)), as_dtype(dtype), device, False)


# ------------------------------------------------------------------------------------- like another tensor


def zeros_like(x: Tensor, *, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """Zeros of x's shape, dtype and device, unless others are given."""
    options = like_options("zeros_like", x, dtype, device)
    return full(x.shape, 0, requires_grad=requires_grad, **options)


def ones_like(x: Tensor, *, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """Ones of x's shape, dtype and device, unless others are given."""
    options = like_options("ones_like", x, dtype, device)
    return full(x.shape, 1, requires_grad=requires_grad, **options)


def full_like(
    x: Tensor,
    fill_value: Any,
    *,
    dtype: DtypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """One number in x's shape, dtype and device, unless others are given."""
    options = like_options("full_like", x, dtype, device)
    return full(x.shape, fill_value, requires_grad=requires_grad, **options)


def empty_like(x: Tensor, *, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A tensor of x's shape, dtype and device, unless others are given, whose values are whatever lay there."""
    options = like_options("empty_like", x, dtype, device)
    return empty(x.shape, requires_grad=requires_grad, **options)


def like_options(who: str, x: Tensor, dtype: DtypeLike, device: DeviceLike) -> dict[str, Any]:
    """dtype and device as given, else those of x.

    Raises:
        DtypeError: x is no tensor.
    """
    if not isinstance(x, Tensor):
        raise DtypeError(f"{who}: expected a Tensor, got {type(x).__name__}")
    return {"dtype": x.dtype if dtype is None else dtype, "device": x.device if device is None else device}
