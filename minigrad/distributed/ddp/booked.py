"""A communicator that books what is sent through it: for comm hooks, and others that send what they like in a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.base import Communicator, Work, span_of, weighted_all_reduce
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.distributed.ddp.ledger import Ledger, Stretch


class Booked(Wrapper):
    """A communicator whose calls and waits stand in the ledger of the pass under way, where there is one.

    Attributes:
        ledger: That of the pass, or None.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self.ledger: Ledger | None = None

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Make the call, and book it."""
        return self._booked(call.nbytes, make)

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Weight and sum as the inner communicator does."""
        work: Work = self._booked(array.nbytes, lambda: weighted_all_reduce(self.inner, array, weight, layout))
        return work

    def _booked(self, nbytes: int, make: Make) -> Any:
        ledger = self.ledger
        if ledger is None:
            return make()
        began_s = ledger.now_s()
        result = make()
        ledger.called(result, began_s, nbytes)
        return _BookedWork(result, ledger) if hasattr(result, "wait") else result


class _BookedWork:
    """A collective under way whose waits are booked."""

    __slots__ = ("_work", "_ledger")

    def __init__(self, work: Work, ledger: Ledger) -> None:
        self._work, self._ledger = work, ledger

    @property
    def span(self) -> Stretch | None:
        """See `span_of`."""
        return span_of(self._work)

    def done(self) -> bool:
        """Whether the result is there."""
        return self._ledger.done(self._work)

    def wait(self, host: bool = False) -> None:
        """Wait, and book it."""
        self._ledger.wait(self._work, host)
