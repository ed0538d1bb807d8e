"""A schedule with true numbers: on a list of arrays, and on the ranks of any communicator by `send` and `recv`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_sequence
from minigrad.backend.device import device_of
from minigrad.backend.dtypes import Array, is_half
from minigrad.distributed.algorithms.schedule import CollectiveSchedule, Op
from minigrad.distributed.collectives import ReduceOp, check_combinable, reduced
from minigrad.distributed.comm.checks import check_array, check_reduction
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import OVER
from minigrad.distributed.comm.wrappers import Wrapper
from minigrad.errors import ArgumentError


def play(schedule: CollectiveSchedule, arrays: Sequence[Array], op: ReduceOp = ReduceOp.SUM) -> None:
    """Overwrite every array by the reduction of all of them, as ranks that follow the schedule would.

    float16 and bfloat16 are combined in float32 and rounded once.

    Args:
        arrays: One a rank, of equal shape and dtype, on one device; see `Communicator.all_reduce`.
        op: AVG needs a float dtype.

    Raises:
        ArgumentError: another number of arrays than the schedule has ranks, one that is read-only, or op is none.
        ShapeError, DtypeError: arrays of different shapes or dtypes, that no rank could give, or AVG of integers.

    Example:
        >>> from minigrad.distributed.algorithms import ring
        >>> arrays = [np.full(3, 1.0), np.full(3, 2.0)]
        >>> play(ring(2), arrays)
        >>> arrays[1].tolist()
        [3.0, 3.0, 3.0]
    """
    check_schedule("play", schedule, len(as_sequence("play", "arrays", arrays)))
    arrays = [check_array("play", rank, array) for rank, array in enumerate(arrays)]
    check_combinable("play", arrays)
    check_reduction("play", 0, arrays[0], op)
    totals = [_widened(array) for array in arrays]
    sums = _without_mean(op)
    for transfers in schedule.rounds:
        sent = [totals[each.source][each.chunk.slice(totals[0].size)].copy() for each in transfers]
        for each, came in zip(transfers, sent):
            _take(totals[each.target][each.chunk.slice(totals[0].size)], came, each.op, sums)
    for array, total in zip(arrays, totals):
        array[...] = _finished(total, op, schedule.world_size).reshape(array.shape)


class Scheduled(Wrapper):
    """A communicator whose `all_reduce` goes by a schedule, with the `send` and `recv` of another one; it blocks.

    All ranks get the same bits; where `schedule.is_in_order` they are those of the communicators themselves.

    Args:
        comm: The communicator below.
        schedule: A `CollectiveSchedule` for its number of ranks; or a function that gives one for a number of ranks,
            such as `ring`.

    Raises:
        ArgumentError: no schedule, one for another number of ranks, or a function that needs more than that number.

    Example:
        >>> from minigrad.distributed import run
        >>> from minigrad.distributed.algorithms import ring
        >>> def body(comm):
        ...     array = np.full(5, comm.rank + 1.0)
        ...     Scheduled(comm, ring).all_reduce(array).wait()
        ...     return array.tolist()
        >>> run(body, 3)[0]
        [6.0, 6.0, 6.0, 6.0, 6.0]
    """

    def __init__(self, comm: Communicator, schedule: Any) -> None:
        super().__init__(comm)
        self.schedule = check_schedule("Scheduled", _made(schedule, comm.world_size), comm.world_size)
        self._rounds = [  # what this rank sends in each, and what comes to it
            (
                [each for each in transfers if each.source == self.rank],
                [each for each in transfers if each.target == self.rank],
            )
            for transfers in self.schedule.rounds
        ]

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over ranks, which give one op and layout or wait for each other in vain."""
        array = check_array("all_reduce", self.rank, array, device=self.device)
        check_reduction("all_reduce", self.rank, array, op)
        tag, sums = zlib.crc32(f"{op.value} {layout}".encode()) % 2**31, _without_mean(op)
        with device_of(array).current() as xp:
            total = _widened(array)
            for mine, theirs in self._rounds:
                sent = [self.send(total[each.chunk.slice(total.size)].copy(), each.target, tag) for each in mine]
                for each in theirs:
                    came = xp.empty(each.chunk.count(total.size), total.dtype)
                    self.recv(came, each.source, tag).wait()
                    _take(total[each.chunk.slice(total.size)], came, each.op, sums)
                for work in sent:
                    work.wait()
            array[...] = _finished(total, op, self.world_size).reshape(array.shape)
        return OVER


def _made(schedule: Any, world_size: int) -> Any:
    """What a function gives for a number of ranks; anything else as it is."""
    if not callable(schedule):
        return schedule
    try:
        return schedule(world_size)
    except TypeError as error:
        raise ArgumentError(
            f"Scheduled: expected a function of the number of ranks alone, got {schedule!r:.100}: {error}"
        ) from error


def check_schedule(who: str, schedule: Any, world_size: int | None = None) -> CollectiveSchedule:
    """A schedule, for so many ranks where that is said.

    Raises:
        ArgumentError: it is none, or for another number.
    """
    if not isinstance(schedule, CollectiveSchedule):
        raise ArgumentError(f"{who}: expected a CollectiveSchedule, got {schedule!r:.100}")
    if world_size is not None and schedule.world_size != world_size:
        raise ArgumentError(f"{who}: expected a schedule for {world_size} ranks, got one for {schedule.world_size}")
    return schedule


def _widened(array: Array) -> Array:
    """A flat copy in the dtype that is added up in."""
    return array.reshape(-1).astype(np.float32 if is_half(array.dtype) else array.dtype)


def _without_mean(op: ReduceOp) -> ReduceOp:
    return ReduceOp.SUM if op is ReduceOp.AVG else op


def _finished(total: Array, op: ReduceOp, world_size: int) -> Array:
    return total / world_size if op is ReduceOp.AVG else total


def _take(own: Array, came: Array, op: Op, sums: ReduceOp) -> None:
    """What a target does with what arrived."""
    own[...] = came if op is Op.REPLACE else reduced([own.copy(), came], sums)
