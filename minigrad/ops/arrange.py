"""Tensors laid out beside each other, and their elements repeated one by one: meshgrid to repeat_interleave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_choice, is_integer
from minigrad.backend.device import to_device, to_host
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.axes import normalize_axis
from minigrad.ops.index import index_select
from minigrad.ops.join import cat, narrow
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, same_device
from minigrad.ops.shape import expand, permute, reshape, sizes_of, unsqueeze
from minigrad.tensor import Tensor

__all__ = ["dstack", "hstack", "meshgrid", "movedim", "repeat_interleave", "tensor_split", "vstack"]


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
    parts = [_as_rows(x) for x in _listed("dstack", tensors)]
    return cat([x if x.ndim > 2 else unsqueeze(x, 2) for x in parts], 2)


def _listed(who: str, tensors: Any) -> list[Tensor]:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise ArgumentError(f"{who}: expected a list of at least one tensor, got {tensors!r}")
    return [as_operand(who, x) for x in tensors]


def _as_rows(x: Tensor) -> Tensor:
    return x if x.ndim > 1 else reshape(x, 1, -1)
