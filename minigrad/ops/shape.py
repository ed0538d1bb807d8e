"""The same elements in another shape or order: reshape to repeat. A view shares memory with its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_sequence, is_integer
from minigrad.autograd.tape import Node, accumulate, lend
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.arithmetic import pass_on
from minigrad.ops.axes import normalize_axes, normalize_axis
from minigrad.ops.image_order import is_channels_last
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand
from minigrad.stamp import is_private
from minigrad.tensor import Tensor, record

__all__ = [
    "broadcast_to", "expand", "expand_as", "flatten", "flip", "matrix_transpose", "permute", "repeat", "reshape",
    "roll", "squeeze", "swapaxes", "t", "tile", "transpose", "unflatten", "unsqueeze", "view",
]

MOST_ELEMENTS = 2**48  # a hundred times the memory of the largest machine, and what NumPy can still count


def sizes_of(who: str, sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Lengths or axes that were given one by one, or as one sequence, as a tuple of integers.

    Raises:
        DtypeError: one of them is no integer.
        ShapeError: one is larger than an array can be.
    """
    listed = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    for size in listed:
        if size.__class__ is not int and not is_integer(size):
            raise DtypeError(f"{who}: expected integers, got {size!r} in {tuple(listed)}")
        if not -MOST_ELEMENTS < size < MOST_ELEMENTS:
            raise ShapeError(f"{who}: expected integers of less than 2**48, got {size} in {tuple(listed)}")
    return tuple([int(size) for size in listed])


# ------------------------------------------------------------------------------------------------ other shapes


@method
def reshape(x: TensorLike, *shape: Any) -> Tensor:
    """The elements in row order under another shape; one length may be -1. A view where that is possible.

    Raises:
        ShapeError: the numbers of elements differ, or -1 stands twice.

    Example:
        >>> import minigrad
        >>> minigrad.arange(6).reshape(2, -1).shape
        (2, 3)
    """
    return _reshaped("reshape", as_operand("reshape", x), sizes_of("reshape", shape))


@method
def view(x: TensorLike, *shape: Any) -> Tensor:
    """`reshape` whose output shares the memory of x.

    Images that an operation made lie with their channels last: they are put into row order for this, once, while no
    other tensor is on their memory. An array that `.data` gave before stays where it was.

    Raises:
        ShapeError: the elements do not lie in the order of that shape, or their numbers differ.
    """
    x = as_operand("view", x)
    data, shares = _in_shape("view", x, sizes_of("view", shape))
    if data.size and not shares:
        if not (is_channels_last(x.data) and is_private(x)):
            raise ShapeError(f"view: expected a shape that needs no copy of {x.shape}, got {data.shape}: use reshape()")
        x.data, shares = data.reshape(x.data.shape), True
    return record(data, _reshape_backward, (x,), (x.data.shape,), view_of=x if shares else None)


def _reshaped(who: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    data, shares = _in_shape(who, x, shape)
    return record(data, _reshape_backward, (x,), (x.data.shape,), view_of=x if shares else None)


def _in_shape(who: str, x: Tensor, shape: tuple[int, ...]) -> tuple[Array, bool]:
    """The elements in row order under another shape, and whether they are those of x itself."""
    try:
        data = x.data.reshape(shape)
    except ValueError as error:
        raise ShapeError(f"{who}: expected a shape for {x.numel()} elements of {x.shape}, got {shape}") from error
    return data, bool(array_module(data).may_share_memory(data, x.data))


def _reshape_backward(node: Node, grad: Array) -> None:
    lend(node.inputs[0], grad.reshape(node.saved[0]))


@method
def flatten(x: TensorLike, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from start_dim to end_dim, both included, as one. A tensor of no axes gets one.

    Shapes:
        (N, C, H, W) -> (N, C·H·W) for start_dim = 1

    Raises:
        ShapeError: an axis out of range, or start_dim after end_dim.
    """
    x = as_operand("flatten", x)
    start, end = normalize_axis("flatten", start_dim, x.ndim), normalize_axis("flatten", end_dim, x.ndim)
    if start > end:
        raise ShapeError(f"flatten: expected start_dim <= end_dim, got {start_dim} and {end_dim} for {x.shape}")
    shape = x.data.shape
    return _reshaped("flatten", x, (*shape[:start], int(np.prod(shape[start : end + 1])), *shape[end + 1 :]))


@method
def unflatten(x: TensorLike, dim: int, sizes: Sequence[int]) -> Tensor:
    """One axis as several; one of sizes may be -1.

    Shapes:
        (N, 12) -> (N, 3, 4) for dim = 1, sizes = (3, 4)

    Raises:
        ShapeError: the sizes do not multiply to the length of the axis.
    """
    x = as_operand("unflatten", x)
    if not x.ndim:
        raise ShapeError("unflatten: expected a tensor with at least one axis, got shape ()")
    axis = normalize_axis("unflatten", dim, x.ndim)
    parts, length = list(sizes_of("unflatten", (as_sequence("unflatten", "sizes", sizes),))), x.data.shape[axis]
    if parts.count(-1) == 1:
        known = -int(np.prod(parts))
        parts[parts.index(-1)] = length // known if known else -1
    if int(np.prod(parts)) != length or min(parts, default=0) < 0:
        raise ShapeError(f"unflatten: expected sizes that multiply to {length}, axis {dim} of {x.shape}, got {sizes}")
    return _reshaped("unflatten", x, (*x.data.shape[:axis], *parts, *x.data.shape[axis + 1 :]))


@method
def squeeze(x: TensorLike, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Without the axes of length 1: all of them, or those among dim.

    Raises:
        ShapeError: an axis out of range.
    """
    x = as_operand("squeeze", x)
    axes = normalize_axes("squeeze", dim, x.ndim)
    return _reshaped("squeeze", x, tuple(n for i, n in enumerate(x.data.shape) if n != 1 or i not in axes))


@method
def unsqueeze(x: TensorLike, dim: int) -> Tensor:
    """With a new axis of length 1 before axis dim of the input; -1 puts it last.

    Raises:
        ShapeError: dim outside [-ndim - 1, ndim].
    """
    x = as_operand("unsqueeze", x)
    axis = normalize_axis("unsqueeze", dim, x.ndim + 1)
    return _reshaped("unsqueeze", x, (*x.data.shape[:axis], 1, *x.data.shape[axis:]))


# ---------------------------------------------------------------------------------------------- order of the axes


@method
def permute(x: TensorLike, *dims: Any) -> Tensor:
    """The axes in another order, as a view: axis i of the result is axis dims[i] of x.

    Raises:
        ShapeError: dims does not name each axis once.
    """
    x = as_operand("permute", x)
    order = sizes_of("permute", dims)
    axes = tuple(normalize_axis("permute", dim, x.ndim) for dim in order)
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(f"permute: expected each axis of {x.shape} once, got {order}")
    return _permuted(x, axes)


def _permuted(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return record(x.data.transpose(axes), _permute_backward, (x,), (axes,), view_of=x)


def _permute_backward(node: Node, grad: Array) -> None:
    (axes,) = node.saved
    lend(node.inputs[0], grad.transpose(sorted(range(len(axes)), key=axes.__getitem__)))


@method
@method_as("swapaxes")
def transpose(x: TensorLike, dim0: int, dim1: int) -> Tensor:
    """Two axes swapped, as a view.

    Raises:
        ShapeError: an axis out of range.
    """
    x = as_operand("transpose", x)
    axes = list(range(x.ndim))
    first, second = normalize_axis("transpose", dim0, x.ndim), normalize_axis("transpose", dim1, x.ndim)
    if axes:
        axes[first], axes[second] = second, first
    return _permuted(x, tuple(axes))


swapaxes = transpose


@method
def t(x: TensorLike) -> Tensor:
    """The transpose of a matrix, as a view; vectors and scalars as they are.

    Raises:
        ShapeError: more than two axes: use `.mT` or `permute`.
    """
    x = as_operand("t", x)
    if x.ndim > 2:
        raise ShapeError(f"t: expected at most two axes, got {x.shape}: use .mT or permute()")
    return _permuted(x, tuple(range(x.ndim))[::-1])


def matrix_transpose(x: TensorLike) -> Tensor:
    """The last two axes swapped, as a view.

    Raises:
        ShapeError: fewer than two axes.
    """
    x = as_operand("mT", x)
    if x.ndim < 2:
        raise ShapeError(f"mT: expected a tensor (..., N, M), got {x.shape}")
    return transpose(x, -1, -2)


method_as("T")(property(t))
method_as("mT")(property(matrix_transpose))


@method
def flip(x: TensorLike, *dims: Any) -> Tensor:
    """The elements in reverse order along these axes, as a copy.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    x = as_operand("flip", x)
    axes = normalize_axes("flip", sizes_of("flip", dims), x.ndim)
    if not x.ndim:
        axes = ()
    return record(array_module(x.data).flip(x.data, axes).copy(), _flip_backward, (x,), (axes,))


def _flip_backward(node: Node, grad: Array) -> None:
    lend(node.inputs[0], array_module(grad).flip(grad, node.saved[0]))


@method
def roll(x: TensorLike, shifts: int | tuple[int, ...], dims: int | tuple[int, ...] | None = None) -> Tensor:
    """The elements moved on by shifts along dims, those pushed over the end come in at the start.

    Args:
        dims: None rolls the flattened tensor.

    Raises:
        ShapeError: an axis out of range, or other numbers of shifts and dims.
    """
    x = as_operand("roll", x)
    steps = sizes_of("roll", (shifts,))
    if dims is None:
        axes = None
    else:
        axes = tuple(normalize_axis("roll", dim, x.ndim) for dim in sizes_of("roll", (dims,)))
    if len(steps) != (1 if axes is None else len(axes)):
        raise ShapeError(f"roll: expected a shift for each of dims {dims}, got {shifts}")
    if not x.ndim:
        steps, axes = (0,), None
    shift: Any = steps[0] if axes is None else steps
    return record(array_module(x.data).roll(x.data, shift, axes), _roll_backward, (x,), (steps, axes))


def _roll_backward(node: Node, grad: Array) -> None:
    steps, axes = node.saved
    back = tuple(-step for step in steps)
    accumulate(node.inputs[0], array_module(grad).roll(grad, back[0] if axes is None else back, axes))


# ------------------------------------------------------------------------------------------- repeating elements


@method
def expand(x: TensorLike, *sizes: Any) -> Tensor:
    """Broadcast to a shape, as a view; -1 keeps a length. dx sums g over the stretched axes.

    Raises:
        ShapeError: x does not broadcast to the sizes.
    """
    x = as_operand("expand", x)
    wanted = sizes_of("expand", sizes)
    extra = len(wanted) - x.ndim
    shape = tuple(x.data.shape[i - extra] if n == -1 and i >= extra else n for i, n in enumerate(wanted))
    return _expanded("expand", x, shape)


def _expanded(who: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        data = array_module(x.data).broadcast_to(x.data, shape)
    except ValueError as error:
        raise ShapeError(f"{who}: expected a shape that {x.shape} broadcasts to, got {shape}") from error
    return record(data, _expand_backward, (x,), (x.data.shape,), view_of=x)


def _expand_backward(node: Node, grad: Array) -> None:
    pass_on(node.inputs[0], grad, node.saved[0])


@method
def expand_as(x: TensorLike, other: Tensor) -> Tensor:
    """x broadcast to the shape of other, as a view.

    Raises:
        ShapeError: it does not broadcast.
    """
    return _expanded("expand_as", as_operand("expand_as", x), as_operand("expand_as", other).shape)


@method
def broadcast_to(x: TensorLike, shape: Sequence[int]) -> Tensor:
    """x broadcast to a shape, as a view.

    Raises:
        ShapeError: it does not broadcast.
    """
    wanted = sizes_of("broadcast_to", (as_sequence("broadcast_to", "shape", shape),))
    return _expanded("broadcast_to", as_operand("broadcast_to", x), wanted)


@method
def tile(x: TensorLike, *dims: Any) -> Tensor:
    """x repeated dims[i] times along each axis; missing dims count as 1, further ones add axes in front.

    Raises:
        ShapeError: a negative number.
    """
    x = as_operand("tile", x)
    times = sizes_of("tile", dims)
    return _repeated("tile", x, (1,) * (x.ndim - len(times)) + times)


@method
def repeat(x: TensorLike, *repeats: Any) -> Tensor:
    """x repeated repeats[i] times along each axis, further ones in front; there must be one for each axis.

    Raises:
        ShapeError: fewer repeats than axes, or a negative one.
    """
    x = as_operand("repeat", x)
    times = sizes_of("repeat", repeats)
    if len(times) < x.ndim:
        raise ShapeError(f"repeat: expected a number for each axis of {x.shape}, got {times}: use tile()")
    return _repeated("repeat", x, times)


def _repeated(who: str, x: Tensor, times: tuple[int, ...]) -> Tensor:
    if min(times, default=0) < 0:
        raise ShapeError(f"{who}: expected numbers >= 0, got {times} for {x.shape}")
    return record(array_module(x.data).tile(x.data, times), _repeat_backward, (x,), (x.data.shape, times))


def _repeat_backward(node: Node, grad: Array) -> None:
    shape, times = node.saved
    lengths = (1,) * (len(times) - len(shape)) + shape
    apart = tuple(n for pair in zip(times, lengths) for n in pair)  # (times, length) of each axis
    summed = grad.reshape(apart).sum(axis=tuple(range(0, len(apart), 2)), dtype=grad.dtype)
    accumulate(node.inputs[0], summed.reshape(shape))
