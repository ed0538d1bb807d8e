"""Tensors laid out beside each other, their elements repeated, their windows: meshgrid to repeat_interleave, unfold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_choice, is_integer
from minigrad.autograd.tape import Node, own_gradient
from minigrad.backend.device import array_module, to_device, to_host
from minigrad.backend.dtypes import Array
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.arithmetic import broadcast_error
from minigrad.ops.axes import normalize_axis
from minigrad.ops.convert import clone
from minigrad.ops.index import index_select
from minigrad.ops.join import cat, narrow
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, same_device
from minigrad.ops.shape import expand, flip, permute, reshape, sizes_of, transpose, unsqueeze
from minigrad.stamp import is_view
from minigrad.tensor import Tensor, record

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "dstack", "fliplr", "flipud", "hstack", "meshgrid",
    "movedim", "pixel_shuffle", "pixel_unshuffle", "repeat_interleave", "rot90", "tensor_split", "vstack",
]


@method
def repeat_interleave(
    x: TensorLike, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element, or each slice along an axis, so many times in a row; dx adds up g over them.

    Args:
        repeats: A number for all, or a vector of integers with one for each, for which a GPU is waited for.
        dim: None repeats the elements of the flattened tensor.
        output_size: How many there will be, to be checked.

    Shapes:
        (A, N, B) -> (A, N·repeats, B) for dim = 1

    Raises:
        ShapeError: the axis is out of range, or another number of repeats than slices.
        ArgumentError: a negative number, or another output_size. DtypeError: repeats that are no integers.
        DeviceError: repeats on another device than x.

    Example:
        >>> import minigrad
        >>> minigrad.tensor([1, 2]).repeat_interleave(3).tolist()
        [1, 1, 1, 2, 2, 2]
    """
    x = as_operand("repeat_interleave", x)
    x, axis = (reshape(x, -1), 0) if dim is None else (x, normalize_axis("repeat_interleave", dim, x.ndim))
    x = x if x.ndim else reshape(x, 1)
    length = x.shape[axis]
    counts = None if not isinstance(repeats, Tensor) else _counts(x, repeats, length)
    if counts is not None:
        places = np.repeat(np.arange(length), counts)
        out = index_select(x, axis, Tensor(to_device(places, x.device)))
    else:
        times = as_integer("repeat_interleave", "repeats other than a tensor", repeats, 0)
        stretched = expand(unsqueeze(x, axis + 1), [*x.shape[: axis + 1], times, *x.shape[axis + 1 :]])
        out = reshape(stretched, [*x.shape[:axis], length * times, *x.shape[axis + 1 :]])
    if output_size is not None and output_size != out.shape[axis]:
        raise ArgumentError(f"repeat_interleave: expected output_size {out.shape[axis]}, got {output_size!r}")
    return out


def _counts(x: Tensor, repeats: Tensor, length: int) -> np.ndarray[Any, Any]:
    """How often each of so many slices is repeated."""
    same_device("repeat_interleave", x, repeats)
    if repeats.data.dtype.kind not in "iu":
        raise DtypeError(f"repeat_interleave: expected integers as repeats, got {repeats.dtype.name} {repeats.shape}")
    if repeats.ndim > 1 or repeats.numel() not in (1, length):
        raise ShapeError(f"repeat_interleave: expected one number or {length}, got {repeats.shape} for {x.shape}")
    counts = to_host(repeats.data).reshape(-1)
    if counts.min(initial=0) < 0:
        raise ArgumentError(f"repeat_interleave: expected repeats >= 0, got some as low as {counts.min()}")
    return counts


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Each vector along an axis of its own, broadcast over those of the others, as views.

    Args:
        tensors: Vectors, or tensors of no axes; also as one list.
        indexing: "ij" gives the i-th vector axis i; "xy" swaps the first two axes, as for the columns of an image.

    Shapes:
        (N,), (M,) -> (N, M), (N, M), or (M, N) twice for "xy"

    Raises:
        ArgumentError: no tensors, or another word for indexing.
        ShapeError: a tensor of more axes.
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    check_choice("meshgrid", ("ij", "xy"), indexing=indexing)
    if not given:
        raise ArgumentError("meshgrid: expected at least one tensor, got none")
    vectors = [as_operand("meshgrid", x) for x in given]
    same_device("meshgrid", *vectors)
    if max(x.ndim for x in vectors) > 1:
        raise ShapeError(f"meshgrid: expected vectors, got shapes {', '.join(str(x.shape) for x in vectors)}")
    places = list(range(len(vectors)))
    if indexing == "xy" and len(places) > 1:
        places[:2] = 1, 0
    lengths = [vectors[i].numel() for i in places]  # places is its own inverse
    return tuple(
        expand(reshape(x, [-1 if axis == place else 1 for axis in range(len(vectors))]), lengths)
        for x, place in zip(vectors, places)
    )


@method
def movedim(x: TensorLike, source: Any, destination: Any) -> Tensor:
    """Axes moved to other places, as a view; the others keep their order.

    Args:
        source, destination: An axis, or as many axes of each.

    Raises:
        ShapeError: an axis out of range or named twice, or other numbers of them.
    """
    x = as_operand("movedim", x)
    before = [normalize_axis("movedim", axis, x.ndim) for axis in sizes_of("movedim", (source,))]
    after = [normalize_axis("movedim", axis, x.ndim) for axis in sizes_of("movedim", (destination,))]
    if len(before) != len(after) or len({*before}) < len(before) or len({*after}) < len(after):
        raise ShapeError(f"movedim: expected as many different axes, got {source} and {destination} of {x.shape}")
    moved = dict(zip(after, before))
    others = (axis for axis in range(x.ndim) if axis not in before)
    return permute(x, [moved[axis] if axis in moved else next(others) for axis in range(x.ndim)])


@method
def fliplr(x: TensorLike) -> Tensor:
    """The columns in reverse order, as a copy: `flip` along axis 1.

    Raises:
        ShapeError: fewer than two axes.
    """
    x = as_operand("fliplr", x)
    if x.ndim < 2:
        raise ShapeError(f"fliplr: expected at least two axes, got shape {x.shape}")
    return flip(x, 1)


@method
def flipud(x: TensorLike) -> Tensor:
    """The rows in reverse order, as a copy: `flip` along axis 0.

    Raises:
        ShapeError: no axes.
    """
    x = as_operand("flipud", x)
    if not x.ndim:
        raise ShapeError("flipud: expected at least one axis, got shape ()")
    return flip(x, 0)


def rot90(x: TensorLike, k: int = 1, dims: tuple[int, int] = (0, 1)) -> Tensor:
    """x turned k times by a quarter, from the first of two axes towards the second. dx = g turned back.

    Raises:
        ShapeError: other than two different axes of x.
        ArgumentError: k is no integer.
    """
    x, times = as_operand("rot90", x), as_integer("rot90", "k", k) % 4
    if not isinstance(dims, (tuple, list)) or len(dims) != 2:
        raise ShapeError(f"rot90: expected dims to be two axes, got {dims!r}")
    first, second = (normalize_axis("rot90", dim, x.ndim) for dim in dims)
    if first == second:
        raise ShapeError(f"rot90: expected two different axes of {x.shape}, got {dims}")
    if times % 2 == 0:
        return flip(x, first, second) if times else clone(x)
    return flip(transpose(x, first, second), first if times == 1 else second)


def pixel_shuffle(x: TensorLike, upscale_factor: int) -> Tensor:
    """Each r·r channels as the pixels of squares: z[c, h·r + i, w·r + j] = x[c·r·r + i·r + j, h, w]. dx = g there.

    Source: Shi et al., Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel CNN (2016).

    Args:
        upscale_factor: r >= 1.

    Shapes:
        (..., C·r·r, H, W) -> (..., C, H·r, W·r)

    Raises:
        ShapeError: other shapes.
        ArgumentError: upscale_factor < 1.
    """
    x, r = as_operand("pixel_shuffle", x), _factor("pixel_shuffle", "upscale_factor", upscale_factor)
    if x.ndim < 3 or x.shape[-3] % r**2:
        raise ShapeError(f"pixel_shuffle: expected x (..., C·{r}·{r}, H, W), got {x.shape}")
    *lead, channels, height, width = x.shape
    n = len(lead)
    parts = reshape(x, *lead, channels // r**2, r, r, height, width)
    turned = permute(parts, *range(n), n, n + 3, n + 1, n + 4, n + 2)
    return _reshaped_copy(turned, *lead, channels // r**2, height * r, width * r)


def pixel_unshuffle(x: TensorLike, downscale_factor: int) -> Tensor:
    """The pixels of r by r squares as channels: `pixel_shuffle` undone.

    Args:
        downscale_factor: r >= 1.

    Shapes:
        (..., C, H·r, W·r) -> (..., C·r·r, H, W)

    Raises:
        ShapeError: other shapes.
        ArgumentError: downscale_factor < 1.
    """
    x, r = as_operand("pixel_unshuffle", x), _factor("pixel_unshuffle", "downscale_factor", downscale_factor)
    if x.ndim < 3 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(f"pixel_unshuffle: expected x (..., C, H·{r}, W·{r}), got {x.shape}")
    *lead, channels, height, width = x.shape
    n = len(lead)
    parts = reshape(x, *lead, channels, height // r, r, width // r, r)
    turned = permute(parts, *range(n), n, n + 2, n + 4, n + 1, n + 3)
    return _reshaped_copy(turned, *lead, channels * r**2, height // r, width // r)


def _reshaped_copy(x: Tensor, *shape: int) -> Tensor:
    """x in another shape and in memory of its own, also where the elements lie in that order already."""
    y = reshape(x, *shape)
    return clone(y) if is_view(y) else y


def _factor(who: str, name: str, factor: int) -> int:
    if as_integer(who, name, factor) < 1:
        raise ArgumentError(f"{who}: expected {name} >= 1, got {factor}")
    return factor


@method
def unfold(x: TensorLike, dimension: int, size: int, step: int) -> Tensor:
    """The windows of a size along an axis, each so many steps after the one before it, as a view.

    dx adds up g over the windows that an element is in.

    Shapes:
        (A, N, B) -> (A, (N - size) // step + 1, B, size) for dimension = 1

    Raises:
        ShapeError: the axis is out of range, or shorter than a window.
        ArgumentError: size is negative, or step below 1.
    """
    x = as_operand("unfold", x)
    axis = normalize_axis("unfold", dimension, x.ndim)
    size, step = as_integer("unfold", "size", size, 0), as_integer("unfold", "step", step, 1)
    if not x.ndim and size <= 1:
        return narrow(reshape(x, 1), 0, 0, size)
    if not x.ndim or size > x.shape[axis]:
        raise ShapeError(f"unfold: expected an axis of at least {size}, got {dimension} of {x.shape}")
    windows = array_module(x.data).lib.stride_tricks.sliding_window_view(x.data, size, axis)
    data = windows[(slice(None),) * axis + (slice(None, None, step),)]
    return record(data, _unfold_backward, (x,), (x.data.shape, axis, step), view_of=x)


def _unfold_backward(node: Node, grad: Array) -> None:
    (shape, axis, step), (edge,) = node.saved, node.inputs
    if edge is not None:
        total, count = own_gradient(edge, shape, grad), grad.shape[axis]
        for i in range(grad.shape[-1]):
            total[(slice(None),) * axis + (slice(i, i + (count - 1) * step + 1, step),)] += grad[..., i]


@method
def tensor_split(x: TensorLike, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """x in so many parts along an axis, as views, the first ones longer by 1 where they can't be equal.

    Args:
        indices_or_sections: How many parts, or where each but the first begins, as in slices; also as a tensor, for
            which a GPU is waited for.

    Raises:
        ShapeError: the axis is out of range, or a tensor of no axes.
        ArgumentError: fewer than 1 part, or what is no list of integers.
    """
    x = as_operand("tensor_split", x)
    axis = normalize_axis("tensor_split", dim, x.ndim)
    if not x.ndim:
        raise ShapeError("tensor_split: expected a tensor with at least one axis, got shape ()")
    length, wanted = x.shape[axis], indices_or_sections
    wanted = wanted.tolist() if isinstance(wanted, Tensor) else wanted
    if isinstance(wanted, (list, tuple)) and all(is_integer(start) for start in wanted):
        starts = [slice(start, None).indices(length)[0] for start in wanted]
    else:
        parts = as_integer("tensor_split", "indices_or_sections other than a list of integers", wanted, 1)
        starts = [i * (length // parts) + min(i, length % parts) for i in range(1, parts)]
    ends = zip([0, *starts], [*starts, length])
    return tuple(narrow(x, axis, start, max(end - start, 0)) for start, end in ends)


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """The tensors broadcast to one shape, as views.

    Raises:
        ShapeError: the shapes do not broadcast.
    """
    given = [as_operand("broadcast_tensors", x) for x in tensors]
    same_device("broadcast_tensors", *given)
    try:
        shape = np.broadcast_shapes(*(x.shape for x in given))
    except ValueError as error:
        raise broadcast_error("broadcast_tensors", *given) from error
    return tuple(expand(x, shape) for x in given)


def atleast_1d(*tensors: Any) -> Any:
    """x as it is, but one element as a vector; several tensors, or a list of them, give a tuple."""
    return _at_least("atleast_1d", tensors, lambda x: x if x.ndim else reshape(x, 1))


def atleast_2d(*tensors: Any) -> Any:
    """x as it is, but a vector as one row; several tensors, or a list of them, give a tuple."""
    return _at_least("atleast_2d", tensors, _as_rows)


def atleast_3d(*tensors: Any) -> Any:
    """x as it is, but a matrix (N, M) as (N, M, 1), a vector as (1, N, 1); several tensors, or a list, give a tuple."""
    return _at_least("atleast_3d", tensors, _as_slices)


def _at_least(who: str, tensors: tuple[Any, ...], change: Callable[[Tensor], Tensor]) -> Any:
    if len(tensors) == 1 and not isinstance(tensors[0], (list, tuple)):
        return change(as_operand(who, tensors[0]))
    listed = tensors[0] if len(tensors) == 1 else tensors
    return tuple(change(as_operand(who, x)) for x in listed)


# ------------------------------------------------------------------------------------------- stacks of several axes


def vstack(tensors: Sequence[TensorLike]) -> Tensor:
    """The tensors as rows below each other: `cat` along axis 0, to which vectors come as rows.

    Raises:
        ShapeError: shapes that differ along another axis. ArgumentError: no tensors.
    """
    return cat([_as_rows(x) for x in _listed("vstack", tensors)], 0)


def hstack(tensors: Sequence[TensorLike]) -> Tensor:
    """The tensors beside each other: `cat` along axis 1, vectors along axis 0.

    Raises:
        ShapeError: shapes that differ along another axis. ArgumentError: no tensors.
    """
    parts = [x if x.ndim else reshape(x, 1) for x in _listed("hstack", tensors)]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def dstack(tensors: Sequence[TensorLike]) -> Tensor:
    """The tensors one behind the other: `cat` along axis 2, to which vectors come as rows and matrices as they are.

    Raises:
        ShapeError: shapes that differ along another axis. ArgumentError: no tensors.
    """
    return cat([_as_slices(x) for x in _listed("dstack", tensors)], 2)


def _listed(who: str, tensors: Any) -> list[Tensor]:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise ArgumentError(f"{who}: expected a list of at least one tensor, got {tensors!r}")
    given = [as_operand(who, x) for x in tensors]
    same_device(who, *given)
    return given


def _as_rows(x: Tensor) -> Tensor:
    return x if x.ndim > 1 else reshape(x, 1, -1)


def _as_slices(x: Tensor) -> Tensor:
    return x if x.ndim > 2 else unsqueeze(_as_rows(x), 2)
