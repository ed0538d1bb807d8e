"""The coordinator's side of a run whose ranks are not in step: one letter at a time into the state machine.

It decides nothing: `coordinator.step` does. Here its commands are sent, and the times of its deadlines are told.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from minigrad.distributed.living.lifeline import Death, Letter
from minigrad.train.coordinator.journal import CoordinatorJournal
from minigrad.train.coordinator.machine import step
from minigrad.train.coordinator.messages import (
    Await,
    Began,
    Command,
    CoordinatorMessage,
    Drop,
    Expired,
    Failed,
    Noted,
    Order,
    Restore,
    Save,
    Stop,
    StopAsked,
    from_data,
    to_data,
)
from minigrad.train.coordinator.state import Coordinator
from minigrad.train.run.letters import Line

Event = Callable[[Command], None]
_LONG_S = 60.0


class Desk:
    """HearsCommits what ranks tell, and commands them.

    Args:
        state: Before the first message.
        line: Brings letters, and tells of deaths.
        now_s: The time that deadlines are of.
        drop: drop(rank, reason) sees that a rank has ended which did not come in time.
        break_off: break_off(order) ends what its rank is waiting in, where no thread of that rank would.
        event: Is told each command.
        lost: lost(rank, error) is told of each rank that has failed or is dropped.
        wishes: Says why the run is to end, as soon as somebody wants that; empty else.
        most_rounds: After so many it ends; None for no end but that of the epochs.
        longest_s: How long `wishes` is not asked at most.
        journal: Is told each message, and what it led to.

    Attributes:
        state: Of the coordinator.
    """

    def __init__(
        self,
        state: Coordinator,
        line: Line,
        now_s: Callable[[], float],
        *,
        drop: Callable[[int, str], None],
        break_off: Callable[[Order], None] | None = None,
        event: Event | None = None,
        lost: Callable[[int, str], None] | None = None,
        wishes: Callable[[], str] | None = None,
        most_rounds: int | None = None,
        longest_s: float = _LONG_S,
        journal: CoordinatorJournal | None = None,
    ) -> None:
        self.state = state
        self._line, self._now_s, self._drop, self._break_off = line, now_s, drop, break_off
        self._event, self._lost, self._journal = event, lost, journal
        self._wishes, self._most_rounds, self._longest_s = wishes, most_rounds, longest_s
        self._timers: list[tuple[float, int, int]] = []  # when, and the term and number of each

    def run(self, first: Sequence[CoordinatorMessage] = (Began(),)) -> Coordinator:
        """Hear all that comes until the run is over; the last state."""
        for message in first:
            self.hear(message)
        while not self.state.is_over:
            found = self._line.take(self.patience_s())
            if isinstance(found, Death):
                self.hear(Failed(found.rank, found.error))
            elif isinstance(found, Letter):
                self.hear(from_data(found.data))
            self.tick()
        return self.state

    def tick(self) -> None:
        """Tell of all times that are over; end where somebody wants that, or enough rounds are made."""
        self.expire()
        why = self._wishes() if self._wishes is not None else ""
        if self._most_rounds is not None and self.state.committed >= self._most_rounds:
            why, self._most_rounds = f"{self._most_rounds} steps are made", None
        if why and not self.state.is_over:
            self._wishes = None
            self.hear(StopAsked(why))

    def hear(self, message: CoordinatorMessage) -> None:
        """Take in one message, and obey what it leads to."""
        living = self.state.living
        self.state, commands = step(self.state, message)
        if self._journal is not None:
            self._journal.stepped(message, commands)
        self.obey(commands)
        if self._lost is not None:
            lost = [each for each in (message, *commands) if isinstance(each, (Failed, Drop)) and each.rank in living]
            for each in lost:
                self._lost(each.rank, each.error if isinstance(each, Failed) else each.reason)

    def obey(self, commands: Sequence[Command]) -> None:
        """Do what was commanded, in this order."""
        for command in commands:
            if self._event is not None:
                self._event(command)
            if isinstance(command, Await):
                heapq.heappush(self._timers, (self._now_s() + command.seconds, command.term, command.timer))
            elif isinstance(command, Drop):
                self._drop(command.rank, command.reason)
            elif isinstance(command, Order):
                self._line.post(command.rank, to_data(command))
                if self._break_off is not None and isinstance(command, (Restore, Save, Stop)):
                    self._break_off(command)
            else:
                assert isinstance(command, Noted), command

    def expire(self) -> None:
        """Tell of all times that are over."""
        while self._timers and self._timers[0][0] <= self._now_s() and not self.state.is_over:
            _, term, timer = heapq.heappop(self._timers)
            self.hear(Expired(term, timer))

    def patience_s(self) -> float:
        """How long nothing has to be told, if no letter comes."""
        self._forget()
        return min(self._longest_s, max(0.0, self._timers[0][0] - self._now_s())) if self._timers else self._longest_s

    def _forget(self) -> None:
        """Leave out the times of questions that were answered; they would only be noted."""
        opened = {(self.state.term, each.timer) for each in self.state.questions}
        if any(timer[1:] not in opened for timer in self._timers[:1]):
            self._timers = [timer for timer in self._timers if timer[1:] in opened]
            heapq.heapify(self._timers)
