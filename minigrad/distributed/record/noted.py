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
from minigrad.distributed.record.track import ALL_MEET, Moment, Track
from minigrad.nn.module import Module

_OF_WAITS = ("of", "pass", "nbytes", "inside")
_FIGURES = ("idle_s", "exposed_s", "hidden_s", "bytes_sent", "calls")


class MadeCall(NamedTuple):
    """A call that was made.

    Attributes:
        called: When.
        fields: Of its spans.
        meeting: The name, which all ranks share, of one that is over on no rank before all have called it; else empty.
    """

    kind: str
    called: Moment
    fields: dict[str, Any]
    meeting: str


class CallNotes:
    """What the calls of a rank come to that combine one thing, by one communicator after the other.

    The rules are those of `ddp.account`: the wire works from when all ranks have called a collective, and the one
    before is over; a rank that waits waits for ranks first, then for the wire. Of a call that does not tell when all
    had come, all of its wait is for the wire, but for host data, which is little: there it is for ranks. On a GPU a
    call has the time of its stream.

    Args:
        track: Of this rank.
        name: Of what combines, the same on all ranks.

    Attributes:
        track, name: As given; the second of one name is called so.
    """

    def __init__(self, track: Track, name: str) -> None:
        self.track, self.name = track, track.own_name(name)
        self._calls = self._passes = self._nbytes = 0
        self._reached_s = -math.inf  # the wire has worked until then
        self._idle_s = self._exposed_s = self._hidden_s = self._wire_s = 0.0  # so far
        self._over: list[tuple[float, float, str, float, dict[str, Any]]] = []  # not on the wire yet

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
                fields = {"of": self.name, **dict(zip(_FIGURES, figures))}  # without a number: a step may have several
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
            self.track.note("wire", name, begin_s, done_s, {**fields, "queued_s": begin_s - called_s})
        self._over.clear()

    def called(self, kind: str, nbytes: int, **ends: int) -> dict[str, Any]:
        """One more call: the fields of its spans.

        Args:
            ends: Of a message, the other rank as peer, and its tag.
        """
        sent = {} if kind == "recv" else {"sent_bytes": nbytes}
        self._calls, self._nbytes = self._calls + 1, self._nbytes + sent.get("sent_bytes", 0)
        fields = {"of": self.name, "pass": self._passes, "nbytes": nbytes}
        return {**fields, "collective": kind, **sent, **ends}

    def stood(self, made: MadeCall, began_s: float, ended_s: float, span: tuple[float, float] | None) -> None:
        """The rank stood still for a call, which is over.

        Args:
            span: When all had called it, and when it was over; None where nobody tells.
        """
        name, fields = made.kind, made.fields
        started_s, done_s = span if span is not None else (began_s, ended_s)
        done_s = ended_s if began_s < done_s < ended_s else done_s  # a rank that waits needs time to wake up
        self._over.append((started_s, done_s, name, float(made.called), fields))
        if began_s < done_s:
            come_s = began_s + min(max(0.0, started_s - began_s), ended_s - began_s)
            self._idle_s += come_s - began_s
            self._exposed_s += ended_s - come_s
            mine = {key: fields[key] for key in _OF_WAITS if key in fields}
            if come_s > began_s:
                self.track.note("idle", name, began_s, come_s, mine)
            if ended_s > come_s:
                self.track.note("exposed", name, come_s, ended_s, mine)

    def idled(self, name: str, began_s: float) -> None:
        """The rank has waited for others until now, outside of any call."""
        ended_s = self.track.now_s()
        if ended_s > began_s:
            self._idle_s += ended_s - began_s
            self.track.note("idle", name, began_s, ended_s, {"of": self.name})


class LayerNotes(CallNotes):
    """What layers wait for in calls that they make by themselves; what the wire does for these is in no figure."""

    def called(self, kind: str, nbytes: int, **ends: int) -> dict[str, Any]:
        """One more call: the fields of its spans."""
        return {**super().called(kind, nbytes, **ends), "inside": True}

    def stood(self, made: MadeCall, began_s: float, ended_s: float, span: tuple[float, float] | None) -> None:
        """The rank stood still for a call, which is over."""
        super().stood(made, began_s, ended_s, span)
        self._over.clear()


class NotedCommunicator(Wrapper):
    """Writes its calls on a track of a timeline.

    Args:
        comm: The ranks.
        notes: Of this rank.
    """

    def __init__(self, comm: Communicator, notes: CallNotes) -> None:
        super().__init__(comm)
        self.notes, self._is_host, self._met = notes, comm.device.type == "cpu", 0
        self._ends: dict[str, int] = {}  # of a message that is asked for
        self._name = notes.track.own_name(f"{notes.name} of ranks {list(comm.global_ranks)}")

    def for_group(self, comm: Communicator) -> Communicator:
        """One for a group, with the same notes."""
        return NotedCommunicator(comm, self.notes)

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Note the call, and make it."""
        nbytes, track = max(0, call.nbytes), self.notes.track
        began = track.mark()
        result = make()
        called, fields, meeting = track.mark(), self.notes.called(call.kind, nbytes, **self._ends), ""
        if call.kind in ALL_MEET:
            meeting, self._met = f"{self._name}: {self._met}", self._met + 1
        if not self._is_host:
            track.note("wire", call.kind, began, called, fields)
        made = MadeCall(call.kind, began if self._is_host else called, fields, meeting)
        if arrays and not (self._is_host and isinstance(result, DoneWork)):
            return _NotedWork(result, self, made)
        if self._is_host:
            span = result.span if arrays else getattr(self.clock, "last_wait", (float(called), float(called)))
            self.notes.stood(made, float(began), float(called), span)
        self._meet(made, called)
        return result

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Weight and sum as the inner communicator does."""
        call = Call("all_reduce", layout, nbytes=int(getattr(array, "nbytes", 0)))
        work: Work = self.around(call, [array], lambda: self.inner.weighted_all_reduce(array, weight, layout))
        return work

    def send(self, array: Array, dst: int, tag: int = 0) -> Work:
        """Let rank dst have the elements of array: an event "sent", for who sends goes on at once."""
        nbytes, called = int(getattr(array, "nbytes", 0)), self.notes.track.mark()
        work = self.inner.send(array, dst, tag)
        fields = self.notes.called("send", nbytes, peer=self.global_ranks[dst], tag=tag)
        self.notes.track.event_at("sent", called, fields)
        return work

    def recv(self, array: Array, src: int, tag: int = 0) -> Work:
        """Overwrite array by what rank src sends."""
        self._ends = {"peer": self.global_ranks[src], "tag": tag} if 0 <= src < self.world_size else {}
        try:
            return super().recv(array, src, tag)
        finally:
            self._ends = {}

    def waited(self, made: MadeCall, began: Moment, span: Any) -> None:
        """A wait for a call is over, just now, since began."""
        ended = self.notes.track.mark()
        if self._is_host:
            self.notes.stood(made, float(began), float(ended), span)
        else:
            self.notes.track.note("exposed", made.kind, began, ended, made.fields)
        self._meet(made, ended)

    def _meet(self, made: MadeCall, over: Moment) -> None:
        if made.meeting:
            self.notes.track.met(made.meeting, made.called, over)


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
        self._notes = CallNotes(timeline.at(comm), name)
        self.comm = NotedCommunicator(comm, self._notes)
        self._end_step = note_module(timeline, comm, module)
        self._open = ExitStack()

    def __enter__(self) -> None:
        self._open.callback(self._end_step)
        self._open.enter_context(self._notes.passing())

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


class _NotedWork(WorkAround):
    """A call under way whose first wait is noted."""

    def __init__(self, work: Work, comm: NotedCommunicator, made: MadeCall) -> None:
        super().__init__(work)
        self._comm: NotedCommunicator | None = comm
        self._made = made

    def wait(self, host: bool = False) -> None:
        """Wait, and note it."""
        comm, self._comm = self._comm, None
        if comm is None:
            self.inner.wait(host)
            return
        began = comm.notes.track.mark()
        self.inner.wait(host)
        comm.waited(self._made, began, self.inner.span)
