"""Letters between ranks that have a communicator, and nobody who would tell them of deaths: by messages of it."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.living.lifeline import Death, Letter
from minigrad.errors import RankFailedError

_NAP_S = 1e-3
_FLUSH_S = 5.0
_BYE: dict[str, str] = {}  # the last letter of a rank


class _Coming:
    """What is asked of one rank: how long its next letter is, then the letter."""

    def __init__(self, comm: Communicator, source: int) -> None:
        self._comm, self._source = comm, source
        self._begin(np.empty(1, np.int64), False)

    def _begin(self, array: Array, is_body: bool) -> None:
        self._array, self._is_body = array, is_body
        self._work = self._comm.recv(array, self._source)

    def look(self) -> Any:
        """The next letter, where it is there; else None."""
        while self._work.done():
            self._work.wait(host=True)
            array, is_body = self._array, self._is_body
            if not is_body:
                self._begin(np.empty(int(array[0]), np.uint8), True)
                continue
            self._begin(np.empty(1, np.int64), False)
            return json.loads(array.tobytes())
        return None


class MessageLine:
    """What `Lifeline` is, by a communicator: where a rank dies, it fails, and all end.

    Args:
        comm: The ranks, on CPUs; all make one, at one place. Letters and rounds go by groups of their own.

    Attributes:
        left: The ranks that take part no more, in words.
    """

    def __init__(self, comm: Communicator) -> None:
        letters, rounds = comm.split(0), comm.split(0)
        assert letters is not None and rounds is not None
        self.rank, self.world_size, self.timeout_s = comm.rank, comm.world_size, comm.timeout_s
        self._letters, self._rounds = letters, rounds
        self._lock = threading.Lock()
        self._coming = {rank: _Coming(letters, rank) for rank in range(comm.world_size) if rank != comm.rank}
        self._sent: list[tuple[int, Work, Array]] = []  # to whom, and what nobody may write to until it is taken
        self._own: deque[Letter] = deque()
        self._out: deque[tuple[int, Any]] = deque()
        self.left: dict[int, str] = {}
        self.dead: dict[int, str] = {}
        self.is_over = False

    def seed_of_first(self, own: int) -> int:
        """What rank 0 gives; all ranks call it, before anything else."""
        seed: int = self._rounds.all_gather_object(own)[0]
        return seed

    @property
    def living(self) -> list[int]:
        """The ranks that take part."""
        return [rank for rank in range(self.world_size) if rank not in self.left]

    def post(self, rank: int, data: Any) -> None:
        """See `Lifeline`."""
        self._check()
        self._out.append((rank, data))

    def _send_out(self) -> None:
        """Send what was posted, in the one thread that uses the communicator of letters."""
        while self._out:
            self._post(*self._out.popleft())

    def _post(self, rank: int, data: Any) -> None:
        if rank == self.rank:
            self._own.append(Letter(rank, data))
        elif rank not in self.left:
            body = np.frombuffer(json.dumps(data).encode(), np.uint8).copy()
            for array in (np.array([body.size], np.int64), body):
                self._sent.append((rank, self._letters.send(array, rank), array))

    def take(self, timeout_s: float) -> Letter | Death | None:
        """See `Lifeline`."""
        end = time.monotonic() + timeout_s
        while True:
            self._check()
            with self._lock:
                found = self._look()
            if found is not None or time.monotonic() >= end:
                return found
            time.sleep(_NAP_S)

    def _look(self) -> Letter | None:
        self._send_out()
        self._sent = [sent for sent in self._sent if sent[0] not in self.left and not sent[1].done()]
        if self._own:
            return self._own.popleft()
        for rank in list(self._coming):
            data = self._coming[rank].look()
            if data == _BYE:
                del self._coming[rank]
                self.left[rank] = "takes part no more"
            elif data is not None:
                return Letter(rank, data)
        return None

    def drop(self, rank: int, why: str) -> None:
        """End all: nobody here can end one."""
        for comm in (self._rounds, self._letters):
            comm.abort(why)

    def regroup(self, living: Sequence[int], generation: int) -> Communicator:
        """See `Lifeline`; all ranks, or none.

        Raises:
            RankFailedError: it is not all.
        """
        if len(living) < self.world_size:
            raise RankFailedError(f"rank {self.rank}: expected all ranks, got {list(living)}: the others have failed")
        return self._rounds

    def break_off(self, generation: int, why: str) -> None:
        """See `Lifeline`; here it takes the communicator's timeout."""

    def close(self) -> None:
        """See `Lifeline`."""
        if self.is_over:
            return
        self.is_over = True
        end = time.monotonic() + _FLUSH_S
        try:
            with self._lock:
                self._send_out()
                for rank in self.living:
                    if rank != self.rank:
                        self._post(rank, _BYE)
                while self._sent and time.monotonic() < end:
                    if self._look() is None:
                        time.sleep(_NAP_S)
        except RankFailedError:
            pass  # another one has ended before it took this
        self._rounds.close()
        self._letters.close()

    def _check(self) -> None:
        if self.is_over:
            raise RankFailedError(f"rank {self.rank}: expected a rank that takes part, but it does no more")
