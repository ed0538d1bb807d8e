"""Joining tensors and taking them apart along an axis: cat, stack, split, chunk, unbind, narrow, pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_sequence, check_choice, is_number
from minigrad.autograd.tape import Node, accumulate, accumulate_at, lend
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, common_dtype, is_float, python_scalar
from minigrad.backend.workspace import empty_in_order, memory_order
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.axes import normalize_axis
from minigrad.ops.border import BORDERS, bordered
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, cast, same_device
from minigrad.ops.pieces import pieces_of
from minigrad.ops.shape import sizes_of
from minigrad.tensor import Tensor, record

__all__ = ["cat", "chunk", "concat", "concatenate", "narrow", "pad", "split", "stack", "unbind"]


def _alike(who: str, tensors: Sequence[TensorLike]) -> tuple[Tensor, ...]:
    """The tensors of a list in their common dtype."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise ArgumentError(f"{who}: expected a list of at least one tensor, got {tensors!r}")
    listed = [as_operand(who, x) for x in tensors]
    same_device(who, *listed)
    dtype = listed[0].dtype
    for x in listed[1:]:
        dtype = common_dtype(who, dtype, x.dtype)
    return tuple(cast(x, dtype) for x in listed)


def cat(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor:
    """The tensors one after the other along an axis; each gets back its part of g.

    Shapes:
        (A, N, B), (A, M, B), ... -> (A, N + M + ..., B) for dim = 1

    A tensor of shape (0,) is left out among those of other shapes, as one that a loop begins with.

    Raises:
        ShapeError: shapes that differ elsewhere than along dim, or tensors of no axes.
        ArgumentError: no tensors.
    """
    given = _alike("cat", tensors)
    parts = tuple(x for x in given if x.data.shape != (0,)) or given
    axis = normalize_axis("cat", dim, parts[0].ndim)
    try:
        data = _joined([x.data for x in parts], axis)
    except ValueError as error:
        listed = ", ".join(str(x.shape) for x in parts)
        raise ShapeError(f"cat: expected shapes that differ only along axis {dim}, got {listed}") from error
    left_out = tuple(x for x in given if all(x is not part for part in parts))
    return record(data, _cat_backward, (*parts, *left_out), (axis, [x.data.shape[axis] for x in parts]))


concat = concatenate = cat


def _joined(parts: list[Array], axis: int) -> Array:
    """Arrays one after the other; what lies in one order stays in it, on a GPU too."""
    xp, order = array_module(parts[0]), memory_order(parts[0])
    if xp is np or order is None or any(memory_order(x) != order for x in parts):
        return xp.concatenate(parts, axis)
    back = sorted(range(len(order)), key=order.__getitem__)
    return xp.concatenate([x.transpose(order) for x in parts], back[axis]).transpose(back)


def _cat_backward(node: Node, grad: Array) -> None:
    axis, lengths = node.saved
    before = (slice(None),) * axis
    start = 0
    for edge, length in zip(node.inputs, lengths):
        lend(edge, grad[before + (slice(start, start + length),)])
        start += length
    for edge in node.inputs[len(lengths) :]:
        accumulate(edge, array_module(grad).zeros(0, grad.dtype))


def stack(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor:
    """The tensors one beside the other along a new axis; each gets back its slice of g.

    Shapes:
        K times (N, D) -> (N, K, D) for dim = 1

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: no tensors.
    """
    parts = _alike("stack", tensors)
    axis = normalize_axis("stack", dim, parts[0].ndim + 1)
    try:
        data = array_module(parts[0].data).stack([x.data for x in parts], axis)
    except ValueError as error:
        raise ShapeError(f"stack: expected one shape, got {', '.join(str(x.shape) for x in parts)}") from error
    return record(data, _stack_backward, parts, (axis,))


def _stack_backward(node: Node, grad: Array) -> None:
    before = (slice(None),) * node.saved[0]
    for i, edge in enumerate(node.inputs):
        lend(edge, grad[before + (i, ...)])


def _part(x: Tensor, parts: tuple[Any, ...]) -> Tensor:
    """A view of a part of x, at integers and slices that are known to fit."""
    return slice_of(x, x.data[parts + (...,)], parts)


def slice_of(x: Tensor, data: Array, parts: tuple[Any, ...]) -> Tensor:
    """The tensor of a view that x.data[parts] gave, at integers, slices, None and Ellipsis."""
    return record(data, _slice_backward, (x,), (x.data.shape, parts, memory_order(x.data)), view_of=x)


def _slice_backward(node: Node, grad: Array) -> None:
    edge, (shape, parts, order) = node.inputs[0], node.saved
    if not isinstance(edge, Node) or edge.grad_array is not None:
        accumulate_at(edge, shape, parts, grad)
        return
    whole = empty_in_order(array_module(grad), shape, order, grad.dtype)
    if grad.size < whole.size:
        whole[...] = 0
    whole[parts] = grad
    accumulate(edge, whole)


def part_backward(node: Node, grad: Array) -> None:
    """Backward of picking elements at most once: node.saved starts with the shape of x and the index."""
    shape, parts = node.saved[:2]
    accumulate_at(node.inputs[0], shape, parts, grad)


@method
def narrow(x: TensorLike, dim: int, start: int | Tensor, length: int) -> Tensor:
    """The slices [start, start + length) along an axis, as a view.

    Args:
        start: A negative one counts from the end; an integer tensor of no axes is read.

    Raises:
        ShapeError: they are not all there.
        DtypeError: start or length is no integer.
    """
    x = as_operand("narrow", x)
    axis = normalize_axis("narrow", dim, x.ndim)
    first, length = sizes_of("narrow", (start.item() if isinstance(start, Tensor) else start, length))
    total = x.data.shape[axis] if x.ndim else -1
    begin = first + total if first < 0 else first
    if begin < 0 or length < 0 or begin + length > total:
        raise ShapeError(f"narrow: expected a range in axis {dim} of {x.shape}, got start {first}, length {length}")
    return _part(x, (slice(None),) * axis + (slice(begin, begin + length),))


@method
def split(x: TensorLike, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """x in parts along an axis, as views: of one length but for a shorter last one, or of the lengths given.

    Raises:
        ShapeError: a length below 1, or lengths that do not add up to the axis.
    """
    x = as_operand("split", x)
    axis = normalize_axis("split", dim, x.ndim)
    if not x.ndim:
        raise ShapeError("split: expected a tensor with at least one axis, got shape ()")
    total = x.data.shape[axis]
    if isinstance(split_size_or_sections, (list, tuple)):
        lengths = sizes_of("split", tuple(split_size_or_sections))
    else:
        (size,) = sizes_of("split", (split_size_or_sections,))
        if size < 1:
            raise ShapeError(f"split: expected a length >= 1, got {size}")
        lengths = tuple(min(size, total - start) for start in range(0, max(total, 1), size))
    if sum(lengths) != total or min(lengths, default=0) < 0:
        raise ShapeError(f"split: expected lengths that add up to {total}, axis {dim} of {x.shape}, got {lengths}")
    starts = np.cumsum((0, *lengths)).tolist()
    before = (slice(None),) * axis
    return pieces_of(x, [(*before, slice(start, start + length)) for start, length in zip(starts, lengths)])


@method
def chunk(x: TensorLike, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """x in at most this many parts along an axis, as views, each ceil(length / chunks) long but for the last.

    Raises:
        ArgumentError: chunks below 1.
    """
    x = as_operand("chunk", x)
    chunks = as_integer("chunk", "chunks", chunks, 1)
    axis = normalize_axis("chunk", dim, x.ndim)
    length = x.data.shape[axis] if x.ndim else 0
    return split(x, -(-length // chunks) if length else [0] * chunks, dim)


@method
def unbind(x: TensorLike, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices of x along an axis, without that axis, as views.

    Raises:
        ShapeError: a tensor of no axes, or an axis out of range.
    """
    x = as_operand("unbind", x)
    axis = normalize_axis("unbind", dim, x.ndim)
    if not x.ndim:
        raise ShapeError("unbind: expected a tensor with at least one axis, got shape ()")
    before = (slice(None),) * axis
    return pieces_of(x, [(*before, i, ...) for i in range(x.data.shape[axis])])


def pad(x: TensorLike, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """x with a border; a negative width cuts off. Each element gets g, and the g of its copies in the border.

    Args:
        pad: (before, after) of the last axis, then of the one before it, and so on; other axes stay.
        mode: What the border holds: "constant"; "reflect", x mirrored in its first and last element, which are not
            repeated; "replicate", these elements; "circular", what is left of x again, as if its ends met.
        value: The constant; None is 0, or False.

    Raises:
        ShapeError: an odd number of widths, more than two for each axis, a cut of more than there is, or a border that
            is wider than what it is a copy of.
        ArgumentError: another mode, or a value where the border is no constant.
        DtypeError: a value that is no number, or does not fit into an integer x.
    """
    x = as_operand("pad", x)
    check_choice("pad", ("constant", *BORDERS), mode=mode)
    pairs = _pad_widths(x, pad)
    if mode != "constant":
        if value:
            raise ArgumentError(f"pad: expected no value with mode {mode!r}, got {value!r}")
        return bordered("pad", x, pairs, mode)
    shape = tuple(n + before + after for n, (before, after) in zip(x.data.shape, pairs))
    source = tuple(slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.data.shape, pairs))
    target = tuple(slice(max(b, 0), n - max(a, 0)) for n, (b, a) in zip(shape, pairs))
    data = array_module(x.data).empty(shape, x.data.dtype)
    data[...] = _fill_value(x, 0 if value is None else value)
    data[target] = x.data[source]
    cuts = any(min(pair) < 0 for pair in pairs)
    return record(data, _pad_backward, (x,), (x.data.shape, source, target, cuts))


def _fill_value(x: Tensor, value: float) -> bool | int | float:
    """A number as one of x's dtype, which must be equal to it where x is of integers or bools."""
    if not is_number(value):
        raise DtypeError(f"pad: expected a number as value, got {type(value).__name__}")
    fill = python_scalar(value)
    if is_float(x.data.dtype):
        return fill
    try:
        kept: bool | int = x.data.dtype.type(fill).item()
    except (OverflowError, ValueError):  # out of range, infinite or NaN
        kept = not fill
    if kept != fill:
        raise DtypeError(f"pad: expected a value that fits into {x.dtype.name}, got {value!r}")
    return kept


def _pad_widths(x: Tensor, pad: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) for each axis of x, the first axis first."""
    widths = sizes_of("pad", (as_sequence("pad", "pad", pad),))
    if len(widths) % 2 or len(widths) > 2 * x.ndim:
        raise ShapeError(f"pad: expected (before, after) for at most {x.ndim} axes of {x.shape}, got {widths}")
    given = list(zip(widths[::2], widths[1::2]))[::-1]
    pairs = [(0, 0)] * (x.ndim - len(given)) + given
    if any(n + min(before, 0) + min(after, 0) < 0 for n, (before, after) in zip(x.data.shape, pairs)):
        raise ShapeError(f"pad: expected to cut at most what is there, got pad {widths} for {x.shape}")
    return pairs


def _pad_backward(node: Node, grad: Array) -> None:
    shape, source, target, cuts = node.saved
    if cuts:
        accumulate_at(node.inputs[0], shape, source, grad[target])
    else:
        lend(node.inputs[0], grad[target + (...,)])
