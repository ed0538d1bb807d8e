"""Lesson 18, solved."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.distributed import Communicator

Calls = dict[int, dict[int, tuple[str, str]]]  # rank -> number -> what, line


def diagnose_hang(ranks: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[int, ...]]:
    """Walk up the numbers to the first at which there is not one call."""
    calls: Calls = {each["rank"]: {n: (what, line) for n, what, line in each["calls"]} for each in ranks}
    gone = {each["rank"]: each["gone"] for each in ranks}
    start = max(min(made, default=0) for made in calls.values())
    end = max(max(made, default=-1) for made in calls.values())
    for number in range(start, end + 1):
        here = {rank: made[number] for rank, made in calls.items() if number in made}
        counts = Counter(what for what, _ in here.values())
        if len(counts) > 1:
            return _mismatch(calls, number, here, counts.most_common(1)[0][0])
        missing = sorted(calls.keys() - here.keys())
        if missing:
            return _missing(missing, gone)
    return "", ()


def _mismatch(
    calls: Calls, number: int, here: Mapping[int, tuple[str, str]], usual: str
) -> tuple[str, tuple[int, ...]]:
    odd = sorted(rank for rank, (what, _) in here.items() if what != usual)
    call = here[odd[0]]
    same_line = call[1] in {line for what, line in here.values() if what == usual}
    known = any(call == made for of_rank in calls.values() for n, made in of_rank.items() if n < number)
    kinds = ("order", "array") if same_line else ("left out", "extra")
    return kinds[0] if known else kinds[1], tuple(odd)


def _missing(missing: Sequence[int], gone: Mapping[int, str]) -> tuple[str, tuple[int, ...]]:
    for kind in ("raised", "died", "left"):
        accused = tuple(rank for rank in missing if gone[rank] == kind)
        if accused:
            return kind, accused
    return "late", tuple(missing)


def find_missing(
    comm: Communicator, timeout_s: float, pause: Callable[[float], object] = time.sleep
) -> list[int]:
    """Rank 0 collects signs of life, with one deadline for all of them, and tells those that came."""
    began_s, others = comm.clock.now_s(), range(1, comm.world_size)
    here = np.ones(comm.world_size, np.int64)
    if comm.rank == 0:
        signs = {rank: comm.recv(np.empty(1), rank) for rank in others}
        while comm.clock.now_s() - began_s < timeout_s and not all(sign.done() for sign in signs.values()):
            pause(timeout_s / 100)
        here[1:] = [signs[rank].done() for rank in others]
        for rank in others:
            if here[rank]:
                comm.send(here, rank)
    else:
        comm.send(np.zeros(1), 0)
        answer = comm.recv(here, 0)
        while not answer.done():
            if comm.clock.now_s() - began_s > 2.05 * timeout_s:
                return [0]
            pause(timeout_s / 100)
    return [int(rank) for rank in np.flatnonzero(here == 0)]
