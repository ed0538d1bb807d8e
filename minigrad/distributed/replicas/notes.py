"""What a timeline gets of replicas in one process: a track for each, what they compute, and each bucket on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.ddp.buckets import Bucket
from minigrad.distributed.record.listening import EventListener
from minigrad.distributed.record.modules import note_on
from minigrad.distributed.record.moments import DeviceMoments
from minigrad.distributed.record.spans import PASS
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import Moment
from minigrad.distributed.replicas.devices import DeviceGroup, ListCollectives
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module

__all__ = ["EventListener", "ListCollectives", "ReplicaNotes", "Timeline", "notes_of"]
T = TypeVar("T")
_NO_SUMS = {"idle_s": 0.0, "exposed_s": 0.0, "hidden_s": 0.0, "bytes_sent": 0, "calls": 0}


class Sends(Protocol):
    """A collective of a list of arrays."""

    def __call__(self, arrays: Sequence[Array], *args: Any) -> None:
        """Let each be what comes of all."""


class ReplicaNotes:
    """The tracks of replicas that one thread drives. On GPUs all has the time of their streams.

    In a simulation a replica that has computed waits for the others; on one machine the thread comes to all at once.

    Args:
        timeline: Where it is written.
        devices: Of each replica.
        clocks: What time is on each; the host's where there are none.

    Attributes:
        tracks: Of each replica.

    Raises:
        ArgumentError: it is no timeline.
    """

    def __init__(self, timeline: Timeline, devices: Sequence[Device], clocks: Sequence[Clock] = ()) -> None:
        if not isinstance(timeline, Timeline):
            raise ArgumentError(f"Replicas: expected timeline as a Timeline, got {timeline!r:.100}")
        self._devices, self._clocks = list(devices), list(clocks) or [HostClock()] * len(devices)
        self._depth = timeline.depth
        self.tracks = [timeline.at(rank=rank, clock=clock) for rank, clock in enumerate(self._clocks)]
        self._moments = [DeviceMoments.of(track, device) for track, device in zip(self.tracks, self._devices)]
        self._is_host = all(moments is None for moments in self._moments)
        self._began: list[Moment] = []  # of what is under way on each replica
        self._bucket: dict[str, Any] = {}
        self._passes, self._name = 0, self.tracks[0].own_name(f"{len(self.tracks)} replicas")
        self._sums: list[dict[str, Any]] = []

    def listen(self, models: Sequence[Module]) -> None:
        """Note forward and backward of each replica, which has a backward of its own."""
        for track, clock, model in zip(self.tracks, self._clocks, models):
            note_on(track, model, self._depth, clock)

    # ------------------------------------------------------------------------------------------------ computing

    def started(self, rank: int) -> None:
        """A replica begins to compute; the one that did so far has stopped."""
        self.tracks[rank].begin_if_over()
        self._began = [self._mark(rank)]

    def stopped(self, rank: int, kind: str) -> None:
        """It has stopped; kind is "forward", "backward", or "compute" for both."""
        ended, (began,) = self._mark(rank), self._began
        fields = {f"{kind}_s": float(ended) - float(began)} if self._is_host else {}
        self.tracks[rank].note(kind, "", began, ended, fields)

    def _mark(self, rank: int) -> Moment:
        with self._devices[rank].current():
            return self.tracks[rank].mark()

    def _marks(self) -> list[Moment]:
        if self._is_host and isinstance(self._clocks[0], HostClock):
            return [self.tracks[0].now_s()] * len(self.tracks)
        return [self._mark(rank) for rank in range(len(self.tracks))]

    # ------------------------------------------------------------------------------------------------- combining

    @contextmanager
    def passing(self, ends_step: bool = True) -> Iterator[None]:
        """Around what combines the replicas once: the gradients of a step, or buffers beside them."""
        self._bucket = {"of": self._name, "pass": self._passes}
        self._sums = [dict(_NO_SUMS) for _ in self.tracks]
        for clock in self._clocks:
            clock.progress(1.0)  # in a simulation the backward is over
        began_s = [track.now_s() for track in self.tracks]
        yield
        for track, moment_s, sums, moments in zip(self.tracks, began_s, self._sums, self._moments):
            if sums["calls"]:
                track.note(PASS, self._name, moment_s, track.now_s(), {"of": self._name, **sums})
            if ends_step:
                track.end_step()
            if moments is not None:
                moments.settle()
        self._passes += 1

    def weigh(self, bucket: Bucket) -> None:
        """A bucket is weighted, then sent."""
        self._bucket = {"of": self._name, "pass": self._passes, "bucket": bucket.index, "nbytes": bucket.nbytes}
        self._began = self._marks()

    def send(self, collective: str, call: Sends, arrays: Sequence[Array], *args: Any) -> None:
        """Make a call, which is on the wire for all replicas."""
        fields, nbytes = self._bucket, int(arrays[0].nbytes)
        name = f"bucket {fields['bucket']}" if "bucket" in fields else collective
        called = self._marks()
        call(arrays, *args)
        over = self._marks()
        wire = {"nbytes": nbytes, **fields, "collective": collective, "sent_bytes": nbytes}
        start_s = max(map(float, called)) if self._is_host else 0.0
        for rank, (track, sums) in enumerate(zip(self.tracks, self._sums)):
            if "bucket" in fields and self._is_host:
                track.note("weighted", name, self._began[rank], called[rank], fields)
            sums["bytes_sent"] += nbytes
            sums["calls"] += 1
            if not self._is_host:
                track.note("wire", name, called[rank], over[rank], wire)
                continue
            idle_s, exposed_s = start_s - float(called[rank]), float(over[rank]) - start_s
            track.note("wire", name, start_s, over[rank], {**wire, "queued_s": idle_s})
            if idle_s > 0.0:
                track.note("idle", name, called[rank], start_s, fields)
            if exposed_s > 0.0:
                track.note("exposed", name, start_s, over[rank], fields)
            sums["idle_s"] += idle_s
            sums["exposed_s"] += exposed_s
        self._bucket = {"of": self._name, "pass": self._passes}

    # ----------------------------------------------------------------------------------------------------- beside

    @contextmanager
    def spanning(self, kind: str) -> Iterator[None]:
        """Around what is a span of all replicas."""
        began = self._marks()
        yield
        for track, began_s, ended_s in zip(self.tracks, began, self._marks()):
            track.note(kind, "", began_s, ended_s)

    def reading(self, batches: Iterator[T]) -> Iterator[T]:
        """Batches, with the time that each takes to come as data of the first replica, whose thread reads them."""
        track = self.tracks[0]
        began_s = track.now_s()
        for batch in batches:
            track.note("data", "", began_s, track.now_s())
            yield batch
            began_s = track.now_s()


def notes_of(timeline: EventListener | None, group: DeviceGroup) -> ReplicaNotes | None:
    """Those of a group of devices; None where the timeline is none, or only hears of events."""
    return ReplicaNotes(timeline, group.devices, group.clocks) if isinstance(timeline, Timeline) else None
