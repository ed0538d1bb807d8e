"""ShardedGradients: what a rank gets of each bucket, and how the parameters are put together again.

As a comm hook of the wrapper it sends each bucket by reduce_scatter, while backward still runs, so that a rank gets the
combined gradient of its own runs. Behind the optimizer's step all_gather brings the parameters of all ranks together.
Where a bucket has equally many elements for each rank both work where it lies. Else, and for 16-bit gradients, which
travel and are added up as float32, it travels in an array of its own, which is kept.
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
from minigrad.distributed.comm.work import DeliveringWork
from minigrad.distributed.ddp.hooks import GradBucket
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.sharded.guard import GradientGuard
from minigrad.distributed.sharded.runs import Ownership, own_evenly
from minigrad.errors import ArgumentError, LayoutError
from minigrad.nn.parameter import Parameter
from minigrad.optim.run import FlatRun

_WHO = "ShardedOptimizer"


class ShardedGradients:
    """The state of `reduce_scatter_hook`: one for each wrapper, whatever the number of its optimizers.

    Args:
        ddp: The wrapper; no comm hook may be registered. All ranks call it.
        ownership: Of the buckets of its plan; by default one run a rank of each, all of one length.

    Attributes:
        own: Of each bucket the runs of this rank, in ascending order; an empty one where it has none.
        guard: See there.

    Raises:
        ArgumentError: a comm hook is there, or the ownership is one of other buckets or ranks, or cuts a parameter
            into two runs of one rank.
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
        self._buckets = {entry: bucket.index for bucket in self.plan.buckets for entry in bucket.entries}
        self._wires = {bucket: self._new_wire(bucket) for bucket in range(len(sizes)) if self._is_copied(bucket)}
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

    def _is_copied(self, number: int) -> bool:
        return is_half(self.dtype(number)) or not self.ownership.is_even(number)

    def _new_wire(self, number: int) -> Array:
        return self.comm.empty(self.ownership.wire_elements(number), np.promote_types(self.dtype(number), np.float32))

    def _part(self, number: int, whole: Array) -> Array:
        """This rank's part of what travels."""
        width = self.ownership.width(number)
        return whole[self.comm.rank * width : (self.comm.rank + 1) * width]

    def _own_moves(self, number: int) -> list[tuple[slice, slice]]:
        """Of this rank's runs, where they are in the bucket, and where in its part."""
        moves, at = [], 0
        for start, stop in self.ownership.runs[number][self.comm.rank]:
            moves.append((slice(start, stop), slice(at, at + stop - start)))
            at += stop - start
        return moves

    # ------------------------------------------------------------------------------------------------ the gradients

    def launch(self, bucket: GradBucket, comm: Communicator) -> Work:
        """Send a bucket; behind the wait for it this rank's runs hold the combined gradients."""
        number = bucket.index()
        if number == 0:
            self.check_ready()
            self.guard.check_forgotten(_WHO)
        self.guard.hold(bucket.parameters())
        if number not in self._wires:
            whole = bucket.buffer()
            return comm.reduce_scatter(self._part(number, whole), whole)
        whole, here = self._wires[number], self._array(number, values=False)
        self._fill(number, bucket, whole)
        part = self._part(number, whole)

        def deliver() -> None:
            for run, place in self._own_moves(number):
                here[run] = part[place]

        return DeliveringWork(comm.reduce_scatter(part, whole), deliver)

    def _fill(self, number: int, bucket: GradBucket, wire: Array) -> None:
        """Write the weighted gradients of a bucket to where they travel, with zeros between them."""
        if self.ownership.is_packed(number):
            bucket.pack(wire[: bucket.count])
            wire[bucket.count :] = 0
            return
        if is_half(bucket.dtype):
            source = array_module(wire).empty(bucket.count, wire.dtype)
            bucket.pack(source)
        else:
            source = bucket.buffer()
        wire[...] = 0
        for here, there in self.ownership.moves(number):
            wire[there] = source[here]

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

    def gather(self, numbers: Iterable[int]) -> None:
        """Give all ranks the parameters of these buckets as their owners have them; all ranks call it."""
        works = [self._gather(number) for number in numbers]
        for work in works:
            work.wait()

    def _gather(self, number: int) -> Work:
        values = self._array(number, values=True)
        if number not in self._wires:
            return self.comm.all_gather(values, self._part(number, values))
        whole = self._wires[number].view(values.dtype)[: self.ownership.wire_elements(number)]
        part = self._part(number, whole)
        for run, place in self._own_moves(number):
            part[place] = values[run]
        return DeliveringWork(self.comm.all_gather(whole, part), lambda: self._spread(number, whole, values))

    def _spread(self, number: int, whole: Array, values: Array) -> None:
        """Bring a bucket that has travelled back into its order."""
        if self.ownership.is_packed(number):
            values[...] = whole[: values.size]
            return
        for here, there in self.ownership.moves(number):
            values[here] = whole[there]

    def gathered(self, number: int, parts: Sequence[Array | None], dtype: np.dtype[Any]) -> Array:
        """An array as long as a bucket, of which every rank has the elements of its own runs; all ranks call it.

        Args:
            parts: Those of each of this rank's runs; None for zeros.
            dtype: Theirs.
        """
        xp = array_module(self._array(number, values=True))
        part = xp.zeros(self.ownership.width(number), dtype)
        for (_, place), own in zip(self._own_moves(number), parts):
            if own is not None:
                part[place] = own
        whole = xp.empty(self.ownership.wire_elements(number), dtype)
        self.comm.all_gather(whole, part).wait()
        found = xp.empty(self.ownership.sizes[number], dtype)
        self._spread(number, whole, found)
        return found

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

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise ArgumentError(
            "copy.deepcopy: expected a wrapper whose gradients are whole, got one with a ShardedOptimizer: copy its "
            "module, ddp.module, and make a wrapper and an optimizer for the copy"
        )


def reduce_scatter_hook(state: ShardedGradients, bucket: GradBucket, comm: Communicator) -> Work:
    """Add up gradients so that each rank gets the sum of its own runs; see `ShardedGradients`."""
    return state.launch(bucket, comm)


def _refuse(expected: str, got: str) -> NoReturn:
    raise LayoutError(
        f"{_WHO}: expected {expected}, got {got}: keep its state_dict(), make the wrapper and the optimizer anew, and "
        "load it"
    )
