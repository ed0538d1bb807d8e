"""A schedule as text: who holds which partial sums, round by round."""

from __future__ import annotations

from minigrad.distributed.algorithms.schedule import CollectiveSchedule, spelled


def draw(schedule: CollectiveSchedule) -> str:
    """A table for each round: a line for each rank, a column for each part of the array, in it whose arrays it adds up.

    Below it stand the messages of the next round.

    Example:
        >>> from minigrad.distributed.algorithms import ring
        >>> print(draw(ring(2)))
        ring, 2 ranks, 2 parts
        at first
          rank 0  0    0
          rank 1  1    1
        round 1: 0 > 1 part 0, 1 > 0 part 1
          rank 0  0    0-1
          rank 1  0-1  1
        round 2: 0 > 1 part 1, 1 > 0 part 0
          rank 0  0-1  0-1
          rank 1  0-1  0-1
    """
    lines = [f"{schedule.name}, {schedule.world_size} ranks, {schedule.cells} parts"]
    history = [[[spelled(terms) for terms in cells] for cells in ranks] for ranks in schedule.held()]
    width = max(len(text) for ranks in history for cells in ranks for text in cells)
    digits = len(str(schedule.world_size - 1))
    for number, ranks in enumerate(history):
        lines.append(f"round {number}: {_messages(schedule, number - 1)}" if number else "at first")
        for rank, cells in enumerate(ranks):
            lines.append(f"  rank {rank:{digits}}  " + "  ".join(text.ljust(width) for text in cells).rstrip())
    return "\n".join(lines)


def _messages(schedule: CollectiveSchedule, number: int) -> str:
    found = []
    for source, target, (first, stop, of), _ in schedule.rounds[number]:
        each = schedule.cells // of
        parts = f"part {first * each}" if (stop - first) * each == 1 else f"parts {first * each}-{stop * each - 1}"
        found.append(f"{source} > {target} {parts}")
    return ", ".join(found)
