"""Snapshots on their way between ranks: what one says, how they travel, and the mean of those of a round.

A snapshot is one message: eight float64 that tell the number of its round and what it weighs, then the values. So a
rank that takes one knows what it has taken, and a late one is never that of another round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minigrad.backend.device import array_module, device_of, to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.grad_scale import scale_
from minigrad.backend.stream import CommStream
from minigrad.distributed.average.travelling import SCALE
from minigrad.distributed.balance.divergence import SUMS, add_sums
from minigrad.distributed.collectives import ReduceOp, reduced
from minigrad.distributed.comm.point_to_point import TAGS
from minigrad.distributed.comm.protocol import Communicator, Work

_TAG = TAGS - 1  # of no user's message
_HEAD = 8  # float64 before the values
_LINE = 64  # bytes at a multiple of which the values of each dtype begin
_HOST_BLOCK, _GPU_BLOCK = 8192, 2**21  # elements of one step of a mean


class Snapshot(NamedTuple):
    """What a rank has come to at the end of a round.

    Attributes:
        number: Of the round.
        samples: What it weighs.
        batches: Steps of the round.
        is_change: Whether the values are the change since the round before, not the values themselves.
        is_last: Whether the rank makes no more rounds.
        values: Arrays, one for each dtype.
    """

    number: int
    samples: float
    batches: int
    is_change: bool
    is_last: bool
    values: list[Array]


class Courier:
    """Sends the snapshots of one rank, and takes those of others.

    Args:
        comm: The ranks.
        like: Arrays like the values of a snapshot.
    """

    def __init__(self, comm: Communicator, like: Sequence[Array]) -> None:
        self._comm, self._side = comm, CommStream(comm.device)  # to read on what the step has nothing to do with
        self._parts: list[tuple[int, int, np.dtype[np.generic]]] = []
        self._nbytes = 8 * _HEAD
        for array in like:
            first = -(-self._nbytes // _LINE) * _LINE
            self._nbytes = first + int(array.nbytes)
            self._parts.append((first, self._nbytes, array.dtype))
        self._asked: dict[int, tuple[Work, Array]] = {}
        self._sent: dict[int, deque[tuple[int, Work, Array]]] = {r: deque() for r in range(comm.world_size)}

    @property
    def nbytes(self) -> int:
        """Bytes of a snapshot."""
        return self._nbytes

    def send(self, snapshot: Snapshot) -> Snapshot:
        """Send a copy to all other ranks, waiting for none; the copy, which nobody may write to."""
        with self._comm.device.current() as xp:
            message = xp.empty(self._nbytes, np.uint8)
            head = np.zeros(_HEAD)
            head[:5] = snapshot[:5]
            message[: 8 * _HEAD].view(np.float64)[...] = xp.asarray(head)
            copy = self._values(message)
            for into, values in zip(copy, snapshot.values):
                into[...] = values
            for dst in range(self._comm.world_size):
                if dst != self._comm.rank:
                    self._sent[dst].append((snapshot.number, self._comm.send(message, dst, _TAG), message))
        return snapshot._replace(values=copy)

    def arrived(self, src: int) -> Snapshot | None:
        """The next snapshot of a rank, where it is there."""
        return self._taken(src) if self._ask(src).done() else None

    def wait(self, src: int) -> Snapshot:
        """The next snapshot of a rank; waits for it.

        Raises:
            CollectiveTimeoutError, RankFailedError: it does not come; the rank is named.
        """
        self._ask(src)
        return self._taken(src)

    def _ask(self, src: int) -> Work:
        if src not in self._asked:
            with self._comm.device.current() as xp:
                message = xp.empty(self._nbytes, np.uint8)
                self._asked[src] = self._comm.recv(message, src, _TAG), message
        return self._asked[src][0]

    def _taken(self, src: int) -> Snapshot:
        work, message = self._asked.pop(src)
        with self._side.current():
            work.wait(host=True)
            number, samples, batches, is_change, is_last = to_host(message[: 8 * _HEAD]).view(np.float64)[:5].tolist()
        with self._comm.device.current():
            return Snapshot(int(number), samples, int(batches), bool(is_change), bool(is_last), self._values(message))

    def _values(self, message: Array) -> list[Array]:
        return [message[first:stop].view(dtype) for first, stop, dtype in self._parts]

    def forget(self, dst: int, number: int) -> None:
        """Let go of what was sent to a rank up to a round, which has taken it."""
        sent = self._sent[dst]
        while sent and sent[0][0] <= number:
            sent.popleft()[1].wait()

    def flush(self) -> None:
        """Wait until all that was sent has been taken."""
        for dst, sent in self._sent.items():
            if sent:
                self.forget(dst, sent[-1][0])


def total_of(weights: Sequence[float]) -> float:
    """Σn in the order in which ranks are added up."""
    return float(reduced([np.array([weight]) for weight in weights], ReduceOp.SUM)[0])


def mean_of(
    snapshots: Sequence[Snapshot | None], piece: int, common: Array, whole: float, sums: Sequence[Array]
) -> Array:
    """Σ n_r·v_r / Σ n_r of one dtype, in the order, and so with the bits, of a sum over ranks.

    v_r are the values of a snapshot, or common + its change. All is done block by block, in one pass over memory.

    Args:
        snapshots: Of each rank; None of one that has ended.
        piece: Which of their values.
        common: The mean of the round before.
        whole: Σ n_r, > 0.
        sums: float64 (3,) of each rank, to which what `add_sums` tells of v_r and the mean is added.
    """
    size = _HOST_BLOCK if array_module(common) is np else _GPU_BLOCK
    with device_of(common).current() as xp:
        mean = xp.empty_like(common)
        divisor = xp.full(1, whole / SCALE, np.float64).astype(common.dtype)
        for start in range(0, common.size, size):
            block = slice(start, start + size)
            values = [common[block] if each is None else value_of(each, piece, common, block) for each in snapshots]
            samples = [0.0 if each is None else each.samples for each in snapshots]
            mean[block] = reduced(list(map(_weighted, values, samples)), ReduceOp.SUM)
            mean[block] /= divisor
            for count, value, three in zip(samples, values, sums):
                if count:  # who brought nothing is told as one that was there
                    add_sums(three, value, mean[block])
    return mean


def value_of(snapshot: Snapshot, piece: int, common: Array, block: slice = slice(None)) -> Array:
    """What a snapshot stands for: its values, or the round before and its change."""
    values = snapshot.values[piece][block]
    return common[block] + values if snapshot.is_change else values


def _weighted(values: Array, samples: float) -> Array:
    copy = values.copy()
    scale_(copy, array_module(copy).full(1, samples / SCALE, np.float64))
    return copy


def no_sums_of(like: Array, world_size: int) -> Array:
    """float64 (world_size, 3) of zeros where an array lives."""
    with device_of(like).current() as xp:
        return xp.zeros((world_size, SUMS), np.float64)
