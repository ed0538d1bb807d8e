"""A world of threads whose ranks take turns; see `turns`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from minigrad.autograd.before import watching_backwards
from minigrad.distributed.comm.threads import ThreadWorld
from minigrad.distributed.comm.turns import Baton, current_turns, hand_over


class TurnedWorld(ThreadWorld):
    """A `ThreadWorld` whose ranks hand over when they post a collective, ask for one, or wait for it.

    Attributes:
        turns: In which they run; None for the world of a group, whose ranks have theirs.
    """

    turns: Baton | None = None

    def enter(self, rank: int) -> None:
        """A rank runs in the thread that calls this, when it is its turn."""
        super().enter(rank)
        if self.turns is not None:
            current_turns.set(self.turns)
            self.turns.enter(rank)

    def exit(self, rank: int) -> None:
        """The thread of a rank comes to its end, and lets the next go on."""
        super().exit(rank)
        if self.turns is not None:
            self.turns.leave()

    def post(self, rank: int, *call: Any) -> Any:
        """Add a rank's part to a collective, after others had their turn."""
        hand_over()
        return super().post(rank, *call)

    def wait(self, rank: int, call: Any) -> Any:
        """Let others go on until a collective is done; where none can, it is an error of all."""
        turns = current_turns.get()
        if turns is not None and not call.done:
            if not turns.wait_for(lambda: call.done or self.failure.error is not None):
                self.failure.set(self._timeout(call))
        return super().wait(rank, call)

    def is_done(self, call: Any) -> bool:
        """Whether a collective is done, after others had their turn."""
        hand_over()
        return super().is_done(call)


class _HandsOver:
    """Listens to backwards: a rank hands over where a gradient of its is complete."""

    def begin(self, leaves: Any) -> None:
        """Nothing is complete yet."""

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete."""
        hand_over()

    def end(self, error: BaseException | None) -> None:
        """All are."""


def handing_over(comm: Any) -> AbstractContextManager[None]:
    """Around what a rank does: it hands over where a gradient of its is complete."""
    return watching_backwards(_HandsOver())
