"""What is seen of the ranks of a world that has failed: their last calls, where they are, and why some are not seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minigrad.distributed.comm.calls import Made

DIED = "is gone"  # how the words of it begin, of a process


@dataclass(frozen=True)
class Sighting:
    """One rank of a world that has failed, as another one, or a file that it has left, tells of it.

    Attributes:
        rank: Its rank on the communicator that has failed.
        calls: Its last ones there, the earliest first.
        gone: Why it makes no more calls, in words; empty where it may.
        raised: What it raised, in words, with the line; empty where nothing is known of that.
        at: The line of the user's code that it was in, as far as that is known.
        stack: All lines that it was in, but ours, the innermost first.
        elsewhere: A call of another communicator in which it waits, in words, with its line; empty for none.
        unseen: Why its stack, or its calls, are not seen; empty where they are.
    """

    rank: int
    calls: tuple[Made, ...] = ()
    gone: str = ""
    raised: str = ""
    at: str = ""
    stack: tuple[str, ...] = ()
    elsewhere: str = ""
    unseen: str = ""

    @property
    def numbered(self) -> dict[int, Made]:
        """Its calls but for messages, by number."""
        return {made.seq: made for made in self.calls if made.seq >= 0}

    @property
    def last(self) -> Made | None:
        """Its last call."""
        return self.calls[-1] if self.calls else None

    def plain(self) -> dict[str, Any]:
        """It as plain data, which `of_plain` reads."""
        return {**vars(self), "calls": [list(made) for made in self.calls], "stack": list(self.stack)}

    @staticmethod
    def of_plain(data: Mapping[str, Any]) -> Sighting:
        """What `plain` made data of."""
        calls, stack = tuple(Made(*made) for made in data["calls"]), tuple(data["stack"])
        return Sighting(**{**data, "calls": calls, "stack": stack})


def listed(ranks: Iterable[int]) -> str:
    """Ranks in words.

    Example:
        >>> listed([2, 0, 1, 5]), listed([3])
        ('ranks 0-2, 5', 'rank 3')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"rank {words}" if sum(map(len, runs)) == 1 else f"ranks {words}"
