"""How far the ranks' gradients are from their mean, as a comm hook: the report of `average`, of a wrapper's passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.backend.device import device_of, to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.balance.divergence import SUMS, Divergence, add_sums, divergence_of, no_sums
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.ddp.hooks import GradBucket
from minigrad.errors import ArgumentError

_ROW = SUMS + 1  # and the weight of the rank


class DivergenceMeter:
    """The state of `divergence_hook`: how far each rank's gradient was from the combined one in the last pass.

    A rank's gradient is what it has added up since the last pass, for `Rounds` over its batches of a round. Give each
    wrapper one of its own. A deep copy starts empty.

    Example:
        >>> from minigrad import nn, tensor
        >>> from minigrad.distributed import DDP, DivergenceMeter, divergence_hook, run
        >>> def body(comm):
        ...     ddp, meter = DDP(nn.Linear(2, 1, bias=False), comm), DivergenceMeter()
        ...     ddp.register_comm_hook(meter, divergence_hook)
        ...     ddp(tensor([[[1.0, 0.0], [0.0, 1.0]][comm.rank]])).sum().backward()    # mean (0.5, 0.5)
        ...     return meter.report()
        >>> print(run(body, 2)[0])
        rank  relative  cosine  magnitude
           0    1.0000  0.7071    +0.4142
           1    1.0000  0.7071    +0.4142
    """

    def __init__(self) -> None:
        self._own: list[Array] = []  # a copy of each bucket's gradients in the pass under way
        self._sums: Array = None
        self._row: Array = None
        self._rows: Array = None  # those of all ranks, of the last pass that was whole

    def report(self, steps: int = 1) -> Divergence:
        """Of the last pass, equal on all ranks; waits for the device.

        A rank that had no samples is told as one that was at the mean.

        Args:
            steps: The most that a rank made for it, as batches of a round: what a guard of `Rounds` reckons by.

        Raises:
            ArgumentError: there was no pass; gradients were not weighted by samples, for the wrapper was made with
                reduce="sum"; or steps is no integer >= 1.
        """
        if self._rows is None:
            raise ArgumentError("DivergenceMeter: expected a pass before report(), got none")
        whole = to_host(self._rows).tolist()
        rows = [whole[at : at + _ROW] for at in range(0, len(whole), _ROW)]
        if sum(row[SUMS] for row in rows) > 1.5:
            raise ArgumentError("DivergenceMeter: expected gradients that are means over samples, got reduce='sum'")
        return divergence_of([row[:SUMS] for row in rows], steps)

    def take_own(self, bucket: GradBucket) -> None:
        """Copy a bucket before anything is taken out of it."""
        parts = _gradients(bucket)
        if bucket.index() == 0:
            self._own, self._sums = [], no_sums(parts[0])
        with device_of(parts[0]).current() as xp:
            self._own.append(xp.concatenate(parts))

    def take_combined(self, bucket: GradBucket, comm: Communicator) -> None:
        """Look at a bucket that holds the sum; behind the last one the ranks tell each other what they saw."""
        begin, own = 0, self._own[bucket.index()]
        for part in _gradients(bucket):
            add_sums(self._sums, own[begin : begin + part.size], part)
            begin += part.size
        if bucket.is_last():
            self._tell(bucket, comm)

    def _tell(self, bucket: GradBucket, comm: Communicator) -> None:
        if self._row is None:
            self._row = comm.empty(_ROW, np.dtype(np.float64))
            self._rows = comm.empty(_ROW * comm.world_size, np.dtype(np.float64))
        self._row[:SUMS] = self._sums if bucket.samples > 0.0 else 0.0
        self._row[SUMS:] = 1.0 if bucket.weight is None else bucket.weight
        comm.all_gather(self._rows, self._row).wait()
        self._own = []

    def __deepcopy__(self, memo: dict[int, Any]) -> DivergenceMeter:
        return DivergenceMeter()


class _ComparedWork(WorkAround):
    """A bucket under way that is compared with the rank's own when it holds the sum."""

    def __init__(self, work: Work, meter: DivergenceMeter, bucket: GradBucket, comm: Communicator) -> None:
        super().__init__(work)
        self._told: tuple[DivergenceMeter, GradBucket, Communicator] | None = (meter, bucket, comm)

    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does; the first time the bucket is compared."""
        self.inner.wait(host)
        if self._told is not None:
            (meter, bucket, comm), self._told = self._told, None
            meter.take_combined(bucket, comm)


def divergence_hook(state: DivergenceMeter, bucket: GradBucket, comm: Communicator) -> Work:
    """Add up gradients as without a hook, bit for bit, and compare each rank's with their mean.

    Costs a copy of the gradients, a read of both, and behind the last bucket an all-gather of four numbers.

    Raises:
        ArgumentError: state is no DivergenceMeter.
    """
    if not isinstance(state, DivergenceMeter):
        raise ArgumentError(f"divergence_hook: expected a DivergenceMeter as state, got {type(state).__name__}")
    state.take_own(bucket)
    return _ComparedWork(bucket.all_reduce(comm), state, bucket, comm)


def _gradients(bucket: GradBucket) -> list[Array]:
    """What the bucket holds, as 1-D arrays."""
    views: list[Array] = [param.grad_view for param in bucket.parameters()]
    return [view.reshape(-1) for view in views]
