"""The addresses of matrices that lie in batches, listed where a product reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import loader_for

MOST = 10  # arrays in one list


class MatrixPlaces(NamedTuple):
    """Where the matrices of an array lie: the first, and the steps in bytes along an outer and an inner batch axis."""

    start: int
    outer: int
    inner: int


def list_addresses(table: Array, lengths: tuple[int, int], arrays: Sequence[MatrixPlaces]) -> None:
    """Write the addresses of all matrices.

    Shapes:
        table: uint64 (len(arrays), outer · inner)

    Args:
        lengths: Of the outer and the inner batch axis.
        arrays: At most MOST.
    """
    assert len(arrays) <= MOST
    loader = loader_for(table)
    places = [*arrays, *[MatrixPlaces(0, 0, 0)] * (MOST - len(arrays))]
    numbers = [number for start, *steps in places for number in (np.uint64(start), *map(np.int64, steps))]
    args = (table, np.int32(len(arrays)), np.int64(lengths[0]), np.int64(lengths[1]), *numbers)
    loader.launch("addresses", "addresses_of_matrices", loader.blocks(table.size), loader.threads, args)
