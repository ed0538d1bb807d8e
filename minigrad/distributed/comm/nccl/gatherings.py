"""Calls in which ranks wait for each other beside NCCL: each sends what it brings to rank 0, which sends all of it."""

from __future__ import annotations

from minigrad.distributed.comm.nccl.messages import Kind, Message, bundle
from minigrad.distributed.comm.nccl.world import World

_TOLD_S = 0.5  # how much longer a rank waits for what rank 0 says


class Gatherings:
    """One rank's side of them.

    Args:
        world: What is known, and its connections.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: dict[int, dict[int, Message]] = {}
        self._came: dict[int, list[Message]] = {}  # at rank 0, what will be the items of all once they have come

    def gather(self, text: str, data: bytes = b"") -> list[tuple[str, bytes]]:
        """What all ranks brought to this call, in order of rank; blocks.

        Args:
            text: What this rank is doing.

        Raises:
            CollectiveTimeoutError: a rank did not come. RankFailedError: it left. Or what made this world fail.
        """
        world, failure, changed = self._world, self._world.failure, self._world.failure.changed
        failure.raise_on(world.rank)
        mine = world.peers[world.rank]
        with changed:
            number, mine.gathered = mine.gathered, mine.gathered + 1
            items = self._items.setdefault(number, {})
        item = Message(Kind.ITEM, world.rank, number, text, data)
        if world.rank == 0:
            self.collect(item)
        else:
            world.star.broadcast(item)
        with changed:
            changed.wait_for(lambda: self._is_settled(number, items), world.timeout_s)
            if len(items) < world.world_size and world.rank != 0:  # rank 0 may be about to say who is missing
                changed.wait_for(lambda: self._is_settled(number, items), _TOLD_S)
            self._items.pop(number)
        if len(items) < world.world_size:
            world.fail(world.absence(text, self._missing(number, items)))
            failure.raise_on(world.rank)
        return [(items[rank].text, items[rank].data) for rank in range(world.world_size)]

    def _missing(self, number: int, items: dict[int, Message]) -> list[int]:
        world = self._world
        there = (r == world.rank or r in items or peer.gathered > number for r, peer in enumerate(world.peers))
        return [rank for rank, came in enumerate(there) if not came]

    def _is_settled(self, number: int, items: dict[int, Message]) -> bool:
        gone = any(self._world.peers[rank].left_after is not None for rank in self._missing(number, items))
        return gone or self._world.failure.error is not None or len(items) == self._world.world_size

    def take(self, item: Message) -> None:
        """Rank 0 has sent what a rank brought; the thread calls this, and holds `Failure.changed`."""
        self._items.setdefault(item.number, {})[item.rank] = item

    def collect(self, item: Message) -> None:
        """At rank 0: another rank, or this one, has come to a gathering. The last one to come lets all know."""
        world, changed = self._world, self._world.failure.changed
        with changed:
            world.peers[item.rank].gathered = item.number + 1
            came = self._came.setdefault(item.number, [])
            came.append(item)
        if item is came[-1] and len(came) == world.world_size:
            world.star.broadcast(bundle(came))  # first: who has what it waits for may end the process
            del self._came[item.number]
        with changed:
            self.take(item)
            changed.notify_all()
