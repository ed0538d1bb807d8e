"""The kinds of world that the contract is run on: run_ranks(kind, fn, world_size) calls fn(comm) on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.distributed import SoloCommunicator, run

KINDS = ["threads"]


def run_ranks(kind: str, fn: Callable[..., Any], world_size: int, timeout_s: float = 20.0) -> list[Any]:
    """The results of fn(comm), in order of rank; raises what the first failing rank raised."""
    if kind == "solo":
        assert world_size == 1
        return [fn(SoloCommunicator())]
    return run(fn, world_size, timeout_s=timeout_s)
