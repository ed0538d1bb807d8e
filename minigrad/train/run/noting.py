"""What a timeline gets of a rank that a coordinator directs: its commands, what it waits for, and its rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minigrad.distributed.comm.protocol import Clock, Communicator
from minigrad.distributed.record.modules import note_module
from minigrad.distributed.record.noted import CallNotes, NotedCommunicator
from minigrad.distributed.record.track import Track
from minigrad.train import coordinator as c
from minigrad.train.run.letters import Letters
from minigrad.train.run.rank import Worker

__all__ = ["Letters", "NotedLetters", "noted"]


class NotedLetters:
    """A rank's letters, with each command an event, the waits for them idle, and what members do together a pass.

    Args:
        letters: Of the rank.
        track: Of the timeline.
    """

    def __init__(self, letters: Letters, track: Track) -> None:
        self._letters, self._track, self._notes = letters, track, CallNotes(track, "rounds")

    def next(self, timeout_s: float | None) -> c.Order | None:
        """See `Letters`."""
        self._letters.now_s()  # in a simulation the backward is over before a rank waits
        began_s = self._track.now_s()
        with self._notes.passing():
            order = self._letters.next(timeout_s)
            if timeout_s is None or timeout_s > 0.0:
                self._notes.idled("command", began_s)
        if order is not None:
            self._track.event(type(order).__name__.lower(), reason=order.reason, round=order.round)
        return order

    def say(self, message: c.CoordinatorMessage) -> None:
        """See `Letters`."""
        self._letters.say(message)

    def regroup(self, living: Sequence[int], generation: int) -> Communicator:
        """See `Letters`."""
        return NotedCommunicator(self._letters.regroup(living, generation), self._notes)

    @contextmanager
    def together(self, members: Sequence[int]) -> Iterator[None]:
        """See `Letters`."""
        with self._letters.together(members), self._notes.passing():
            yield

    def now_s(self) -> float:
        """See `Letters`."""
        return self._letters.now_s()

    @property
    def clock(self) -> Clock:
        """See `Letters`."""
        return self._letters.clock


def noted(worker: Worker, letters: Letters) -> Letters:
    """The letters of a rank, which its timeline gets if it has one, with what its model computes."""
    if worker.timeline is None:
        return letters
    worker.end_step = note_module(worker.timeline, worker.comm, worker.model)
    return NotedLetters(letters, worker.timeline.at(worker.comm))
