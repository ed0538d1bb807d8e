"""Passes of a captured step: what is around a replay has to be what was around the pass that was captured."""

from __future__ import annotations

from typing import Any, Protocol

from minigrad.backend.capturing import current_capture, refuse_in_capture
from minigrad.distributed.ddp.own import OwnGradients
from minigrad.errors import CaptureError


class _Combining(Protocol):
    """What is asked of a reducer here."""

    name: str
    options: Any
    own: OwnGradients
    syncing: bool
    joining: bool


def check_replays(reducer: _Combining) -> None:
    """Where a step is captured, refuse replays in which its backward would combine otherwise, or not at all."""
    capture = current_capture()
    if capture is not None:
        if reducer.options.find_unused:
            who = "DistributedDataParallel"
            refuse_in_capture(who, "find_unused_parameters=True, for which the host reads what ranks used")
        syncs, said = reducer.syncing, reducer.own.said
        capture.checks.append(lambda: _check(reducer, syncs, said))


def _check(reducer: _Combining, syncs: bool, said: float | None) -> None:
    around = ""
    if syncs and not reducer.syncing:
        around = "no_sync()"
    elif reducer.joining:
        around = "join(), in which ranks may have no data"
    elif reducer.own.said not in (None, said):
        around = f"samples({reducer.own.said:g}), which was not there when it was captured"
    if around:
        raise CaptureError(
            f"{reducer.name}: expected a captured step as it was captured, got it inside of {around}: write what is "
            "alike in each step into the step, and call the function itself in others"
        )
