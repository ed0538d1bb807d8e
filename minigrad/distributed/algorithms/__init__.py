"""All-reduces as schedules that can be played, priced, drawn and run on any communicator."""

import typing

from minigrad.absent import absent as _absent
from minigrad.distributed.algorithms.drawing import draw
from minigrad.distributed.algorithms.known import all_pairs, halving_doubling, hierarchical, ring, tree
from minigrad.distributed.algorithms.play import Scheduled, play
from minigrad.distributed.algorithms.schedule import WHOLE, Chunk, CollectiveSchedule, Op, Transfer

__all__ = [
    "Chunk",
    "CollectiveSchedule",
    "Op",
    "Scheduled",
    "Transfer",
    "WHOLE",
    "all_pairs",
    "draw",
    "halving_doubling",
    "hierarchical",
    "play",
    "ring",
    "tree",
]


def __getattr__(name: str) -> typing.Any:
    raise _absent(__name__, name)
