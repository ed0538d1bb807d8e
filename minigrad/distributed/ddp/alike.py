"""What must be alike on all ranks beside the model: options, optimizers, schedules, loss scales.

Each pass carries one number of each rank for all of it, its mark, where it says that it still has data: a hash of the
options and of what each companion counts, such as its updates. Who loads a state gets a random mark. Where they differ
the ranks describe what they have to each other: an equal state gets one mark again, another one is refused on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from minigrad.distributed.comm.differences import check_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp import agreement
from minigrad.distributed.ddp.agreement import Description
from minigrad.distributed.ddp.layout import Layout
from minigrad.nn.companions import Companion, number_of

_MARKS = 2**52 - 1  # one more is still exact in float64
_ADVICE = "set, make or load it alike on all ranks, or hand it on with join(also=[...])"


class Alike:
    """All of that on one rank, for one wrapper.

    Args:
        layout: The parameters of the wrapper.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._index = {id(param): i for i, param in enumerate(layout.params)}
        self._options: dict[str, Any] = {}
        self._options_number = 0
        self._has_news = False  # an option was set, or something was made or is gone, since the last pass
        self._seen: list[Any] = []
        self._held: list[tuple[ref[Any], int]] = []  # the companions that count, and a number for their parameters
        self._apart: list[ref[Any]] = []  # companions of parameters that no other rank trains

    def set_option(self, name: str, value: Any) -> None:
        """Say what an option of the wrapper is from now on; None where it is not in force."""
        self._options[name] = value
        number = number_of(list(self._options.values()))
        self._has_news = self._has_news or number != self._options_number
        self._options_number = number

    def mark(self) -> float:
        """A number > 0 for all of it, exact in float64; the same on ranks where everything came about alike."""
        seen = [buffer.companions for buffer in self._layout.buffers]
        if seen != self._seen:
            self._look(seen)
        marks = []
        for held, number in self._held:
            if (companion := held()) is not None:
                marks.append((number, companion.mark()))
        marks.sort()  # a sum would not notice two that have changed places
        return 1.0 + (hash((self._options_number, *marks)) & _MARKS)

    def _look(self, seen: list[Any]) -> None:
        self._seen, self._has_news = seen, True
        found = {id(held()): held for each in seen for held in each if held() is not None and held not in self._apart}
        placed = [(held, agreement.places_of(held(), self._index)) for held in found.values()]
        self._held = [(held, number_of(places)) for held, places in placed if places != []]

    def companions(self) -> list[Companion]:
        """What counts, in the order in which it was attached, which need not be the same on all ranks."""
        return [companion for held, _ in self._held if (companion := held()) is not None]

    def end_pass(
        self, who: str, comm: Communicator, layout: str, mark: float, marks: list[float] | None, idle: bool
    ) -> None:
        """Refuse ranks that differ in any of it: here, or where the communicator finds later that they may.

        Args:
            who, idle: See `check`.
            layout: See `Communicator.end_pass`.
            mark, marks: This rank's, and those of all ranks, or None where the host does not know them.

        Raises:
            ReplicaMismatchError: on all ranks; it names the first difference.
        """
        news, self._has_news = self._has_news, False
        told = comm.end_pass(layout, mark if marks is None else None, news)
        if marks is None:
            marks = told if told is not None else comm.all_gather_object(mark)
        if marks:
            self.check(who, comm, marks, idle)

    def check(self, who: str, comm: Communicator, marks: Sequence[float], idle: bool) -> None:
        """Refuse ranks that differ in any of it; all ranks call it together.

        Args:
            who: For the message.
            marks: Of all ranks; 0 of those that have no data any more, which nobody compares.
            idle: Whether this rank had no samples.

        Raises:
            ReplicaMismatchError: on all ranks; it names the first difference.
        """
        if marks.count(max(marks)) + marks.count(0.0) >= len(marks):
            return
        found = comm.all_gather_object(self.describe(idle) if marks[comm.rank] else None)
        self.compare(f"rank {comm.rank}: {who}", {r: each for r, each in enumerate(found) if each is not None})

    def compare(self, who: str, found: dict[int, Description]) -> None:
        """Refuse descriptions that differ, of all ranks that have data; else marks are alike from now on."""
        if agreement.is_divided(found):
            self._apart += [held for held, _ in self._held if agreement.places_of(held(), self._index) is not None]
            self._seen = []
            found = {rank: agreement.without_optimizers(each) for rank, each in found.items()}
        check_alike(who, "state beside the model", found, _ADVICE, agreement.states_differ)
        for companion in self.companions():
            companion.settle(number_of(repr(found)))

    def describe(self, idle: bool) -> Description:
        """All of it in plain data; see `agreement.describe_state`."""
        return agreement.describe_state(self.companions, self._options, self._layout.names, self._index, idle)
