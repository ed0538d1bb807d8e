"""Passes of a captured step: what each replay of it does on the host, and what must not be around it."""

from __future__ import annotations

from typing import Any

from minigrad.backend.capturing import current_capture
from minigrad.errors import CaptureError


class ReplayedPasses:
    """What a reducer does in the replays of captured steps.

    Args:
        reducer: A `Reducer`.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer
        self._before = 0, 0
        self._samples = 0.0

    def begin(self) -> None:
        """A pass begins, which is captured."""
        stats = self._reducer.stats
        self._before, self._samples = (stats.bytes_sent, stats.calls), self._reducer.own.samples

    def end(self) -> None:
        """It is over: each replay counts as much, and compares what must be alike beside the model."""
        capture, reducer = current_capture(), self._reducer
        assert capture is not None
        stats, (nbytes, calls), idle = reducer.stats, self._before, not self._samples
        sent, syncs, said = (stats.bytes_sent - nbytes, stats.calls - calls), reducer.syncing, reducer.own.said
        capture.checks.append(lambda: self._check(syncs, said))
        capture.counts.append(lambda: self._count(*sent, idle))

    def _count(self, nbytes: int, calls: int, idle: bool) -> None:
        reducer, stats = self._reducer, self._reducer.stats
        stats.passes += 1
        stats.bytes_sent += nbytes
        stats.calls += calls
        if reducer.after_pass is not None:
            reducer.after_pass([])  # the graph has the rest
        mark = reducer.alike.mark() if reducer.comm.world_size > 1 else 1.0
        reducer.alike.end_pass(reducer.name, reducer.comm, reducer.buckets.id, mark, None, idle=idle)

    def _check(self, syncs: bool, said: float | None) -> None:
        reducer, around = self._reducer, ""
        if syncs and not reducer.syncing:
            around = "no_sync()"
        elif reducer.joining:
            around = "join(), in which ranks may have no data"
        elif reducer.own.said not in (None, said):
            around = f"samples({reducer.own.said:g}), which was not there when it was captured"
        if around:
            raise CaptureError(
                f"{reducer.name}: expected a captured step as it was captured, got it inside of {around}: write what "
                "is alike in each step into the step, and call the function itself in others"
            )
