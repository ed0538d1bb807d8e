"""The picture of lesson 18: the call at which ranks part, for each kind of fault, and what minigrad says of it."""

from __future__ import annotations

import re

from minigrad.course.drawing import Cell, grid
from minigrad.course.lesson18_hangs.checks import KINDS, recorded


def picture() -> str:
    """A row for each kind, the ranks' calls at the number at which they part."""
    cells = [_row(kind) for kind in KINDS]
    columns = ["rank 0", "rank 1", "rank 2", "minigrad's report"]
    return grid("The first call that is not one call", [f'"{kind}"' for kind in KINDS], columns, cells)


def _row(kind: str) -> list[Cell]:
    ranks, report = recorded(kind)
    assert report is not None
    calls = [{number: (what, line) for number, what, line in rank["calls"]} for rank in ranks]
    number = next(n for n in calls[0] if len({each.get(n, ("", ""))[0] for each in calls}) > 1)
    row: list[Cell] = []
    for rank, made in zip(ranks, calls):
        if number in made:
            what, line = made[number]
            text = f"{re.sub(r'[(].*?[)]| float64', '', what)}, line {line.rpartition(':')[2]}"
            row.append((text, "the call of most ranks" if made[number][0] == calls[0][number][0] else "another call"))
        else:
            row.append((f"none, {rank['gone']}" if rank["gone"] else "none", "no call"))
    found = report.diagnosis
    return [*row, f"{found.kind}: rank {', '.join(map(str, found.ranks))}"]
