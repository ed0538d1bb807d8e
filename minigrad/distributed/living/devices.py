"""Communicators of the living on GPUs: the lowest of them listens and draws NCCL's new unique id."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.backend.device import Device
from minigrad.distributed.comm.groups import Group
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.distributed.living.assembly import Assembly
from minigrad.errors import ArgumentError

_HERE = "127.0.0.1"
_KEY_BYTES = 32


def begin_nccl(
    group: Group, assembly: Assembly, *, device: Device, timeout_s: float, **options: Any
) -> Communicator:
    """A communicator of ranks of this host on GPUs.

    Args:
        device: This rank's.
        options: More arguments of `NcclCommunicator`.
    """
    meeting = _meet(group, assembly.exchange, timeout_s)
    try:
        return NcclCommunicator(meeting, device, timeout_s=timeout_s, **options)
    except BaseException:
        meeting.close()
        raise


def _meet(group: Group, exchange: Callable[[bytes], list[bytes]], timeout_s: float) -> Rendezvous:
    """The rendezvous of the ranks of a group."""
    size = len(group.ranks)
    if group.rank != 0:
        told = json.loads(exchange(b"")[0])
        return Rendezvous(group.rank, size, _HERE, told["port"], bytes.fromhex(told["key"]), timeout_s)
    key = secrets.token_bytes(_KEY_BYTES)
    with socket.create_server((_HERE, 0), backlog=size) as server:
        port = server.getsockname()[1]
        exchange(json.dumps({"port": port, "key": key.hex()}).encode())
        return Rendezvous(0, size, _HERE, port, key, timeout_s, server=server)


def check_devices(who: str, devices: Sequence[Device], world_size: int) -> None:
    """Refuse devices on which ranks can't talk to each other.

    Raises:
        ArgumentError: not one a rank, or some with a GPU and some without.
    """
    kinds = sorted({device.type for device in devices})
    if len(devices) != world_size or len(kinds) > 1:
        raise ArgumentError(
            f"{who}: expected a device for each of {world_size} ranks, all of one type, got {list(map(str, devices))}"
        )
