"""ShardedGradients: what a rank gets of each bucket, and how the parameters are put together again.

As a comm hook of the wrapper it sends each bucket by reduce_scatter, while backward still runs, so that a rank gets the
combined gradient of its own runs. Behind the optimizer's step all_gather brings the parameters of all ranks together.
Where a bucket has equally many elements for each rank both work where it lies. Where it is padded, and for 16-bit
gradients, which travel and are added up as float32, it travels in an array of its own, which is kept. A bucket that is
cut otherwise than evenly goes run by run, by reduce and broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_half
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.ddp.hooks import GradBucket, Waitable
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.sharded.guard import GradientGuard
from minigrad.distributed.sharded.owners import Extent
from minigrad.distributed.sharded.rooted_runs import DeliveredTogether, broadcast_runs, reduce_runs
from minigrad.distributed.sharded.runs import Ownership, Run, own_evenly
from minigrad.errors import ArgumentError, LayoutError
from minigrad.nn.parameter import Parameter
from minigrad.optim.run import FlatRun

_WHO = "ShardedOptimizer"


class ShardedGradients:
    """The state of `reduce_scatter_hook`: one for each wrapper, whatever the number of its optimizers.

    Args:
        ddp: The wrapper. All ranks call it.
        ownership: Of the buckets of its plan; by default one run a rank of each, all of one length.

    Attributes:
        own: Of each bucket the runs of this rank, in ascending order; an empty one where it has none.
        guard: See there; from `take_over` on.

    Raises:
        ArgumentError: the ownership is one of other buckets or ranks, or cuts a parameter into two runs of one rank.
        ReplicaMismatchError: another ownership on other ranks.
    """

    def __init__(self, ddp: DistributedDataParallel, ownership: Ownership | None = None) -> None:
        self.reducer, self.comm, self.plan = ddp.reducer, ddp.comm, ddp.plan
        sizes = tuple(bucket.stop - bucket.start for bucket in self.plan.buckets)
        self.ownership = ownership = ownership or own_evenly(sizes, self.comm.world_size)
        if ownership.sizes != sizes or ownership.world_size not in (0, self.comm.world_size):
            raise ArgumentError(
                f"{_WHO}: expected an ownership of buckets of {sizes} elements by {self.comm.world_size} ranks, got "
                f"one of {ownership.sizes} by {ownership.world_size}"
            )
        gather_alike(_WHO, "runs", self.comm, {"the runs of each rank": ownership.runs})
        self.own = [self._own_runs(bucket) for bucket in range(len(sizes))]
        self._trainable = self.reducer.layout.trainable()
        self._rooted = [ownership.is_rooted(bucket) for bucket in range(len(sizes))]
        self._buckets = {entry: bucket.index for bucket in self.plan.buckets for entry in bucket.entries}
        self._wires = [self._new_wire(bucket) for bucket in range(len(sizes))]
        self.guard: GradientGuard

    def take_over(self, ddp: DistributedDataParallel) -> None:
        """Let the wrapper send its buckets by this, from now on.

        Raises:
            ArgumentError: a comm hook is there.
        """
        ddp.register_comm_hook(self, reduce_scatter_hook)
        self.guard = GradientGuard(self.reducer.layout.params, self.reducer, self.check_ready)

    def _own_runs(self, number: int) -> list[FlatRun]:
        bucket, layout = self.plan.buckets[number], self.reducer.layout
        flat, params = layout.buffers[bucket.buffer], layout.params_of(bucket)
        runs = self.ownership.runs[number][self.comm.rank] or ((0, 0),)
        found = [FlatRun(flat, bucket.start + start, bucket.start + stop, params) for start, stop in runs]
        for param in params:
            if sum(run.span(param)[0] < run.span(param)[1] for run in found) > 1:
                raise ArgumentError(
                    f"{_WHO}: expected the elements of {param.name} that a rank owns in one run, got several"
                )
        return found

    # ------------------------------------------------------------------------------------------------ where it lies

    def _array(self, number: int, values: bool) -> Array:
        """A bucket's range of the flat gradients, or of the parameters."""
        bucket = self.plan.buckets[number]
        flat = self.reducer.layout.buffers[bucket.buffer]
        return (flat.data if values else flat.grad)[bucket.start : bucket.stop]

    def dtype(self, number: int) -> np.dtype[Any]:
        """That of the gradients of a bucket."""
        return self.reducer.layout.buffers[self.plan.buckets[number].buffer].dtype

    def _new_wire(self, number: int) -> Array | None:
        """Where a bucket travels that does not do so where it lies: it is padded, or of a narrow dtype."""
        count, dtype = self.ownership.wire_elements(number), self.dtype(number)
        if count == self.ownership.sizes[number] and not is_half(dtype):
            return None
        return self.comm.empty(count, np.promote_types(dtype, np.float32))

    def _part(self, number: int, whole: Array) -> Array:
        """This rank's part of what travels, of a bucket that is cut evenly."""
        width = self.ownership.width(number)
        return whole[self.comm.rank * width : (self.comm.rank + 1) * width]

    def _copy_own(self, number: int, target: Array, source: Array) -> None:
        """Copy this rank's runs of a bucket."""
        for start, stop in self.ownership.runs[number][self.comm.rank]:
            target[start:stop] = source[start:stop]

    # ------------------------------------------------------------------------------------------------ the gradients

    def launch(self, bucket: GradBucket, comm: Communicator) -> Waitable:
        """Send a bucket; behind the wait for it this rank's runs hold the combined gradients."""
        number = bucket.index()
        if number == 0:
            self.check_ready()
            self.guard.check_forgotten(_WHO)
        self.guard.hold(bucket.parameters())
        wire, runs = self._wires[number], self.ownership.runs[number]
        whole = bucket.buffer() if wire is None else wire
        if wire is not None:
            bucket.pack(wire[: bucket.count])
            wire[bucket.count :] = 0
        if self._rooted[number]:
            works = reduce_runs(comm, whole, runs)
        else:
            works = [comm.reduce_scatter(self._part(number, whole), whole)]

        def deliver() -> None:
            if wire is not None:
                self._copy_own(number, self._array(number, values=False), wire)

        return DeliveredTogether(works, deliver)

    def check_ready(self) -> None:
        """Refuse a wrapper that has other buckets now, or is one no more, or has ranks that make no steps.

        Raises:
            LayoutError, ArgumentError: see above.
        """
        if self.reducer.buckets.plan.id != self.plan.id or self.reducer.layout.trainable() != self._trainable:
            _refuse("the parameters that were trainable when it was made", "others, so other buckets")
        if self.reducer.joining:
            raise ArgumentError(
                f"{_WHO}: expected ranks that all make their steps, got join(), in which one without data makes none: "
                "give each rank as many batches, of no samples where it has none"
            )
        if any(self.reducer not in param.listeners for param in self.reducer.layout.params[:1]):
            _refuse("a wrapper that combines gradients", "one that was unwrapped")

    # ----------------------------------------------------------------------------------------------- the parameters

    def gather(self, params: Iterable[Parameter]) -> None:
        """Give all ranks these parameters as their owners have them, and what lies beside; all ranks call it."""
        held: dict[int, list[Parameter]] = {}
        for param in params:
            number = self.bucket_of(param)
            if number is not None:
                held.setdefault(number, []).append(param)
        works = [self._gather(number, held[number]) for number in sorted(held)]
        for work in works:
            work.wait()

    def _gather(self, number: int, params: Sequence[Parameter]) -> Waitable:
        values, wire = self._array(number, values=True), self._wires[number]
        if self._rooted[number] or wire is None:
            return DeliveredTogether(self._exchange(number, values, self._runs_with(number, params)))
        whole = wire.view(values.dtype)[: self.ownership.wire_elements(number)]
        self._copy_own(number, whole, values)

        def deliver() -> None:
            values[...] = whole[: values.size]

        return DeliveredTogether(self._exchange(number, whole), deliver)

    def _exchange(self, number: int, whole: Array, runs: Sequence[Sequence[Run]] | None = None) -> list[Work]:
        """Give all ranks a bucket, as it travels, of which each has its own runs; of rooted ones these alone."""
        if self._rooted[number]:
            return broadcast_runs(self.comm, whole, self.ownership.runs[number] if runs is None else runs)
        return [self.comm.all_gather(whole, self._part(number, whole))]

    def _runs_with(self, number: int, params: Sequence[Parameter]) -> list[list[Run]]:
        """Of each rank the runs of a bucket that have elements of these parameters."""
        places = [self.place(number, param) for param in params]
        return [
            [(start, stop) for start, stop in own if any(start < end and begin < stop for begin, end in places)]
            for own in self.ownership.runs[number]
        ]

    def place(self, number: int, param: Parameter) -> Run:
        """The elements [start, stop) of a bucket that a parameter of it is."""
        start, stop = (at - self.plan.buckets[number].start for at in param.flat.span(param))
        return start, stop

    def gathered(self, number: int, parts: Sequence[Array | None], dtype: np.dtype[Any]) -> Array:
        """An array as long as a bucket, of which every rank has the elements of its own runs; all ranks call it.

        Args:
            parts: Those of each of this rank's runs; None for zeros.
            dtype: Theirs.
        """
        xp = array_module(self._array(number, values=True))
        whole = xp.zeros(self.ownership.wire_elements(number), dtype)
        for (start, stop), own in zip(self.ownership.runs[number][self.comm.rank], parts):
            if own is not None:
                whole[start:stop] = own
        for work in self._exchange(number, whole):
            work.wait()
        return whole[: self.ownership.sizes[number]]

    # -------------------------------------------------------------------------------------------------- what is asked

    def combined(self, number: Array, largest: bool) -> Array:
        """The sum over the ranks of one float64 number, (1,), or the largest; it stays where it is."""
        self.comm.all_reduce(number, ReduceOp.MAX if largest else ReduceOp.SUM).wait()
        return number

    def bucket_of(self, param: Parameter) -> int | None:
        """The bucket of a parameter; None for one that was not trainable.

        Raises:
            ArgumentError: the wrapper does not have it.
        """
        number = self.reducer.layout.number.get(id(param))
        if number is None:
            raise ArgumentError(
                f"{_WHO}: expected an optimizer of the parameters of the wrapper, got one that has another, of shape "
                f"{param.shape}, which no other rank trains"
            )
        return self._buckets.get(number)

    def check_whole(self, who: str, params: Iterable[Parameter]) -> None:
        """Refuse parameters of which no rank owns all elements.

        Raises:
            LayoutError: it names the first.
        """
        for param in params:
            number = self.bucket_of(param)
            if number is None:
                continue
            begin, end = self.place(number, param)
            runs = [run for of_rank in self.ownership.runs[number] for run in of_rank]
            if begin < end and not any(start <= begin and end <= stop for start, stop in runs):
                raise LayoutError(
                    f"{who}: expected each parameter whole on one rank, got {param.name} of shape {param.shape} in "
                    "parts: make this the wrapper's first ShardedOptimizer, or give that "
                    "one ownership=own_whole(extents_of(ddp, params), world_size), with the parameters of both"
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise ArgumentError(
            "copy.deepcopy: expected a wrapper whose gradients are whole, got one with a ShardedOptimizer: copy its "
            "module, ddp.module, and make a wrapper and an optimizer for the copy"
        )


def reduce_scatter_hook(state: ShardedGradients, bucket: GradBucket, comm: Communicator) -> Waitable:
    """Add up gradients so that each rank gets the sum of its own runs; see `ShardedGradients`."""
    return state.launch(bucket, comm)


def extents_of(ddp: DistributedDataParallel, whole: Iterable[Parameter]) -> list[list[Extent]]:
    """The parameters of each bucket of a wrapper, for `own_whole`.

    Args:
        whole: Those that have to stay whole.

    Example:
        >>> from minigrad import nn
        >>> from minigrad.distributed import DDP, SoloCommunicator
        >>> net = nn.Linear(4, 8, bias=False)
        >>> extents_of(DDP(net, SoloCommunicator()), net.parameters())
        [[Extent(elements=32, is_whole=True)]]
    """
    kept, entries = {id(param) for param in whole}, ddp.reducer.layout.entries()
    params = ddp.reducer.layout.params
    return [
        [Extent(entries[i].stop - entries[i].start, id(params[i]) in kept) for i in bucket.entries]
        for bucket in ddp.plan.buckets
    ]


def _refuse(expected: str, got: str) -> NoReturn:
    raise LayoutError(
        f"{_WHO}: expected {expected}, got {got}: keep its state_dict(), make the wrapper and the optimizer anew, and "
        "load it"
    )
