"""Dropout with a mask that the kernel draws itself: the bits that `numpy.random.Philox` would have given.

The generator in host memory is moved on by as many words as the mask takes, so everything drawn later is the same too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.capturing import Capture, current_capture, refuse_in_capture
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import int32, int64, launch_of, loader_for
from minigrad.backend.memory import contiguous
from minigrad.backend.order import lies_like
from minigrad.backend.random import current_streams, noise_generator

WORDS_PER_BLOCK = 4
ELEMENTS_PER_WORD = 4
WORDS = WORDS_PER_BLOCK * 2**256  # that a generator gives before it begins again
Place = tuple[tuple[int, int], int]
_ELEMENTS_PER_BLOCK = WORDS_PER_BLOCK * ELEMENTS_PER_WORD


class PhiloxPosition(NamedTuple):
    """Where a generator stands, as kernels take it: eleven scalars.

    words: The counter of the last block drawn (4), the key (2), and that block (4), zeros where none of it is waiting.
    waiting: how many of the block's last words are still to be used. live: where a captured step finds the place of
    its generator, so many words before.
    """

    words: tuple[np.uint64, ...]
    waiting: np.int32
    live: Array | None = None
    words_on: np.uint64 = np.uint64(0)

    def number(self) -> int:
        """How many words the generator has given so far, modulo WORDS."""
        return WORDS_PER_BLOCK * sum(int(word) << 64 * i for i, word in enumerate(self.words[:4])) - int(self.waiting)

    def place(self) -> Place:
        """What tells it from every other place: the key, and how many words were given."""
        return (int(self.words[4]), int(self.words[5])), self.number()


def take_words(rng: np.random.Generator, count: int) -> PhiloxPosition | None:
    """Move a generator on by `count` words of 64 bits, and tell where it stood.

    Returns:
        None where it is no Philox; it stays where it is then.
    """
    bits = rng.bit_generator
    if not isinstance(bits, np.random.Philox):
        return None
    state: Any = bits.state
    position = _position(state)
    beyond = count - WORDS_PER_BLOCK + state["buffer_pos"]  # words of blocks not yet drawn
    if beyond <= 0:
        state["buffer_pos"] += count
        bits.state = state
        return position
    blocks, counter = -(-beyond // WORDS_PER_BLOCK), state["state"]["counter"]
    lowest = int(position.words[0]) + blocks - 1
    if lowest < 2**64:
        counter[0] = lowest
    else:
        number = sum(int(word) << 64 * i for i, word in enumerate(counter)) + blocks - 1
        counter[:] = [number >> 64 * i & 2**64 - 1 for i in range(4)]
    state["buffer_pos"] = WORDS_PER_BLOCK
    bits.state = state
    bits.random_raw(beyond - (blocks - 1) * WORDS_PER_BLOCK)  # draws the last block, of which some words may wait
    return position


def position_of(rng: np.random.Generator) -> PhiloxPosition:
    """Where a generator on Philox stands."""
    return _position(rng.bit_generator.state)


def _position(state: Any) -> PhiloxPosition:
    counter, key = state["state"]["counter"], state["state"]["key"]  # arrays of uint64, slow to iterate over
    waiting = WORDS_PER_BLOCK - state["buffer_pos"]
    block = state["buffer"] if waiting else _NO_BLOCK
    words = (counter[0], counter[1], counter[2], counter[3], key[0], key[1], *block)
    return PhiloxPosition(words, int32(waiting))


_NO_BLOCK = (np.uint64(0),) * WORDS_PER_BLOCK


def drop(
    x: Array, position: PhiloxPosition, threshold: int, scale: float, out: Array | None = None
) -> Array:
    """x · scale where an element's 16 bits are at least the threshold, else x · 0.

    Args:
        x: Float, of any shape; the result lies as it does.
        position: Element i takes bits [16·i, 16·i + 16) of the words from here on, the lowest bits of a word first.
        threshold: In [0, 2**16).
        out: Like x; may be x.
    """
    loader = loader_for(x)
    given, x = x, contiguous(x)
    out = array_module(x).empty_like(x) if out is None else out
    if x.size:
        options = (np.uint32(threshold), np.float64(scale))
        args = (x, out, int64(x.size), *position.words, position.waiting, position.live, position.words_on, *options)
        launch = launch_of(loader, "dropout", "dropout", x.dtype, 1 + -(-x.size // _ELEMENTS_PER_BLOCK))
        loader.launch(*launch, args)
    return lies_like(given, out)


def draw_words(words: Array, position: PhiloxPosition) -> None:
    """Fill a uint64 array with the words from a position on."""
    loader = loader_for(words)
    if words.size:
        args = (words, np.int64(words.size), *position.words, position.waiting, position.live, position.words_on)
        blocks = loader.blocks(1 + -(-words.size // WORDS_PER_BLOCK))
        loader.launch("dropout", "philox_words", blocks, loader.threads, args)


LIVE_WORDS = 7  # a place in device memory: counter, key, and how many words wait


def set_live(live: Array, position: PhiloxPosition) -> None:
    """Let a place in device memory, uint64 (LIVE_WORDS,), be this one."""
    args = (live, *position.words[:6], np.uint64(position.waiting))
    loader_for(live).launch("dropout", "philox_set", 1, 32, args)


def move_live(live: Array, words: int) -> None:
    """Move a place in device memory on by so many words."""
    loader_for(live).launch("dropout", "philox_move", 1, 32, (live, np.uint64(words)))


class LiveNoise:
    """What one generator gives in a captured step, each time that it is launched.

    Where it stands lies in device memory, and the graph moves it on. On the host each replay moves it on too; where it
    does not stand where the last one left it, for others have drawn or set it, its place is written anew.

    Args:
        generator: On Philox; the noise stream of the context is found again in each replay, since it may be set anew.
        like: An array on the device that draws.
    """

    def __init__(self, capture: Capture, generator: np.random.Generator, like: Array) -> None:
        is_stream = generator is noise_generator()
        self._find: Callable[[], np.random.Generator] = noise_generator if is_stream else lambda: generator
        self._live = array_module(like).empty(LIVE_WORDS, np.uint64)
        self._start = position_of(generator)
        self._there: Place | None = None  # what the device has
        self._words = 0
        capture.ends.append(self._end)
        capture.counts.append(self._count)
        capture.writes.append(self._write)
        capture.launched.append(self._moved)

    def take(self, generator: np.random.Generator, count: int) -> PhiloxPosition:
        """Move the generator on by `count` words, and tell where it stood: so many words from the start of a step."""
        position = take_words(generator, count)
        assert position is not None
        on, self._words = self._words, self._words + count
        return position._replace(live=self._live, words_on=np.uint64(on))

    def again(self, twin: np.random.Generator, count: int) -> PhiloxPosition:
        """The same for another generator, which draws once more what this one gave in the step: the place alone."""
        position = take_words(twin, count)
        assert position is not None
        on = (position.number() - self._start.number()) % WORDS
        if on + count > self._words:
            refuse_in_capture("", "noise once more that the step has not drawn before")
        return position._replace(live=self._live, words_on=np.uint64(on))

    def _end(self) -> None:
        if (position_of(self._find()).number() - self._start.number()) % WORDS != self._words:
            refuse_in_capture("", "random numbers that the host has drawn, which would be the same in each replay")
        move_live(self._live, self._words)

    def _count(self) -> None:
        position = take_words(self._find(), self._words)
        assert position is not None
        self._start = position

    def _write(self) -> None:
        if self._there != self._start.place():
            set_live(self._live, self._start)

    def _moved(self) -> None:
        self._there = position_of(self._find()).place()


def take_noise(rng: np.random.Generator, count: int, like: Array) -> PhiloxPosition | None:
    """`take_words`, of which the replays of a captured step take others.

    Args:
        like: An array on the device that draws.
    """
    capture = current_capture()
    if capture is None or not isinstance(rng.bit_generator, np.random.Philox):
        return take_words(rng, count)
    key, streams = ("noise", position_of(rng).place()[0]), current_streams()
    if streams.repeats and rng is streams.noise:
        return capture.part(key, lambda: LiveNoise(capture, rng, like)).again(rng, count)
    noise = capture.part(("noise", id(rng)), lambda: LiveNoise(capture, rng, like))
    capture.part(key, lambda: noise)  # for who draws once more what it has given
    return noise.take(rng, count)
