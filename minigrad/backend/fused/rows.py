"""How kernels that work on rows share them out."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import Device, Place, place_of
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import KernelLoader, int64, suffix_of

_LONGEST_OF_A_WARP = 1024  # elements of a row that one warp takes; a whole block takes a longer one
_WARP = 32
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


def compute_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype in which kernels compute: float64 for float64, else float32."""
    return _DOUBLE if dtype == _DOUBLE else _SINGLE


def matrix_shape(rows: Array) -> tuple[np.int64, np.int64]:
    """The lengths of an array of rows, as kernels take them."""
    return int64(rows.shape[0]), int64(rows.shape[1])


class RowLaunch(NamedTuple):
    """How a kernel that works on rows is launched.

    Attributes:
        launch: File, kernel, blocks and threads.
        shape: The number of rows and their length, as kernels take them.
        by_block: Whether a whole block takes a row.
        wide: The dtype in which it computes.
    """

    launch: tuple[str, str, int, int]
    shape: tuple[np.int64, np.int64]
    by_block: np.int32
    wide: np.dtype[Any]


@functools.lru_cache(maxsize=1024)
def row_launch(loader: KernelLoader, file: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RowLaunch:
    """The launch of a kernel for an array of this shape and dtype, whose last axis is a row: found once."""
    *others, length = shape
    count, whole = math.prod(others), length > _LONGEST_OF_A_WARP
    blocks = max(1, min(count, loader.max_blocks)) if whole else loader.blocks(count * _WARP)
    launch = (file, f"{name}_{suffix_of(dtype)}", blocks, loader.threads)
    return RowLaunch(launch, (np.int64(count), np.int64(length)), np.int32(whole), compute_dtype(dtype))


def arrivals(like: Array) -> Array:
    """Where the blocks of a launch on the current stream count themselves, so that the last one knows: 0 before it and
    after it.
    """
    kind: Any = type(like)
    return _arrivals(place_of(like), kind)


@functools.cache
def _arrivals(place: Place, kind: Any) -> Array:
    if place is None:
        return np.zeros(1, np.uint32)
    with Device(f"cuda:{place[0]}").current() as cupy:
        return cupy.zeros(1, np.uint32)
