"""Why a world makes no more calls, said once for all kinds of worlds."""

from __future__ import annotations

import threading

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
    """

    def __init__(self) -> None:
        self.error: DistributedError | None = None
        self.changed = threading.Condition()
        self.is_closed = self.has_raised = self.inherited = False
        tell_children(self)

    def set(self, error: DistributedError) -> bool:
        """Fail for good; whether this is the first failure."""
        with self.changed:
            first = self.error is None
            if first:
                self.error = error
            self.changed.notify_all()
        return first

    def close(self) -> None:
        """Let every later call say that this rank has closed its communicator, where nothing has failed before."""
        with self.changed:
            self.is_closed = self.set(RankFailedError("the communicator was closed")) or self.is_closed

    def raise_on(self, rank: int) -> None:
        """Raise what made this world fail, if anything did."""
        if self.error is not None:
            self.has_raised = True
            raise type(self.error)(f"rank {rank}: {self.error}") from self.error.__cause__

    def check_process(self, rank: int) -> None:
        """Refuse a child of a fork, also where no call is made.

        Raises:
            DistributedError: this process is one.
        """
        if self.inherited:
            self.raise_on(rank)

    def forked(self) -> None:
        """See `Inherited`: the other ranks talk to the parent alone."""
        self.changed = threading.Condition()  # another thread may have held the old one
        self.error, self.inherited = in_a_child(), True
