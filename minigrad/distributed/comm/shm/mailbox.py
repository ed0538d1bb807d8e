"""Messages between the processes of one host: a sender leaves them in memory of its own, which the others read.

A message lies there whole before it is announced, so that it can be taken while its sender computes. The memory is a
file without a name that grows with what lies in it; another process opens it by the number that its owner has put on
the board. In front lies what each rank may write of its own: of each message to another rank where it is, and of each
message from another rank that it was taken. An array from `empty` is read where it is.
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.checks import NUMBERS
from minigrad.distributed.comm.forks import tell_children
from minigrad.distributed.comm.headers import doing
from minigrad.distributed.comm.point_to_point import (
    Envelope,
    MessageWork,
    PointToPoint,
    Post,
    unanswerable,
    unanswered,
    unlike,
)
from minigrad.distributed.comm.protocol import Work
from minigrad.distributed.comm.shm.board import Board
from minigrad.distributed.comm.shm.region import Regions
from minigrad.errors import ArgumentError, DistributedError

MOST_MESSAGES = 1024  # from one rank to another that were not taken
_RECORD, _LINE = 8, 8  # int64 of a record: tag, elements, dtype, segment or -1, where; and of a cache line
_ALIGNMENT, _KEPT_BYTES = 64, 64 * 1024 * 1024
_MOST_AT_ONCE = 1 << 30  # bytes: Linux reads and writes no more than 2 GiB in one call
_LIVENESS_S, _YIELD_S, _SLEEP_RATIO, _LONGEST_SLEEP_S = 0.02, 1e-3, 0.05, 1e-3
_DTYPES = sorted({dtype.name for dtype in NUMBERS} | {"bfloat16"})


class _File:
    """The memory in which a rank leaves messages; for its owner, and for those who read it.

    Args:
        descriptor: It is closed by `close`.
        world_size: How many ranks there are.
        is_mine: Whether this process is the owner.
    """

    def __init__(self, descriptor: int, world_size: int, is_mine: bool) -> None:
        self.descriptor, self._ranks = descriptor, world_size
        count = world_size * (_LINE + MOST_MESSAGES * (_RECORD + 1))
        self.front_bytes = -(-8 * count // mmap.PAGESIZE) * mmap.PAGESIZE
        if is_mine:
            os.ftruncate(descriptor, self.front_bytes)
        self.numbers = memoryview(mmap.mmap(descriptor, self.front_bytes)).cast("q")

    def sent_at(self, dst: int) -> int:
        """Where the number of messages to a rank is."""
        return dst * _LINE

    def record_at(self, dst: int, number: int) -> int:
        """Where the record of a message to a rank is."""
        return self._ranks * _LINE + (dst * MOST_MESSAGES + number % MOST_MESSAGES) * _RECORD

    def taken_at(self, dst: int, number: int) -> int:
        """Where a rank says that it has taken a message."""
        start = self._ranks * (_LINE + MOST_MESSAGES * _RECORD)
        return start + dst * MOST_MESSAGES + number % MOST_MESSAGES

    def write(self, data: Array, at: int) -> None:
        """Leave bytes in it."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self.descriptor, left[:_MOST_AT_ONCE], at)
            left, at = left[written:], at + written

    def read(self, data: Array, at: int) -> None:
        """Overwrite an array of bytes by what lies there."""
        left = memoryview(data)
        while left:
            came = os.preadv(self.descriptor, [left[:_MOST_AT_ONCE]], at)
            if not came:
                raise DistributedError(f"expected {len(left)} more bytes of a message, got the end of its memory")
            left, at = left[came:], at + came

    def close(self) -> None:
        """Give it back, as far as nobody else has it."""
        os.close(self.descriptor)


class _Places:
    """Which bytes of a file are in use, from an offset on.

    Args:
        start: That offset.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._used: list[tuple[int, int]] = []  # begin and end, in order

    def take(self, nbytes: int) -> int:
        """The first place with room for so many bytes."""
        nbytes, at = max(_ALIGNMENT, -(-nbytes // _ALIGNMENT) * _ALIGNMENT), self._start
        for begin, end in self._used:
            if begin - at >= nbytes:
                break
            at = end
        bisect.insort(self._used, (at, at + nbytes))
        return at

    def give_back(self, at: int) -> None:
        """What was taken there is not needed any more."""
        del self._used[bisect.bisect_left(self._used, (at, 0))]

    @property
    def end(self) -> int:
        """Where nothing is in use from on."""
        return self._used[-1][1] if self._used else self._start


class Owner(Protocol):
    """What a mailbox needs of its communicator."""

    def _end(self, error: DistributedError) -> NoReturn:
        """Make this world fail, and raise that."""

    def _hear(self) -> None:
        """Raise what made this world fail, here or on another rank."""

    def advance(self) -> None:
        """Do this rank's share of the collectives that all have posted; never waits."""

    def help_relatives(self) -> None:
        """The same in groups of these ranks, and in what this is a group of."""


class Mailbox:
    """The messages of one rank under way.

    Args:
        board: Where the others are seen.
        regions: Finds arrays in shared memory.
        timeout_s: How long a rank is waited for.
        owner: The communicator, which holds this: held weakly here, so that both go when nobody uses them any more.

    Attributes:
        asked: What this rank has asked for and not taken yet, by key.
    """

    def __init__(
        self,
        board: Board,
        regions: Regions,
        timeout_s: float,
        owner: Owner,
    ) -> None:
        self._board, self._regions, self._timeout_s = board, regions, timeout_s
        self._owner: Owner = weakref.proxy(owner)
        self._mine: _File | None = None
        self._theirs: dict[int, _File] = {}
        self._places = _Places(0)
        self._sent = [0] * board.world_size  # messages to each rank
        self._untaken: dict[tuple[int, int], tuple[Post, int]] = {}  # by rank and number, and where it lies
        self._seen = [0] * board.world_size  # messages of each rank that are noted in
        self._here: dict[tuple[int, int, int], deque[tuple[int, list[int]]]] = {}  # number and record, by key
        self.asked: dict[tuple[int, int, int], deque[Post]] = {}
        self._looked_s = 0.0
        tell_children(self)

    def add(self, post: Post) -> None:
        """Send a message, or ask for one; never waits."""
        if self._mine is None:
            self._mine = _File(os.memfd_create("minigrad-messages"), self._board.world_size, is_mine=True)
            self._places = _Places(self._mine.front_bytes)
            self._board.notes.open_mailbox(self._mine.descriptor)
        self.advance()
        if post.envelope.sends:
            self._send(self._mine, post)
        else:
            self.asked.setdefault(post.envelope.key, deque()).append(post)
            self._take(post.envelope.key)

    def _send(self, mine: _File, post: Post) -> None:
        envelope = post.envelope
        number = self._sent[envelope.dst]
        if (envelope.dst, number - MOST_MESSAGES) in self._untaken:
            raise ArgumentError(
                f"rank {envelope.src}: send: expected at most {MOST_MESSAGES:,} messages to rank {envelope.dst} that "
                "it has not taken, got one more: wait for the first of them"
            )
        segment, at = self._regions.place_of(post.array) or (-1, 0)
        if segment < 0:
            data = post.array.reshape(-1).view(np.uint8)
            at = self._places.take(data.size)
            mine.write(data, at)
        start = mine.record_at(envelope.dst, number)
        record = [envelope.tag, envelope.size, _DTYPES.index(envelope.dtype), segment, at]
        for i, value in enumerate(record):
            mine.numbers[start + i] = value
        self._untaken[envelope.dst, number] = post, at if segment < 0 else -1
        self._sent[envelope.dst] = number + 1
        mine.numbers[mine.sent_at(envelope.dst)] = number + 1

    # --------------------------------------------------------------------------------------------------- progress

    def advance(self) -> None:
        """Take what was asked for and is here, and see which of this rank's messages were taken; never waits."""
        for key in list(self.asked):
            self._take(key)
        for (dst, number), (post, at) in list(self._untaken.items()):
            assert self._mine is not None
            if self._mine.numbers[self._mine.taken_at(dst, number)] > number:
                post.over = True
                del self._untaken[dst, number]
                if at >= 0:
                    self._give_back(at)

    def _give_back(self, at: int) -> None:
        assert self._mine is not None
        end = self._places.end
        self._places.give_back(at)
        if self._places.end < end and end > _KEPT_BYTES:
            os.ftruncate(self._mine.descriptor, self._places.end)

    def _take(self, key: tuple[int, int, int]) -> None:
        self._note(key[0])
        asked, here = self.asked.get(key), self._here.get(key)
        while asked and here and not self._board.notes.is_closed(key[0]):
            (number, record), post = here[0], asked[0]
            envelope = Envelope("send", *key, _DTYPES[record[2]], record[1])
            if not post.envelope.fits(envelope):
                self._owner._end(unlike(post.envelope, envelope))
            self._copy(post, *record[3:5])
            theirs = self._theirs[key[0]]
            theirs.numbers[theirs.taken_at(self._board.rank, number)] = number + 1
            post.over = True
            here.popleft()
            asked.popleft()
        if not here:
            self._here.pop(key, None)
        if not asked:
            self.asked.pop(key, None)

    def _copy(self, post: Post, segment: int, at: int) -> None:
        source = post.envelope.src
        if segment >= 0:
            post.array.reshape(-1)[...] = self._regions.view(segment, source, at, post.envelope.size, post.array.dtype)
        else:
            self._theirs[source].read(post.array.reshape(-1).view(np.uint8), at)

    def _note(self, src: int) -> None:
        """Note what a rank has sent since."""
        theirs = self._file_of(src)
        if theirs is None:
            return
        for number in range(self._seen[src], theirs.numbers[theirs.sent_at(self._board.rank)]):
            start = theirs.record_at(self._board.rank, number)
            record = theirs.numbers[start : start + _RECORD].tolist()
            self._here.setdefault((src, self._board.rank, record[0]), deque()).append((number, record))
            self._seen[src] = number + 1

    def _file_of(self, rank: int) -> _File | None:
        """Where another rank leaves its messages; None where it has none yet, or is gone."""
        if rank not in self._theirs:
            descriptor = self._open(rank)
            if descriptor is None:
                return None
            self._theirs[rank] = _File(descriptor, self._board.world_size, is_mine=False)
        return self._theirs[rank]

    def _open(self, rank: int) -> int | None:
        path = self._board.notes.mailbox(rank)
        if not path or rank in self._board.gone():  # whose number another process may have by now
            return None
        try:
            return os.open(path, os.O_RDWR)
        except OSError as error:
            if rank in self._board.gone():
                return None
            raise DistributedError(f"messages: expected to open {path} of rank {rank}, got {error}") from error

    # ---------------------------------------------------------------------------------------------------- waiting

    def is_over(self, post: Post) -> bool:
        """Whether a message was taken; raises where it never will be."""
        if not post.over:
            self.advance()
            self._owner.advance()
            self._owner.help_relatives()
        if not post.over:
            self._owner._hear()
            if time.monotonic() - self._looked_s > _LIVENESS_S:
                self._look(post)
        return post.over

    def wait(self, post: Post) -> None:
        """Block until a message was taken.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        started = time.monotonic()
        while not self.is_over(post):
            waited_s = time.monotonic() - started
            if waited_s > self._timeout_s:
                envelope = post.envelope
                known = doing(self._board.last_calls(envelope.other))
                lines = self._board.ask_lines()
                self._owner._end(unanswered(envelope, self._timeout_s, known, self._tags(envelope), lines))
            if waited_s < _YIELD_S:
                os.sched_yield()
            else:
                time.sleep(min(_SLEEP_RATIO * waited_s, _LONGEST_SLEEP_S))

    def _look(self, post: Post) -> None:
        envelope, gone = post.envelope, self._board.gone()  # first: what a rank has sent, or taken, before counts
        self._owner._hear()
        self.advance()
        self._looked_s = time.monotonic()
        if not post.over and envelope.other in gone:
            known = f"{gone[envelope.other]} and {doing(self._board.last_calls(envelope.other))}"
            self._owner._end(unanswerable(envelope, known, self._tags(envelope)))

    def _tags(self, envelope: Envelope) -> Sequence[int]:
        return () if envelope.sends else [tag for src, _, tag in self._here if src == envelope.src]

    # ------------------------------------------------------------------------------------------------------- ends

    def close(self) -> None:
        """Send and take nothing more; the others are told."""
        self._board.notes.close_mailbox()
        self._forget()

    def forked(self) -> None:
        """See `Inherited`: the parent's messages are its own."""
        self._forget()

    def _forget(self) -> None:
        """Let go of all memory, and of the communicator, which holds this: a circle would keep the memory of both."""
        self._end = self._hear = self._help = _let_go
        for file in (self._mine, *self._theirs.values()):
            if file is not None:
                file.close()
        self._mine = None
        self._theirs.clear()
        self._untaken.clear()
        self.asked.clear()


def _let_go(error: DistributedError | None = None) -> NoReturn:
    raise error or DistributedError("message: expected wait() before close() of its communicator, got it after")


class ShmMessages(PointToPoint):
    """The messages of a `ShmCommunicator`."""

    mail: Mailbox
    board: Board
    seq: int
    thread: int

    def _message(self, envelope: Envelope, array: Array) -> Work:
        self.thread = threading.get_ident()
        self.board.notes.add(str(envelope), self.seq)
        post = Post(envelope, array)
        self.mail.add(post)
        return MessageWork(self.mail, post, self)
