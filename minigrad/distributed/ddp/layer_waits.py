"""What a timeline gets of layers that call the ranks by themselves: how long they wait, which is no computing."""

from __future__ import annotations

from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.syncbn import SyncBatchNorm
from minigrad.distributed.record.noted import LayerNotes, NotedCommunicator
from minigrad.distributed.record.timeline import Timeline
from minigrad.nn.module import Module
from minigrad.removal import Removal


def listen_inside(timeline: Timeline, comm: Communicator, module: Module) -> list[Removal]:
    """Write what SyncBatchNorm layers of a module wait for; not on a GPU, whose streams do not tell it.

    Returns:
        What ends it.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, SyncBatchNorm)]
    if not layers or comm.device.type != "cpu":
        return []
    notes = LayerNotes(timeline.at(comm), f"SyncBatchNorm in {type(module).__name__}")
    noted: dict[int, NotedCommunicator] = {}
    for layer in layers:
        if id(layer.comm) not in noted:
            noted[id(layer.comm)] = NotedCommunicator(layer.comm, notes)
        layer.comm = noted[id(layer.comm)]

    def end() -> None:
        for layer in layers:
            if isinstance(layer.comm, NotedCommunicator) and layer.comm.notes is notes:
                layer.comm = layer.comm.inner

    return [Removal(end)]
