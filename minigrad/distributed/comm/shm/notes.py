"""What the board of a shared-memory world says of messages: the last of each rank, and where a rank leaves its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from minigrad.backend.dtypes import Array

_KEPT, _TEXT_BYTES = 4, 120  # messages of each rank, and how much is said of one
_MAILBOX, _PROCESS, _NOTED = 0, 1, 8  # in int64
_TEXTS_AT = 128
_SLOT_BYTES = 8 + _TEXT_BYTES  # how many calls the rank had posted before, and the text
NOTES_BYTES = _TEXTS_AT + _KEPT * _SLOT_BYTES


class Notes:
    """This rank's view of it.

    Args:
        rank: This rank.
        areas: That of each rank, of NOTES_BYTES.
    """

    def __init__(self, rank: int, areas: Sequence[Array]) -> None:
        self._rank = rank
        self._numbers = [memoryview(area).cast("q") for area in areas]
        self._bytes = [memoryview(area) for area in areas]

    def add(self, text: str, posted: int) -> None:
        """This rank has sent, or asked for, a message.

        Args:
            posted: How many other calls it has made.
        """
        mine = self._numbers[self._rank]
        start = _TEXTS_AT + mine[_NOTED] % _KEPT * _SLOT_BYTES
        data = text.encode()[: _TEXT_BYTES - 1] + b"\0"
        self._bytes[self._rank][start + 8 : start + 8 + len(data)] = data
        mine[start // 8] = posted
        mine[_NOTED] += 1

    def among(self, rank: int, calls: Iterable[tuple[int, str]]) -> Iterator[str]:
        """A rank's calls with its last messages where they were made, the latest first.

        Args:
            calls: Number and text of each, the latest first.
        """
        noted = self._numbers[rank][_NOTED]
        numbers = list(range(max(0, noted - _KEPT), noted))
        for seq, text in calls:
            while numbers and self._posted_before(rank, numbers[-1]) > seq:
                yield self._text(rank, numbers.pop())
            yield text
        for number in reversed(numbers):
            yield self._text(rank, number)

    def _posted_before(self, rank: int, number: int) -> int:
        return self._numbers[rank][(_TEXTS_AT + number % _KEPT * _SLOT_BYTES) // 8]

    def _text(self, rank: int, number: int) -> str:
        start = _TEXTS_AT + number % _KEPT * _SLOT_BYTES + 8
        return bytes(self._bytes[rank][start : start + _TEXT_BYTES]).split(b"\0", 1)[0].decode(errors="replace")

    def open_mailbox(self, descriptor: int) -> None:
        """Say where this rank leaves its messages."""
        mine = self._numbers[self._rank]
        mine[_PROCESS] = os.getpid()
        mine[_MAILBOX] = descriptor + 1

    def close_mailbox(self) -> None:
        """Say that what nobody has taken of it is gone."""
        self._numbers[self._rank][_MAILBOX] = -1

    def is_closed(self, rank: int) -> bool:
        """Whether a rank has said so."""
        return self._numbers[rank][_MAILBOX] < 0

    def mailbox(self, rank: int) -> str:
        """The path under which another process opens a rank's mailbox; empty where it has none."""
        numbers = self._numbers[rank]
        return f"/proc/{numbers[_PROCESS]}/fd/{numbers[_MAILBOX] - 1}" if numbers[_MAILBOX] > 0 else ""
