"""Where ranks that a coordinator directs live: threads of this process, with the coordinator beside them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from minigrad.backend.device import CPU, Device
from minigrad.backend.random import set_noise_key
from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.living.lifeline import OUTSIDE, Letter, Lifeline
from minigrad.distributed.living.office import Office
from minigrad.errors import RankFailedError
from minigrad.train import coordinator as c
from minigrad.train.run.coordinated import Letters
from minigrad.train.run.desk import Desk

_LONG_S = 60.0
Body = Callable[[int, Letters], Any]


class LineLetters:
    """The commands of a coordinator at one end of the lifelines, for a rank at another.

    Args:
        line: Of this rank.
        coordinator: Where it is.
    """

    def __init__(self, line: Lifeline, coordinator: int = OUTSIDE) -> None:
        self._line, self._coordinator, self._term = line, coordinator, 0

    def next(self, timeout_s: float | None) -> c.Order | None:
        """See `Letters`; commands of a coordinator before the last are none."""
        while True:
            found = self._line.take(_LONG_S if timeout_s is None else timeout_s)
            if isinstance(found, Letter):
                order: c.Order = c.from_data(found.data)
                if order.term >= self._term:
                    self._term = order.term
                    return order
            elif found is None and timeout_s is not None:
                return None

    def say(self, message: c.CoordinatorMessage) -> None:
        """See `Letters`."""
        self._line.post(self._coordinator, c.to_data(message))

    def regroup(self, living: Sequence[int], generation: int) -> Communicator:
        """See `Letters`."""
        comm: Communicator = self._line.regroup(living, generation)
        return comm


class Threads:
    """Ranks that are threads, which a coordinator directs from the thread that calls `run`.

    Args:
        config: Of the coordinator.
        body: body(rank, letters) is what a rank does; its result is kept.
        timeout_s: How long ranks wait for each other.
        desk: Options of `Desk`.

    Attributes:
        results: What the ranks returned, by rank; without those that failed.
        causes: What ranks died of, by rank, in order of time.
    """

    def __init__(
        self, config: c.CoordinatorConfig, body: Body, *, timeout_s: float, devices: Sequence[Device] = (), **desk: Any
    ) -> None:
        self._office = Office(config.world_size, timeout_s=timeout_s)
        self._devices = list(devices) or [CPU] * config.world_size
        self._body, self._timeout_s = body, timeout_s
        self.results: dict[int, Any] = {}
        self.causes: dict[int, BaseException] = {}
        outside = self._office.outside
        self._desk = Desk(c.Coordinator.start(config), outside, time.monotonic, drop=outside.drop, **desk)

    def run(self) -> c.Coordinator:
        """Run all ranks until they end; the coordinator's last state.

        Raises:
            Exception: what the first rank raised that failed, where the run ends because of that.
        """
        size = len(self._devices)
        limit = max(1, (os.cpu_count() or 1) // size)
        with threadpool_limits(limits=limit, user_api="blas"):
            threads = [new_thread(self._rank, rank, name=f"rank-{rank}") for rank in range(size)]
            for thread in threads:
                thread.start()
            state = self._direct()
            running = self._join(threads)
        if state.error:
            self._raise(state.error, running)
        return state

    def stop(self, why: str = "run.stop()") -> None:
        """Let the run end, behind a checkpoint of the last commit; from any thread."""
        self._office.outside.post(OUTSIDE, c.to_data(c.StopAsked(why)))

    def _direct(self) -> c.Coordinator:
        try:
            return self._desk.run()
        except KeyboardInterrupt:
            return self._desk.run([c.StopAsked("Ctrl-C")])

    def _rank(self, rank: int) -> None:
        self._devices[rank].use()
        set_noise_key(rank)
        try:
            with self._office.rank(rank) as line:
                self.results[rank] = self._body(rank, LineLetters(line))
        except BaseException as error:
            self.causes[rank] = error

    def _join(self, threads: Sequence[threading.Thread]) -> list[str]:
        """Wait for those who have been told to end, no longer than the timeout; who is still running."""
        end = time.monotonic() + self._timeout_s
        living = self._desk.state.living
        for rank in living:
            threads[rank].join(max(0.0, end - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    def _raise(self, words: str, running: Sequence[str]) -> None:
        own = (error for error in self.causes.values() if not isinstance(error, RankFailedError))
        error = next(own, None) or RankFailedError(words)
        if hasattr(error, "add_note"):
            error.add_note(words)
            if running:
                error.add_note(f"still running, and left to itself: {', '.join(running)}")
        raise error
