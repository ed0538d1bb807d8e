"""In what order the elements of arrays lie in memory, and results that lie as their operands do.

NumPy's functions of elements keep the order of their operands; CuPy's allocate rows. On a GPU images are (N, C, H, W)
views of (N, H, W, C): a result in rows would have to be copied by the next convolution.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.workspace import LEAST_BYTES, empty_like


def memory_axes(x: Array) -> tuple[int, ...] | None:
    """The axes in the order in which x lies, slowest first; None where no order of axes makes it contiguous."""
    axes = sorted(range(x.ndim), key=lambda axis: (-x.strides[axis], axis) if x.shape[axis] != 1 else (-2**63, axis))
    return tuple(axes) if x.transpose(axes).flags.c_contiguous else None


def memory_view(x: Array) -> Array:
    """x as a contiguous array, its axes in the order in which it lies; one must."""
    if x.flags.c_contiguous:
        return x
    axes = memory_axes(x)
    assert axes is not None
    return x.transpose(axes)


def lies_like(other: Array, x: Array) -> Array:
    """x where its elements lie as those of another array do, else a copy that does."""
    if x.strides == other.strides or (x.flags.c_contiguous and other.flags.c_contiguous):
        return x
    copy = array_module(x).empty_like(other, dtype=x.dtype)
    copy[...] = x
    return copy


def room_like(*operands: Array) -> Array | None:
    """Where a result of operands is to be written so that it lies as they do; None where it does by itself.

    In host memory a large one gets a place in the workspace, if it is like the first operand.

    Args:
        operands: Of one dtype, which is that of the result. Where they lie differently, the first decides that has the
            shape of the result and does not lie in rows.
    """
    if operands[0].__class__ is np.ndarray:
        return _room_on_host(*operands)
    others = [x for x in operands if not x.flags.c_contiguous]
    if not others:
        return None
    shape = np.broadcast_shapes(*[x.shape for x in operands])
    return next((array_module(x).empty_like(x) for x in others if x.shape == shape), None)


def _room_on_host(first: Array, *others: Array) -> Array | None:
    if first.nbytes < LEAST_BYTES or first.dtype.kind != "f":
        return None
    if any([x.dtype != first.dtype or (x.shape == first.shape and x.strides != first.strides) for x in others]):
        return None
    shape = np.broadcast_shapes(first.shape, *[x.shape for x in others])
    return empty_like(first) if shape == first.shape else None


def in_order(function: str, *operands: Any) -> Array:
    """A function of elements, named as in NumPy, whose result lies as its operands do."""
    first = operands[0]
    if first.__class__ is np.ndarray:
        return getattr(np, function)(*operands, out=_room_on_host(*operands))
    room = room_like(*operands)
    return getattr(array_module(first), function)(*operands, out=room)
