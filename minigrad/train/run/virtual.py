"""Letters in virtual time: ranks of a simulation, and who directs them, go on one at a time, the earliest first.

Who waits for a letter lets the others go on whose time has not come as far; so nothing that it takes, or does not find,
depends on real time. Only where ranks meet in collectives do they go on together, until each has what it came for.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Union

from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.living.lifeline import OUTSIDE, Death, Letter, Lifeline
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.trace import Recorder
from minigrad.distributed.simulate.wire import VirtualCommunicator, Wire
from minigrad.errors import DistributedError, RankFailedError

Item = Union[Letter, Death]


@dataclass
class _Seat:
    """How far one of them has come.

    Attributes:
        now_s: Its time when it began to wait.
        until_s: How long it waits for a letter.
        mail: What is on its way to it: when it is there, a number, and what.
        meets: The members of the meeting that it waits for; None where it waits for a letter.
        over: Why it takes part no more.
    """

    now_s: float = 0.0
    until_s: float = 0.0
    mail: list[tuple[float, int, Item]] = field(default_factory=list)
    meets: tuple[int, ...] | None = None
    over: str = ""

    @property
    def wakes_s(self) -> float:
        """When it goes on, where it waits for a letter."""
        first_s = max(self.now_s, self.mail[0][0]) if self.mail else math.inf
        return min(first_s, self.until_s)


class VirtualTurns:
    """Who goes on, in order of virtual time.

    Args:
        who: All who take part; they wait, at time 0, until `begin`.
        patience_s: How long they wait, in real time, for one that goes on; then it takes part no more.
    """

    def __init__(self, who: Sequence[int], patience_s: float) -> None:
        self._patience_s, self._moves = patience_s, 0
        self._seats = {each: _Seat() for each in who}
        self._changed = threading.Condition()
        self._running = set[int]()
        self._numbers = itertools.count()
        self._stuck = ""

    def begin(self) -> None:
        """All threads have been started."""
        with self._changed:
            self._choose()

    def enter(self, who: int) -> None:
        """Wait for the first turn."""
        with self._changed:
            self._wait(who)

    def post(self, to: int, item: Item, at_s: float) -> None:
        """Something is on its way, and is there at that time."""
        seat = self._seats[to]
        if not seat.over:
            heapq.heappush(seat.mail, (at_s, next(self._numbers), item))

    def take(self, who: int, now_s: float, until_s: float) -> tuple[float, Item | None]:
        """What is there first, no later than until_s, and when; the others go on meanwhile."""
        with self._changed:
            seat = self._seats[who]
            seat.now_s, seat.until_s = now_s, until_s
            self._yield(who)
            wakes_s = seat.wakes_s
            if seat.mail and max(now_s, seat.mail[0][0]) <= wakes_s:
                return wakes_s, heapq.heappop(seat.mail)[2]
            return wakes_s, None

    @contextmanager
    def together(self, who: int, members: Sequence[int], now_s: Callable[[], float]) -> Iterator[None]:
        """Around what members that have not ended do at one time; before and after it each waits for its turn."""
        seat = self._seats[who]
        with self._changed:
            seat.now_s, seat.meets = now_s(), tuple(members)
            self._yield(who)
            if seat.over:
                raise RankFailedError(f"rank {who}: expected a rank that takes part, but {seat.over}")
        try:
            yield
        finally:
            with self._changed:
                seat.now_s = seat.until_s = now_s()
                seat.meets = None
                self._yield(who)

    def end(self, who: int, why: str) -> None:
        """It takes part no more."""
        with self._changed:
            self._seats[who].over = self._seats[who].over or why
            self._seats[who].mail.clear()
            self._running.discard(who)
            self._choose()

    def over(self, who: int) -> str:
        """Why it takes part no more; empty while it does."""
        return self._seats[who].over

    def _yield(self, who: int) -> None:
        self._running.discard(who)
        self._choose()
        self._wait(who)

    def _wait(self, who: int) -> None:
        def is_called() -> bool:
            return bool(who in self._running or self._stuck or self._seats[who].over)

        while not is_called():
            moves = self._moves
            self._changed.wait_for(lambda: is_called() or self._moves > moves, self._patience_s)
            if self._moves == moves and not is_called():
                self._give_up()
        if self._stuck and who not in self._running:
            raise DistributedError(self._stuck)

    def _give_up(self) -> None:
        """Whoever goes on hangs: it takes part no more, and is missed in virtual time."""
        for each in self._running:
            self._seats[each].over = f"it did nothing for {self._patience_s:g} s"
            self._seats[each].mail.clear()
        self._running.clear()
        self._choose()

    def _choose(self) -> None:
        """Let those go on whose turn it is, where nobody does."""
        self._moves += 1
        if self._running:
            return
        found: list[tuple[float, int, list[int]]] = []
        for who, seat in self._seats.items():
            if seat.over:
                continue
            if seat.meets is None:
                found.append((seat.wakes_s, who, [who]))
            elif (there := [each for each in seat.meets if not self._seats[each].over])[0] == who and all(
                self._seats[each].meets == seat.meets for each in there
            ):
                found.append((max(self._seats[each].now_s for each in there), who, there))
        alive = [who for who, seat in self._seats.items() if not seat.over]
        if found and min(found)[0] < math.inf:
            self._running = set(min(found)[2])
        elif alive:
            self._stuck = f"simulation: expected somebody to go on, but {alive} all wait for letters or each other"
        self._changed.notify_all()


class VirtualLine:
    """What `Lifeline` is, in virtual time.

    Args:
        line: Of the thread that carries the numbers; communicators begin by it.
        turns: Of all.
        latency_s: latency_s(nbytes, src, dst) of a letter.
        clock, recorder, wire: Of this rank, see `simulate`; none of who directs them.

    Attributes:
        clock: As given.
    """

    def __init__(
        self,
        line: Lifeline,
        turns: VirtualTurns,
        latency_s: Callable[[int, int], float],
        clock: VirtualClock | None = None,
        recorder: Recorder | None = None,
        wire: Wire | None = None,
    ) -> None:
        self.rank, self._line, self._turns, self._latency_s = line.rank, line, turns, latency_s
        self.clock, self._recorder, self._wire = clock, recorder, wire
        self._now_s = 0.0
        self._groups = 0

    def now_s(self) -> float:
        """Its virtual time."""
        return self._now_s if self.clock is None else self.clock.arrive_s()

    def post(self, rank: int, data: Any) -> None:
        """See `Lifeline`."""
        self._check("post")
        self._turns.post(rank, Letter(self.rank, data), self.now_s() + self._latency_s(self.rank, rank))

    def take(self, timeout_s: float) -> Letter | Death | None:
        """See `Lifeline`."""
        now_s = self.now_s()
        at_s, item = self._turns.take(self.rank, now_s, now_s + timeout_s)
        self._check("take")
        if self.clock is None:
            self._now_s = max(self._now_s, at_s)
        else:
            self.clock.wait_until(at_s, at_s)
        return item

    def drop(self, rank: int, why: str) -> None:
        """See `Lifeline`."""
        self._line.drop(rank, why)
        self.died(rank, f"it was dropped: {why}")
        self._turns.end(rank, why)

    def died(self, rank: int, why: str, cause: BaseException | None = None) -> None:
        """Tell all others that a rank is dead."""
        at_s = self.now_s()
        for each in (OUTSIDE, *range(self._line.world_size)):
            if each != rank:
                self._turns.post(each, Death(rank, why, cause), at_s + self._latency_s(rank, each))

    @contextmanager
    def together(self, members: Sequence[int]) -> Iterator[None]:
        """Around what members do together in real time."""
        with self._turns.together(self.rank, members, self.now_s):
            yield

    def regroup(self, living: Sequence[int], generation: int) -> Communicator:
        """See `Lifeline`; it takes no time."""
        assert self.clock is not None and self._wire is not None and self._recorder is not None
        comm = self._line.regroup(living, generation)
        return VirtualCommunicator(comm, self.clock, self._wire, self._recorder, (generation, tuple(living)))

    def _check(self, who: str) -> None:
        why = self._turns.over(self.rank)
        if why:
            raise RankFailedError(f"rank {self.rank}: {who}: expected a rank that takes part, but {why}")
