"""The fingerprint of an array's bits in one pass; the reference is `minigrad.distributed.record.fingerprint`."""

from __future__ import annotations

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import loader_for

_ELEMENTS = 16  # that a thread reads before there are more blocks


def fingerprint_of_bits(bits: Array, start: int) -> Array:
    """The fingerprint, of no axes.

    Args:
        bits: 1-D and contiguous, of unsigned integers.
        start: Elements before these in the array of which they are a part.
    """
    loader = loader_for(bits)
    total = array_module(bits).zeros((), np.uint64)
    if bits.size:
        args = (bits, np.int64(bits.size), np.uint64(start % 2**64), total)
        blocks = loader.blocks(-(-bits.size // _ELEMENTS))
        loader.launch("fingerprint", f"fingerprint_{bits.itemsize * 8}", blocks, loader.threads, args)
    return total
