"""What all transports share: a collective is checked, numbered and named here, and a transport only moves bytes.

The n-th call of a rank meets the n-th of the others. A world fails as a whole, and for good: every rank raises, in its
present wait or in its next call. CollectiveMismatchError: two ranks made different calls, or of different sizes, with
one number. CollectiveTimeoutError: a rank has not come. RankFailedError: one gave up its call, aborted or left.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from minigrad.backend.device import CPU, Device
from minigrad.backend.dtypes import Array, DtypeLike, is_float
from minigrad.backend.memory import aligned_zeros
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.calls import INSIDE, KEPT_CALLS, Kept, Remembering
from minigrad.distributed.comm.checks import (
    NUMBERS,
    check_array,
    check_empty,
    check_parts,
    check_reduction,
    check_root,
    check_weighted,
    check_world,
    decode_object,
    default_timeout_s,
    encode_object,
    stays_here,
)
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.groups import Groups
from minigrad.distributed.comm.headers import GIVE_UP, Header
from minigrad.distributed.comm.point_to_point import PointToPoint
from minigrad.distributed.comm.protocol import Clock, Work
from minigrad.distributed.comm.rooted import Rooted
from minigrad.distributed.comm.work import weighted_first
from minigrad.errors import DistributedError, RankFailedError

_NONE = np.empty(0)  # in place of an array, for a call without one
What = tuple[str, str]  # a call in words: its kind, and its reduction and layout, or its root


class Front(Remembering, PointToPoint, Rooted, Groups):
    """A communicator but for how bytes move: `_reduce`, `_broadcast`, `_reduce_scatter`, `_all_gather` and `_meet`, and
    for messages `_message`.

    A transport compares what the ranks call, by the header that `_next` makes, or in a way of its own; what it finds
    goes to `_fail`, and every later call raises it.

    Args:
        rank, world_size: This rank, and how many there are.
        device: Where the arrays live.
        timeout_s: How long to wait for a rank, from `wait()` on (NCCL: from the call); $MINIGRAD_TIMEOUT_S or 300 s.
        clock: What time is for the time models; by default the host's.
        failure: Shared by ranks that fail together; by default one of its own.

    Attributes:
        failure: What made this world fail, if anything did.
        seq: Number of the next call.
        calls: The last ones, the latest first: header or envelope, and which instruction of the user's made it.
    """

    adds_weighted = False  # whether `_reduce` takes a weight; else it is multiplied in before, a pass over memory more

    __reduce_ex__ = stays_here

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        device: Device = CPU,
        timeout_s: float | None = None,
        clock: Clock | None = None,
        failure: Failure | None = None,
    ) -> None:
        check_world(type(self).__name__, rank, world_size)
        self.rank, self.world_size, self.device = rank, world_size, device
        self.timeout_s = default_timeout_s(timeout_s)
        self.clock = clock if clock is not None else HostClock()
        self.failure = failure if failure is not None else Failure()
        self.seq = 0
        self.calls = deque[Kept](maxlen=KEPT_CALLS)
        self._closed = False

    # ------------------------------------------------------------------------------------------------ collectives

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros on the device."""
        with self.device.current() as xp:
            return aligned_zeros(count, check_empty(self.rank, count, dtype), xp)

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over the ranks."""
        array = self._check("all_reduce", array)
        if op is not ReduceOp.SUM:
            check_reduction("all_reduce", self.rank, array, op)
        return self._reduce(("all_reduce", f"{op._name_} {layout}" if layout else op._name_), array, op)

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Overwrite array by the sum over the ranks of array · weight."""
        array = self._check("weighted_all_reduce", array)
        fits = weight is None or getattr(weight, "shape", None) == (1,) and weight.dtype == np.float64
        if not fits or not is_float(array.dtype):
            check_weighted("weighted_all_reduce", self.rank, array, weight)
        if self.adds_weighted:
            array = array if array.ndim == 1 else array.reshape(-1)
            return self._reduce(("all_reduce", f"SUM {layout}" if layout else "SUM"), array, ReduceOp.SUM, weight)
        return weighted_first(self, array, weight, layout)

    def broadcast(self, array: Array, root: int = 0) -> Work:
        """Overwrite array by the root's."""
        array = self._check("broadcast", array)
        check_root("broadcast", self.rank, root, self.world_size)
        return self._broadcast(("broadcast", f"root {root}"), array, root)

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite output by this rank's part of the reduction of source."""
        output, source = self._check("reduce_scatter", output), self._check("reduce_scatter", source)
        check_reduction("reduce_scatter", self.rank, source, op)
        check_parts("reduce_scatter", self.rank, source, output, self.world_size)
        return self._reduce_scatter(("reduce_scatter", op._name_), output, source, op)

    def all_gather(self, output: Array, source: Array) -> Work:
        """Overwrite output by the sources of all ranks."""
        output, source = self._check("all_gather", output), self._check("all_gather", source, written=False)
        check_parts("all_gather", self.rank, output, source, self.world_size)
        return self._all_gather(("all_gather", ""), output, source)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        data = encode_object("all_gather_object", self.rank, value)
        self._check("all_gather_object")
        return [decode_object(part) for part in self._gather_bytes(("all_gather_object", ""), data)]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._check("barrier")
        self._meet(("barrier", "")).wait()

    # ------------------------------------------------------------------------------- what a transport implements

    def _reduce(self, what: What, array: Array, op: ReduceOp, weight: Array | None = None) -> Work:
        """Start to overwrite array by its reduction; the weight is for those that say `adds_weighted`."""
        raise NotImplementedError

    def _broadcast(self, what: What, array: Array, root: int) -> Work:
        """Start to overwrite array by the root's."""
        raise NotImplementedError

    def _reduce_scatter(self, what: What, output: Array, source: Array, op: ReduceOp) -> Work:
        """Start to overwrite output by this rank's part of the reduction of source."""
        raise NotImplementedError

    def _all_gather(self, what: What, output: Array, source: Array) -> Work:
        """Start to overwrite output by the sources of all ranks."""
        raise NotImplementedError

    def _meet(self, what: What) -> Work:
        """Start a call that carries no data."""
        raise NotImplementedError

    def _gather_bytes(self, what: What, data: bytes) -> list[bytes]:
        """What all ranks bring to a call, in order of rank; blocks."""
        sizes = np.zeros(self.world_size, np.int64)
        sizes[self.rank] = len(data)
        self._reduce(what, sizes, ReduceOp.SUM).wait()
        padded = np.zeros(max(sizes.tolist()), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        gathered = np.empty((self.world_size, padded.size), np.uint8)
        self._all_gather(("all_gather", ""), gathered, padded).wait()
        return [bytes(row[:size]) for row, size in zip(gathered, sizes.tolist())]

    def _give_up(self, reason: str) -> None:
        """Make a call that says that this rank does not make the one that others may."""
        self._meet((GIVE_UP, reason))

    def _tell(self, error: DistributedError) -> None:
        """This rank has failed first, as far as it knows: let the others hear."""

    def _leave(self) -> None:
        """This rank makes no more calls: let the others hear, and give everything back."""
        self.failure.close()

    # -------------------------------------------------------------------------------------- checks and numbers

    def _check(self, who: str, array: Array = _NONE, /, *, written: bool = True) -> Array:
        """An array, or a tensor's; refuses a call where this world has failed, and what it can't take or write to."""
        if self.failure.error is not None:
            self.failure.raise_on(self.rank)
        if array.__class__ is np.ndarray and array.dtype in NUMBERS and array.flags.carray:
            return array
        return check_array(who, self.rank, array, written, self.device)

    def _next(self, what: What, array: Array | None = None) -> Header:
        """The header of the next call."""
        if array is None:
            header = Header(self.seq, *what, group=self.group)
        else:
            header = Header(self.seq, *what, array.dtype.name, array.size, group=self.group)
        self.seq += 1
        frame = sys._getframe(2)
        while (caller := frame.f_back) and frame.f_code.co_filename.startswith(INSIDE):
            frame = caller
        self.calls.appendleft((header, frame.f_code, frame.f_lasti))
        return header

    def _fail(self, error: DistributedError) -> None:
        """Fail for good; the first failure wins, and the other ranks hear of it."""
        if self.failure.set(error):
            self._tell(error)

    # ------------------------------------------------------------------ what a world on one host has nothing to do for

    def check_headers(self, layout: str = "") -> None:
        """Nothing to do: ranks compare each call."""

    def end_pass(self, layout: str, mark: float | None, news: bool) -> list[float] | None:
        """Nothing to do: ranks compare each call."""
        return None

    def check_same(self, who: str) -> None:
        """Nothing to do: ranks compare each call."""

    def waiting(self) -> AbstractContextManager[None]:
        """Nothing is timed."""
        return nullcontext()

    def event(self, kind: str, **fields: Any) -> None:
        """Nobody takes notes."""

    # ------------------------------------------------------------------------------------------------------- ends

    def give_up(self, reason: str) -> None:
        """Say that this rank does not make the call that comes next, and why; never waits, and raises nothing."""
        try:
            self._check(GIVE_UP)
            self._give_up(reason)
        except DistributedError:
            pass  # it has failed already, which every later call says

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason; nothing is left to fail for a rank that has closed."""
        self.failure.check_process(self.rank)
        if not self._closed:
            self._fail(RankFailedError(f"rank {self.rank} aborted: {reason}"))

    def close(self) -> None:
        """Leave the world, whatever the other ranks do: those that wait for this one raise."""
        self.failure.check_process(self.rank)
        if not self._closed:
            self._closed = True
            self._close_groups()
            self._leave()
