"""How far ranks are: each tells rank 0 now and then, which tells all of them, so that nobody has to ask."""

from __future__ import annotations

import struct
import time
from collections import deque

from minigrad.distributed.comm.calls import Kept
from minigrad.distributed.comm.headers import Header, doing
from minigrad.distributed.comm.nccl.messages import Kind, Message, bundle
from minigrad.distributed.comm.nccl.trail import WAYPOINT_BYTES, Trail, Waypoint
from minigrad.distributed.comm.nccl.world import World

_GATHERED = struct.Struct("<Q")  # gatherings so far; in a state a point follows, and a line
_STATE_BYTES = _GATHERED.size + WAYPOINT_BYTES  # before that line
_LOOK_S = 0.5  # from one look at the line of a rank that stays where it is to the next
_TOLD_EVERY = 256  # calls, after which the others are told how far a rank is, or sooner


class Progress:
    """What this rank tells of itself, and hears of the others.

    Args:
        world: What is known, and its connections.
        calls: The last ones of this rank, the latest first.
        tick_s: How often the others are told.

    Attributes:
        trail: All that this rank has called.
        awaited: Points of this rank's for which somebody waits.
        mailed: Messages that this rank has sent, or asked for.
    """

    def __init__(self, world: World, calls: deque[Kept], tick_s: float) -> None:
        self._world, self._star, self._calls, self._tick_s = world, world.star, calls, tick_s
        self._mine, self.trail = world.peers[world.rank], Trail()
        self.mailed = 0
        self._told = 0, 0, 0, ""  # points, gatherings, messages and line that rank 0, or at rank 0 the others, know of
        self._tell_at_s = self._look_at_s = 0.0
        self._states: dict[int, Message] = {}  # at rank 0: of the others
        self._fresh = set[int]()  # at rank 0: whose state the others have not been told
        self.awaited = set[int]()

    def note(self, header: Header) -> None:
        """This rank has made another call; the others hear of it in the next tick."""
        self._mine.posted = header.seq + 1
        self.trail.add(header)
        if header.seq % _TOLD_EVERY == 0:
            self._tell_at_s = 0.0
            self._star.wake()
        elif self.awaited:
            self._star.wake()

    def state(self, point: Waypoint, line: str = "", kind: Kind = Kind.STATE) -> Message:
        """How far this rank is, as a message, and where, if it has stayed there."""
        data = _GATHERED.pack(self._mine.gathered) + point.packed() + line.encode()
        return Message(kind, self._world.rank, self._mine.posted, doing(call for call, _, _ in list(self._calls)), data)

    def take(self, message: Message) -> Waypoint:
        """A rank has told how far it is, or was when it left; the thread calls this, and holds `Failure.changed`."""
        peer = self._world.peers[message.rank]
        (gathered,) = _GATHERED.unpack_from(message.data)
        peer.posted, peer.gathered = max(peer.posted, message.number), max(peer.gathered, gathered)
        peer.doing, peer.line = message.text, message.data[_STATE_BYTES:].decode()
        if message.kind == Kind.LEFT:
            peer.left_after = message.number
        self._states[message.rank] = message
        self._fresh.add(message.rank)
        return Waypoint.unpacked(message.data[_GATHERED.size : _STATE_BYTES])

    def tell(self) -> None:
        """Once a tick, let the others know how far this rank is, and at rank 0 how far those are that have told so."""
        now_s = time.monotonic()
        if now_s < self._tell_at_s:
            return
        self._tell_at_s = now_s + self._tick_s
        point = self.trail.end()
        so_far = point.done, self._mine.gathered, self.mailed
        now = (*so_far, self._line(now_s) if self._told[:3] == so_far else "")
        mine = [] if self._star.has_left or self._told == now else [self.state(point, now[3])]
        if self._world.rank != 0:
            if mine and self._star.tell(mine[0]):
                self._told = now
            return
        with self._world.failure.changed:
            states, self._fresh = [self._states[rank] for rank in sorted(self._fresh)], set()
        if mine or states:
            self._told = now
            self._star.broadcast(bundle([*mine, *states]))

    def _line(self, now_s: float) -> str:
        """The line at which this rank is or, shortly after a look, was."""
        if now_s < self._look_at_s:
            return self._told[3]
        self._look_at_s = now_s + _LOOK_S
        return self._world.line()
