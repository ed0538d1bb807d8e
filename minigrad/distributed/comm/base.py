"""What a communicator is: the collectives of one rank, and what is checked before each of them."""

from __future__ import annotations

import json
import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from minigrad.arguments import as_integer, as_real, check_counts
from minigrad.backend.device import Device, array_module, device_of
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype, is_float, is_half
from minigrad.backend.fused.grad_scale import Widened, scale_
from minigrad.distributed.collectives import ReduceOp
from minigrad.errors import ArgumentError, DtypeError, ShapeError

DEFAULT_TIMEOUT_S = 300.0
LAST_CALLS = 3  # of a rank, that are named when it is missing


class Work(Protocol):
    """A collective under way. The array must be left alone until `wait` returned."""

    def done(self) -> bool:
        """Whether the result is there, without waiting."""

    def wait(self, host: bool = False) -> None:
        """Order what the caller's stream does next after the collective; on the CPU, and with host=True, block.

        Raises:
            CollectiveTimeoutError: a rank did not come in time; it is named.
            CollectiveMismatchError: another rank made another call.
            RankFailedError: another rank failed.
        """


def span_of(work: Any) -> tuple[float, float] | None:
    """When all ranks had called a collective, and when it was over, on this rank's clock.

    None where its communicator does not tell, or it is not over.
    """
    span: tuple[float, float] | None = getattr(work, "span", None)
    return span


class DoneWork:
    """The work of a collective that was over when its call returned.

    Args:
        span: See `span_of`.
    """

    def __init__(self, span: tuple[float, float] | None = None) -> None:
        self.span = span

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self, host: bool = False) -> None:
        """Nothing to wait for."""


class Clock(Protocol):
    """What time is, for the time models: the host's clock, or a simulation's."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""

    def compute(self, samples: float) -> None:
        """This rank is about to compute on so many samples: a simulation advances its time, the host's clock runs.

        Said of what no call of a module stands for: a simulation hears of those, and of backwards, by itself.
        """

    def progress(self, fraction: float) -> None:
        """So much of the backward of that is done, from 0 to 1: buckets of gradients that are ready may travel."""

    def advance(self, seconds: float) -> None:
        """Code of one's own takes so long: a simulation advances its time, the host's clock runs."""


class HostClock:
    """The clock of this machine, which never goes back."""

    now_s = staticmethod(time.perf_counter)

    def compute(self, samples: float) -> None:
        """Nothing to do: real time passes by itself."""

    def progress(self, fraction: float) -> None:
        """Nothing to do: real time passes by itself."""

    def advance(self, seconds: float) -> None:
        """Nothing to do: real time passes by itself."""


@dataclass(frozen=True)
class Header:
    """What one rank says that it calls; ranks compare them, so that a mismatch is an error and no hang or garbage.

    Attributes:
        seq: Number of the call on this communicator, from 0.
        kind: Name of the collective.
        detail: Reduction, root, or layout id, where there is one.
        dtype: Name of the dtype, empty for host data.
        count: Elements; -1 where ranks may differ.
        place: Where the array lies, if that has to be the same on all ranks.
    """

    seq: int
    kind: str
    detail: str = ""
    dtype: str = ""
    count: int = -1
    place: str = ""

    @property
    def what(self) -> str:
        """All but the number, in words."""
        size = f" of {self.count} {self.dtype}" if self.count >= 0 else ""
        place = f" in {self.place}" if self.place else ""
        return f"{self.kind}{'(' + self.detail + ')' if self.detail else ''}{size}{place}"

    def __str__(self) -> str:
        return f"call {self.seq}: {self.what}"


@dataclass
class Peer:
    """What a rank last told of itself.

    Attributes:
        posted: Calls that it had made.
        doing: The last of them, in words.
        left_after: Calls that it took part in before it left; None while it is there.
        line: Where in the user's code it was when it was asked.
        gathered: How often it has brought something to a gathering.
    """

    posted: int = 0
    doing: str = "has made no call yet"
    left_after: int | None = None
    line: str = ""
    gathered: int = 0


def doing(calls: Iterable[object]) -> str:
    """What a rank was last seen doing, in words.

    Args:
        calls: The headers of its last calls, the latest first.
    """
    last, *before = [str(call) for call in calls] or [""]
    earlier = f" (before that {'; '.join(before)})" if before else ""
    return f"last called {last}{earlier}" if last else "has made no call yet"


def incomplete(header: object, world_size: int, absent: Mapping[int, str], limit: str = "") -> str:
    """The message of a call to which not all ranks came.

    Args:
        header: The call.
        absent: What is known of each rank that did not come.
        limit: How long it was waited for, in words.
    """
    present = [rank for rank in range(world_size) if rank not in absent]
    listed = ", ".join(f"rank {rank} {known}" for rank, known in absent.items())
    return f"{header}: expected all {world_size} ranks{limit}, got ranks {present}: {listed}"


class Communicator(Protocol):
    """The collectives of one rank. Every rank makes the same calls in the same order.

    Arrays are contiguous and changed in place, on the caller's current stream. One thread calls at a time.

    Attributes:
        rank: This rank, 0 <= rank < world_size.
        world_size: How many ranks there are.
        device: Where the arrays live.
        clock: What time is for the time models.
        timeout_s: How long a collective waits for the others.
    """

    rank: int
    world_size: int
    device: Device
    clock: Clock
    timeout_s: float

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array on which collectives are cheapest: in a shared segment where there is one.

        Raises:
            ArgumentError: count is no integer >= 0. DtypeError: no dtype of a tensor.
        """

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over the ranks; the same bits on all of them.

        Args:
            layout: An id that all ranks have to agree on, for example of a bucket plan.
        """

    def broadcast(self, array: Array, root: int = 0) -> Work:
        """Overwrite array by the root's."""

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite output (n,) by part `rank` of the reduction of source (world_size * n,).

        The source may be overwritten too.
        """

    def all_gather(self, output: Array, source: Array) -> Work:
        """Overwrite output (world_size * n,) by the sources (n,) of all ranks, in order of rank."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank; blocks. JSON data only, for small things."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""

    def abort(self, reason: str) -> None:
        """Fail all ranks: their pending and later calls raise RankFailedError with this reason."""

    def close(self) -> None:
        """Give everything back; idempotent. Later calls raise."""


def weighted_all_reduce(comm: Communicator, array: Array, weight: Array | None = None, layout: str = "") -> Work:
    """Overwrite array by the sum over the ranks of array · weight, each with its own weight.

    The bits are those of weighting in place first, but for float16 and bfloat16, which are weighted and added up in
    float32 and rounded once: inside the sum of ranks in one memory, and else they travel as float32. A communicator
    that weights inside the sum spares a pass over memory.

    Args:
        array: 1-D, contiguous and float.
        weight: float64 (1,) where the array lives; None for 1. A weight of 0 takes nothing over, not even NaN.
        layout: See `Communicator.all_reduce`.

    Raises:
        DtypeError: the array is not float.
    """
    if not is_float(array.dtype):
        raise DtypeError(f"rank {comm.rank}: weighted_all_reduce: expected a float dtype, got {array.dtype.name}")
    if adds_weighted(comm):
        work: Work = comm.weighted_all_reduce(array, weight, layout)  # type: ignore[attr-defined]
        return work
    if is_half(array.dtype):
        with device_of(array).current() as xp:
            return WideWork(comm, Widened(array, xp.empty(array.size, np.float32)), weight, layout)
    if weight is not None:
        scale_(array, weight)
    return comm.all_reduce(array, layout=layout)


def adds_weighted(comm: Communicator) -> bool:
    """Whether a communicator weights arrays inside the sum, by a `weighted_all_reduce` of its own.

    A class that overrides `all_reduce` alone is to see every sum, and a proxy passes on what is not its own.
    """
    for kind in type(comm).__mro__:
        if "weighted_all_reduce" in vars(kind):
            return bool(getattr(comm, "adds_weighted", True))
        if "all_reduce" in vars(kind):
            break
    return False


class WideWork:
    """The weighted sum of a 16-bit array, which travels as float32; waiting rounds it."""

    def __init__(
        self,
        comm: Communicator,
        widened: Widened,
        weight: Array | None,
        layout: str,
        nonfinite: Array | None = None,
    ) -> None:
        widened.fill(weight, nonfinite)
        self._widened: Widened | None = widened
        self._work = comm.all_reduce(widened.wide, layout=layout)

    @property
    def span(self) -> tuple[float, float] | None:
        """See `span_of`."""
        return span_of(self._work)

    def done(self) -> bool:
        """Whether waiting would not block."""
        return self._work.done()

    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does, then leave the sum in the array."""
        self._work.wait(host)
        if self._widened is not None:
            self._widened.round()
            self._widened = None


def waiting(comm: Communicator) -> AbstractContextManager[None]:
    """Around a wait of the caller's stream for what ran on another one, where the communicator times waits."""
    timed: AbstractContextManager[None] = comm.waiting() if hasattr(comm, "waiting") else nullcontext()
    return timed


def note_event(comm: Communicator, kind: str, fields: Mapping[str, Any]) -> None:
    """Tell a communicator what happened, where it takes notes: that of a simulation does."""
    take = getattr(comm, "event", None)
    if take is not None:
        take(kind, **fields)


def default_timeout_s(timeout_s: float | None = None) -> float:
    """A timeout as given, else $MINIGRAD_TIMEOUT_S, else 300 s.

    Raises:
        ArgumentError: it is no positive number.
    """
    if timeout_s is not None:
        return as_real("timeout_s", "seconds", timeout_s, above=0.0, finite=True)
    text: Any = os.environ.get("MINIGRAD_TIMEOUT_S", DEFAULT_TIMEOUT_S)
    with contextlib.suppress(ValueError):
        text = float(text)
    return as_real("MINIGRAD_TIMEOUT_S", "seconds", text, above=0.0, finite=True)


def stays_here(comm: Any, protocol: Any) -> Any:
    """The `__reduce_ex__` of what belongs to one rank of one process.

    Raises:
        ArgumentError: always.
    """
    raise ArgumentError(
        f"pickle: expected plain data, got a {type(comm).__name__}, which belongs to rank "
        f"{getattr(comm, 'rank', 0)} of this process: call distributed.init() in each process"
    )


def check_world(who: str, rank: int, world_size: int) -> None:
    """Refuse a rank outside its world.

    Raises:
        ArgumentError: not 0 <= rank < world_size.
    """
    as_integer(who, "world_size", world_size, 1)
    if not 0 <= as_integer(who, "rank", rank) < world_size:
        raise ArgumentError(f"{who}: expected 0 <= rank < world_size, got rank {rank} of {world_size}")


def check_communicator(who: str, comm: Any) -> None:
    """Refuse what is no communicator.

    Raises:
        ArgumentError: it has no rank, or no collectives.
    """
    if not isinstance(getattr(comm, "rank", None), int) or not hasattr(comm, "all_reduce"):
        raise ArgumentError(f"{who}: expected a communicator, got {type(comm).__name__}: see distributed.init and run")


def check_array(who: str, rank: int, array: Array) -> None:
    """Refuse what a collective can't take.

    Raises:
        DtypeError: it is no array.
        ShapeError: it is not C-contiguous.
    """
    try:
        array_module(array)
    except DtypeError as error:
        got = type(array).__name__
        raise DtypeError(f"rank {rank}: {who}: expected an array, got {got}: pass its .data") from error
    if not array.flags.c_contiguous:
        raise ShapeError(
            f"rank {rank}: {who}: expected a C-contiguous array, got strides {array.strides} for shape {array.shape}: "
            "use ascontiguousarray"
        )


def check_empty(rank: int, count: int, dtype: DtypeLike) -> np.dtype[Any]:
    """The dtype of an array to make; refuses what is none, and what is no number of elements.

    Raises:
        ArgumentError: count is no integer >= 0. DtypeError: no dtype of a tensor.
    """
    check_counts(f"rank {rank}: empty", 0, count=count)
    return as_dtype(dtype)


def check_reduction(who: str, rank: int, array: Array, op: ReduceOp) -> None:
    """Refuse a reduction that is none, or an average of integers.

    Raises:
        ArgumentError: op is no ReduceOp.
        DtypeError: AVG of integers.
    """
    if not isinstance(op, ReduceOp):
        raise ArgumentError(f"rank {rank}: {who}: expected a ReduceOp, got {op!r}")
    if op is ReduceOp.AVG and not is_float(array.dtype):
        raise DtypeError(f"rank {rank}: {who}: expected a float dtype for AVG, got {array.dtype.name}")


def check_root(who: str, rank: int, root: int, world_size: int) -> None:
    """Refuse a root that is no rank.

    Raises:
        ArgumentError: not 0 <= root < world_size.
    """
    as_integer(f"rank {rank}: {who}", "root", root, 0, world_size)


def check_parts(who: str, rank: int, whole: Array, part: Array, world_size: int) -> None:
    """Refuse a whole that is not world_size parts.

    Raises:
        ShapeError: the sizes do not fit. DtypeError: the dtypes differ.
    """
    if whole.size != world_size * part.size:
        raise ShapeError(
            f"rank {rank}: {who}: expected {world_size} x {part.size} elements in all, got {whole.size}"
        )
    if whole.dtype != part.dtype:
        raise DtypeError(f"rank {rank}: {who}: expected one dtype, got {whole.dtype.name} and {part.dtype.name}")


def encode_object(who: str, rank: int, value: Any) -> bytes:
    """Host data as bytes, by JSON.

    Raises:
        DtypeError: it is no JSON data, or such that would come back as something else.
    """
    changed = _changed_by_json(value)
    if changed:
        raise DtypeError(f"rank {rank}: {who}: expected data that JSON keeps as it is, got {changed}")
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise DtypeError(f"rank {rank}: {who}: expected JSON data, got {type(value).__name__}: {error}") from error


def _changed_by_json(value: Any) -> str:
    """The first part of a value that would come back as another, and what to write instead; empty where none would."""
    if isinstance(value, tuple):
        return f"the tuple {value!r:.60}: make it a list"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"the key {key!r:.60} of a dict: make it a string"
        return next(filter(None, map(_changed_by_json, value.values())), "")
    return next(filter(None, map(_changed_by_json, value)), "") if isinstance(value, list) else ""


def decode_object(data: bytes) -> Any:
    """What `encode_object` made bytes of."""
    return json.loads(data)
