"""The sum of several arrays on one device, in one pass over each."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from minigrad.backend.device import Place, place_of, to_place
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import loader_for, suffix_of
from minigrad.backend.memory import address_of

MOST_REPLICAS = 63
_VECTOR = 4  # elements that one thread takes at a time


def reduce_replicas_(arrays: Sequence[Array]) -> None:
    """Overwrite every array by the sum of all; each then holds the same bits.

    The reference is `minigrad.distributed.collectives.all_reduce`: the same fixed pairwise order, float16 and bfloat16
    added in float32 and rounded once.

    Args:
        arrays: At most 63, contiguous, of one shape and float dtype, none overlapping another; in the memory of the
            current device, or of one whose memory it can reach.
    """
    assert len(arrays) <= MOST_REPLICAS
    loader = loader_for(arrays[0])
    first = arrays[0]
    if first.size:
        table = _table(tuple(map(address_of, arrays)), place_of(first))
        args = (table, np.int32(len(arrays)), np.int64(first.size))
        blocks = loader.blocks(-(-first.size // _VECTOR))
        name = f"reduce_{suffix_of(first.dtype)}"
        loader.launch("reduce_replicas", name, blocks, loader.threads, args, reaches=arrays)


@functools.lru_cache(maxsize=256)
def _table(addresses: tuple[int, ...], place: Place) -> Array:
    """Addresses where the kernel reads them. They are those of buckets, as a rule, so the same in each step."""
    return to_place(np.array(addresses), place)
