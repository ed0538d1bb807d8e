"""Ranks that a coordinator directs, as processes: it lives on one of them, and on the next where that one dies.

A thread of each rank takes all letters, so that it hears of a `Restore`, and answers a `Recall`, while its rank trains
or waits in a collective. The coordinator is on the lowest rank that lives, so its number is the term.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, Union

from minigrad.backend.device import Device
from minigrad.backend.thread import new_thread
from minigrad.distributed.bootstrap import detect, init, local_device
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.protocol import Clock, Communicator
from minigrad.distributed.living.lifeline import Death, Letter, Lifeline, who_left
from minigrad.distributed.living.line import DESCRIPTOR, lifeline_here
from minigrad.errors import ArgumentError
from minigrad.train import coordinator as c
from minigrad.train.run.by_messages import MessageLine
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.desk import Desk
from minigrad.train.run.letters import Letters, generation_of

_SOON_S = 0.1  # after which it is seen that a rank has left
_ALIVE = {"kind": "alive"}  # what the coordinator tells where it has nothing to command
AnyLine = Union[Lifeline, MessageLine]
T = TypeVar("T")


class ProcessLetters:
    """One rank's letters, and the coordinator while it lives here.

    Args:
        line: Of this rank.
        config: Of the coordinator; alike on all ranks.
        state: That a `Commit` brought, to go on from; see `Coordinator.resumed`.
        desk: Options of `Desk`.

    Attributes:
        coordinator: The rank that it is on.
    """

    def __init__(
        self, line: AnyLine, config: c.CoordinatorConfig, *, state: Mapping[str, Any] | None = None, **desk: Any
    ) -> None:
        self._line, self._options = line, desk
        first = c.Coordinator.start(config)
        self._first = first if state is None else first.resumed(state)
        self._queue = queue.SimpleQueue[c.Order | BaseException]()
        self.coordinator = self._term = 0
        self._desk: Desk | None = None
        self._last: c.Commit | None = None  # that came last, whether or not the rank has got to it
        self._words: dict[int, str] = {}  # of what ranks have failed
        self._limit_s, self._alive_s = config.timeout_s, time.monotonic()  # when the coordinator was last heard of
        self._has_stop = False
        self._thread = new_thread(self._serve, name="letters")

    def begin(self) -> None:
        """Take letters from now on; on rank 0 also direct."""
        if self._line.rank == 0:
            self._term = 1
            self._desk = self._make_desk(self._first)
            self._desk.hear(c.Began())
        self._thread.start()

    def end(self) -> None:
        """This rank has been told to stop: wait for the coordinator where it is here, and take part no more."""
        self._thread.join()
        self._line.close()

    def fail(self, error: BaseException) -> None:
        """This rank takes part no more, for it has raised this."""
        told = c.to_data(c.Failed(self._line.rank, f"it raised {type(error).__name__}: {error}"))
        if not self._line.is_over:
            for rank in self._line.living:
                if rank != self._line.rank:
                    self._line.post(rank, told)
        self._line.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def has_stop(self) -> bool:
        """Whether this rank was told to stop."""
        return self._has_stop

    # ------------------------------------------------------------------------------------------------- for the rank

    def next(self, timeout_s: float | None) -> c.Order | None:
        """See `Letters`."""
        try:
            found = self._queue.get(timeout=timeout_s) if timeout_s != 0.0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def say(self, message: c.CoordinatorMessage) -> None:
        """See `Letters`."""
        self._line.post(self.coordinator, c.to_data(message))

    def regroup(self, living: Sequence[int], generation: int) -> Communicator:
        """See `Letters`."""
        comm: Communicator = self._line.regroup(living, generation)
        return comm

    def together(self, members: Sequence[int]) -> AbstractContextManager[None]:
        """See `Letters`."""
        return nullcontext()

    def now_s(self) -> float:
        """See `Letters`."""
        return time.monotonic()

    @property
    def clock(self) -> Clock:
        """See `Letters`."""
        return HostClock()

    # -------------------------------------------------------------------------------------------------- in its thread

    def _make_desk(self, state: c.Coordinator) -> Desk:
        return Desk(state, self._line, time.monotonic, drop=self._line.drop, **self._options)

    def _serve(self) -> None:
        try:
            while not self._is_done():
                desk = self._desk
                self._hear(self._line.take(_SOON_S if desk is None else min(_SOON_S, desk.patience_s())))
                if self._desk is not None:
                    self._desk.tick()
                self._watch()
                self._elect()
        except BaseException as error:  # dropped, or closed by `fail`: the rank raises it
            self._queue.put(error)

    def _is_done(self) -> bool:
        return self._has_stop if self._desk is None else self._desk.state.is_over and self._has_stop

    def _hear(self, found: Letter | Death | None) -> None:
        if isinstance(found, Death):
            self._words[found.rank] = found.error
            if self._desk is not None:
                self._desk.hear(c.Failed(found.rank, found.error))
        elif isinstance(found, Letter):
            if found.data == _ALIVE:
                self._alive_s = time.monotonic() if found.source == self.coordinator else self._alive_s
                return
            said = c.from_data(found.data)
            if isinstance(said, c.Order):
                self._obey(said)
                return
            if isinstance(said, c.Failed):
                self._words[said.rank] = said.error
            if self._desk is not None:
                self._desk.hear(said)

    def _obey(self, order: c.Order) -> None:
        if order.term < self._term:
            return
        self._alive_s = time.monotonic()
        self._term, self.coordinator = order.term, order.term - 1  # it may be heard of sooner than the death before
        if isinstance(order, c.Recall):
            state, last = (None, 0) if self._last is None else (self._last.state, self._last.round)
            self.say(c.Recalled(order.rank, order.term, order.round, order.ask, last, state))
            return
        if isinstance(order, c.Commit):
            self._last = order
        elif isinstance(order, c.Stop):
            self._has_stop = True
        if isinstance(order, (c.Restore, c.Save, c.Stop)):
            self._line.break_off(generation_of(order) - 1, order.reason)
        self._queue.put(order)

    def _watch(self) -> None:
        """Who coordinates tells the others that it lives; where it has been silent for too long, it is dropped."""
        now_s = time.monotonic()
        silent_s = now_s - self._alive_s
        if self._desk is not None and silent_s > self._limit_s / 4:
            self._alive_s = now_s
            for rank in self._line.living:
                if rank != self._line.rank:
                    self._line.post(rank, _ALIVE)
        elif self._desk is None and silent_s > self._limit_s and not self._has_stop:
            self._alive_s = now_s
            self._line.drop(self.coordinator, f"it coordinated, and was silent for {self._limit_s:g} s")

    def _elect(self) -> None:
        """Let the lowest rank that lives direct, where that which did is gone, and has not told all to stop."""
        if self._desk is not None or self._has_stop:
            return
        line = self._line
        gone = {**(line.left if isinstance(line, MessageLine) else who_left(line)), **line.dead, **self._words}
        if self.coordinator not in gone:
            return
        before = self.coordinator
        living = [rank for rank in range(self._line.world_size) if rank > before and rank not in gone]
        self.coordinator, self._alive_s = living[0], time.monotonic()
        if self.coordinator != self._line.rank:
            return self._elect()
        self._term = self.coordinator + 1
        words = f"rank {before}, which coordinated, has failed: {gone[before]}"
        last = None if self._last is None else self._last.state
        state, commands = c.take_over(self._first, living, state=last, term=self._term, error=words)
        self._desk = self._make_desk(state)
        self._desk.obey(commands)


def run_directed(line: AnyLine, config: c.CoordinatorConfig, body: Callable[[int, Letters], T], **desk: Any) -> T:
    """What a rank that is a process does: body(rank, letters), until the coordinator ends it.

    Args:
        line: Of this process; it is closed at the end.
        desk: Options of `ProcessLetters`.
    """
    letters = ProcessLetters(line, config, **desk)
    letters.begin()
    try:
        result = body(line.rank, letters)
    except BaseException as error:
        if letters.has_stop:
            letters.end()
        else:
            letters.fail(error)
        raise
    letters.end()
    return result


class LivingRank:
    """Where a run lives whose ranks are processes, of which this is one; see `RunsRanks`.

    Attributes:
        line, device: Of this rank.
    """

    has_all_ranks = False

    def __init__(self, line: AnyLine, device: Device) -> None:
        self.line, self.world_size, self.leader, self.timeout_s = line, line.world_size, line.rank, line.timeout_s
        self.device = device

    def common_seed(self, own: int) -> int:
        """One seed for all processes, where each has drawn its own: rank 0's, or out of what the launcher told them."""
        if isinstance(self.line, MessageLine):
            return self.line.seed_of_first(own)
        return int.from_bytes(hashlib.sha256(os.environ["MINIGRAD_AUTHKEY"].encode()).digest()[:7], "big")


def living_rank(config: RunConfig) -> LivingRank | None:
    """Where this process is one of several ranks that are to hear of each other's deaths; None else.

    Raises:
        ArgumentError: it is, and nobody would tell it of them.
    """
    comm = config.comm
    if comm is not None and comm.world_size > 1:
        if config.on_failure == "shrink":
            raise ArgumentError(
                f'{WHO}: expected on_failure="stop" with comm=, whose ranks nobody tells of deaths, got "shrink": '
                "leave comm= out under our launcher, or give ranks="
            )
        if config.timeout_s is not None:
            raise ArgumentError(f"{WHO}: expected no timeout_s with comm=, which has its own, got {config.timeout_s}")
        return _by_messages(comm)
    if config.place != "given" or detect(os.environ).world_size == 1:
        return None
    if config.on_failure == "stop" and not os.environ.get(DESCRIPTOR):
        return _by_messages(init(timeout_s=config.timeout_s))
    backend = os.environ.get("MINIGRAD_BACKEND")
    device = local_device(None, detect(os.environ), backend)
    given: dict[str, Any] = {"on_failure": config.on_failure, "device": device, "timeout_s": config.timeout_s}
    return LivingRank(lifeline_here(WHO, **given), device)


def _by_messages(comm: Communicator) -> LivingRank:
    if comm.device.type != "cpu":
        raise ArgumentError(
            f"{WHO}: expected ranks on CPUs where they are not in step, or our launcher, or devices=, got a "
            f"communicator of {comm.device}: letters are small messages of hosts"
        )
    return LivingRank(MessageLine(comm), comm.device)
