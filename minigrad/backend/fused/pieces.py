"""Several arrays as one argument of a kernel, by value: see kernels/pieces.cuh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.backend.memory import address_of

MOST_PIECES = 48  # of a launch, whose arguments have room for 4 KiB

_PIECES = np.dtype(
    [
        ("addresses", np.uint64, MOST_PIECES),
        *((name, np.int64, MOST_PIECES) for name in ("offsets", "sizes", "firsts")),
        *((name, np.int64) for name in ("count", "chunks", "chunk")),
    ]
)


class Pieces(NamedTuple):
    """What one launch is given of several arrays.

    Attributes:
        argument: By value: of a NumPy array of one element CuPy passes the bytes.
        chunks: Of all arrays together, >= 1.
        arrays: Those to which its addresses point.
    """

    argument: np.ndarray[Any, Any]
    chunks: int
    arrays: Sequence[Array]


def pieces_of(arrays: Sequence[Array], offsets: Sequence[int], chunk: int) -> Iterator[Pieces]:
    """One for each launch that the arrays take, those without elements left out.

    Args:
        arrays: Contiguous.
        offsets: Where the part of each begins in a common array.
        chunk: Elements that one block takes at a time.
    """
    filled = [i for i, array in enumerate(arrays) if array.size]
    for first in range(0, len(filled), MOST_PIECES):
        part = filled[first : first + MOST_PIECES]
        sizes = [arrays[i].size for i in part]
        firsts = [0]
        for size in sizes:
            firsts.append(firsts[-1] - (-size // chunk))
        argument = np.zeros(1, _PIECES)
        fields, count = argument[0], len(part)
        fields["addresses"][:count] = [address_of(arrays[i]) for i in part]
        fields["offsets"][:count] = [offsets[i] for i in part]
        fields["sizes"][:count], fields["firsts"][:count] = sizes, firsts[:-1]
        fields["count"], fields["chunks"], fields["chunk"] = count, firsts[-1], chunk
        yield Pieces(argument, firsts[-1], [arrays[i] for i in part])
