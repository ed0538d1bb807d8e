"""A communicator whose calls are written on a timeline: when the wire worked for each, and what the rank waited for.

It is for what combines outside of a DDP wrapper, which notes its passes itself: averages, rounds, replicas of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import DoneWork, WorkAround
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.distributed.record.listening import EventListener, overheard
from minigrad.distributed.record.modules import note_module
from minigrad.distributed.record.spans import PASS
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import Moment, Track
from minigrad.nn.module import Module

_FIGURES = ("idle_s", "exposed_s", "hidden_s", "bytes_sent", "calls")
_ALL_MEET = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_gather_object", "barrier")


class NotedCommunicator(Wrapper):
    """Writes its calls on a track of a timeline.

    The rules are those of `ddp.account`: the wire works from when all ranks have called a collective, and the one
    before is over; a rank that waits waits for ranks first, then for the wire. Of a call that does not tell when all
    had come, all of its wait is for the wire. On a GPU a call has the time of its stream.

    Args:
        comm: The ranks.
        track: Of this rank.
        name: Of what combines, the same on all ranks.
    """

    def __init__(self, comm: Communicator, track: Track, name: str) -> None:
        super().__init__(comm)
        self.track, self.name = track, track.own_name(name)
        self._is_host = comm.device.type == "cpu"
        self._calls = self._passes = self._meetings = 0
        self._reached_s = -math.inf  # the wire has worked until then
        self._idle_s = self._exposed_s = self._hidden_s = self._wire_s = 0.0  # so far
        self._nbytes = 0
        self._over: list[tuple[float, float, str, float, dict[str, Any]]] = []  # not on the wire yet

    def for_group(self, comm: Communicator) -> Communicator:
        """One for a group, on the same track."""
        return NotedCommunicator(comm, self.track, self.name)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around what is one pass, where something is called or waited for in it."""
        began_s, before = self.track.now_s(), self._so_far()
        try:
            yield
        finally:
            self._note_wire()
            figures = [now - then for now, then in zip(self._so_far(), before)]
            if any(figures):
                fields = {"of": self.name, "pass": self._passes, **dict(zip(_FIGURES, figures))}
                self.track.note(PASS, self.name, began_s, self.track.now_s(), fields)
                self._passes += 1

    def _so_far(self) -> tuple[float, ...]:
        """Of all passes, in the order of _FIGURES."""
        self._hidden_s = max(self._hidden_s, self._wire_s - self._exposed_s)
        return self._idle_s, self._exposed_s, self._hidden_s, self._nbytes, self._calls

    def _note_wire(self) -> None:
        """Write what the wire did for the calls that are over: for one after the other."""
        for started_s, done_s, name, called_s, fields in sorted(self._over, key=lambda call: call[:2]):
            begin_s = min(max(started_s, self._reached_s), done_s)
            self._reached_s = max(self._reached_s, done_s)
            self._wire_s += done_s - begin_s
            wire = {"collective": name, "sent_bytes": fields["nbytes"], "queued_s": begin_s - called_s}
            self.track.note("wire", name, begin_s, done_s, {**fields, **wire})
        self._over.clear()

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Note the call, and make it."""
        nbytes, mark = max(0, call.nbytes), self.track.mark
        fields = {"of": self.name, "pass": self._passes, "nbytes": nbytes}
        began = mark()
        result = make()
        called = mark()
        self._calls, self._nbytes = self._calls + 1, self._nbytes + nbytes
        meeting = -1
        if call.kind in _ALL_MEET:
            meeting, self._meetings = self._meetings, self._meetings + 1
        if not self._is_host:
            self.track.note("wire", call.kind, began, called, {**fields, "collective": call.kind, "sent_bytes": nbytes})
            return _NotedWork(result, self, _Made(call.kind, called, fields, meeting)) if arrays else result
        if not arrays or isinstance(result, DoneWork):
            span = result.span if arrays else None
            self._stood(call.kind, float(began), float(began), float(called), span, fields)
            self._meet(meeting, began, called)
            return result
        return _NotedWork(result, self, _Made(call.kind, began, fields, meeting))

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Weight and sum as the inner communicator does."""
        call = Call("all_reduce", layout, nbytes=int(getattr(array, "nbytes", 0)))
        work: Work = self.around(call, [array], lambda: self.inner.weighted_all_reduce(array, weight, layout))
        return work

    def _stood(
        self,
        name: str,
        called_s: float,
        began_s: float,
        ended_s: float,
        span: tuple[float, float] | None,
        fields: dict[str, Any],
    ) -> None:
        """The rank stood still for a call, made at called_s, which is over.

        Args:
            span: When all had called it, and when it was over; None where nobody tells.
        """
        started_s, done_s = span if span is not None else (began_s, ended_s)
        done_s = ended_s if began_s < done_s < ended_s else done_s  # a rank that waits needs time to wake up
        self._over.append((started_s, done_s, name, called_s, fields))
        if began_s < done_s:
            come_s = began_s + min(max(0.0, started_s - began_s), ended_s - began_s)
            self._idle_s += come_s - began_s
            self._exposed_s += ended_s - come_s
            if come_s > began_s:
                self.track.note("idle", name, began_s, come_s, fields)
            if ended_s > come_s:
                self.track.note("exposed", name, come_s, ended_s, fields)

    def waited(self, made: _Made, began: Moment, span: Any) -> None:
        """A wait for a call is over, just now, since began."""
        ended = self.track.mark()
        if self._is_host:
            self._stood(made.kind, float(made.called), float(began), float(ended), span, made.fields)
        else:
            self.track.note("exposed", made.kind, began, ended, made.fields)
        self._meet(made.meeting, made.called, ended)

    def _meet(self, number: int, called: Moment, over: Moment) -> None:
        if number >= 0:
            self.track.met(f"{self.name}: {number}", called, over)


class Unnoted(nullcontext[None]):
    """Notes nothing around the steps of an averager.

    Attributes:
        comm: What it combines by.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self.comm = comm


class NotedModule:
    """Around the steps of what combines a module outside of a wrapper: all of it is written on a timeline.

    Attributes:
        comm: What it combines by.
    """

    def __init__(self, timeline: Timeline, comm: Communicator, module: Module, name: str) -> None:
        self.comm: Communicator
        self.comm = self._noted = NotedCommunicator(comm, timeline.at(comm), name)
        self._end_step = note_module(timeline, comm, module)
        self._open = ExitStack()

    def __enter__(self) -> None:
        self._open.callback(self._end_step)
        self._open.enter_context(self._noted.passing())

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


def notes_of(who: str, timeline: EventListener | None, comm: Communicator, module: Module) -> NotedModule | Unnoted:
    """What is around the steps of a rank's averager; the second where the timeline is none, or hears of events alone.

    Raises:
        ArgumentError: the timeline has no event().
    """
    heard = overheard(who, timeline, comm)
    if isinstance(timeline, Timeline):
        return NotedModule(timeline, heard, module, f"{who} of a {type(module).__name__}")
    return Unnoted(heard)


class _Made(NamedTuple):
    """A call that was made.

    Attributes:
        called: When.
        fields: Of its spans.
        meeting: Its number among the calls that are over on no rank before all have called them; -1 where it is none.
    """

    kind: str
    called: Moment
    fields: dict[str, Any]
    meeting: int


class _NotedWork(WorkAround):
    """A call under way whose first wait is noted."""

    def __init__(self, work: Work, comm: NotedCommunicator, made: _Made) -> None:
        super().__init__(work)
        self._comm: NotedCommunicator | None = comm
        self._made = made

    def wait(self, host: bool = False) -> None:
        """Wait, and note it."""
        comm, self._comm = self._comm, None
        if comm is None:
            self.inner.wait(host)
            return
        began = comm.track.mark()
        self.inner.wait(host)
        comm.waited(self._made, began, self.inner.span)
