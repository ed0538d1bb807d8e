"""Stamps: what the tape knows of a memory, which several tensors may share.

One counter numbers nodes and changes in place alike, so a stamp says by numbers alone which came first.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Protocol
from weakref import ref

from minigrad.backend.capturing import Capture, current_capture, refuse_in_capture
from minigrad.backend.dtypes import Array
from minigrad.errors import AutogradError

next_number = itertools.count(1).__next__  # above those of all nodes so far, and below those of all that follow


class Stamp:
    """What the tape knows of one memory, shared by all tensors on it.

    Attributes:
        changed, recorded: The numbers of its last change, and of the last one that was recorded; 0 before the first.
        savers: Weak references to what nodes saved of it; None where nobody asked by `watch`.
        viewers: Weak references to all tensors that keep its numbers when it is overwritten; None but for gradients
            (`kept.give_gradient`).
        viewed: Whether another tensor was ever made on this memory.
    """

    __slots__ = ("changed", "recorded", "savers", "viewers", "viewed")

    def __init__(self) -> None:
        self.changed = self.recorded = 0
        self.savers: list[Any] | None = None
        self.viewers: list[Any] | None = None
        self.viewed = False


class Stamped(Protocol):
    """What has a stamp: a tensor, of which the tape sees this much here."""

    data: Array
    stamp: Stamp | None
    taken: int


def shared_stamp(x: Stamped) -> Stamp:
    """The stamp of a tensor's memory, to be shared with a view of it or with the node that saved it."""
    if x.stamp is None:
        x.stamp = Stamp()
    return x.stamp


def view_memory(out: Stamped, x: Stamped) -> Stamp:
    """Say that a tensor views the memory of another; their stamp."""
    stamp = x.stamp
    if stamp is None:
        stamp = shared_stamp(x)
    elif stamp.viewers is not None:
        stamp.viewers.append(ref(out, stamp.viewers.remove))
    stamp.viewed = True
    out.stamp = stamp
    return stamp


def mark_changed(*changed: Stamped) -> None:
    """Say that the data of these was changed in place: every node that saved it before will refuse to go backward."""
    capture = current_capture()
    for x in changed:
        stamp = x.stamp or shared_stamp(x)
        stamp.changed = next_number()
        if capture is not None:  # each replay changes it, too
            capture.part(_Changing, partial(_changing, capture))[id(stamp)] = stamp


class _Changing(dict[int, Stamp]):
    """The memories that each replay of a captured step changes, by their ids."""

    def change(self) -> None:
        """They are changed once more."""
        for stamp in self.values():
            stamp.changed = next_number()


def _changing(capture: Capture) -> _Changing:
    found = _Changing()
    capture.counts.append(found.change)
    return found


def watch(x: Stamped) -> None:
    """Let `savers` know from now on who saves x, or a view of it."""
    stamp = shared_stamp(x)
    if stamp.savers is None:
        stamp.savers = []


def savers(x: Stamped) -> list[Any]:
    """Weak references to what nodes have saved of the memory of x, which is watched: empty once they are all freed."""
    found = shared_stamp(x).savers
    assert found is not None
    return found


def save_watched(x: Any, saved: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a node saves, with a tensor of its own in the place of x, which stays where x is now if x moves."""
    for one in saved:
        if one is x:
            break
    else:
        return saved
    seen = x.stamp.savers
    own = seen[-1]() if seen else None
    if own is None or own.data is not x.data:
        own = x.detach()
        seen.append(ref(own, seen.remove))
    return tuple([own if one is x else one for one in saved])


def move_to(x: Stamped, data: Array) -> None:
    """Let x live in other memory, which nobody else sees; who sees the old one keeps it, and its stamp."""
    refuse_in_capture("", "a buffer that moves, since outputs of before keep what it was", "drop these first")
    x.data = data
    if x.stamp is not None:
        left, x.stamp = x.stamp, Stamp()
        x.stamp.changed, x.stamp.recorded = left.changed, left.recorded
        if left.savers is not None:
            watch(x)


def mark_rerecorded(x: Stamped) -> None:
    """`mark_changed`, for a change that the tape holds as the new history of x: views taken before have the old one."""
    stamp = shared_stamp(x)
    stamp.changed = stamp.recorded = next_number()


def is_view(x: Stamped) -> bool:
    """Whether x was made by a view of another tensor, and has a history of its own."""
    return hasattr(x, "taken")


def is_private(x: Stamped) -> bool:
    """Whether no other tensor is on the memory of x: it may lie elsewhere from now on, and none can tell."""
    return not is_view(x) and (x.stamp is None or not (x.stamp.viewed or x.stamp.savers is not None))


def check_taken(x: Stamped) -> None:
    """Refuse a view whose memory got another history since: a gradient through it would miss that."""
    if is_view(x) and x.taken != shared_stamp(x).recorded:
        raise AutogradError(
            f"view: expected one of what its base is now, got one of shape {x.data.shape} taken before its base was "
            "changed in place on the tape: take the view again"
        )
