"""The report of a hang: the last calls of all ranks side by side, and which rank has to do what."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.sightings import Sighting, listed
from minigrad.distributed.comm.diagnosis import Diagnosis, first_difference, diagnose

_WIDEST, _END, _MOST_COLUMNS, _MOST_FRAMES = 58, 24, 4, 6


@dataclass(frozen=True)
class HangReport:
    """The last calls of the ranks of a world that has failed, side by side, and which rank has to do what.

    `error.report` of a CollectiveTimeoutError, CollectiveMismatchError or RankFailedError is one; it prints itself, and
    stands under the traceback of an error that nobody catches (from Python 3.11).

    Attributes:
        seen: What is seen of each rank.
        error: What made the world fail, in words.

    Example:
        >>> calls = Made(0, "all_reduce(SUM) of 3 float32", "a.py:3 in f"), Made(1, "barrier", "a.py:4 in f")
        >>> report = HangReport((Sighting(0, calls), Sighting(1, calls[1:])))
        >>> report.diagnosis.kind
        'late'
    """

    seen: tuple[Sighting, ...]
    error: str = ""

    @property
    def diagnosis(self) -> Diagnosis:
        """Which rank has to do what."""
        return diagnose(self.seen, self.error)

    @property
    def seq(self) -> int:
        """The number of the first call that not all ranks have made; -1 for none."""
        return first_difference(self.seen)

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        kind, _, _, what, remedy = self.diagnosis
        return "\n".join([f"hang ({kind}): {what}", f"to do: {remedy}", *self.table(), *self._places()])

    def table(self, before: int = 4, after: int = 4) -> list[str]:
        """The calls of all ranks in lines, aligned by number, with > where they differ first.

        Args:
            before, after: How many calls are shown before that, and from there on.
        """
        columns, seq = _columns(self.seen), self.seq
        last = max([number for _, calls in columns for number in calls], default=-1)
        middle = seq if seq >= 0 else last + 1
        rows: list[tuple[str, list[str]]] = [("call", [listed(ranks) for ranks, _ in columns])]
        for number in range(max(0, middle - before), min(last, middle + after - 1) + 1):
            made = [_cell(calls.get(number)) for _, calls in columns]
            rows.append((f"> {number}" if number == seq else str(number), [what for what, _ in made]))
            rows.append(("", [line for _, line in made]))
        widths = [max([len(cells[i]) for _, cells in rows]) for i in range(len(columns))]
        lines = []
        for head, cells in rows:
            padded = " | ".join([f"{cell:<{width}}" for cell, width in zip(cells, widths)])
            lines.append(f"{head:>8}  {padded}".rstrip(" |"))
        return lines

    def _places(self) -> list[str]:
        """Where ranks are that have not made the call."""
        seq = self.seq
        lines = list[str]()
        for each in self.seen:
            said = [each.gone, each.elsewhere and f"waits in {each.elsewhere}", each.unseen]
            if seq not in each.numbered and each.stack:
                more = len(each.stack) - _MOST_FRAMES
                frames = " < ".join(each.stack[:_MOST_FRAMES])
                said.append(f"is at {frames}{f' and {more} more' if more > 0 else ''}")
            if any(said):
                lines.append(f"  rank {each.rank} {'; '.join(filter(None, said))}")
        return lines

    def to_json(self) -> str:
        """It as text, which `from_json` reads."""
        return json.dumps({"seen": [each.plain() for each in self.seen], "error": self.error})

    @staticmethod
    def from_json(text: str) -> HangReport:
        """What `to_json` made text of."""
        data = json.loads(text)
        return HangReport(tuple(Sighting.of_plain(each) for each in data["seen"]), data["error"])


def _columns(seen: Sequence[Sighting]) -> list[tuple[list[int], dict[int, Made]]]:
    """Ranks with the same calls share one; where there are many the first are shown, and the shortest."""
    columns: dict[tuple[Made, ...], list[int]] = {}
    for each in seen:
        columns.setdefault(tuple(each.numbered.values()), []).append(each.rank)
    kept = sorted(columns, key=len)[: _MOST_COLUMNS - 1] + list(columns)[:1]
    return [(ranks, {made.seq: made for made in calls}) for calls, ranks in columns.items() if calls in kept]


def _cell(made: Made | None) -> tuple[str, str]:
    """A call, and under it its line, without the folders."""
    if made is None:
        return "-", ""
    return _cut(made.what), _cut(f"  {made.line.rpartition(os.sep)[2]}")


def _cut(text: str) -> str:
    """Without its middle where it is long: which plan a bucket is of says less than its number and its array do."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - _END - 5]} ... {text[-_END:]}"
