"""Which calls of NCCL's make a collective: one, or for parts that differ messages that go at one time."""

from __future__ import annotations

from collections.abc import Sequence

from minigrad.backend.dtypes import Array
from minigrad.backend.memory import address_of
from minigrad.backend.nccl import BYTE, dtype_code
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.nccl.launches import OPERATIONS, Message
from minigrad.distributed.comm.protocol import Work
from minigrad.distributed.comm.rooted import Rooted, What


class NcclCalls(Rooted):
    """The part of `NcclCommunicator` that says what to launch."""

    def _launch(
        self, what: What, arrays: tuple[Array, ...], method: str, *arguments: int, group: Sequence[Message] = ()
    ) -> Work:
        raise NotImplementedError

    def _reduce(self, what: What, array: Array, op: ReduceOp, weight: Array | None = None) -> Work:
        code, here = dtype_code(what[0], array.dtype), address_of(array)
        return self._launch(what, (array,), "allReduce", here, here, int(array.size), code, OPERATIONS[op])

    def _broadcast(self, what: What, array: Array, root: int) -> Work:
        here = address_of(array)
        return self._launch(what, (array,), "broadcast", here, here, int(array.nbytes), BYTE, int(root))

    def _reduce_scatter(self, what: What, output: Array, source: Array, op: ReduceOp) -> Work:
        code, here, there = dtype_code(what[0], source.dtype), address_of(source), address_of(output)
        return self._launch(
            what, (source, output), "reduceScatter", here, there, int(output.size), code, OPERATIONS[op]
        )

    def _all_gather(self, what: What, output: Array, source: Array) -> Work:
        here, there = address_of(source), address_of(output)
        return self._launch(what, (source, output), "allGather", here, there, int(source.nbytes), BYTE)

    def _reduce_to(self, what: What, array: Array, root: int, op: ReduceOp) -> Work:
        code, here = dtype_code(what[0], array.dtype), address_of(array)
        return self._launch(what, (array,), "reduce", here, here, int(array.size), code, OPERATIONS[op], root)

    def _gather(self, what: What, output: Array | None, source: Array, root: int) -> Work:
        messages = [_part("send", source, 1, 0, root)]
        if output is None:
            return self._launch(what, (source,), "", group=messages)
        return self._launch(what, (source, output), "", group=messages + self._parts("recv", output))

    def _scatter(self, what: What, output: Array, source: Array | None, root: int) -> Work:
        messages = [_part("recv", output, 1, 0, root)]
        if source is None:
            return self._launch(what, (output,), "", group=messages)
        return self._launch(what, (output, source), "", group=messages + self._parts("send", source))

    def _all_to_all(self, what: What, output: Array, source: Array) -> Work:
        messages = self._parts("send", source) + self._parts("recv", output)
        return self._launch(what, (source, output), "", group=messages)

    def _parts(self, method: str, whole: Array) -> list[Message]:
        """A message for each rank, with its part of an array."""
        return [_part(method, whole, self.world_size, r, r) for r in range(self.world_size)]


def _part(method: str, whole: Array, parts: int, part: int, peer: int) -> Message:
    nbytes = int(whole.nbytes) // parts
    return method, (address_of(whole) + part * nbytes, nbytes, BYTE, peer)
