"""The check of batches as rows of indices, which a rank takes some of."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.data.order import Indices as Indices  # noqa: F401
from minigrad.errors import ArgumentError


def batch_indices(who: str, batch: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """The indices of a batch, as an array.

    Raises:
        ArgumentError: a batch that is no row of indices.
    """
    indices: np.ndarray[Any, np.dtype[Any]] = np.asarray(batch)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ArgumentError(
            f"{who}: expected the indices of a batch, got {type(batch).__name__} of shape {indices.shape} and dtype "
            f"{indices.dtype}: give it a BatchSampler"
        )
    return indices
