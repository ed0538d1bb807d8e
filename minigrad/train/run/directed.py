"""Where ranks that a coordinator directs live: threads of this process, and it beside them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minigrad.backend.device import CPU, Device
from minigrad.backend.random import set_noise_key
from minigrad.backend.thread import new_thread, with_blas_threads
from minigrad.distributed.living.lifeline import OUTSIDE
from minigrad.distributed.living.office import Office
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import RankFailedError
from minigrad.train import coordinator as c
from minigrad.train.run.desk import Desk
from minigrad.train.run.letters import Letters, LineLetters, RankLine, generation_of

Body = Callable[[int, Letters], Any]


class Directed:
    """Ranks that are threads, which a coordinator directs from the thread that calls `run`.

    Args:
        config: Of the coordinator.
        body: body(rank, letters) is what a rank does; its result is kept.
        timeout_s: How long ranks wait for each other, in real time.
        devices: Of each rank; CPUs by default.
        state: That a `Commit` brought, to go on from; see `Coordinator.resumed`.
        desk: Options of `Desk`.

    Attributes:
        results: What the ranks returned, by rank; without those that failed.
        causes: What ranks died of, by rank, in order of time.
    """

    def __init__(
        self,
        config: c.CoordinatorConfig,
        body: Body,
        *,
        timeout_s: float,
        devices: Sequence[Device] = (),
        state: Mapping[str, Any] | None = None,
        **desk: Any,
    ) -> None:
        self._devices = list(devices) or [CPU] * config.world_size
        self._office = Office(config.world_size, timeout_s=timeout_s, devices=self._devices)
        self._body, self._timeout_s = body, timeout_s
        self.results: dict[int, Any] = {}
        self.causes: dict[int, BaseException] = {}
        first = c.Coordinator.start(config)
        self._desk = self._make_desk(first if state is None else first.resumed(state), desk)

    def _make_desk(self, state: c.Coordinator, options: dict[str, Any]) -> Desk:
        outside = self._office.outside
        return Desk(state, outside, time.monotonic, drop=outside.drop, break_off=self._break_off, **options)

    def _break_off(self, order: c.Order) -> None:
        """Its rank takes letters and waits for others in one thread, so it would come to this only after them."""
        self._office.lifelines[order.rank].break_off(generation_of(order) - 1, order.reason)

    @contextmanager
    def _living(self, rank: int) -> Iterator[RankLine]:
        """What a rank's thread runs in."""
        with self._office.rank(rank) as line:
            yield line

    def run(self) -> c.Coordinator:
        """Run all ranks until they end; the coordinator's last state.

        Raises:
            Exception: what the first rank raised that failed, where the run ends because of that.
        """
        size = len(self._devices)
        limit = max(1, (os.cpu_count() or 1) // size)
        with with_blas_threads(limit):
            threads = [new_thread(self._rank, rank, name=f"rank-{rank}") for rank in range(size)]
            for thread in threads:
                thread.start()
            try:
                state = self._direct()
            except BaseException as error:  # nobody tells the ranks to end any more
                for rank in range(size):
                    self._office.end(rank, f"the coordinator has failed: {error!r}")
                raise
            running = self._join(threads)
        if state.error:
            self._raise(state.error, running)
        for rank in state.living:  # told to end, and had an end to make
            if rank in self.causes:
                raise self.causes[rank]
            if rank not in self.results:
                raise RankFailedError(f"rank {rank}: expected to end, got none: {', '.join(running)} still running")
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
            with self._living(rank) as line:
                self.results[rank] = self._body(rank, LineLetters(line))
        except BaseException as error:
            self.causes[rank] = error

    def _join(self, threads: Sequence[threading.Thread]) -> list[str]:
        """Wait for those who have been told to end, no longer than the timeout; who is still running."""
        end = time.monotonic() + self._timeout_s
        for rank in self._desk.state.living:
            threads[rank].join(max(0.0, end - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    def _raise(self, words: str, running: Sequence[str]) -> None:
        follows = (RankFailedError, SystemExit)  # of others; and by exit() a rank would end the caller without a word
        own = (error for error in self.causes.values() if not isinstance(error, follows))
        error = next(own, None) or RankFailedError(words)
        if hasattr(error, "add_note"):
            error.add_note(words)
            if running:
                error.add_note(f"still running, and left to itself: {', '.join(running)}")
        raise error


def teller(timeline: Any) -> Telling | None:
    """What hears of commands where they are given, if anything; a `Timeline` has them where its ranks hear of them."""
    return None if timeline is None or isinstance(timeline, Timeline) else Telling(timeline)


class Telling:
    """Lets a timeline hear of commands.

    Args:
        timeline: An object with event(kind, **fields).
    """

    def __init__(self, timeline: Any) -> None:
        self._timeline = timeline

    def __call__(self, command: c.Command) -> None:
        which = {name: getattr(command, name) for name in ("rank", "round") if hasattr(command, name)}
        self._timeline.event(type(command).__name__.lower(), reason=command.reason, **which)
