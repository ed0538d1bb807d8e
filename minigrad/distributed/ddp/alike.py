"""What must be alike on all ranks beside the model: options, optimizers, schedules, loss scales.

Each pass carries one number of each rank for all of it, in the place where the rank says that it still has data. Only
where these differ, as they do once somebody has loaded a state, the ranks describe what they have to each other.
"""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Sequence
from typing import Any
from weakref import ref

from minigrad.arguments import is_number
from minigrad.backend.device import to_host
from minigrad.distributed.comm.base import Communicator
from minigrad.distributed.comm.headers import end_pass
from minigrad.distributed.ddp.layout import Layout
from minigrad.distributed.record.fingerprint import fingerprint
from minigrad.errors import ReplicaMismatchError
from minigrad.nn.companions import Companion, number_of
from minigrad.optim.optimizer import Optimizer
from minigrad.tensor import Tensor

_MARKS = 2**52 - 1  # one more is still exact in float64
_ADVICE = "set, make or load it alike on all ranks, or hand it on with join(also=[...])"
Facts = list[list[str]]  # [what, how it is]
Description = dict[str, Any]  # plain data: "idle", "options" and "companions", each of these [class, parameters, facts]


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
            companion = held()
            if companion is not None:
                marks.append((number, companion.mark()))
        marks.sort()  # a sum would not notice two that have changed places
        return 1.0 + (hash((self._options_number, *marks)) & _MARKS)

    def _look(self, seen: list[Any]) -> None:
        self._seen, self._has_news = seen, True
        apart = {id(held()) for held in self._apart}
        found = {id(held()): held for each in seen for held in each if held() is not None}
        placed = [(held, self.places(held())) for key, held in found.items() if key not in apart]
        self._held = [(held, number_of(places)) for held, places in placed if places != []]

    def companions(self) -> list[Companion]:
        """What counts, in the order in which it was attached, which need not be the same on all ranks."""
        return [companion for held, _ in self._held if (companion := held()) is not None]

    def places(self, companion: Any) -> list[int] | None:
        """The numbers of the parameters that an optimizer, or the optimizer of a schedule, has; None for others."""
        optimizer = getattr(companion, "optimizer", companion)
        if not isinstance(optimizer, Optimizer):
            return None
        return sorted(self._index[id(param)] for param in optimizer.params() if id(param) in self._index)

    def end_pass(
        self, who: str, comm: Communicator, layout: str, mark: float, marks: list[float] | None, idle: bool
    ) -> None:
        """Refuse ranks that differ in any of it: here, or where the communicator finds later that they may.

        Args:
            who, idle: See `check`.
            layout: See `comm.headers.end_pass`.
            mark, marks: This rank's, and those of all ranks, or None where the host does not know them.

        Raises:
            ReplicaMismatchError: on all ranks; it names the first difference.
        """
        news, self._has_news = self._has_news, False
        told = end_pass(comm, layout, mark if marks is None else None, news)
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
        if _is_divided(found):
            self._apart += [held for held, _ in self._held if self.places(held()) is not None]
            self._seen = []
            found = {rank: _without_optimizers(each) for rank, each in found.items()}
        first, *others = found
        for rank in others:
            words = _difference(first, found[first], rank, found[rank])
            if words:
                raise ReplicaMismatchError(
                    f"{who}: expected all ranks to be alike beside the model too, got {words}: {_ADVICE}"
                )
        number = zlib.crc32(json.dumps(list(found.values())).encode())
        for companion in self.companions():
            companion.settle(number)

    def describe(self, idle: bool) -> Description:
        """All of it in plain data; waits for devices. What was replaced and nobody holds any more is gone by then.

        Args:
            idle: Whether this rank had no samples, and so may not have used all that it has.
        """
        kinds = [_kind(each) for each in self.companions()]
        if len(set(kinds)) < len(kinds):
            gc.collect()
        companions = [[_kind(each), self.places(each), self._facts(each)] for each in self.companions()]
        return {"idle": idle, "options": _facts(self._options), "companions": companions}

    def _facts(self, companion: Companion) -> Facts:
        if not isinstance(companion, Optimizer):
            return _facts(companion.state_dict())
        names = self._layout.names
        facts = [["class", companion.name], ["master_weights", str(companion.master_weights)]]
        facts += [["parameters", ", ".join(names[i] for i in self.places(companion) or [])]]
        for i, group in enumerate(companion.param_groups):
            of = "" if len(companion.param_groups) == 1 else f" of group {i}"
            facts += [[name + of, _said(group[name])] for name in companion.defaults]
        state = companion.state_dict()["state"]
        for i, param in enumerate(companion.params()):
            place = self._index.get(id(param))
            name = names[place] if place is not None else f"parameter {i}"
            facts += [[f"{key} of {name}", said] for key, said in _facts(state.get(i, {}))]
        return facts


def check_alike(who: str, replicas: Sequence[Alike]) -> None:
    """Refuse replicas of one process that differ in what must be alike beside the model.

    A loss scale that serves several of them need not have met all of them yet.

    Raises:
        ReplicaMismatchError: it names the first difference.
    """
    marks = [each.mark() for each in replicas]
    if marks.count(marks[0]) == len(marks):
        return
    scales = {id(c) for each in replicas for c in each.companions() if each.places(c) is None}
    found = {rank: each.describe(idle=len(scales) == 1) for rank, each in enumerate(replicas)}
    for each in replicas:
        each.compare(who, found)


def _kind(companion: Companion) -> str:
    return "optimizer" if isinstance(companion, Optimizer) else type(companion).__name__


def _facts(state: dict[str, Any]) -> Facts:
    return [[name, _said(value)] for name, value in state.items()]


def _said(value: Any) -> str:
    """A value in words that are the same where it is; of an array a fingerprint."""
    data = value.data if isinstance(value, Tensor) else value
    if isinstance(value, Tensor):
        return f"an array of fingerprint {int(to_host(fingerprint(data))):016x}"
    if isinstance(data, (list, tuple)):
        return f"[{', '.join(map(_said, data))}]"
    if is_number(data) and not isinstance(data, bool):
        number = float(data)
        return str(int(number)) if number.is_integer() else repr(number)
    return repr(data)


def _is_divided(found: dict[int, Description]) -> bool:
    """Whether the optimizers of each rank have parameters that those of no other have."""
    owned = [
        {place for _, places, _ in each["companions"] if places is not None for place in places}
        for each in found.values()
    ]
    return sum(map(len, owned)) == len(set[int]().union(*owned))


def _without_optimizers(description: Description) -> Description:
    kept = [each for each in description["companions"] if each[1] is None]
    return {**description, "companions": kept}


def _difference(mine: int, my: Description, theirs: int, their: Description) -> str:
    """What differs first between two ranks, in words; empty where nothing does."""
    words = _first_fact("", *_in_both(my["options"], their["options"]), mine, theirs)
    kinds = dict.fromkeys(kind for kind, _, _ in (*my["companions"], *their["companions"]))
    for kind in kinds:
        ours, others = (_facts_of(kind, each) for each in (my, their))
        for a, b in zip(ours, others):
            label = f"{dict(a).get('class', kind)}: " if dict(a).get("class") == dict(b).get("class") else f"{kind}: "
            words = words or _first_fact(label, a, b, mine, theirs)
        missing = my["idle"] if len(ours) < len(others) else their["idle"]
        if len(ours) != len(others) and not (kind != "optimizer" and missing):
            words = words or f"{len(ours)} {kind} on rank {mine} and {len(others)} on rank {theirs}"
    return words


def _facts_of(kind: str, description: Description) -> list[Facts]:
    """Of each companion of a kind, in an order that does not depend on when it was made."""
    found = sorted([places or [], facts] for k, places, facts in description["companions"] if k == kind)
    return [facts for _, facts in found]


def _in_both(my: Facts, their: Facts) -> tuple[Facts, Facts]:
    """The facts of what both have: an option that is in force on one rank only is said to be None on the others."""
    return [fact for fact in my if fact[0] in dict(their)], [fact for fact in their if fact[0] in dict(my)]


def _first_fact(label: str, my: Facts, their: Facts, mine: int, theirs: int) -> str:
    ours, others = dict(my), dict(their)
    for name in [*ours, *others]:
        if ours.get(name) != others.get(name):
            return (
                f"{label}{name} is {ours.get(name, 'missing')} on rank {mine} and "
                f"{others.get(name, 'missing')} on rank {theirs}"
            )
    return ""
