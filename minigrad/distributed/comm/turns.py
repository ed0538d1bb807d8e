"""Thread ranks that take turns: one runs at a time, and whose turn comes next is drawn from a seed.

A rank hands over when it calls a collective or sends a message, when it asks whether one is done, when a gradient of
its is complete, and where it has to wait. Between these nothing is handed over, so the order of everything follows from
the seed: what went wrong under one goes wrong under it again. Where no rank can go on, one of those that wait is told
at once that it has waited in vain.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from minigrad.arguments import as_integer
from minigrad.errors import CollectiveTimeoutError

Until = Callable[[], bool]
_SEEDS = 2**64


class Baton:
    """Whose turn it is, among the threads of ranks.

    Args:
        seed: Of the order, in [0, 2**64).
        world_size: Threads that take part; none begins before all are there.
        timeout_s: How long a rank may run before those that wait for their turn raise.

    Attributes:
        taken: The ranks in the order of their turns.
    """

    def __init__(self, seed: int, world_size: int, timeout_s: float) -> None:
        self._draw = random.Random(as_integer("run", "schedule", seed, 0, _SEEDS))
        self._world_size, self._timeout_s = world_size, timeout_s
        self._lock = threading.Lock()  # of what follows
        self._ranks: dict[int, int] = {}  # by thread
        self._gates: dict[int, threading.Lock] = {}  # of each rank: open once its turn has come
        self._paused: dict[int, Until | None] = {}  # ranks that wait, and until what; None: for their turn alone
        self._turn = -1
        self.taken = list[int]()

    def enter(self, rank: int) -> None:
        """This thread is a rank; it goes on when it is its turn."""
        with self._lock:
            self._ranks[threading.get_ident()] = rank
            self._gates[rank] = threading.Lock()
            self._pause_at(rank, None)
            if len(self._ranks) == self._world_size:
                self._pass_on()
        self._await(rank)

    def leave(self) -> None:
        """This thread's rank has ended, in its turn."""
        with self._lock:
            rank = self._ranks.pop(threading.get_ident(), -1)
            self._paused.pop(rank, None)
            if self._turn == rank:
                self._pass_on()

    def hand_over(self) -> None:
        """Let the next one go on, which may be the same."""
        self._pause(None)

    def wait_for(self, until: Until) -> bool:
        """Go on when something holds: False where it does not, and no rank can go on."""
        self._pause(until)
        return until()

    def _pause(self, until: Until | None) -> None:
        rank = self._ranks.get(threading.get_ident())
        if rank is None:  # a thread that is no rank
            return
        with self._lock:
            self._pause_at(rank, until)
            self._pass_on()
        self._await(rank)

    def _pause_at(self, rank: int, until: Until | None) -> None:
        self._gates[rank].acquire(blocking=False)  # open still where its turn came after it had raised of waiting
        self._paused[rank] = until

    def _pass_on(self) -> None:
        able = sorted(rank for rank, until in self._paused.items() if until is None or until())
        candidates = able or sorted(self._paused)
        self._turn = self._draw.choice(candidates) if candidates else -1
        self.taken.append(self._turn)
        if candidates:
            del self._paused[self._turn]
            self._gates[self._turn].release()

    def _await(self, rank: int) -> None:
        if not self._gates[rank].acquire(timeout=self._timeout_s):
            holder = f"rank {self._turn}, whose turn it is," if self._turn >= 0 else "all ranks"
            raise CollectiveTimeoutError(
                f"rank {rank}: schedule: expected {holder} to come to a collective within {self._timeout_s:g} s, got "
                "nothing: it computes for long, or waits for something that another rank holds while it is not its turn"
            )


current_turns: ContextVar[Baton | None] = ContextVar("minigrad_turns", default=None)
_schedule: ContextVar[int | None] = ContextVar("minigrad_schedule", default=None)
chosen_schedule = _schedule.get


def hand_over() -> None:
    """Let another rank go on, where ranks take turns."""
    turns = current_turns.get()
    if turns is not None:
        turns.hand_over()


def let_others_on(until: Until) -> bool:
    """Let others go on until something holds; False where none of them can, or where ranks take no turns."""
    turns = current_turns.get()
    return turns is not None and turns.wait_for(until)


def wait_in(changed: threading.Condition, until: Until, timeout_s: float) -> bool:
    """`Condition.wait_for` of a condition that is held; where ranks take turns, in turn, and without it meanwhile."""
    turns = current_turns.get()
    if turns is None:
        return changed.wait_for(until, timeout_s)
    changed.release()
    try:
        return turns.wait_for(until)
    finally:
        changed.acquire()


def patience(timeout_s: float) -> str:
    """How long was waited, for a message: so many seconds or, where ranks take turns, as long as one could go on."""
    return f"within {timeout_s:g} s" if current_turns.get() is None else "before no rank can go on"


@contextlib.contextmanager
def scheduled(seed: int) -> Iterator[None]:
    """Let the ranks of every `run` inside the block take turns by this seed, where it names none itself.

    Args:
        seed: In [0, 2**64).
    """
    token = _schedule.set(as_integer("scheduled", "seed", seed, 0, _SEEDS))
    try:
        yield
    finally:
        _schedule.reset(token)
