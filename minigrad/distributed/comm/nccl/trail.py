"""What a rank has done on its communicator, as a running hash: two that did the same have the same at the same point.

So ranks that never wait for each other can still be compared: each says now and then how far it is, and with which
hash, and rank 0 looks at what its own hash was there, or waits until it comes there itself.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import deque
from typing import Any, NamedTuple

_KEPT = 2048  # points that are remembered; a rank that lags farther behind is compared where it catches up
_AHEAD = 64  # points of another rank that this one has not come to yet
_HASH_BYTES = 8
_NOTHING = bytes(_HASH_BYTES)
_POINT = struct.Struct(f"<Q{_HASH_BYTES}s{_HASH_BYTES}s")
WAYPOINT_BYTES = _POINT.size


class Waypoint(NamedTuple):
    """How far a rank is.

    Attributes:
        done: How much it has done so far: calls, and ends of passes.
        calls: A hash of what that was.
        marks: A hash of the marks of passes since ranks last met; see `Trail.add`.
    """

    done: int
    calls: bytes
    marks: bytes

    def packed(self) -> bytes:
        """It as WAYPOINT_BYTES bytes."""
        return _POINT.pack(*self)

    @staticmethod
    def unpacked(data: bytes) -> Waypoint:
        """What `packed` made bytes of."""
        return Waypoint(*_POINT.unpack(data))


class Trail:
    """All points of one rank, in order. One thread adds to it; hashes are made where somebody looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new = deque[tuple[Any, "float | None", bool]]()
        self._end = Waypoint(0, _NOTHING, _NOTHING)
        self._kept = deque([(self._end, "")], maxlen=_KEPT)  # with the words of what led there
        self._met_at = 0

    def add(self, what: object, mark: float | None = None, met: bool = False) -> None:
        """This rank has done something that all do alike.

        Args:
            what: It, in words.
            mark: A number that need not be alike, but is looked at where it is not.
            met: All ranks have told each other their marks here, so that those before do not count any more.
        """
        self._new.append((what, mark, met))

    def end(self) -> Waypoint:
        """Where this rank is now."""
        with self._lock:
            self._walk()
            return self._end

    def at(self, count: int) -> Waypoint | None:
        """Where it was when it had done so much; None where it is not there yet, or that is too long ago."""
        with self._lock:
            self._walk()
            i = count - self._end.done + len(self._kept) - 1
            return self._kept[i][0] if 0 <= i < len(self._kept) else None

    def words(self, first: int, last: int) -> dict[int, str]:
        """What led to the points from `first` to `last`, as far as that is remembered."""
        with self._lock:
            self._walk()
            return {point.done: text for point, text in self._kept if first <= point.done <= last}

    @property
    def met_at(self) -> int:
        """Where ranks last told each other their marks."""
        with self._lock:
            self._walk()
            return self._met_at

    def _walk(self) -> None:
        while self._new:
            what, mark, met = self._new.popleft()
            text = str(what)
            count, calls, marks = self._end
            calls = _hashed(calls, text)
            if mark is not None:
                marks = _hashed(marks, repr(mark))
            if met:
                marks, self._met_at = _NOTHING, count + 1
            self._end = Waypoint(count + 1, calls, marks)
            self._kept.append((self._end, text))


def _hashed(before: bytes, text: str) -> bytes:
    return hashlib.blake2b(before + text.encode(), digest_size=_HASH_BYTES).digest()


class Comparison:
    """What rank 0 knows of the others' points.

    Attributes:
        same: How far each rank was found to have done as this one.
        unlike: A rank that has not, how far it had, and where it had not any more; None while nobody was found.
    """

    def __init__(self, trail: Trail, world_size: int) -> None:
        self._trail = trail
        self._told = [deque[Waypoint]() for _ in range(world_size)]
        self._apart = -1, 0
        self.same = [0] * world_size
        self.unlike: tuple[int, int, int] | None = None

    def hear(self, rank: int, point: Waypoint) -> None:
        """A rank has told where it is, or was."""
        told = self._told[rank]
        if len(told) == _AHEAD:
            told.pop()
        told.append(point)
        if len(told) > 1 and told[-2].done > point.done:  # it was asked for an earlier one
            self._told[rank] = deque(sorted(told))

    def look(self) -> None:
        """Compare what can be compared by now."""
        end = self._trail.end().done
        for rank, told in enumerate(self._told):
            while told and told[0].done <= end and self.unlike is None:
                self._compare(rank, told.popleft())

    def _compare(self, rank: int, point: Waypoint) -> None:
        mine = self._trail.at(point.done)
        if mine is None:
            return
        if mine.calls != point.calls:
            self.unlike = rank, self.same[rank], point.done
            return
        self.same[rank] = max(self.same[rank], point.done)
        if mine.marks != point.marks and point.done >= self._trail.met_at:
            self._apart = rank, point.done

    @property
    def apart(self) -> int:
        """A rank whose marks differ since ranks last met; -1 for none."""
        rank, count = self._apart
        return rank if count >= self._trail.met_at else -1
