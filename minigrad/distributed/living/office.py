"""Lifelines of ranks that are threads of one process: parcels go from hand to hand."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minigrad.arguments import as_integer
from minigrad.backend.device import CPU, Device
from minigrad.distributed.comm.checks import check_world, default_timeout_s
from minigrad.distributed.comm.groups import Group
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.threads import ThreadCommunicator, ThreadWorld
from minigrad.distributed.living.assembly import Assembly
from minigrad.distributed.living.devices import begin_nccl, check_devices
from minigrad.distributed.living.lifeline import OUTSIDE, Lifeline, ParcelKind


class Office:
    """The lifelines of thread ranks, and of who directs them from another thread.

    Args:
        world_size: Number of ranks, >= 1.
        timeout_s: How long `regroup` waits, and collectives of what it gives; $MINIGRAD_TIMEOUT_S or 300 s by default.
        devices: Of each rank; CPUs by default. Ranks on GPUs talk by NCCL.
        options: More arguments of `NcclCommunicator`, for ranks on GPUs.

    Raises:
        ArgumentError: an argument out of range, or devices of two types.

    Attributes:
        outside: The lifeline of who is no rank: it posts and takes, and drops.

    Example:
        >>> office = Office(2)
        >>> first, second = office.lifelines
        >>> first.post(1, {"step": 3})
        >>> second.take(1.0)
        Letter(source=0, data={'step': 3})
    """

    def __init__(
        self,
        world_size: int,
        *,
        timeout_s: float | None = None,
        devices: Sequence[Device] | None = None,
        **options: Any,
    ) -> None:
        check_world("Office", 0, world_size)
        self.world_size, self.timeout_s = int(world_size), default_timeout_s(timeout_s)
        self._devices = list(devices) if devices is not None else [CPU] * self.world_size
        check_devices("Office", self._devices, self.world_size)
        self._options = options
        self._worlds: dict[int, tuple[ThreadWorld, list[int]]] = {}  # until all have theirs: how many have not yet
        self._tickets, self._lock = itertools.count(), threading.Lock()
        self._ended: set[int] = set()
        self.outside = self._lifeline(OUTSIDE)
        self.lifelines = [self._lifeline(rank) for rank in range(self.world_size)]

    def _lifeline(self, rank: int) -> Lifeline:
        send = functools.partial(self._bring, rank)
        return Lifeline(rank, self.world_size, send, self._begin, timeout_s=self.timeout_s)

    def _all(self) -> list[Lifeline]:
        return [*self.lifelines, self.outside]

    def _bring(self, source: int, to: int, kind: ParcelKind, data: bytes) -> None:
        if kind is ParcelKind.DROP:
            self.end(to, f"it was dropped: {data.decode()}")
            return
        receiver = self.outside if to == OUTSIDE else self.lifelines[to]
        receiver.hear(source, kind, data)

    # ------------------------------------------------------------------------------------------ how ranks come and go

    @contextmanager
    def rank(self, rank: int) -> Iterator[Lifeline]:
        """What a rank's thread runs in: an exception is its death, which all hear of; else it closes its lifeline.

        Raises:
            ArgumentError: no such rank.
        """
        lifeline = self.lifelines[as_integer("Office", "rank", rank, 0, self.world_size)]
        try:
            yield lifeline
        except BaseException as error:
            self.end(rank, f"it raised {type(error).__name__}: {error}", error)
            raise
        finally:
            lifeline.close()

    def end(self, rank: int, why: str, cause: BaseException | None = None) -> None:
        """A rank is dead, or is to count as dead: all others hear of it, and its own lifeline raises.

        Args:
            why: Of what, in words.
            cause: The exception, where there is one.
        """
        as_integer("Office", "rank", rank, 0, self.world_size)
        with self._lock:
            if rank in self._ended:
                return
            self._ended.add(rank)
        for lifeline in self._all():
            if lifeline.rank != rank:
                lifeline.hear_death(rank, why, cause)
        self.lifelines[rank].end(why)

    # -------------------------------------------------------------------------------------- communicators of the living

    def _begin(self, group: Group, assembly: Assembly) -> Communicator:
        device = self._devices[group.ranks[group.rank]]
        if device.type != "cpu":
            return begin_nccl(group, assembly, device=device, timeout_s=self.timeout_s, **self._options)
        return ThreadCommunicator(self._share_world(group, assembly), group.rank, device)

    def _share_world(self, group: Group, assembly: Assembly) -> ThreadWorld:
        """The first of the living makes a world, and the others hear its number."""
        if group.rank == 0:
            with self._lock:
                ticket = next(self._tickets)
                self._worlds[ticket] = ThreadWorld(len(group.ranks), timeout_s=self.timeout_s), [0]
            assembly.exchange(json.dumps(ticket).encode())
        else:
            ticket = json.loads(assembly.exchange(b"")[0])
        with self._lock:
            world, taken = self._worlds[ticket]
            taken[0] += 1
            if taken[0] == len(group.ranks):
                del self._worlds[ticket]
        return world
