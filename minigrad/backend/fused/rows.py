"""How kernels that work on rows share them out."""

from __future__ import annotations

import functools

import numpy as np

from minigrad.backend.device import Device, Place, place_of
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import KernelLoader

_LONGEST_OF_A_WARP = 1024  # elements of a row that one warp takes; a whole block takes a longer one
_WARP = 32
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


def compute_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype in which kernels compute: float64 for float64, else float32."""
    return _DOUBLE if dtype == _DOUBLE else _SINGLE


def matrix_shape(rows: Array) -> tuple[np.int64, np.int64]:
    """The lengths of an array of rows, as kernels take them."""
    return np.int64(rows.shape[0]), np.int64(rows.shape[1])


def row_blocks(loader: KernelLoader, rows: Array) -> tuple[int, np.int32]:
    """The blocks for an array of rows, and whether a whole block takes a row."""
    count, length = rows.shape
    if length > _LONGEST_OF_A_WARP:
        return max(1, min(count, loader.max_blocks)), np.int32(1)
    return loader.blocks(count * _WARP), np.int32(0)


def arrivals(like: Array) -> Array:
    """Where the blocks of a launch on the current stream count themselves, so that the last one knows: 0 before it and
    after it.
    """
    return _arrivals(place_of(like))


@functools.cache
def _arrivals(place: Place) -> Array:
    if place is None:
        return np.zeros(1, np.uint32)
    with Device(f"cuda:{place[0]}").current() as cupy:
        return cupy.zeros(1, np.uint32)
