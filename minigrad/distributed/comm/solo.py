"""A world of one rank, so that one device is no special case."""

from __future__ import annotations

from collections.abc import Sequence

from minigrad.backend.device import CPU, Device
from minigrad.backend.dtypes import Array
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.front import Front, What
from minigrad.distributed.comm.groups import Exchange, Group
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.comm.work import OVER, DoneWork


class SoloCommunicator(Front):
    """Rank 0 of 1: every reduction is the array itself.

    Example:
        >>> comm = SoloCommunicator()
        >>> x = np.ones(2)
        >>> comm.all_reduce(x).wait()
        >>> x.tolist()
        [1.0, 1.0]
    """

    adds_weighted = True

    def __init__(self, device: Device | str = CPU, *, clock: Clock | None = None) -> None:
        super().__init__(0, 1, device=Device(device), clock=clock, failure=_AlsoInForks())
        if self.device != CPU:
            self.device.xp  # refused here where it is not there, not at the first array

    def _reduce(self, what: What, array: Array, op: ReduceOp, weight: Array | None = None) -> DoneWork:
        if weight is not None:
            collectives.weighted_all_reduce([array], [weight], _alone)
        return OVER

    def _broadcast(self, what: What, array: Array, root: int) -> DoneWork:
        return OVER

    def _reduce_scatter(self, what: What, output: Array, source: Array, op: ReduceOp) -> DoneWork:
        return self._all_gather(what, output, source)

    def _all_gather(self, what: What, output: Array, source: Array) -> DoneWork:
        with self.device.current():
            output[...] = source.reshape(output.shape)
        return OVER

    def _reduce_to(self, what: What, array: Array, root: int, op: ReduceOp) -> DoneWork:
        return OVER

    def _gather(self, what: What, output: Array | None, source: Array, root: int) -> DoneWork:
        assert output is not None  # this rank is the root
        return self._all_gather(what, output, source)

    def _scatter(self, what: What, output: Array, source: Array | None, root: int) -> DoneWork:
        assert source is not None
        return self._all_gather(what, output, source)

    def _all_to_all(self, what: What, output: Array, source: Array) -> DoneWork:
        return self._all_gather(what, output, source)

    def _gather_bytes(self, what: What, data: bytes) -> list[bytes]:
        return [data]

    def _meet(self, what: What) -> DoneWork:
        return OVER

    def _split(self, group: Group | None, exchange: Exchange) -> SoloCommunicator | None:
        return None if group is None else SoloCommunicator(self.device, clock=self.clock)


class _AlsoInForks(Failure):
    """A child of a world of one is another."""

    def forked(self) -> None:
        """See `Inherited`: nothing is shared."""


def _alone(arrays: Sequence[Array]) -> None:
    """The sum of one array."""
