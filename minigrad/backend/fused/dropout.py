"""Dropout with a mask that the kernel draws itself: the bits that `numpy.random.Philox` would have given.

The generator in host memory is moved on by as many words as the mask takes, so everything drawn later is the same too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import KernelLoader, kernels_for, suffix_of

WORDS_PER_BLOCK = 4
ELEMENTS_PER_WORD = 4
_ELEMENTS_PER_BLOCK = WORDS_PER_BLOCK * ELEMENTS_PER_WORD


class PhiloxPosition(NamedTuple):
    """Where a generator stands, as kernels take it: eleven scalars.

    words: The counter of the last block drawn (4), the key (2), and that block (4). waiting: how many of the block's
    last words are still to be used.
    """

    words: tuple[np.uint64, ...]
    waiting: np.int32


def take_words(rng: np.random.Generator, count: int) -> PhiloxPosition | None:
    """Move a generator on by `count` words of 64 bits, and tell where it stood.

    Returns:
        None where it is no Philox; it stays where it is then.
    """
    bits = rng.bit_generator
    if not isinstance(bits, np.random.Philox):
        return None
    state: Any = bits.state
    counter, buffer = state["state"]["counter"], state["buffer"]
    words = (*counter, *state["state"]["key"], *buffer)
    position = PhiloxPosition(tuple(map(np.uint64, words)), np.int32(WORDS_PER_BLOCK - state["buffer_pos"]))
    beyond = count - int(position.waiting)  # words of blocks not yet drawn
    if beyond <= 0:
        state["buffer_pos"] += count
        bits.state = state
        return position
    blocks = -(-beyond // WORDS_PER_BLOCK)
    number = sum(int(word) << 64 * i for i, word in enumerate(counter)) + blocks - 1
    state["state"]["counter"] = np.array([number >> 64 * i & 2**64 - 1 for i in range(4)], np.uint64)
    state["buffer_pos"] = WORDS_PER_BLOCK
    bits.state = state
    bits.random_raw(beyond - (blocks - 1) * WORDS_PER_BLOCK)  # draws the last block, of which some words may wait
    return position


def drop(x: Array, position: PhiloxPosition, threshold: int, scale: float) -> Array:
    """x · scale where an element's 16 bits are at least the threshold, else x · 0.

    Args:
        x: Contiguous and float, of any shape.
        position: Element i takes bits [16·i, 16·i + 16) of the words from here on, the lowest bits of a word first.
        threshold: In [0, 2**16).
    """
    loader = _loader(x)
    out = array_module(x).empty_like(x)
    if x.size:
        options = (np.uint32(threshold), np.float64(scale))
        args = (x, out, np.int64(x.size), *position.words, position.waiting, *options)
        blocks = loader.blocks(1 + -(-x.size // _ELEMENTS_PER_BLOCK))
        loader.launch("dropout", f"dropout_{suffix_of(x.dtype)}", blocks, loader.threads, args)
    return out


def draw_words(words: Array, position: PhiloxPosition) -> None:
    """Fill a uint64 array with the words from a position on."""
    loader = _loader(words)
    if words.size:
        args = (words, np.int64(words.size), *position.words, position.waiting)
        blocks = loader.blocks(1 + -(-words.size // WORDS_PER_BLOCK))
        loader.launch("dropout", "philox_words", blocks, loader.threads, args)


def _loader(array: Array) -> KernelLoader:
    loader = kernels_for(array)
    assert loader is not None
    return loader
