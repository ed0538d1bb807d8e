"""Groups of ranks on GPUs: each has a communicator of NCCL's, and a control channel, of its own.

The first rank of a group listens; where, and the secret that its ranks prove to each other, travels over the control
channel of the parent. NCCL's unique id then travels over that of the group.
"""

from __future__ import annotations

import json
import secrets
from ipaddress import ip_address
from typing import Any

from minigrad.distributed.comm.groups import Exchange, Group, Groups
from minigrad.distributed.comm.nccl.star import Star
from minigrad.distributed.comm.rendezvous import Rendezvous, listen_anywhere

_KEY_BYTES = 32


class NcclGroups(Groups):
    """What a `NcclCommunicator` has of groups.

    Attributes:
        options: The arguments of its constructor that those of its groups get too.
    """

    options: dict[str, Any]

    def _split(self, group: Group | None, exchange: Exchange) -> Any:
        if group is None:
            return None
        comm: Any = self
        meeting = _meet(group, comm._control.star, exchange, self.timeout_s)
        try:
            return type(comm)(meeting, self.device, timeout_s=self.timeout_s, clock=self.clock, **self.options)
        except BaseException:
            meeting.close()
            raise


def _meet(group: Group, star: Star, exchange: Exchange, timeout_s: float) -> Rendezvous:
    """The rendezvous of the ranks of a group.

    Args:
        star: The connections of the communicator that it is split off.
    """
    size = len(group.ranks)
    if group.rank != 0:
        told = json.loads(exchange(b"")[0])
        address = _address(star, group.ranks[0], told["address"])
        return Rendezvous(group.rank, size, address, told["port"], bytes.fromhex(told["key"]), timeout_s)
    key = secrets.token_bytes(_KEY_BYTES)
    with listen_anywhere(size) as server:
        port = server.getsockname()[1]
        exchange(json.dumps({"address": star.address(), "port": port, "key": key.hex()}).encode())
        return Rendezvous(0, size, "", port, key, timeout_s, server=server)


def _address(star: Star, first: int, told: str) -> str:
    """Where this rank reaches the first one of a group.

    Args:
        first: Its rank on this star.
        told: Its address, as it is known to itself; empty for rank 0.
    """
    if first == 0 or star.rank == 0:
        return star.address_of(first)
    return star.address_of(0) if ip_address(told.partition("%")[0]).is_loopback else told  # it is on rank 0's host
