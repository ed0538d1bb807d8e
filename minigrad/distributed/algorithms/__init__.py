"""All-reduces as schedules that can be played, priced, drawn and run on any communicator."""

from minigrad.distributed.algorithms.drawing import draw
from minigrad.distributed.algorithms.known import all_pairs, halving_doubling, hierarchical, ring, tree
from minigrad.distributed.algorithms.play import Scheduled, play
from minigrad.distributed.algorithms.schedule import WHOLE, Chunk, Op, Schedule, Transfer

__all__ = [
    "WHOLE",
    "Chunk",
    "Op",
    "Schedule",
    "Scheduled",
    "Transfer",
    "all_pairs",
    "draw",
    "halving_doubling",
    "hierarchical",
    "play",
    "ring",
    "tree",
]
