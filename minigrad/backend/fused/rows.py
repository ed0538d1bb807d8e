"""How kernels that work on rows share them out."""

from __future__ import annotations

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import KernelLoader

_LONGEST_OF_A_WARP = 1024  # elements of a row that one warp takes; a whole block takes a longer one
_WARP = 32


def compute_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype in which kernels compute: float64 for float64, else float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def row_blocks(loader: KernelLoader, rows: Array) -> tuple[int, np.int32]:
    """The blocks for an array of rows, and whether a whole block takes a row."""
    count, length = rows.shape
    if length > _LONGEST_OF_A_WARP:
        return max(1, min(count, loader.max_blocks)), np.int32(1)
    return loader.blocks(count * _WARP), np.int32(0)
