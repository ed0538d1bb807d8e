"""Gradients that were given: what was kept of `p.grad` keeps its numbers.

`p.grad` is a tensor on the memory of the gradient, which a flat layout uses again for the next one. Whoever kept such a
tensor, or a view of it, is found by the weak references in their stamp (see `stamp.Stamp`): before that memory is
overwritten they get memory of their own. Where nobody kept anything, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from minigrad.backend.capturing import current_capture, refuse_in_capture
from minigrad.backend.device import device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import contiguous, duplicate, same_part
from minigrad.errors import AutogradError
from minigrad.stamp import Stamp, next_number


def check_at_rest(x: Any) -> None:
    """Refuse a gradient, while a backward is under way, that who listens to x has taken to send it.

    Raises:
        AutogradError: it has.
    """
    if any(getattr(listener, "holds_gradient", _nothing)(x) for listener in x.listeners):
        raise AutogradError(
            f"grad: expected a gradient that stays where it is, got that of "
            f"{getattr(x, 'name', None) or 'a parameter'}, which is sent to other ranks: "
            "use it in a hook of that parameter, or when the backward is over"
        )


def check_finished(who: str, x: Any) -> None:
    """Refuse a gradient to which whoever listens to x has yet to add; AutogradError."""
    for listener in x.listeners:
        why = getattr(listener, "unfinished", "")
        if why:
            raise AutogradError(f"{who}: expected a whole gradient, got a part, {why}")


def check_undivided(x: Any) -> None:
    """Refuse a gradient of which this rank has only some elements, as whoever listens to x says; AutogradError."""
    for listener in x.listeners:
        why = getattr(listener, "divides", _nothing)(x) and listener.unfinished
        if why:
            raise AutogradError(f"grad: expected a whole gradient, got a part, {why}")


def _nothing(x: Any) -> bool:
    return False


def give_gradient(x: Any, tensor: Callable[[Array], Any]) -> Any:
    """A tensor on the gradient that x has, which is in C order from now on, as every place is that it may move to.

    Raises:
        AutogradError: ranks have divided it among them.
    """
    check_undivided(x)
    if x.grad_given is None or x.grad_given[0] is not x.grad_array:
        with device_of(x.grad_array).current():
            x.grad_array = contiguous(x.grad_array)
        x.grad_given = x.grad_array, Stamp()
        x.grad_given[1].viewers = []
    out = tensor(x.grad_array)
    out.stamp = x.grad_given[1]
    viewers = out.stamp.viewers
    viewers.append(ref(out, viewers.remove))
    return out


def drop_gradient(x: Any) -> None:
    """Set the gradient of x to None. Without a flat layout its memory is left to those who view it."""
    if (capture := current_capture()) is not None:
        capture.dropped.add(id(x))
    x.grad_array = None
    if x.grad_by_hand:
        x.grad_by_hand = False
    if x.grad_given is not None and x.grad_view is None:
        x.grad_given = None


def keep_given(x: Any) -> None:
    """Before the memory of a gradient that x no longer has is overwritten: who views it keeps the numbers."""
    (memory, stamp), x.grad_given = x.grad_given, None
    if stamp.viewers:
        of = getattr(x, "name", None) or "a parameter"
        refuse_in_capture("backward", f"the gradient of {of} kept from before", "drop it, or keep a copy")
        _move_viewers(stamp, memory, duplicate(memory))


def move_given(x: Any, data: Array) -> None:
    """The gradient that x has goes on in other memory, where its numbers are already: who views it goes along."""
    if x.grad_given is not None and x.grad_given[0] is x.grad_array:
        stamp = x.grad_given[1]
        _move_viewers(stamp, x.grad_array, data)
        x.grad_given = data, stamp
    x.grad_array = data


def gradient_changed(x: Any) -> None:
    """`mark_changed` for the gradient of x: nodes that saved a tensor on it will refuse to go backward."""
    if x.grad_given is not None:
        x.grad_given[1].changed = next_number()


def _move_viewers(stamp: Stamp, memory: Array, data: Array) -> None:
    for viewer in [reference() for reference in stamp.viewers or ()]:
        if viewer is not None and viewer.stamp is stamp:
            viewer._rebind(same_part(viewer.data, memory, data))
