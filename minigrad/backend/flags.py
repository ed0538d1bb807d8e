"""Range checks of labels and indexes: at once on a CPU, and on a GPU without waiting for it.

A GPU keeps the first value that was out of range, and goes on; out of range its indexes wrap around, so no memory is
harmed. The error is raised, by the name of the operation, when the host next reads from that GPU: by item(), tolist()
or cpu(), or by `raise_found`. Inside `debug` every check waits, and raises where the mistake is.

Findings belong to the thread that made them: ranks may be threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

import numpy as np

from minigrad.backend.capturing import current_capture
from minigrad.backend.device import array_module, device_of, to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import loader_for
from minigrad.backend.memory import contiguous
from minigrad.errors import IndexRangeError

_FLAGGED, _VALUE, _LEAST, _END = range(4)
_WORDS = 4  # of each kind of check
_KINDS = 64  # at most, which is more than there are operations

_debug: ContextVar[bool] = ContextVar("minigrad_debug", default=False)


class _Board(NamedTuple):
    """What one device found: words of all kinds of checks, and those of each (operation, what it checks) in order."""

    words: Array
    kinds: dict[tuple[str, str], Array]


class _Findings(threading.local):
    """The boards of a thread by device, and which of them were written to since the host looked."""

    def __init__(self) -> None:
        self.boards: dict[int, _Board] = {}
        self.unread: set[int] = set()


_findings = _Findings()


@contextmanager
def debug(enabled: bool = True) -> Iterator[None]:
    """Let checks on a GPU wait for it and raise at once inside the block, in this context; slow."""
    token = _debug.set(enabled)
    try:
        yield
    finally:
        _debug.reset(token)


def check_range(who: str, what: str, x: Array, low: int, high: int, allowed: int | None = None) -> None:
    """Refuse integers outside [low, high), at once on a CPU, later on a GPU.

    Args:
        who: The operation.
        what: What the integers are, in the plural.
        allowed: One more value that may occur.

    Raises:
        IndexRangeError: there are some.
    """
    if not x.size:
        return
    if isinstance(x, np.ndarray):
        _check_here(who, what, x, low, high, allowed)
        return
    loader = loader_for(x)
    with checked_by_kernel(who, what, x, low, high, allowed) as found:
        bounds = (np.int64(bound) for bound in (low, high, low if allowed is None else allowed))
        args = (contiguous(x), np.int64(x.size), *bounds, found)
        loader.launch("range_check", f"range_check_{x.dtype.name}", loader.blocks(x.size), loader.threads, args)


def checked_by_kernel(
    who: str, what: str, x: Array, low: int, high: int, allowed: int | None = None
) -> AbstractContextManager[Array | None]:
    """`check_range` by a kernel that reads x anyway, and that is launched inside the block.

    It gets the words where that kernel keeps what is out of range (see kernels/found.cuh); None where all was checked
    at once.
    """
    if not x.size or isinstance(x, np.ndarray):
        check_range(who, what, x, low, high, allowed)
        return nullcontext()
    device_id = x.data.device_id
    board = _board(x, device_id)
    words = board.kinds.get((who, what))
    if words is None:
        first = len(board.kinds) * _WORDS
        assert first < board.words.size
        words = board.kinds[who, what] = board.words[first : first + _WORDS]
    _findings.unread.add(device_id)
    if (capture := current_capture()) is not None:
        look_again = partial(_look_again, device_id, board, _findings.boards, _findings.unread)
        capture.part("found", lambda: capture.counts.append(look_again))
    return _Checked(x, words)


class _Checked:
    """The block of `checked_by_kernel`."""

    __slots__ = ("_x", "_words")

    def __init__(self, x: Array, words: Array) -> None:
        self._x, self._words = x, words

    def __enter__(self) -> Array:
        return self._words

    def __exit__(self, error: object, *more: object) -> None:
        if error is None and _debug.get():
            raise_found(self._x)


def _check_here(who: str, what: str, x: Array, low: int, high: int, allowed: int | None) -> None:
    least, most = int(x.min()), int(x.max())
    if low <= least and most < high:
        return
    wrong = (x < low) | (x >= high)
    if allowed is not None:
        wrong &= x != allowed
    if wrong.any():
        values = x[wrong]
        raise IndexRangeError(_message(who, what, low, high, f"some in [{int(values.min())}, {int(values.max())}]"))


def _message(who: str, what: str, low: int, high: int, got: str) -> str:
    return f"{who}: expected {what} in [{low}, {high}), got {got}"


def _look_again(device_id: int, board: _Board, boards: dict[int, _Board], unread: set[int]) -> None:
    """A replay of a captured step, by any thread, checks once more: the thread that captured it is told."""
    if boards.get(device_id) is board:
        unread.add(device_id)


def _board(x: Array, device_id: int) -> _Board:
    board = _findings.boards.get(device_id)
    if board is None:
        words = array_module(x).zeros(_KINDS * _WORDS, np.uint64)
        board = _findings.boards[device_id] = _Board(words, {})
    return board


def raise_found(array: Array) -> None:
    """Raise what checks of this thread found on the device of an array; waits for that device if there were any.

    Raises:
        IndexRangeError: a label or an index was out of range.
    """
    if isinstance(array, np.ndarray) or array.device.id not in _findings.unread:
        return
    _findings.unread.discard(array.device.id)
    board = _findings.boards[array.device.id]
    rows = to_host(board.words).view(np.int64).reshape(_KINDS, _WORDS)
    for kind, (who, what) in enumerate(board.kinds):
        if rows[kind, _FLAGGED]:
            with device_of(array).current():
                board.words[...] = 0
            _, value, low, high = rows[kind].tolist()
            hint = ": it was found before this read: look for it inside `with minigrad.debug():`"
            raise IndexRangeError(_message(who, what, low, high, f"{value} on {device_of(array)}") + hint)


def raise_all_found() -> None:
    """Raise what checks of this thread found on any GPU, for the end of an epoch in which nothing was read.

    Raises:
        IndexRangeError: a label or an index was out of range.
    """
    for device_id in sorted(_findings.unread):
        raise_found(_findings.boards[device_id].words)


def forget_found() -> None:
    """Let this thread start anew, with nothing found."""
    _findings.boards.clear()
    _findings.unread.clear()
