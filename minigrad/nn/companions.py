"""What is kept beside parameters and must be alike wherever a replica of them is trained.

Optimizers, schedules and loss scales attach themselves to the flat buffers of their parameters; who keeps replicas
alike looks there. Neither knows the other, and a companion that is gone is forgotten.
"""

from __future__ import annotations

import secrets
import weakref
import zlib
from collections.abc import Iterable
from typing import Any, Protocol

from minigrad.arguments import is_number
from minigrad.autograd.tape import Edge, Node
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor


class Companion(Protocol):
    """State beside parameters."""

    def mark(self) -> int:
        """A number that differs where the state does, or may: cheap, and nothing waits for a device.

        It must be the same in every process whose state came about in the same way.
        """

    def settle(self, number: int) -> None:
        """Take the state for one that all replicas share: marks count on from this number."""

    def state_dict(self) -> dict[str, Any]:
        """The state itself."""


Attached = tuple["weakref.ref[Any]", ...]


class Holder(Protocol):
    """What companions attach themselves to: a flat buffer."""

    companions: Attached


def attach(companion: Companion, buffers: Iterable[Holder]) -> None:
    """Let whoever keeps these parameters alike see a companion of theirs; once more where it has other parameters."""
    for buffer in buffers:
        kept = tuple(ref for ref in buffer.companions if ref() not in (None, companion))
        buffer.companions = (*kept, weakref.ref(companion))


def is_attached(companion: Companion, buffer: Holder) -> bool:
    """Whether a companion is seen at a buffer."""
    for ref in buffer.companions:
        if ref() is companion:
            return True
    return False


def holder_near(x: Tensor) -> Holder | None:
    """The flat buffer of the first parameter that is found behind a tensor; None where it depends on none in one."""
    stack: list[Edge] = [x.node or x]
    seen = set[int]()
    while stack:
        edge = stack.pop()
        if isinstance(edge, Node):
            if edge.seq not in seen:
                seen.add(edge.seq)
                stack += sorted(edge.inputs, key=_is_leaf)  # the last one is looked at first
        elif isinstance(edge, Parameter) and edge.flat is not None:
            found: Holder = edge.flat
            return found
    return None


def _is_leaf(edge: Edge) -> bool:
    return isinstance(edge, Parameter)


def loading_turns(things: Iterable[Any]) -> dict[int, int]:
    """By id in which turn the state of each of these things is loaded, where one holds another.

    A loader comes after its dataset and its sampler, which may be ahead of what it has delivered. An optimizer comes
    after its schedules: loading these sets the rates, which need not be the last ones that the optimizer had.
    """
    everything = list(things)
    known = {id(thing) for thing in everything}
    turns = dict.fromkeys(known, 0)
    for thing in everything:
        near = _attributes(thing)
        held = [part for part in (*near, *(each for part in near for each in _attributes(part))) if id(part) in known]
        for part in held:
            if part is not thing:
                turns[id(thing)] = max(turns[id(thing)], 1)
                turns[id(part)] = 2 if hasattr(part, "settle") else turns[id(part)]
    return turns


def _attributes(thing: Any) -> list[Any]:
    return list(getattr(thing, "__dict__", {}).values())


def number_of(value: Any) -> int:
    """A number for plain data, the same in every process; numbers count by their value."""
    return zlib.crc32(_plain(value).encode())


def unshared_number() -> int:
    """A number for a state of which nobody knows whether other replicas got the same: it differs in every process."""
    return secrets.randbits(62)


def _plain(value: Any) -> str:
    if value.__class__ is float:
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_plain, value))}]"
    if isinstance(value, (bool, str)) or value is None:
        return repr(value)
    return repr(float(value)) if is_number(value) else type(value).__qualname__
