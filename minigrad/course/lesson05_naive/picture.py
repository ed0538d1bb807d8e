"""The picture of lesson 5: what a step of naive data-parallel training consists of, by the number of ranks."""

from __future__ import annotations

import math

from minigrad.course.drawing import columns
from minigrad.course.lesson05_naive.checks import bill_of
from minigrad.distributed import simulate

WORLDS = (4, 16, 64)
LAYERS, WIDTH = 2, 128  # 4 parameters, 132 kB of gradients
ALPHA_S, BANDWIDTH = 50e-6, 1e9


def parts_s(world_size: int) -> dict[str, float]:
    """Seconds of a step: what is computed, and what messages and bytes take; bytes are free in one of two runs."""
    _, waits_s = bill_of(world_size, LAYERS, simulate.Link(ALPHA_S, BANDWIDTH), width=WIDTH)
    computes_s, messages_s = bill_of(world_size, LAYERS, simulate.Link(ALPHA_S, math.inf), width=WIDTH)
    return {"computing": computes_s, "messages": messages_s, "bytes": waits_s - messages_s}


def picture() -> str:
    """Three columns for each number of ranks."""
    groups = {
        f"{world_size} ranks": {name: round(1e3 * part_s, 2) for name, part_s in parts_s(world_size).items()}
        for world_size in WORLDS
    }
    title = "A step of naive data-parallel training: 4 parameters, 50 us a message, 1 GB/s"
    return columns(title, groups, y="time (ms)")
