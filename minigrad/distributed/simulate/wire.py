"""The network of a simulation: when each call starts and ends in virtual time, and a communicator on it.

The collectives of a communicator share one channel and run one after the other in order of their number: each starts
when all ranks have called it and the one before it is over. A group that is split off has a channel, and numbers, of
its own: its collectives wait for no others. A rank's messages share its link, whichever communicator they go by: one
after the other they are there alpha + beta·m seconds after the link took them; collectives, and messages of other
ranks, do not hold them up. Who sends goes on at once; who takes waits until the message is there.

The real call of the thread ranks carries the numbers; whether a rank may look at a result depends on virtual time
alone, so a simulation gives the same times in every run.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.comm.wrappers import COLLECTIVES, Call, Make, Wrapper
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.links import Link
from minigrad.distributed.simulate.trace import Recorder, Times
from minigrad.errors import ArgumentError, AutogradError, DeviceError, DtypeError, ShapeError
from minigrad.tensor import Tensor

_WHOLE = ("all_gather", "all_gather_object", "gather")  # of which each rank hands in a part
_Called = tuple[float, int, int]  # when a rank called a collective, with what bytes, after how many steps of its own
Name = tuple[Any, ...]  # of a channel: of its parent's, number of the split there, and its ranks


class Pricing(Protocol):
    """What a collective costs, as a `Link` says it."""

    def cost_s(
        self, kind: str, nbytes: float, world_size: int, ranks: Sequence[int] = (), local_steps: float = 0.0
    ) -> float:
        """Seconds that it takes once all ranks have called it; see `Link.cost_s`."""


class Channel:
    """What the collectives of one communicator run on.

    Args:
        link: What each of them costs.
        ranks: Those of the communicator, by global rank; none where they are all.
    """

    def __init__(self, link: Pricing, world_size: int, ranks: Sequence[int]) -> None:
        self._link, self._world_size, self._ranks = link, world_size, ranks
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[Times, list[_Called]]] = {}
        self._last: tuple[Times, list[_Called]] = Times(), []  # that was settled
        self._free_s = self._free_before_s = 0.0

    def call(self, seq: int, kind: str, called: _Called) -> Times:
        """A rank calls collective seq; the last to do so settles when it is over."""
        with self._lock:
            times, calls = self._calls.setdefault(seq, (Times(), []))
            calls.append(called)
            if len(calls) == self._world_size:
                called_s, sizes, steps = zip(*calls)
                whole = sum(sizes) if kind in _WHOLE else max(sizes)  # those of objects differ
                cost = kind if kind in COLLECTIVES else "barrier"  # to split takes as long as to meet
                times.started_s = max(called_s)
                self._free_before_s, self._last = self._free_s, (times, calls)
                begin_s = max(times.started_s, self._free_s)
                taken_s = self._link.cost_s(cost, whole, self._world_size, self._ranks, max(steps))
                times.done_s = self._free_s = begin_s + taken_s
                del self._calls[seq]
        return times

    def take_back(self, seq: int, called: _Called) -> None:
        """The call of a rank that was refused, so that no other rank can have seen its end: it makes another one."""
        with self._lock:
            if seq not in self._calls:  # it came last
                self._calls[seq], self._free_s = self._last, self._free_before_s
            self._calls[seq][1].remove(called)


class Wire:
    """What the ranks of one simulation share."""

    def __init__(self, link: Link, world_size: int) -> None:
        self._link, self._world_size = link, world_size
        self._changed = threading.Condition()
        self._channels: dict[Name, Channel] = {}
        self._free_s: dict[int, float] = {}  # the link of each rank, from when on
        self._sent: dict[Name, Times] = {}  # messages that nobody has taken: between whom, tag and number

    def channel(self, name: Name, ranks: Sequence[int]) -> Channel:
        """That of this name; of all ranks, or of a group."""
        with self._changed:
            made = Channel(self._link, len(ranks), () if len(ranks) == self._world_size else ranks)
            return self._channels.setdefault(name, made)

    def send(self, name: Name, src: int, dst: int, nbytes: int, now_s: float) -> Times:
        """A rank sends a message of this name to another, by global rank: when it was sent, and is there."""
        with self._changed:
            begin_s = max(now_s, self._free_s.get(src, 0.0))  # a rank's own calls are in order, whatever others do
            done_s = self._free_s[src] = begin_s + self._link.message_s(nbytes, src, dst)
            times = self._sent[name] = Times(now_s, done_s)
            self._changed.notify_all()
        return times

    def take(self, name: Name, timeout_s: float) -> Times:
        """When a message was sent, and is there, whose elements this rank has got."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._sent, timeout_s)  # its elements came first, a moment ago
            return self._sent.pop(name)


class VirtualCommunicator(Wrapper):
    """A communicator whose collectives and messages take virtual time.

    Args:
        comm: The thread rank that carries the numbers.
        clock: This rank's clock, which it takes on.
        wire: The network.
        recorder: Where events and decisions of this rank go.
        name: Of the channel, alike on its ranks.
    """

    def __init__(
        self, comm: Communicator, clock: VirtualClock, wire: Wire, recorder: Recorder, name: Name = ()
    ) -> None:
        super().__init__(comm)
        self.clock = clock
        self._virtual, self._wire, self._recorder, self._name = clock, wire, recorder, name
        self._channel = wire.channel(name, comm.global_ranks)
        self._group = {"ranks": comm.global_ranks} if name else {}
        self._seq = 0
        self._messages: Counter[Name] = Counter()  # so far: to or from whom, with which tag

    def event(self, kind: str, **fields: Any) -> None:
        """Note a decision and its reason, at this rank's virtual time."""
        self._recorder.decided({"kind": kind, "at_s": self._virtual.now_s(), **fields})

    def for_group(self, comm: Communicator) -> Communicator:
        """One on the same clock, for what was split off by the last call."""
        name = (self._name, self._seq, comm.global_ranks)
        return VirtualCommunicator(comm, self._virtual, self._wire, self._recorder, name)

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Let a collective take its time; one that returns host data, or nothing, blocks."""
        called = self._virtual.arrive_s(), call.nbytes, self._virtual.local_steps
        times = self._channel.call(self._seq, call.kind, called)
        self._seq += 1
        try:
            result = make()
        except (ArgumentError, ShapeError, DtypeError, DeviceError, AutogradError):
            self._seq -= 1
            self._channel.take_back(self._seq, called)
            raise
        self._virtual.local_steps = 0
        told = {"collective": call.kind, "called_s": called[0], **self._group}
        number = self._recorder.called(times, max(0, call.nbytes), told)
        if arrays:
            return _VirtualWork(result, times, self._virtual, need=partial(self._recorder.needs, number))
        self._recorder.needs(number, called[0])
        self._virtual.wait_until(times.done_s, times.started_s)
        return result

    def send(self, array: Array, dst: int, tag: int = 0) -> Work:
        """Let rank dst have the elements of array; no time passes here."""
        now_s = self._virtual.arrive_s()
        work, nbytes = self.inner.send(array, dst, tag), _nbytes(array)
        here, there = self.global_ranks[self.rank], self.global_ranks[dst]
        times = self._wire.send(self._next_message(here, there, tag), here, there, nbytes, now_s)
        self._recorder.messaged(None, nbytes, {"called_s": now_s, "peer": there, "tag": tag, "nbytes": nbytes})
        return _SentWork(work, times)

    def recv(self, array: Array, src: int, tag: int = 0) -> Work:
        """Overwrite array by what rank src sends; to wait takes until the message is there."""
        now_s = self._virtual.arrive_s()
        work, times = self.inner.recv(array, src, tag), Times()
        there = self.global_ranks[src]
        name = self._next_message(there, self.global_ranks[self.rank], tag)
        told = {"called_s": now_s, "peer": there, "tag": tag, "nbytes": _nbytes(array)}
        self._recorder.messaged(times, 0, told)
        return _VirtualWork(work, times, self._virtual, lambda: self._wire.take(name, self.timeout_s))

    def _next_message(self, src: int, dst: int, tag: int) -> Name:
        """The name of the next one of these, the same at both ends."""
        ends = (self._name, src, dst, tag)
        self._messages[ends] += 1
        return (*ends, self._messages[ends])


def _nbytes(array: Array | Tensor) -> int:
    return int((array.data if isinstance(array, Tensor) else array).nbytes)


class _VirtualWork:
    """A call whose result is there when virtual time says so.

    Args:
        times: When that is; it is filled in where they are known only once the result is really there.
        take: Gives them then.
        need: Is told when the rank can't go on before it is over.
    """

    def __init__(
        self,
        work: Work,
        times: Times,
        clock: VirtualClock,
        take: Callable[[], Times] | None = None,
        need: Callable[[float], None] | None = None,
    ) -> None:
        self._work, self._times, self._clock, self._take, self._need = work, times, clock, take, need
        self._asked_s = -1.0

    @property
    def span(self) -> tuple[float, float] | None:
        """See `Work.span`."""
        return (self._times.started_s, self._times.done_s) if self._take is None else None

    def done(self) -> bool:
        """Whether it is over at this rank's virtual time; blocks until that is known.

        A rank that asks again at one moment, no backward being under way, has nothing else to do: time passes.
        """
        self._know()
        now_s = self._clock.arrive_s()
        if now_s == self._asked_s and not self._clock.in_backward:
            self.wait()
        self._asked_s = now_s
        return self._times.done_s <= self._clock.now_s()

    def wait(self, host: bool = False) -> None:
        """Let virtual time pass until it is over."""
        self._know()
        if self._need is not None:
            self._need(self._clock.arrive_s())
        self._clock.wait_until(self._times.done_s, self._times.started_s)

    def _know(self) -> None:
        """Return when the result is really there, and with it when it is."""
        self._work.wait(host=True)
        if self._take is not None:
            found, self._take = self._take(), None
            self._times.started_s, self._times.done_s = found.started_s, found.done_s


class _SentWork(WorkAround):
    """A message that this rank has sent: no time passes for it, but its memory is free once it was really taken."""

    def __init__(self, work: Work, times: Times) -> None:
        super().__init__(work)
        self._times = times

    @property
    def span(self) -> tuple[float, float]:
        """See `Work.span`."""
        return self._times.started_s, self._times.done_s

    def done(self) -> bool:
        """Always, once the other rank has really taken it: blocks until then."""
        self.inner.wait(host=True)
        return True

    def wait(self, host: bool = False) -> None:
        """Block until the other rank has really taken it."""
        self.inner.wait(host=True)
