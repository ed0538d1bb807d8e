"""Gradients on their way through a collective: weighted and cast into a bucket, weighted in place, and back.

Three passes, each of one read and one write of an element:

- `pack` puts many gradients into their places in a bucket, times this rank's weight, in the dtype of the wire;
- `scale_` weights a bucket in place, where gradients lie in the flat layout and travel as they are;
- `unpack` brings the reduced bucket back.

A weight of 0 leaves 0, whatever the element was: 0 · NaN would be NaN. Weights, flags and sums stay in device memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.norm import finish_blocks
from minigrad.backend.fused.pieces import pieces_of
from minigrad.backend.kernels import KernelLoader, kernels_for, suffix_of
from minigrad.errors import ArgumentError, DtypeError

CHUNK = 8192  # elements that one block takes at a time
_VECTOR = 4  # elements that one thread takes at a time

# The dtypes of a bucket, by that of the gradients.
WIRES = {
    "float32": ("float32", "float16", "bfloat16"),
    "float64": ("float64", "float32"),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
}


class Placement:
    """Where each of several arrays lies in a bucket.

    On a GPU it holds addresses: make it anew where an array has moved.

    Args:
        arrays: Contiguous, of one dtype and device.
        offsets: The place of the first element of each in the bucket.

    Raises:
        ArgumentError: no arrays, not one offset for each, or an array that is not contiguous.
        DtypeError: several dtypes.
    """

    def __init__(self, arrays: Sequence[Array], offsets: Sequence[int]) -> None:
        if not arrays or len(offsets) != len(arrays):
            got = f"{len(arrays)} arrays and {len(offsets)} offsets"
            raise ArgumentError(f"Placement: expected arrays, and an offset for each, got {got}")
        self.arrays, self.offsets = list(arrays), [int(offset) for offset in offsets]
        self.dtype: np.dtype[Any] = arrays[0].dtype
        for array in arrays:
            if array.dtype != self.dtype:
                got = f"{self.dtype.name} and {array.dtype.name}"
                raise DtypeError(f"Placement: expected arrays of one dtype, got {got}")
            if not array.flags.c_contiguous:
                raise ArgumentError(f"Placement: expected contiguous arrays, got strides {array.strides}")
        self.stop = max(offset + array.size for offset, array in zip(self.offsets, arrays))
        on_gpu = kernels_for(arrays[0]) is not None
        self.pieces = list(pieces_of(self.arrays, self.offsets, CHUNK)) if on_gpu else []


def pack(placement: Placement, bucket: Array, weight: Array, nonfinite: Array | None = None) -> None:
    """bucket[place of x] = x · weight for every array x, in the bucket's dtype.

    Args:
        bucket: 1-D, of a dtype in `WIRES`; elements between the arrays are not touched.
        weight: float64 (1,): this rank's share n_r / Σn of the samples.
        nonfinite: uint32 (1,); becomes 1 where a value written is infinite or NaN. One for each rank names the rank.

    Raises:
        DtypeError: a dtype that does not fit.
        ArgumentError: the bucket is too short, or shapes do not fit.
    """
    _check("pack", placement, bucket, weight, nonfinite, None)
    loader = kernels_for(bucket)
    if loader is None:
        for array, offset in zip(placement.arrays, placement.offsets):
            _scale_to(bucket[offset : offset + array.size], array.reshape(-1), weight, nonfinite, None)
        return
    name = f"pack_{suffix_of(placement.dtype)}_{suffix_of(bucket.dtype)}"
    for pieces in placement.pieces:
        args = (pieces.argument, weight, bucket, nonfinite)
        blocks = min(pieces.chunks, loader.max_blocks)
        loader.launch("grad_scale", name, blocks, loader.threads, args, reaches=pieces.arrays)


def unpack(
    bucket: Array,
    weight: Array,
    placement: Placement,
    nonfinite: Array | None = None,
    squares: Array | None = None,
) -> None:
    """x = bucket[place of x] · weight for every array x of a placement, in its dtype.

    Args:
        bucket, weight, nonfinite: As for `pack`.
        squares: float64 (1,); gets the sum of squares of all values written.

    Raises:
        DtypeError, ArgumentError: as `pack`.
    """
    _check("unpack", placement, bucket, weight, nonfinite, squares)
    loader = kernels_for(bucket)
    if squares is not None and (loader is None or not placement.pieces):
        squares[...] = 0
    if loader is None:
        for array, offset in zip(placement.arrays, placement.offsets):
            _scale_to(array.reshape(-1), bucket[offset : offset + array.size], weight, nonfinite, squares)
        return
    name = f"unpack_{suffix_of(bucket.dtype)}_{suffix_of(placement.dtype)}"
    blocks = [min(pieces.chunks, loader.max_blocks) for pieces in placement.pieces]
    of_blocks = _of_blocks(bucket, sum(blocks), squares) if blocks else None
    for pieces, first, count in zip(placement.pieces, itertools.accumulate(blocks, initial=0), blocks):
        part = None if of_blocks is None else of_blocks[first : first + count]
        args = (bucket, weight, pieces.argument, nonfinite, part)
        loader.launch("grad_scale", name, count, loader.threads, args, reaches=pieces.arrays)
    _finish(loader, of_blocks, squares)


def scale_(x: Array, weight: Array, nonfinite: Array | None = None, squares: Array | None = None) -> None:
    """x *= weight, in place.

    Args:
        x: 1-D, contiguous and float.
        weight, nonfinite: As for `pack`.
        squares: As for `unpack`.

    Raises:
        DtypeError, ArgumentError: as `pack`.
    """
    _check("scale_", None, x, weight, nonfinite, squares)
    loader = kernels_for(x)
    if squares is not None and (loader is None or not x.size):
        squares[...] = 0
    if loader is None:
        _scale_to(x, x, weight, nonfinite, squares)
    elif x.size:
        blocks = loader.blocks(-(-x.size // _VECTOR))
        of_blocks = _of_blocks(x, blocks, squares)
        args = (x, np.int64(x.size), weight, nonfinite, of_blocks)
        loader.launch("grad_scale", f"scale_{suffix_of(x.dtype)}", blocks, loader.threads, args)
        _finish(loader, of_blocks, squares)


class Widened:
    """A 16-bit array and the float32 one in which it is weighted and added up, so that it is rounded once.

    Args:
        array: 1-D, contiguous.
        wide: float32, as long, on the same device.
    """

    def __init__(self, array: Array, wide: Array) -> None:
        self.wide, self._place = wide, Placement([array], [0])
        self._one = array_module(wide).ones(1, np.float64)

    def fill(self, weight: Array | None, nonfinite: Array | None = None) -> None:
        """wide = array · weight; None is 1. See `pack`."""
        pack(self._place, self.wide, self._one if weight is None else weight, nonfinite)

    def round(self) -> None:
        """array = wide."""
        unpack(self.wide, self._one, self._place)


# ---------------------------------------------------------------------------------------------------------- inside


def as_factor(weight: float | Array, *dtypes: np.dtype[Any]) -> Array:
    """A weight as (1,) in the dtype in which elements of these dtypes are multiplied: float64 if one of them is."""
    return np.array(weight, np.float64 if np.float64 in dtypes else np.float32, ndmin=1)


def multiply(x: Array, factor: Array, out: Array) -> None:
    """out = x · factor in host memory, multiplied in the factor's dtype; 0 where that is 0, whatever x is."""
    if factor[0]:
        np.multiply(x, factor, out=out, dtype=factor.dtype, casting="unsafe")
    else:
        out[...] = 0


def _scale_to(out: Array, x: Array, weight: Array, nonfinite: Array | None, squares: Array | None) -> None:
    """The reference: out = x · weight, multiplied in float32, or in float64 where one of the two is."""
    with np.errstate(over="ignore", invalid="ignore"):
        multiply(x, as_factor(weight, x.dtype, out.dtype), out)
    if nonfinite is not None and not np.isfinite(out).all():
        nonfinite[...] = 1
    if squares is not None:
        written = out.astype(np.float64)
        squares += np.dot(written, written)


def _of_blocks(like: Array, blocks: int, squares: Array | None) -> Array | None:
    return None if squares is None else array_module(like).empty(blocks, np.float64)


def _finish(loader: KernelLoader, of_blocks: Array | None, squares: Array | None) -> None:
    if of_blocks is not None:
        finish_blocks(loader, of_blocks, squares)


def _check(
    who: str,
    placement: Placement | None,
    bucket: Array,
    weight: Array,
    nonfinite: Array | None,
    squares: Array | None,
) -> None:
    allowed = WIRES if placement is None else WIRES[placement.dtype.name]
    if bucket.dtype.name not in allowed:
        raise DtypeError(f"{who}: expected a bucket of {', '.join(allowed)}, got {bucket.dtype.name}")
    if bucket.ndim != 1 or not bucket.flags.c_contiguous:
        raise ArgumentError(f"{who}: expected a contiguous bucket of one axis, got {bucket.shape}")
    if placement is not None and placement.stop > bucket.size:
        raise ArgumentError(f"{who}: expected a bucket of at least {placement.stop} elements, got {bucket.size}")
    wanted = (("weight", weight, "float64"), ("nonfinite", nonfinite, "uint32"), ("squares", squares, "float64"))
    for name, array, dtype in wanted:
        if array is not None and (array.dtype.name != dtype or array.shape != (1,)):
            raise ArgumentError(f"{who}: expected {name} of {dtype} (1,), got {array.dtype.name} {array.shape}")
