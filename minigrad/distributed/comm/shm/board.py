"""The board on which the processes of a shared-memory world see each other: counters, headers, failures.

Every rank writes to its own part only, and reads all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.dumps import Offer, keep_offer, offer, start_time
from minigrad.distributed.comm.failure import ERRORS
from minigrad.distributed.comm.headers import (
    GIVE_UP,
    Header,
    departed,
    doing,
    given_up,
    mismatch,
    numbered,
    timed_out,
)
from minigrad.distributed.comm.shm.notes import NOTES_BYTES, Notes
from minigrad.distributed.comm.shm.segment import Segment
from minigrad.distributed.comm.where import ask, stack_of
from minigrad.errors import DistributedError

SLOTS = 64  # calls that may be under way at once
INLINE_BYTES = 4096  # arrays up to this size travel in the slot of their call
STAGING_BYTES = 256 * 1024

_HEADER_BYTES, _FAILURE_BYTES = 512, 4096
# in int64, a cache line for each that moves
_POSTED, _EXECUTED, _FAILED, _PID, _STARTED, _LEFT, _ASKED, _ANSWERED = 0, 8, 16, 24, 25, 26, 32, 40
_SIGNAL, _DESCRIPTOR, _THREAD = 27, 28, 29
_FAILURE_AT = 512
_LINE_AT, _LINE_BYTES, _STACK_BYTES = _FAILURE_AT + _FAILURE_BYTES, 512, 2048
_NOTES_AT = _LINE_AT + _LINE_BYTES + _STACK_BYTES
_LINES_AT = _NOTES_AT + NOTES_BYTES
LINES, _NOTED_BYTES = 64, 192  # lines of the user's code that calls are made at
_SLOTS_AT = _LINES_AT + LINES * _NOTED_BYTES
# a cache line each: the weight, which the others read, and the line of the user's code; when the rank began to execute
# the call, and when it had
_WEIGHT_BYTES, _TIMES = 128, 8
_INLINE_AT = _HEADER_BYTES + _WEIGHT_BYTES
_SLOT_BYTES = _INLINE_AT + INLINE_BYTES
_STAGING_AT = _SLOTS_AT + SLOTS * _SLOT_BYTES
# by seq % SLOTS: where the slot of a call is, and its weight, counted in float64
_SLOT_AT = [_SLOTS_AT + slot * _SLOT_BYTES for slot in range(SLOTS)]
_WEIGHT_AT = [(start + _HEADER_BYTES) // 8 for start in _SLOT_AT]
_ERRORS = list(ERRORS.values())


class Board:
    """This rank's view of the board; see `ShmCommunicator` for the arguments.

    Attributes:
        group: The name of the group of ranks whose board it is; empty for all.
        notes: What it says of messages.
        told: The lines in which each rank was when this one asked last, the innermost first, as far as they have said;
            None where it has not asked.
        were_gone: The ranks that made no more calls when it asked, and why: who leaves later leaves for the error.
    """

    def __init__(self, rank: int, world_size: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        self.rank, self.world_size, self.group = rank, world_size, ""
        self._segment = Segment(rank, world_size, _STAGING_AT + STAGING_BYTES, exchange)
        # a memoryview of int64 reads faster than an ndarray, and stores 8 bytes at once
        self._numbers = [memoryview(part[:_FAILURE_AT]).cast("q") for part in self._segment.parts]
        self._bytes = [memoryview(part) for part in self._segment.parts]
        self._floats = [memoryview(part[:_STAGING_AT]).cast("d") for part in self._segment.parts]
        self.notes = Notes(rank, [part[_NOTES_AT:_SLOTS_AT] for part in self._segment.parts])
        self.told: dict[int, tuple[str, ...]] | None = None
        self.were_gone: dict[int, str] = {}
        mine, offered = self._numbers[rank], offer()
        mine[_PID], mine[_STARTED], mine[_SIGNAL], mine[_DESCRIPTOR] = offered
        mine[_THREAD] = threading.get_ident()
        exchange(b"")  # nobody looks for a process that has not written its number yet

    # -------------------------------------------------------------------------------------------------- counters

    def post(self, seq: int, what: bytes, weight: float, place: int) -> None:
        """Publish what a call is, see `encode_header`, and this rank's weight in it; then that it is posted.

        Args:
            place: Number of the line of the user's code that makes it, see `note_line`.
        """
        slot = seq % SLOTS
        start = _SLOT_AT[slot]
        floats, at = self._floats[self.rank], _WEIGHT_AT[slot]
        floats[at] = weight
        floats[at + 1] = place
        self._bytes[self.rank][start : start + len(what)] = what
        self._numbers[self.rank][_POSTED] = seq + 1

    def all_agree(self, seq: int, what: bytes) -> bool:
        """Whether a call that all have posted is the same on all ranks."""
        start = _SLOT_AT[seq % SLOTS]
        stop = start + len(what)
        for part in self._bytes:
            if part[start:stop] != what:
                return False
        return True

    def weights(self, seq: int) -> list[float]:
        """Each rank's weight in a call that all have posted."""
        index = _WEIGHT_AT[seq % SLOTS]
        return [floats[index] for floats in self._floats]

    def note(self, seq: int, reason: str) -> None:
        """Write why this rank gives up, in the slot of the call that says so; before it is posted."""
        start, text = _SLOT_AT[seq % SLOTS] + _INLINE_AT, reason.encode()[: _FAILURE_BYTES - 1] + b"\0"
        self._bytes[self.rank][start : start + len(text)] = text

    def span(self, seq: int) -> tuple[float, float] | None:
        """When the last rank began to execute a call, and when the last had; None where a later call has its slot."""
        index, started_s, over_s = _WEIGHT_AT[seq % SLOTS] + _TIMES, 0.0, 0.0
        for floats, numbers in zip(self._floats, self._numbers):
            if numbers[_POSTED] >= seq + SLOTS:
                return None
            started_s, over_s = max(started_s, floats[index]), max(over_s, floats[index + 1])
        return started_s, over_s

    def executed(self, seq: int, began_s: float, now_s: float) -> None:
        """Publish when this rank began to do its share of a call, and when it has; and then that it has."""
        index, mine = _WEIGHT_AT[seq % SLOTS] + _TIMES, self._floats[self.rank]
        mine[index], mine[index + 1] = began_s, now_s
        self._numbers[self.rank][_EXECUTED] = seq + 1

    def all_posted(self, seq: int) -> bool:
        """Whether every rank has posted a call."""
        for numbers in self._numbers:
            if numbers[_POSTED] <= seq:
                return False
        return True

    def all_executed(self, seq: int) -> bool:
        """Whether every rank has done its share of a call."""
        for numbers in self._numbers:
            if numbers[_EXECUTED] <= seq:
                return False
        return True

    def absent(self, seq: int) -> list[int]:
        """The ranks that a call still waits for: to post it where not all have, else to execute it."""
        kind = _EXECUTED if self.all_posted(seq) else _POSTED
        return [rank for rank, numbers in enumerate(self._numbers) if numbers[kind] <= seq]

    # ---------------------------------------------------------------------------------------------------- memory

    def slot_views(self, seq: int, count: int, dtype: np.dtype[Any]) -> list[Array]:
        """Each rank's array in the slot of a call."""
        return self._segment.views(_SLOT_AT[seq % SLOTS] + _INLINE_AT, count, dtype)

    def staging_views(self, count: int, dtype: np.dtype[Any]) -> list[Array]:
        """Each rank's array in the staging area."""
        return self._segment.views(_STAGING_AT, count, dtype)

    # ----------------------------------------------------------------------------------------------- who does what

    def header(self, rank: int, seq: int) -> str:
        """The header of a call as a rank posted it; empty where it has not."""
        if self._numbers[rank][_POSTED] <= seq:
            return ""
        start = _SLOT_AT[seq % SLOTS]
        what = _text(self._bytes[rank][start : start + _HEADER_BYTES])
        if what == GIVE_UP:
            start += _INLINE_AT
            what += f"({_text(self._bytes[rank][start : start + _FAILURE_BYTES])})"
        return f"{numbered(seq, self.group)}: {what}"

    def last_calls(self, rank: int) -> Iterator[str]:
        """The last calls that a rank posted, and its last messages, the latest first."""
        posted = self._numbers[rank][_POSTED]
        calls = ((seq, self.header(rank, seq)) for seq in range(posted - 1, max(-1, posted - 1 - SLOTS), -1))
        return self.notes.among(rank, calls)

    def leave(self) -> None:
        """Publish that this rank makes no more calls."""
        self._numbers[self.rank][_LEFT] = 1

    def gone(self) -> dict[int, str]:
        """The ranks that make no more calls, and why."""
        found = {}
        for rank, numbers in enumerate(self._numbers):
            if numbers[_LEFT]:
                found[rank] = "closed its communicator"
            elif rank != self.rank and start_time(numbers[_PID]) != numbers[_STARTED]:
                found[rank] = f"is gone (process {numbers[_PID]} died)"
        return found

    def tell_failure(self, error: DistributedError) -> None:
        """Let the other ranks know why this one fails."""
        text = str(error).encode()[: _FAILURE_BYTES - 1]
        self._bytes[self.rank][_FAILURE_AT : _FAILURE_AT + len(text) + 1] = text + b"\0"
        self._numbers[self.rank][_FAILED] = 1 + _ERRORS.index(type(error))

    def told_failure(self) -> DistributedError | None:
        """A failure that another rank told of, of the lowest such rank."""
        for rank, numbers in enumerate(self._numbers):
            kind = numbers[_FAILED]
            if kind and rank != self.rank:
                text = _text(self._bytes[rank][_FAILURE_AT : _FAILURE_AT + _FAILURE_BYTES])
                return _ERRORS[kind - 1](text)
        return None

    def ask_lines(self) -> dict[int, str]:
        """Where in the user's code each rank is; empty where its watcher does not say so in time."""
        self.were_gone = self.gone()
        self._numbers[self.rank][_ASKED] += 1
        wanted = sum(numbers[_ASKED] for numbers in self._numbers)
        ask(lambda: all(numbers[_ANSWERED] >= wanted for numbers in self._numbers))
        stacks_at, lines, self.told = _LINE_AT + _LINE_BYTES, {}, {}
        for rank, (area, numbers) in enumerate(zip(self._bytes, self._numbers)):
            lines[rank] = _text(area[_LINE_AT:stacks_at]) if numbers[_ANSWERED] >= wanted else ""
            if lines[rank]:
                self.told[rank] = tuple(_text(area[stacks_at : stacks_at + _STACK_BYTES]).split("\n"))
        return lines

    def answer(self, line: Callable[[], str]) -> None:
        """Publish where this rank is, if another has asked since the last answer; see `Watcher`."""
        keep_offer()
        asked = sum(numbers[_ASKED] for numbers in self._numbers)
        if asked != self._numbers[self.rank][_ANSWERED]:
            stack = "\n".join(stack_of(self._numbers[self.rank][_THREAD])).encode()[: _STACK_BYTES - 1] + b"\0"
            text = line().encode()[-(_LINE_BYTES - 1) :] + b"\0"
            self._bytes[self.rank][_LINE_AT : _LINE_AT + len(text)] = text
            start = _LINE_AT + _LINE_BYTES
            self._bytes[self.rank][start : start + len(stack)] = stack
            self._numbers[self.rank][_ANSWERED] = asked


# -------------------------------------------------------------------------------------------- what is seen of a rank


def note_line(board: Board, number: int, line: str) -> None:
    """Write a line of the user's code down, which calls of this rank name by its number, 0 < number < LINES."""
    start, text = _LINES_AT + number * _NOTED_BYTES, line.encode()[-_NOTED_BYTES + 1 :] + b"\0"
    board._bytes[board.rank][start : start + len(text)] = text


def made_by(board: Board, rank: int) -> list[Made]:
    """The last calls that a rank posted, the earliest first."""
    posted, made = board._numbers[rank][_POSTED], []
    for seq in range(max(0, posted - SLOTS), posted):
        what = board.header(rank, seq).removeprefix(f"{numbered(seq, board.group)}: ")
        place = int(board._floats[rank][_WEIGHT_AT[seq % SLOTS] + 1])
        start = _LINES_AT + place * _NOTED_BYTES
        line = _text(board._bytes[rank][start : start + _NOTED_BYTES]) if place else ""
        made.append(Made(seq, what, line, board.group))
    return made


def pending_of(board: Board, rank: int) -> Made | None:
    """The first call that a rank has posted and not executed; None where there is none."""
    executed = board._numbers[rank][_EXECUTED]
    return next((made for made in made_by(board, rank) if made.seq >= executed), None)


def offer_of(board: Board, rank: int) -> tuple[Offer, int]:
    """How the stacks of a rank are to be had, and which of its threads is the rank's."""
    numbers = board._numbers[rank]
    return Offer(numbers[_PID], numbers[_STARTED], numbers[_SIGNAL], numbers[_DESCRIPTOR]), numbers[_THREAD]


# ------------------------------------------------------------------------------------------- what is wrong with a call


def disagreement(board: Board, seq: int) -> DistributedError:
    """The error of a call that is posted, and not the same on all ranks."""
    return _of_two([(rank, board.header(rank, seq)) for rank in range(board.world_size)])


def gave_up(board: Board, seq: int) -> DistributedError | None:
    """The error of a call which some ranks have posted, and others have given up; None while there is none."""
    calls = [(rank, text) for rank in range(board.world_size) if (text := board.header(rank, seq))]
    return _of_two(calls) if len({given_up(text) for _, text in calls}) > 1 else None


def _of_two(calls: list[tuple[int, str]]) -> DistributedError:
    """That of the call that was given up, else of the lowest rank, and of the first that is another."""
    first = next((call for call in calls if given_up(call[1])), calls[0])
    return mismatch(first, next(call for call in calls if call[1] != first[1]))


def absence(board: Board, seq: int, gone: Mapping[int, str]) -> DistributedError | None:
    """The error of a call that waits for ranks of which some are gone; None where none is."""
    absent = board.absent(seq)
    if not any(rank in gone for rank in absent):
        return None
    known = {r: f"{gone.get(r, 'did not come yet')} and {doing(board.last_calls(r))}" for r in absent}
    return departed(board.header(board.rank, seq), board.world_size, known)


def lateness(board: Board, seq: int, timeout_s: float) -> DistributedError:
    """The error of a call that was waited for too long."""
    known = {rank: doing(board.last_calls(rank)) for rank in board.absent(seq)}
    return timed_out(board.header(board.rank, seq), board.world_size, timeout_s, known, board.ask_lines())


def encode_header(header: Header) -> bytes:
    """A header as it stands on the board, where its slot says its number.

    Raises:
        DistributedError: it is too long.
    """
    what = header.what.encode() + b"\0"
    if len(what) > _HEADER_BYTES:
        raise DistributedError(f"expected a header below {_HEADER_BYTES} bytes, got {header}")
    return what


def _text(area: memoryview) -> str:
    return bytes(area).split(b"\0", 1)[0].decode(errors="replace")
