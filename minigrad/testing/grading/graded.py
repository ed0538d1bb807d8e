"""The communicator that graded code gets: it is counted, its clock only tells the time, its events go nowhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array, is_half
from minigrad.distributed.comm.protocol import Clock, Communicator, Work
from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.errors import ArgumentError
from minigrad.testing.grading.notes import RankNotes
from minigrad.testing.grading.turns import RankTurns
from minigrad.testing.grading.workload import FEW


class TellingClock:
    """A clock that tells the time, and refuses to be moved: what computing costs is charged by who grades.

    Args:
        clock: Whose time it tells.
    """

    def __init__(self, clock: Clock) -> None:
        self.now_s: Callable[[], float] = clock.now_s

    def compute(self, samples: float) -> None:
        """Refused."""
        _refuse("clock.compute")

    def progress(self, fraction: float) -> None:
        """Refused."""
        _refuse("clock.progress")

    def advance(self, seconds: float) -> None:
        """Refused."""
        _refuse("clock.advance")


def _refuse(what: str) -> None:
    raise ArgumentError(f"{what}: expected a wrapper that leaves time alone, got a call: in a grade it tells now_s()")


class GradedCommunicator(Wrapper):
    """Around the communicator of one rank, noting each call; results may come with an error planted in them.

    Args:
        notes: Takes them.
        turns: Lets one rank after the other go on; None: all at once.
    """

    def __init__(self, comm: Communicator, notes: RankNotes, turns: RankTurns | None = None) -> None:
        super().__init__(comm)
        self._notes, self._turns, self._time = notes, turns, TellingClock(comm.clock)
        self._everybody = [f"calls of rank {rank}" for rank in range(self.world_size)]
        self._planted = 0.0
        self._rng = np.random.default_rng(0)

    @property
    def clock(self) -> Clock:
        """One that only tells the time."""
        return self._time

    @clock.setter
    def clock(self, clock: Clock) -> None:
        _refuse("clock")

    def event(self, kind: str, **fields: Any) -> None:
        """Nobody hears of it."""

    def plant(self, size_ratio: float, seed: int) -> None:
        """From now on what comes back, few numbers aside, is larger by size_ratio to twice that, on all ranks alike.

        Args:
            size_ratio: > 0.
            seed: The same on all ranks.
        """
        self._planted, self._rng = size_ratio, np.random.default_rng(seed)

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Did a call, and the waits for it."""
        if call.kind == "split":
            raise ArgumentError("split: expected the ranks of a grade to stay together, got a group of them")
        if call.kind in ("send", "recv"):
            return self._message(call, arrays[0], make)
        number = self._notes.called(call)
        if not arrays:
            return self._meeting(number, make)
        work = self._in_turn(make(), self._everybody[self.rank], self._everybody)
        return _GradedWork(work, lambda: self._notes.waited(number), self._error_of(arrays[-1]), self.clock)

    def _in_turn(self, work: Work, mine: Hashable, ends: Sequence[Hashable]) -> Work:
        """A call that was made, which is waited for turn by turn, until the others have come to it."""
        if self._turns is None:
            return work
        times = self._turns.tell(mine)
        self._turns.pass_on(self.rank)
        return _InTurn(work, self._turns, self.rank, ends, times)

    def _meeting(self, number: int, make: Make) -> Any:
        """A call that comes back when all ranks have made it."""
        if self._turns is not None:
            times = self._turns.tell(self._everybody[self.rank])
            self._turns.wait_for(self.rank, self._everybody, times)
            self._turns.leave_off(self.rank)
        result = make()
        if self._turns is not None:
            self._turns.go_on(self.rank)
        self._notes.waited(number)
        return result

    def _message(self, call: Call, array: Array, make: Make) -> Work:
        peer, tag = (int(part.split()[-1]) for part in call.detail.split(","))
        src, dst = (self.rank, peer) if call.kind == "send" else (peer, self.rank)
        ends = [f"{kind} from {src} to {dst}, tag {tag}" for kind in ("send", "recv")]
        work = self._in_turn(make(), ends[call.kind == "recv"], ends)
        if call.kind == "send":
            self._notes.sent(call, peer, tag)
            return work
        return _GradedWork(work, lambda: self._notes.took(peer, tag), self._error_of(array), self.clock)

    def _error_of(self, array: Array) -> Callable[[], None]:
        """What plants an error in an array that came back; drawn now, in the order of the calls."""
        if not self._planted or array.size < FEW or not (array.dtype.kind == "f" or is_half(array.dtype)):
            return lambda: None
        factor = 1.0 + self._planted * (1.0 + self._rng.random(array.size).reshape(array.shape))

        def plant() -> None:
            array[...] = (array * factor).astype(array.dtype)

        return plant


class _InTurn(WorkAround):
    """A call under way on threads that take turns: who waits for it lets the others go on."""

    def __init__(self, inner: Work, turns: RankTurns, rank: int, ends: Sequence[Hashable], times: int) -> None:
        super().__init__(inner)
        self._turns, self._rank, self._ends, self._times = turns, rank, ends, times

    def done(self) -> bool:
        """Whether the result is there; where it is not, others go on before that is told."""
        if not self._turns.is_there(self._ends, self._times):
            self._turns.pass_on(self._rank)
            return False
        return self.inner.done()

    def wait(self, host: bool = False) -> None:
        """Wait, while others go on."""
        self._turns.wait_for(self._rank, self._ends, self._times)
        self.inner.wait(host)


class _GradedWork(WorkAround):
    """A call under way.

    Args:
        waited: Called when a wait for it is over.
        deliver: Called once, when the result is there.
    """

    def __init__(
        self, inner: Work, waited: Callable[[], None], deliver: Callable[[], None], clock: Clock
    ) -> None:
        super().__init__(inner)
        self._waited, self._deliver, self._clock = waited, deliver, clock
        self._delivered = False

    def done(self) -> bool:
        """Whether the result is there; asking may have been a wait."""
        before_s = self._clock.now_s()
        done = self.inner.done()
        if done and self._clock.now_s() != before_s:
            self._noted()
        if done:
            self._once()
        return done

    def wait(self, host: bool = False) -> None:
        """Wait, and note that."""
        self.inner.wait(host)
        self._noted()
        self._once()

    def _noted(self) -> None:
        if not self._delivered:
            self._waited()

    def _once(self) -> None:
        if not self._delivered:
            self._delivered = True
            self._deliver()
