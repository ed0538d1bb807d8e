"""A schedule as text: who holds which partial sums, round by round."""

from __future__ import annotations

from minigrad.distributed.algorithms.play import check_schedule
from minigrad.distributed.algorithms.schedule import CollectiveSchedule, spelled


def draw(schedule: CollectiveSchedule) -> str:
    """A table for each round: a line for each rank, a column for each part of the array, in it whose arrays it adds up.

    Above it stand the messages of the round. `python -m minigrad.distributed.inspect schedule ring 4` draws a page.

    Raises:
        ArgumentError: it is no schedule.

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
    check_schedule("draw", schedule)
    lines = [f"{schedule.name}, {schedule.world_size} ranks, {schedule.cells} parts"]
    history = spelled_states(schedule)
    width = max(len(text) for ranks in history for cells in ranks for text in cells)
    digits = len(str(schedule.world_size - 1))
    for number, ranks in enumerate(history):
        lines.append(f"round {number}: {messages_of(schedule, number)}" if number else "at first")
        for rank, cells in enumerate(ranks):
            lines.append(f"  rank {rank:{digits}}  " + "  ".join(text.ljust(width) for text in cells).rstrip())
    return "\n".join(lines)


def spelled_states(schedule: CollectiveSchedule) -> list[list[list[str]]]:
    """Whose arrays each rank has added up in each part, before the first round and after each: [round][rank][part]."""
    return [[[spelled(terms) for terms in cells] for cells in ranks] for ranks in schedule.held()]


def messages_of(schedule: CollectiveSchedule, number: int) -> str:
    """What travels in a round, of which the first is 1, in words."""
    transfers = schedule.rounds[number - 1]
    return ", ".join(f"{source} > {target} {named(schedule.parts_of(chunk))}" for source, target, chunk, _ in transfers)


def named(parts: range) -> str:
    """Parts in words.

    Example:
        >>> named(range(2, 3)), named(range(2, 5))
        ('part 2', 'parts 2-4')
    """
    if len(parts) < 2:
        return f"part {parts[0]}" if parts else "no part"
    return f"parts {parts[0]}-{parts[-1]}"
