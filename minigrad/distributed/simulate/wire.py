"""The network of a simulation: when each collective starts and ends in virtual time, and a communicator on it.

Collectives share one channel and run one after the other in order of their number: each starts when all ranks have
called it and the one before it is over. The real collective of the thread ranks carries the numbers; whether a rank
may look at a result depends on virtual time alone, so a simulation gives the same times in every run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.links import Link
from minigrad.distributed.simulate.trace import Recorder, Times
from minigrad.errors import ArgumentError


class Wire:
    """The channel that the ranks of one simulation share."""

    def __init__(self, link: Link, world_size: int) -> None:
        self._link, self._world_size = link, world_size
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[Times, list[tuple[float, int]]]] = {}  # when each rank called it, with what bytes
        self._free_s = 0.0

    def call(self, seq: int, kind: str, nbytes: int, now_s: float) -> Times:
        """A rank calls collective seq; the last to do so settles when it is over."""
        with self._lock:
            times, calls = self._calls.setdefault(seq, (Times(), []))
            calls.append((now_s, nbytes))
            if len(calls) == self._world_size:
                called_s, sizes = zip(*calls)
                whole = sum(sizes) if kind.startswith("all_gather") else max(sizes)  # those of objects differ
                times.started_s = max(called_s)
                begin_s = max(times.started_s, self._free_s)
                times.done_s = self._free_s = begin_s + self._link.cost_s(kind, whole, self._world_size)
                del self._calls[seq]
        return times


class VirtualCommunicator(Wrapper):
    """A communicator whose collectives take virtual time.

    Args:
        comm: The thread rank that carries the numbers.
        clock: This rank's clock, which it takes on.
        wire: The network.
        recorder: Where events and decisions of this rank go.
    """

    def __init__(self, comm: Communicator, clock: VirtualClock, wire: Wire, recorder: Recorder) -> None:
        super().__init__(comm)
        self.clock = clock
        self._virtual, self._wire, self._recorder = clock, wire, recorder
        self._seq = 0

    def event(self, kind: str, **fields: Any) -> None:
        """Note a decision and its reason, at this rank's virtual time."""
        self._recorder.decisions.append({"kind": kind, "at_s": self._virtual.now_s(), **fields})

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Let a call take its time; one that returns host data, or nothing, blocks."""
        if call.kind in ("send", "recv"):
            raise ArgumentError(f"simulate.run: expected a collective, got {call.kind}, whose cost a link does not say")
        times = self._wire.call(self._seq, call.kind, call.nbytes, self._virtual.arrive_s())
        self._recorder.called(times)
        self._seq += 1
        result = make()
        if arrays:
            return _VirtualWork(result, times, self._virtual)
        self._virtual.wait_until(times.done_s, times.started_s)
        return result


class _VirtualWork:
    """A collective whose result is there when virtual time says so."""

    def __init__(self, work: Work, times: Times, clock: VirtualClock) -> None:
        self._work, self._times, self._clock = work, times, clock
        self._asked_s = -1.0

    @property
    def span(self) -> tuple[float, float]:
        """See `Work.span`."""
        return self._times.started_s, self._times.done_s

    def done(self) -> bool:
        """Whether it is over at this rank's virtual time; blocks until that is known.

        A rank that asks again at one moment, no backward being under way, has nothing else to do: time passes.
        """
        self._work.wait(host=True)
        now_s = self._clock.arrive_s()
        if now_s == self._asked_s and not self._clock.in_backward:
            self.wait()
        self._asked_s = now_s
        return self._times.done_s <= self._clock.now_s()

    def wait(self, host: bool = False) -> None:
        """Let virtual time pass until it is over."""
        self._work.wait(host=True)
        self._clock.wait_until(self._times.done_s, self._times.started_s)
