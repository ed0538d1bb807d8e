"""The logbook of one pass: notes of what it sends and waits for, on its rank's clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.ddp.account import Account, Note, Spans, account_of
from minigrad.distributed.ddp.stats import Stats


class Logbook:
    """Takes the notes of one pass.

    Attributes:
        calls, waits: So far.
        handed: Of each call its kind, and the bytes that this rank handed in; None of the sum of the samples.
        sent: Collectives so far, and nbytes: what this rank handed in to them; the sum of the samples is in neither.
        others: What passes of other wrappers, which run in the same backward and are over, came to.
    """

    def __init__(self, clock: Clock) -> None:
        self.now_s = clock.now_s
        self._calls_take_time = isinstance(clock, HostClock)  # in a simulation it is computing that passes in them
        self.sent = self.nbytes = 0
        self.others: list[Account] = []
        self.calls: list[Note] = []
        self.handed: list[tuple[str, int | None]] = []
        self.waits: list[Note] = []
        self._spans: Spans = {}  # by id of what came back: some know it only for a while

    def called(self, work: Any, began_s: float, nbytes: int | None = None, kind: str = "all_reduce") -> None:
        """A collective was called: just now, since began_s."""
        self.calls.append((work, began_s, self.now_s()))
        self.handed.append((kind, nbytes))
        if nbytes is not None:
            self.sent += 1
            self.nbytes += nbytes

    def waited(self, work: Any, began_s: float) -> None:
        """A wait for it is over: just now, since began_s."""
        self.waits.append((work, began_s, self.now_s()))
        self._spans[id(work)] = work.span

    def wait(self, work: Any, host: bool = False) -> None:
        """Wait for it."""
        began_s = self.now_s()
        work.wait(host)
        self.waited(work, began_s)

    def done(self, work: Any) -> bool:
        """Whether it is over; a look that finds it so may have made time pass, in a simulation."""
        began_s = self.now_s()
        done: bool = work.done()
        if done:
            self.waited(work, began_s)
        return done

    def account(self) -> Account:
        """What it comes to, once all is over."""
        return account_of(self.calls, self.waits, self._spans, self.others, self._calls_take_time)

    def add_to(self, stats: Stats, began_s: float, over_s: float, company: Iterable[Logbook]) -> Account:
        """Add what the pass took to the statistics: from when it began until there was nothing to do but wait.

        Args:
            company: Of passes of other wrappers that end after this one.
        """
        account = self.account()
        stats.idle_s += account.idle_s
        stats.exposed_s += account.exposed_s
        stats.hidden_s += account.hidden_s
        stats.backward_s -= self._blocked_s(account, began_s, over_s)
        for other in company:
            other.others.append(account)
        return account

    def _blocked_s(self, account: Account, first_s: float, last_s: float) -> float:
        """How long the rank stood still between two moments, for this pass or for others."""
        blocked_s = 0.0
        for each in (account, *self.others):
            for began_s, ended_s in each.blocked:
                blocked_s += max(0.0, min(ended_s, last_s) - max(began_s, first_s))
        return blocked_s
