"""`reduce`, `gather`, `scatter` and `all_to_all` of ranks that are threads: the last to come does it for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.distributed import rooted
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.protocol import Work
from minigrad.distributed.comm.rooted import Rooted, What


class RootedThreads(Rooted):
    """The part of `ThreadCommunicator` that moves their bytes."""

    def _start(self, what: What, array: Array, payload: Any, combine: Callable[[list[Any]], Any]) -> Work:
        raise NotImplementedError

    def _reduce_to(self, what: What, array: Array, root: int, op: ReduceOp) -> Work:
        return self._start(what, array, array, lambda arrays: rooted.reduce(arrays, root, op))

    def _gather(self, what: What, output: Array | None, source: Array, root: int) -> Work:
        def combine(pairs: list[Any]) -> None:
            outputs, sources = zip(*pairs)
            rooted.gather(outputs[root], sources)

        return self._start(what, source, (output, source), combine)

    def _scatter(self, what: What, output: Array, source: Array | None, root: int) -> Work:
        def combine(pairs: list[Any]) -> None:
            outputs, sources = zip(*pairs)
            rooted.scatter(outputs, sources[root])

        return self._start(what, output, (output, source), combine)

    def _all_to_all(self, what: What, output: Array, source: Array) -> Work:
        return self._start(what, source, (output, source), lambda pairs: rooted.all_to_all(*zip(*pairs)))
