"""A world of one rank, so that one device is no special case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.backend.device import CPU, Device
from minigrad.backend.dtypes import Array, DtypeLike
from minigrad.backend.memory import aligned_zeros
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.base import (
    Clock,
    DoneWork,
    HostClock,
    check_array,
    check_empty,
    check_parts,
    check_reduction,
    check_root,
    decode_object,
    default_timeout_s,
    encode_object,
    stays_here,
)
from minigrad.errors import RankFailedError


def _alone(arrays: Sequence[Array]) -> None:
    """The sum of one array."""


class SoloCommunicator:
    """Rank 0 of 1: every reduction is the array itself.

    Example:
        >>> comm = SoloCommunicator()
        >>> x = np.ones(2)
        >>> comm.all_reduce(x).wait()
        >>> x.tolist()
        [1.0, 1.0]
    """

    rank, world_size = 0, 1

    __reduce_ex__ = stays_here

    def __init__(self, device: Device | str = CPU, *, clock: Clock | None = None) -> None:
        self.device = Device(device)
        if self.device != CPU:
            self.device.xp  # refused here where it is not there, not at the first array
        self.clock: Clock = clock if clock is not None else HostClock()
        self.timeout_s = default_timeout_s()
        self._over = ""

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros on the device."""
        with self.device.current() as xp:
            return aligned_zeros(count, check_empty(0, count, dtype), xp)

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> DoneWork:
        """Leave the array as it is."""
        self._check("all_reduce", array)
        check_reduction("all_reduce", 0, array, op)
        return DoneWork()

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> DoneWork:
        """Weight the array in its place."""
        self._check("weighted_all_reduce", array)
        if weight is not None:
            collectives.weighted_all_reduce([array], [weight], _alone)
        return DoneWork()

    def broadcast(self, array: Array, root: int = 0) -> DoneWork:
        """Leave the array as it is."""
        self._check("broadcast", array)
        check_root("broadcast", 0, root, 1)
        return DoneWork()

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> DoneWork:
        """Copy source to output."""
        self._check("reduce_scatter", output, source)
        check_reduction("reduce_scatter", 0, source, op)
        check_parts("reduce_scatter", 0, source, output, 1)
        with self.device.current():
            output[...] = source.reshape(output.shape)
        return DoneWork()

    def all_gather(self, output: Array, source: Array) -> DoneWork:
        """Copy source to output."""
        self._check("all_gather", output, source)
        check_parts("all_gather", 0, output, source, 1)
        with self.device.current():
            output[...] = source.reshape(output.shape)
        return DoneWork()

    def all_gather_object(self, value: Any) -> list[Any]:
        """A list of the one value, through JSON like everywhere."""
        self._check("all_gather_object")
        return [decode_object(encode_object("all_gather_object", 0, value))]

    def barrier(self) -> None:
        """Return at once."""
        self._check("barrier")

    def give_up(self, reason: str) -> None:
        """Nothing: nobody waits."""

    def abort(self, reason: str) -> None:
        """Make every later call raise."""
        self._over = self._over or f"it was aborted: {reason}"

    def close(self) -> None:
        """Make every later call raise."""
        self._over = self._over or "it was closed"

    def _check(self, who: str, *arrays: Array) -> None:
        if self._over:
            raise RankFailedError(f"rank 0: {who}: expected a communicator in use, got one after its end: {self._over}")
        for array in arrays:
            check_array(who, 0, array)
