"""Why a world makes no more calls, said once for all kinds of worlds."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, DistributedError, RankFailedError

ERRORS: dict[str, type[DistributedError]] = {  # of errors that ranks tell each other of
    kind.__name__: kind
    for kind in (DistributedError, RankFailedError, CollectiveTimeoutError, CollectiveMismatchError)
}


class Failure:
    """What made a world fail, if anything did: the first failure wins, and every later call raises it.

    Attributes:
        error: It, or that this rank has closed its communicator; None while calls may be made.
        is_closed: Whether it is the latter, which is no failure.
        changed: Notified when it comes; those who wait for other ranks wait on it.
        has_raised: Whether it was raised here.
        inherited: Whether this process is a child of the one that made it, by a fork.
        group: Of which group of ranks it is, in words; empty where all are in.
        look: Looks at all ranks for the report of an error; None where nobody can.
    """

    def __init__(self) -> None:
        self.error: DistributedError | None = None
        self.changed = threading.Condition()
        self.is_closed = self.has_raised = self.inherited = False
        self.group = ""
        self.look: Callable[[DistributedError], Any] | None = None
        self._looking = threading.RLock()
        self._below = weakref.WeakSet[Failure]()
        tell_children(self)

    def set(self, error: DistributedError) -> bool:
        """Fail for good; whether this is the first failure."""
        with self.changed:
            first = self.error is None
            if first:
                self.error = error
            self.changed.notify_all()
            below = list(self._below) if first else []
        for each in below:
            each.look = self._look_above  # its ranks are not what has failed
            each.set(_from_above(error))
        return first

    def passes_to(self, below: Failure, group: str) -> None:
        """Fail a group too where this world fails."""
        with self.changed:
            below.group = group
            self._below.add(below)
            error = self.error
        if error is not None:
            below.look = self._look_above
            below.set(_from_above(error))

    def close(self) -> None:
        """Let every later call say that this rank has closed its communicator, where nothing has failed before."""
        with self.changed:
            self.is_closed = self.set(RankFailedError("the communicator was closed")) or self.is_closed

    def raise_on(self, rank: int) -> None:
        """Raise what made this world fail, if anything did."""
        if self.error is not None:
            self.has_raised = True
            self._report(self.error)
            of = f" of {self.group}" if self.group and self.group not in str(self.error) else ""
            raise retold(self.error, f"rank {rank}{of}: {self.error}") from self.error.__cause__

    def _report(self, error: DistributedError) -> None:
        """Let the error have a report, once; what comes in between does not take the error's place."""
        with self._looking:  # other threads of this failure, whose errors have it too, wait for it
            look, self.look = self.look, None
            if look is None or self.is_closed or self.inherited or error.report is not None:
                return
            try:
                error.report = look(error)
            except Exception as problem:
                error.report = f"no report of the ranks: {problem!r}"

    def _look_above(self, passed_on: DistributedError) -> Any:
        """The report of a group that fails since this world has."""
        if self.error is None:
            return None
        self._report(self.error)
        return self.error.report

    def check_process(self, rank: int) -> None:
        """Refuse a child of a fork, also where no call is made.

        Raises:
            DistributedError: this process is one.
        """
        if self.inherited:
            self.raise_on(rank)

    def forked(self) -> None:
        """See `Inherited`: the other ranks talk to the parent alone."""
        self.changed, self._looking = threading.Condition(), threading.RLock()  # others may have held the old ones
        self.error, self.inherited = in_a_child(), True


def _from_above(error: DistributedError) -> DistributedError:
    """What a group fails of where the world that it is of has failed."""
    passed_on = retold(error, f"the ranks that it was split off have failed: {error}")
    passed_on.__cause__ = error.__cause__
    return passed_on


def retold(error: DistributedError, message: str) -> DistributedError:
    """The same error in other words, with its report, which Python shows under a traceback."""
    told = type(error)(message)
    told.report, told.buckets = error.report, error.buckets
    if told.report is not None and hasattr(told, "add_note"):
        told.add_note(str(told.report))
    return told
