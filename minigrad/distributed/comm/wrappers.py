"""Communicators around communicators; they compose: `Recording(FaultInjecting(comm, faults))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array, DtypeLike
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import check_array, check_weighted, encode_object, stays_here
from minigrad.distributed.comm.protocol import Clock, Communicator, Work, check_is_communicator
from minigrad.distributed.comm.wire_bytes import wire_bytes
from minigrad.distributed.comm.work import weighted_first
from minigrad.errors import ArgumentError
from minigrad.tensor import Tensor

Make = Callable[[], Any]
_ROOTED = ("reduce", "gather", "scatter", "all_to_all")
COLLECTIVES = ("all_reduce", "broadcast", "reduce_scatter", "all_gather", *_ROOTED, "all_gather_object", "barrier")
KINDS = (*COLLECTIVES, "split", "send", "recv")
_NOTHING = np.empty(0)  # what a rank hands in, or gets back, where that is another one's alone


@dataclass(frozen=True)
class Call:
    """A collective, or one end of a message, as one rank called it.

    Attributes:
        kind: Name of the method, one of KINDS.
        detail: Reduction and layout, or root, or both; or the other rank and the tag.
        dtype: Name of the dtype; empty for host data.
        count: Elements of the array that this rank hands in, 0 where it only gets one; -1 for host data.
        nbytes: Bytes of it.
    """

    kind: str
    detail: str = ""
    dtype: str = ""
    count: int = -1
    nbytes: int = 0


class Wrapper(Communicator):
    """Passes every call on to another communicator; a subclass overrides `around`, which sees each of them.

    Args:
        comm: The communicator to pass calls on to.

    Attributes:
        inner: It.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> class Counted(Wrapper):
        ...     nbytes = 0
        ...     def around(self, call, arrays, make):
        ...         self.nbytes += call.nbytes
        ...         return make()
        >>> comm = Counted(SoloCommunicator())
        >>> comm.all_reduce(np.zeros(3, np.float32)).wait()
        >>> comm.nbytes
        12
    """

    __reduce_ex__ = stays_here

    def __init__(self, comm: Communicator) -> None:
        check_is_communicator(type(self).__name__, comm)
        self.inner = comm
        self.rank, self.world_size = comm.rank, comm.world_size
        self.device: Device = comm.device
        self.timeout_s = comm.timeout_s

    @property
    def clock(self) -> Clock:
        """The inner communicator's."""
        return self.inner.clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self.inner.clock = clock

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Make one call.

        Args:
            call: What it is.
            arrays: What this rank hands in, then what it gets back; one array where they are the same.
            make: Makes the call on the inner communicator, and returns what that returns.
        """
        return make()

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """An array of the inner communicator."""
        return self.inner.empty(count, dtype)

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over the ranks."""
        call = _array_call("all_reduce", f"{getattr(op, 'name', op)} {layout}".strip(), array)
        return self._work(call, [array], lambda: self.inner.all_reduce(array, op, layout))

    @property
    def adds_weighted(self) -> bool:
        """Whether the inner communicator weights arrays inside the sum."""
        return self.inner.adds_weighted

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Overwrite array by the sum over the ranks of array · weight; only 16-bit floats are weighted inside."""
        array = check_array("weighted_all_reduce", self.rank, array, device=self.device)
        check_weighted("weighted_all_reduce", self.rank, array, weight)
        if array.dtype.itemsize != 2 or not self.adds_weighted:
            return weighted_first(self, array, weight, layout)
        call = _array_call("all_reduce", f"{ReduceOp.SUM.name} {layout}".strip(), array)
        return self._work(call, [array], lambda: self.inner.weighted_all_reduce(array, weight, layout))

    def broadcast(self, array: Array, root: int = 0) -> Work:
        """Overwrite array by the root's."""
        call = _array_call("broadcast", f"root {root}", array)
        return self._work(call, [array], lambda: self.inner.broadcast(array, root))

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite output by this rank's part of the reduction of source."""
        call = _array_call("reduce_scatter", str(getattr(op, "name", op)), source)
        return self._work(call, [source, output], lambda: self.inner.reduce_scatter(output, source, op))

    def all_gather(self, output: Array, source: Array) -> Work:
        """Overwrite output by the sources of all ranks."""
        call = _array_call("all_gather", "", source)
        return self._work(call, [source, output], lambda: self.inner.all_gather(output, source))

    def reduce(self, array: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite the root's array by the reduction over the ranks."""
        call = _array_call("reduce", f"{getattr(op, 'name', op)} root {root}", array)
        arrays = [array] if self.rank == root else [array, _NOTHING]
        return self._work(call, arrays, lambda: self.inner.reduce(array, root, op))

    def gather(self, output: Array | None, source: Array, root: int = 0) -> Work:
        """Overwrite the root's output by the sources of all ranks."""
        call = _array_call("gather", f"root {root}", source)
        arrays = [source, _NOTHING if output is None else output]
        return self._work(call, arrays, lambda: self.inner.gather(output, source, root))

    def scatter(self, output: Array, source: Array | None, root: int = 0) -> Work:
        """Overwrite output by this rank's part of the root's source."""
        call = _array_call("scatter", f"root {root}", output if source is None else source)
        if source is None:
            call = replace(call, count=0, nbytes=0)
        arrays = [_NOTHING if source is None else source, output]
        return self._work(call, arrays, lambda: self.inner.scatter(output, source, root))

    def all_to_all(self, output: Array, source: Array) -> Work:
        """Overwrite part r of output by this rank's part of the source of rank r."""
        call = _array_call("all_to_all", "", source)
        return self._work(call, [source, output], lambda: self.inner.all_to_all(output, source))

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        call = Call("all_gather_object", nbytes=len(encode_object("all_gather_object", self.rank, value)))
        gathered: list[Any] = self.around(call, [], lambda: self.inner.all_gather_object(value))
        return gathered

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.around(Call("barrier"), [], self.inner.barrier)

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """Those of the inner communicator."""
        return self.inner.global_ranks

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The communicator of a group of ranks, within what `for_group` makes."""
        call = Call("split", f"color {color}, key {key}")
        group: Communicator | None = self.around(call, [], lambda: self.inner.split(color, key))
        return None if group is None else self.for_group(group)

    def for_group(self, comm: Communicator) -> Communicator:
        """What stands around the communicator of a group: another wrapper of this class.

        Override it where your constructor takes more than the communicator, or where they share something.
        """
        try:
            return type(self)(comm)
        except TypeError as error:
            raise ArgumentError(
                f"{type(self).__name__}: expected a class made of a communicator alone, for a group of ranks, got "
                f"{error}: override for_group(comm)"
            ) from error

    def send(self, array: Array, dst: int, tag: int = 0) -> Work:
        """Let rank dst have the elements of array."""
        call = _array_call("send", f"to {dst}, tag {tag}", array)
        return self._work(call, [array], lambda: self.inner.send(array, dst, tag))

    def recv(self, array: Array, src: int, tag: int = 0) -> Work:
        """Overwrite array by what rank src sends."""
        call = _array_call("recv", f"from {src}, tag {tag}", array)
        return self._work(call, [array], lambda: self.inner.recv(array, src, tag))

    def check_headers(self, layout: str = "") -> None:
        """Compare what the ranks have called, where the inner communicator does not do so in each call."""
        self.inner.check_headers(layout)

    def end_pass(self, layout: str, mark: float | None, news: bool) -> list[float] | None:
        """Note the end of a pass, where the inner communicator does not compare each call."""
        return self.inner.end_pass(layout, mark, news)

    def check_same(self, who: str) -> None:
        """Raise where ranks have parted, where the inner communicator does not compare each call."""
        self.inner.check_same(who)

    def last_calls(self) -> Sequence[str]:
        """The last calls that the inner communicator made."""
        return self.inner.last_calls()

    def waiting(self) -> AbstractContextManager[None]:
        """Around a wait of the caller's stream; timed where the inner communicator times waits."""
        return self.inner.waiting()

    def event(self, kind: str, **fields: Any) -> None:
        """Tell the inner communicator what happened."""
        self.inner.event(kind, **fields)

    def give_up(self, reason: str) -> None:
        """Say that this rank does not make the call that comes next, and why."""
        self.inner.give_up(reason)

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason."""
        self.inner.abort(reason)

    def close(self) -> None:
        """Close the inner communicator."""
        self.inner.close()

    def _work(self, call: Call, arrays: Sequence[Array], make: Make) -> Work:
        work: Work = self.around(call, [x.data if isinstance(x, Tensor) else x for x in arrays], make)
        return work


def innermost(comm: Communicator) -> Communicator:
    """The communicator inside all wrappers around it."""
    while isinstance(comm, Wrapper):
        comm = comm.inner
    return comm


def _array_call(kind: str, detail: str, array: Any) -> Call:
    """The description of a call; the inner communicator refuses what is no array."""
    if isinstance(array, Tensor):
        array = array.data
    dtype = getattr(array, "dtype", "")
    return Call(kind, detail, getattr(dtype, "name", ""), getattr(array, "size", -1), getattr(array, "nbytes", 0))


class Recording(Wrapper):
    """Keeps every call that this rank makes, in order, failed ones included.

    Attributes:
        calls: What was called; clear it to start again.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> comm = Recording(SoloCommunicator())
        >>> comm.all_reduce(np.zeros(3, np.float32)).wait()
        >>> comm.calls
        [Call(kind='all_reduce', detail='SUM', dtype='float32', count=3, nbytes=12)]
        >>> comm.wire_bytes  # one rank sends nothing
        Fraction(0, 1)
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self.calls: list[Call] = []

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Note the call, and make it."""
        self.calls.append(call)
        return make()

    def bytes_of(self, kind: str) -> int:
        """Bytes that this rank handed in to all calls of a kind."""
        return sum(call.nbytes for call in self.calls if call.kind == kind)

    @property
    def wire_bytes(self) -> Fraction:
        """Bytes that all calls move over this rank's link, by the ring's closed forms; see `wire_bytes`."""
        return sum((wire_bytes(call.kind, call.nbytes, self.world_size) for call in self.calls), Fraction(0))
