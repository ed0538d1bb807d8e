"""A communicator that notes what a student's code calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.distributed import Communicator, Recording
from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.comm.wrappers import Call, Make


class Counting(Recording):
    """Notes each call."""

    @property
    def kinds(self) -> list[str]:
        """The kind of each call."""
        return [call.kind for call in self.calls]

    @property
    def handed_in_bytes(self) -> int:
        """What this rank has handed in."""
        return sum(call.nbytes for call in self.calls)


class Awaited(Counting):
    """Notes each collective, and whether the caller waited for it."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._works: list[tuple[str, _Work]] = []

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Note it, make it, and watch its work."""
        made = super().around(call, arrays, make)
        if not hasattr(made, "wait"):
            return made
        work = _Work(made)
        self._works.append((call.kind, work))
        return work

    @property
    def not_awaited(self) -> str:
        """The kinds of those whose work the caller has left alone, with how many; empty where there are none."""
        return ", ".join(f"{many} {kind}" for kind, many in Counter(k for k, w in self._works if not w.is_over).items())


class _Work(WorkAround):
    """Tells whether somebody waited for it."""

    is_over = False

    def done(self) -> bool:
        """Whether the result is there."""
        self.is_over = super().done()
        return self.is_over

    def wait(self, host: bool = False) -> None:
        """Wait for it."""
        super().wait(host)
        self.is_over = True
