"""Thread ranks whose interleaving is drawn from a seed: one of them runs at a time, so that a run can be repeated."""

import threading

import numpy as np

from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.comm.wrappers import Wrapper

STUCK_S = 10.0
MOST_TURNS = 100_000


class Turns:
    """Who runs: at each `turn` the running rank stops, and one of those that have not left is drawn to go on."""

    def __init__(self, world_size, seed):
        self._changed = threading.Condition()
        self._rng = np.random.default_rng(seed)
        self._ranks = list(range(world_size))
        self._arrived = set()
        self._running = None
        self.order = []

    def enter(self, rank):
        """Start to take part; nobody runs before all have entered."""
        with self._changed:
            self._arrived.add(rank)
            if len(self._arrived) == len(self._ranks):
                self._draw()
            self._wait_for(rank)

    def turn(self, rank):
        """Let the drawn rank run, maybe the same; of no effect before `enter`."""
        with self._changed:
            if rank not in self._arrived:
                return
            self._draw()
            self._wait_for(rank)

    def leave(self, rank):
        """Take part no more."""
        with self._changed:
            self._ranks.remove(rank)
            self._arrived.discard(rank)
            self._draw()

    def _draw(self):
        self._running = int(self._rng.choice(self._ranks)) if self._ranks else None
        self.order.append(self._running)
        self._changed.notify_all()

    def _wait_for(self, rank):
        if not self._changed.wait_for(lambda: self._running == rank, STUCK_S):
            raise TimeoutError(f"rank {rank}: it is never drawn")


class TurnTaking(Wrapper):
    """Passes the turn on before each collective, at each look whether one is over, and while it waits."""

    def __init__(self, comm, turns):
        super().__init__(comm)
        self._turns = turns

    def around(self, call, arrays, make):
        self._turns.turn(self.rank)
        return _TurnTakingWork(make(), self.rank, self._turns) if arrays else make()


class _TurnTakingWork(WorkAround):
    def __init__(self, work, rank, turns):
        super().__init__(work)
        self._rank, self._turns = rank, turns

    def done(self):
        self._turns.turn(self._rank)
        return self.inner.done()

    def wait(self, host=False):
        for _ in range(MOST_TURNS):  # a rank that failed leaves, and the others end by what this wait then raises
            if self.inner.done():
                break
            self._turns.turn(self._rank)
        self.inner.wait(host)
