"""Comm hooks: what happens to a bucket between backward and the sum of its gradients over the ranks.

A hook is called as hook(state, bucket, comm) for every bucket, in order of index on all ranks. What it gets out of the
bucket is weighted by n_r / Σn, so a hook only adds up: it never divides. It returns something with `wait()`; after
that the bucket holds the sum.

The hooks here that compress send 2 bytes for each element, whatever the dtype of the gradients. What they send is
added up in float32 and rounded once, as communicators do with every 16-bit dtype.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from minigrad.backend.capturing import each_replay
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, as_dtype, is_half
from minigrad.backend.fused.grad_scale import WIRES, Placement, Widened, pack, scale_, unpack
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.headers import announce
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import DoneWork, WideWork, WorkAround
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.errors import ArgumentError
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor


class Waitable(Protocol):
    """What a hook returns; `Work` is one."""

    def wait(self) -> None:
        """Return once the bucket holds the sum, or is ordered before what the caller's stream does next."""


CommHook = Callable[[Any, "GradBucket", Communicator], Waitable]


class GradBucket:
    """What a hook sees of a bucket; the same object in every pass.

    Gradients are weighted when they are first asked for: in their place by `buffer`, on their way to a wire by `pack`,
    each of which takes one read and one write of an element, or while they are summed by `all_reduce`.

    Attributes:
        layout: An id of this bucket in the plan, for `comm.all_reduce(..., layout=)`: ranks that send different
            buckets then get an error.
        sent_bytes: What `all_reduce` last handed to the communicator.
        samples: n_r of this rank in this pass.
        weight: n_r / Σn, float64 (1,) where the gradients live; None for 1.
    """

    __slots__ = (
        *("layout", "sent_bytes", "samples", "weight", "_index", "_buffer", "_parameters", "_last", "_weight"),
        *("_nonfinite", "_placement", "_wide", "_is_half"),
    )

    def __init__(self, index: int, buffer: Array, parameters: Sequence[Parameter], last: bool, layout: str) -> None:
        self._index, self._buffer, self._parameters, self._last = index, buffer, list(parameters), last
        self.layout = layout
        self.samples = 0.0
        self.weight: Array | None = None
        self._weight: Array | None = None  # that the gradients in the buffer still lack
        self._nonfinite: Array | None = None
        self._placement: Placement | None = None
        self._wide: Widened | None = None
        self._is_half = is_half(buffer.dtype)
        self.sent_bytes = 0

    def begin(self, weight: Array | None, nonfinite: Array | None, samples: float = 0.0) -> None:
        """A pass begins.

        Args:
            weight: n_r / Σn, float64 (1,) where the gradients live; None for 1.
            nonfinite: uint32 (1,) there; becomes 1 where a weighted gradient is infinite or NaN. None looks for none.
            samples: n_r.
        """
        self.samples, self.weight = samples, weight
        if weight is None and nonfinite is not None:
            weight = array_module(nonfinite).ones(1, np.float64)
        self._weight, self._nonfinite = weight, nonfinite

    @property
    def count(self) -> int:
        """Elements of `buffer()`."""
        return int(self._buffer.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the gradients."""
        return self._buffer.dtype  # type: ignore[no-any-return]

    def index(self) -> int:
        """Its number in the plan, from 0."""
        return self._index

    def buffer(self) -> Array:
        """Its weighted gradients as one 1-D array, to be overwritten by their sum; padding is zero."""
        if self._weight is not None:
            scale_(self._buffer, self._weight, self._nonfinite)
            self._weight = None
        return self._buffer

    def all_reduce(self, comm: Communicator) -> Work:
        """Overwrite its weighted gradients by their sum over the ranks; before its wait they may hold anything.

        Raises:
            CollectiveMismatchError, CollectiveTimeoutError, RankFailedError: here or in its wait, as `Work.wait`.
        """
        self.sent_bytes = int(self._buffer.nbytes)
        if self._is_half and (self._nonfinite is not None or not comm.adds_weighted):
            return self._all_reduce_wide(comm)
        if self._nonfinite is not None:  # only here is each rank's own weighted gradient seen
            return comm.all_reduce(self.buffer(), layout=self.layout)
        weight, self._weight = self._weight, None
        return comm.weighted_all_reduce(self._buffer, weight, self.layout)

    def _all_reduce_wide(self, comm: Communicator) -> Work:
        if self._wide is None:
            self._wide = Widened(self._buffer, comm.empty(self.count, np.float32))
        self.sent_bytes = int(self._wide.wide.nbytes)
        weight, self._weight = self._weight, None
        return WideWork(comm, self._wide, weight, self.layout, self._nonfinite)

    def pack(self, wire: Array, factor: float = 1.0) -> None:
        """Write the weighted gradients · factor to an array of another dtype; the gradients stay as they are."""
        if wire.dtype.name in WIRES[self._buffer.dtype.name]:
            pack(self._place(), wire, self._scaled_weight(factor), self._nonfinite)
        elif self._is_half:
            wide = array_module(wire).empty(self.count, np.float32)
            pack(self._place(), wide, self._scaled_weight(factor), self._nonfinite)
            wire[...] = wide
        else:
            wire[...] = self.buffer() * factor if factor != 1.0 else self.buffer()

    def unpack(self, wire: Array, factor: float = 1.0) -> None:
        """Overwrite the gradients by what an array as `pack` fills it holds, times factor: the sum over the ranks."""
        self._weight = None
        if wire.dtype.name in WIRES[self._buffer.dtype.name]:
            unpack(wire, self._scaled_weight(factor), self._place())
        elif self._is_half:
            self._buffer[...] = wire if factor == 1.0 else wire.astype(np.float32) * np.float32(factor)
        else:
            self._buffer[...] = wire
            if factor != 1.0:
                self._buffer *= factor

    def _place(self) -> Placement:
        if self._placement is None:
            self._placement = Placement([self._buffer], [0])
        return self._placement

    def _scaled_weight(self, factor: float) -> Array:
        if self._weight is None:
            return array_module(self._buffer).full(1, factor, np.float64)
        return self._weight if factor == 1.0 else self._weight * factor

    def parameters(self) -> list[Parameter]:
        """Whose gradients it holds, in the order of the layout."""
        return list(self._parameters)

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter, in its shape; they share the memory of `buffer()`."""
        self.buffer()
        return [Tensor(param.grad_view) for param in self._parameters]

    def is_last(self) -> bool:
        """Whether no other bucket of this backward follows."""
        return self._last


class CompressionState:
    """The state of the hooks that compress: their buffers, what they sent, and how far off it was.

    Give each wrapper one of its own. A deep copy starts empty.

    Args:
        measure_error: Compare what is sent with the gradients; costs two passes over them.

    Attributes:
        bytes_sent: What the arrays handed to the communicator amount to; uncompressed it would be bytes_before.
        bytes_before: What the gradients amount to.
        calls: Number of buckets sent.

    Example:
        >>> from minigrad import nn, randn
        >>> from minigrad.distributed import DDP, CompressionState, SoloCommunicator, fp16_compress_hook
        >>> ddp = DDP(nn.Linear(8, 4), SoloCommunicator())
        >>> state = CompressionState()
        >>> ddp.register_comm_hook(state, fp16_compress_hook)
        >>> ddp(randn(2, 8)).sum().backward()
        >>> state.bytes_sent / state.bytes_before, state.relative_error < 1e-3
        (0.5, True)
    """

    def __init__(self, *, measure_error: bool = True) -> None:
        self.measure_error = measure_error
        self.bytes_sent = self.bytes_before = self.calls = 0
        self._wires: dict[int, Array] = {}
        self._squares: Array = None  # Σ error², Σ gradient², where the gradients live

    @property
    def relative_error(self) -> float:
        """|sent - gradients| / |gradients| on this rank over all calls so far (2-norms); NaN if not measured."""
        if self._squares is None:
            return math.nan
        error, size = (float(square) for square in self._squares)
        return math.sqrt(error / size) if size > 0.0 else math.sqrt(error)

    def reset(self) -> None:
        """Count from zero again; the buffers stay."""
        self.bytes_sent = self.bytes_before = self.calls = 0
        self._squares = None

    def wire(self, bucket: GradBucket, comm: Communicator, dtype: np.dtype[Any]) -> Array:
        """The array in which a bucket is sent: made at its first use, by all ranks alike, and kept."""
        held = self._wires.get(bucket.index())
        if held is None or held.size != bucket.count or held.dtype != dtype:
            held = self._wires[bucket.index()] = comm.empty(bucket.count, dtype)
        return held

    def note(self, bucket: GradBucket, wire: Array, factor: float) -> None:
        """Count a bucket whose weighted gradients · factor are about to be sent as wire."""
        sizes = int(wire.nbytes), bucket.count * bucket.dtype.itemsize
        self._count(*sizes)
        each_replay(lambda: self._count(*sizes))
        if self.measure_error:
            xp = array_module(wire)
            exact = xp.empty(bucket.count, bucket.dtype)
            bucket.pack(exact)
            exact = exact.astype(np.float64)
            error = wire.astype(np.float64)
            error *= 1.0 / factor
            error -= exact
            squares = xp.stack([xp.vdot(error, error), xp.vdot(exact, exact)])
            self._squares = squares if self._squares is None else self._squares + squares

    def _count(self, bytes_sent: int, bytes_before: int) -> None:
        self.calls += 1
        self.bytes_sent += bytes_sent
        self.bytes_before += bytes_before

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressionState:
        return CompressionState(measure_error=self.measure_error)


class _CompressedWork(WorkAround):
    """A compressed bucket under way; waiting writes the sum back into its gradients."""

    def __init__(self, work: Work, bucket: GradBucket, wire: Array, factor: float) -> None:
        super().__init__(work)
        self._bucket, self._wire, self._factor = bucket, wire, factor

    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does, then leave the sum in the bucket."""
        self.inner.wait(host)
        self._bucket.unpack(self._wire, self._factor)


def allreduce_hook(state: Any, bucket: GradBucket, comm: Communicator) -> Work:
    """The sum as it is taken without a hook; for comparison, and to be called by hooks that only look."""
    return bucket.all_reduce(comm)


def fp16_compress_hook(state: CompressionState, bucket: GradBucket, comm: Communicator) -> Work:
    """Send gradients as float16: 11 significant bits, nothing above 65504, steps of 6e-8 near zero.

    Gradients, or sums of them, that are larger become infinite; `fp16_predivide_hook` leaves more room.
    """
    return _compressed("fp16_compress_hook", state, bucket, comm, np.dtype(np.float16), 1.0)


def bf16_compress_hook(state: CompressionState, bucket: GradBucket, comm: Communicator) -> Work:
    """Send gradients as bfloat16: 8 significant bits, the range of float32; the sum over ranks is taken in float32."""
    return _compressed("bf16_compress_hook", state, bucket, comm, as_dtype("bfloat16"), 1.0)


def fp16_predivide_hook(state: CompressionState, bucket: GradBucket, comm: Communicator) -> Work:
    """Send gradients / world_size as float16, and multiply the sum by world_size.

    No sum over ranks is then larger than the largest of the gradients: four ranks of 20000 give 80000. Very small
    gradients lose log2(world_size) bits.
    """
    return _compressed("fp16_predivide_hook", state, bucket, comm, np.dtype(np.float16), 1.0 / comm.world_size)


def _compressed(
    who: str, state: CompressionState, bucket: GradBucket, comm: Communicator, dtype: np.dtype[Any], factor: float
) -> Work:
    if not isinstance(state, CompressionState):
        raise ArgumentError(
            f"{who}: expected a CompressionState as state, got {type(state).__name__}: write "
            f"ddp.register_comm_hook(CompressionState(), {who})"
        )
    wire = state.wire(bucket, comm, dtype)
    bucket.pack(wire, factor)
    state.note(bucket, wire, factor)
    return _CompressedWork(comm.all_reduce(wire, layout=bucket.layout), bucket, wire, 1.0 / factor)


class RegisteredHook:
    """A hook with its state, on one rank.

    Raises:
        ArgumentError: hook can't be called.
        ReplicaMismatchError: other ranks register another hook; on all ranks.
    """

    def __init__(self, state: Any, hook: CommHook, comm: Communicator) -> None:
        if not callable(hook):
            raise ArgumentError(f"register_comm_hook: expected a function, got {type(hook).__name__}")
        self.state, self.hook = state, hook
        self._name = getattr(hook, "__qualname__", type(hook).__qualname__)
        announce(comm, "register_comm_hook")
        gather_alike("register_comm_hook", "hooks", comm, {"the hook": self._name})

    def launch(self, bucket: GradBucket, comm: Communicator) -> Waitable:
        """Call the hook on a bucket.

        Raises:
            ArgumentError: what it returned has no wait().
        """
        work = self.hook(self.state, bucket, comm)
        if not callable(getattr(work, "wait", None)):
            raise ArgumentError(
                f"comm hook {self._name}: expected to get back an object with wait(), got {type(work).__name__}"
            )
        return work

    def __deepcopy__(self, memo: dict[int, Any]) -> RegisteredHook:
        twin = object.__new__(RegisteredHook)
        twin.state, twin.hook, twin._name = copy.deepcopy(self.state, memo), self.hook, self._name
        return twin


class Booked(Wrapper):
    """A communicator whose calls and waits stand in the logbook of the pass under way, where there is one.

    Attributes:
        logbook: That of the pass, or None.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self.logbook: Logbook | None = None

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Make the call, and book it."""
        return self._booked(call.kind, call.nbytes, make, is_work=bool(arrays))

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Weight and sum as the inner communicator does."""
        nbytes, inner = array.nbytes, self.inner
        work: Work = self._booked("all_reduce", nbytes, lambda: inner.weighted_all_reduce(array, weight, layout))
        return work

    def _booked(self, kind: str, nbytes: int, make: Make, is_work: bool = True) -> Any:
        logbook = self.logbook
        if logbook is None:
            return make()
        began_s = logbook.now_s()
        result = make()
        work = result if is_work else DoneWork((began_s, logbook.now_s()))
        logbook.called(work, began_s, nbytes, kind)
        return _BookedWork(work, logbook) if is_work else result


class _BookedWork(WorkAround):
    """A collective under way whose waits are booked."""

    def __init__(self, work: Work, logbook: Logbook) -> None:
        super().__init__(work)
        self._logbook = logbook

    def done(self) -> bool:
        """Whether the result is there."""
        return self._logbook.done(self.inner)

    def wait(self, host: bool = False) -> None:
        """Wait, and book it."""
        self._logbook.wait(self.inner, host)
