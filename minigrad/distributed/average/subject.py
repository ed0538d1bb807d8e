"""The module of a rank whose parameters, or gradients, are combined every so often."""

from __future__ import annotations

from collections.abc import Mapping

from minigrad.distributed.average.async_rounds import AsyncRounds, is_async
from minigrad.distributed.average.fragments import Placed, Span, cut
from minigrad.distributed.average.outer import Mean, OuterOptimizer
from minigrad.distributed.average.policies import Policy
from minigrad.distributed.average.travelling import TravellingFragment, limit_of
from minigrad.distributed.comm.differences import describe, gather_alike
from minigrad.distributed.comm.headers import announce
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.fingerprint import check_agreement
from minigrad.errors import ArgumentError, DeviceError
from minigrad.nn.flat import FlatBuffer, flatten
from minigrad.nn.inventory import Inventory
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.stamp import mark_changed


class Subject:
    """A module, and which of its parameters are combined: those that are trained when this is made.

    Args:
        who: For messages.
        module: Gets a flat layout if it has none.
        comm: The ranks.

    Attributes:
        params: Those that are combined, each once, in order of registration.
        buffers: The flat buffers that they lie in.
        limit: Of the samples of a step, see `limit_of`.

    Raises:
        ArgumentError: nothing is trained. DeviceError: a parameter is not on the communicator's device.
    """

    def __init__(self, who: str, module: Module, comm: Communicator) -> None:
        self._who, self.module, self._comm = who, module, comm
        named = list(module.named_parameters())
        self.params = [param for _, param in named if param.requires_grad]
        self._frozen = [(name, param) for name, param in named if not param.requires_grad]
        if not self.params:
            raise ArgumentError(f"{who}: expected a parameter that requires grad, got none in {type(module).__name__}")
        elsewhere = sorted({str(param.device) for _, param in named if param.device != comm.device})
        if elsewhere:
            raise DeviceError(
                f"rank {comm.rank}: {who}: expected all parameters on {comm.device}, got {', '.join(elsewhere)}: "
                "move the module first"
            )
        for name, param in named:
            param.name = param.name or name
        self._names = {id(param): name for name, param in named}
        self.buffers = flatten(param for _, param in named)
        self._inventory = Inventory(module)
        self.limit = min(limit_of(param.dtype) for param in self.params)

    def meet(self, options: Mapping[str, str], sends: bool) -> None:
        """Refuse ranks that differ in the module or in options; then give all the values of rank 0, or compare them.

        Raises:
            ReplicaMismatchError: they differ; on all ranks.
        """
        announce(self._comm, f"{self._who} takes a module")
        lying = str([[number, self._names[id(param)], *span] for number, param, span in self._spans()])
        gather_alike(self._who, "options", self._comm, {**describe(self.module), "layout": lying, **options})
        if self._comm.world_size > 1:
            self._make_alike(sends)

    def _spans(self) -> list[tuple[int, Parameter, tuple[int, int]]]:
        wanted = {id(param) for param in self.params}
        return [
            (number, param, buffer.runs([param])[0])
            for number, buffer in enumerate(self.buffers)
            for param in buffer.params
            if id(param) in wanted
        ]

    def fragments(self, comm: Communicator, outer: OuterOptimizer) -> list[TravellingFragment]:
        """The parts in which the parameters travel.

        Args:
            comm: What they travel by.
        """
        placed = [Placed(self._names[id(p)], Span(number, *span), p.numel()) for number, p, span in self._spans()]
        found = []
        for spans in cut(outer.fragments, placed):
            inside = [p for number, p, own in self._spans() if any(_overlap(Span(number, *own), s) for s in spans)]
            found.append(TravellingFragment(comm, self.buffers, spans, inside, outer))
        return found

    def async_rounds(self, comm: Communicator, policy: Policy) -> AsyncRounds | None:
        """The rounds of this rank where its policy is `Async`, else None; for comm see `fragments`."""
        if not is_async(policy):
            return None
        (whole,) = self.fragments(comm, Mean())
        return AsyncRounds(comm, policy, whole.pieces, self.params)

    def _make_alike(self, sends: bool) -> None:
        """Overwrite parameters and buffers by those of rank 0, or refuse ranks that differ in them.

        Raises:
            ReplicaMismatchError: they differ, and nothing is sent.
        """
        if not sends:
            check_agreement(self.module, self._comm, 0)
            return
        works = [self._comm.broadcast(buffer.data[a:b]) for buffer, a, b in self._all_runs()]
        for buffer in self.module.buffers():
            with self._comm.device.current() as xp:
                values = xp.ascontiguousarray(buffer.data).reshape(-1).copy()
                if values.size:
                    self._comm.broadcast(values).wait()
                    buffer.data[...] = values.reshape(buffer.shape)
            mark_changed(buffer)
        for work in works:
            work.wait()
        for param in self.module.parameters():
            mark_changed(param)

    def _all_runs(self) -> list[tuple[FlatBuffer, int, int]]:
        own = list(self.module.parameters())
        return [(b, *run) for b in self.buffers for run in b.runs([p for p in own if p.flat is b])]

    def check(self) -> None:
        """Refuse parameters that were replaced, moved, added or unfrozen.

        Raises:
            LayoutError, ArgumentError: it names them.
        """
        self._inventory.check(self._who, self.module)
        for buffer in self.buffers:
            buffer.check()
        for name, param in self._frozen:
            if param.requires_grad:
                raise ArgumentError(
                    f"{self._who}: expected the parameters that were trained when it was made, got {name}, which was "
                    "frozen then: make another one"
                )


def _overlap(one: Span, other: Span) -> bool:
    return one.buffer == other.buffer and one.start < other.stop and other.start < one.stop
