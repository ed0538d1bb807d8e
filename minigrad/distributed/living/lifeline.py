"""What one rank holds of the way between ranks: its letters, its news of deaths, its present communicator."""

from __future__ import annotations

import functools
import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from minigrad.arguments import as_integer
from minigrad.distributed.comm.checks import check_world, decode_object, default_timeout_s, encode_object
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.groups import Group
from minigrad.distributed.living.assembly import Assembly, Brought, Known, among
from minigrad.errors import ArgumentError, RankFailedError

OUTSIDE = -1  # the address of who directs thread ranks from a thread that is none of them
_BYTES, _JSON = b"b", b"j"


class Letter(NamedTuple):
    """What a rank has posted to this one.

    Attributes:
        source: That rank.
        data: As it was posted: bytes, or JSON data.
    """

    source: int
    data: Any


class Death(NamedTuple):
    """A rank is dead; nothing comes from it after this.

    Attributes:
        rank: It.
        error: Of what it died, in words.
        cause: The exception, where it is known in this process.
    """

    rank: int
    error: str
    cause: BaseException | None = None


class ParcelKind(IntEnum):
    """What travels between lifelines."""

    LETTER, BROUGHT, GAVE_UP, OPENED, LEFT, DROP, DEATH = range(7)


Send = Callable[[int, ParcelKind, bytes], None]  # to a rank; never waits for it
Begin = Callable[[Group, Assembly], Any]  # makes this rank's communicator of a group


class Lifeline:
    """One rank's end of a way between ranks that outlives their deaths; several threads of the rank may use it.

    Letters from one rank come in the order in which it posted them, and before the news of its death. A rank is dead
    when its thread raised or its process ended without `close`, or when it was dropped: whoever sees it tells all.

    Args:
        rank: This one; OUTSIDE for who directs them.
        world_size: How many ranks there were at the start.
        send: Brings a parcel on its way.
        begin: Makes a communicator of this rank's kind.
        timeout_s: How long `regroup` waits for the others; $MINIGRAD_TIMEOUT_S or 300 s by default.
    """

    def __init__(
        self, rank: int, world_size: int, send: Send, begin: Begin, *, timeout_s: float | None = None
    ) -> None:
        check_world("Lifeline", max(rank, 0), world_size)
        self.rank, self.world_size, self.timeout_s = rank, world_size, default_timeout_s(timeout_s)
        self._send, self._begin = send, begin
        self._known = Known()
        self._inbox: deque[Letter | Death] = deque()
        self._over = ""  # why this rank takes part no more
        self._living: tuple[int, ...] = ()  # of the present communicator
        self._comm: Any = None
        self._generation = -1
        tell_children(self)

    def forked(self) -> None:
        """See `Inherited`: the others talk to the parent alone."""
        self._known = Known()  # another thread may have held the lock of the old one
        self._over, self._comm = str(in_a_child()), None

    @property
    def living(self) -> list[int]:
        """The ranks that are not known to be dead."""
        with self._known.changed:
            return among(self._known.dead, self.world_size)

    @property
    def is_over(self) -> bool:
        """Whether this rank takes part no more."""
        return bool(self._over)

    @property
    def dead(self) -> dict[int, str]:
        """Of what each dead rank died."""
        with self._known.changed:
            return dict(self._known.dead)

    # ----------------------------------------------------------------------------------------------------- letters

    def post(self, rank: int, data: Any) -> None:
        """Let a rank have bytes or JSON data; never waits for it. What is posted to a dead one is dropped.

        Args:
            rank: Any, also this one; or OUTSIDE.

        Raises:
            ArgumentError: no such rank. DtypeError: no bytes and no JSON data.
            RankFailedError: this rank was dropped, or has closed its lifeline.
        """
        self._check_rank("post", rank)
        whole = _BYTES + data if isinstance(data, bytes) else _JSON + encode_object("post", self.rank, data)
        self._check("post")
        if rank == self.rank:
            self.hear(self.rank, ParcelKind.LETTER, whole)
        elif rank not in self._known.dead:
            self._send(rank, ParcelKind.LETTER, whole)

    def take(self, timeout_s: float) -> Letter | Death | None:
        """The next letter or death; None where nothing comes in time.

        Args:
            timeout_s: Seconds, >= 0.

        Raises:
            RankFailedError: this rank was dropped, or has closed its lifeline.
        """
        if not isinstance(timeout_s, (int, float)) or not 0.0 <= timeout_s < math.inf:
            raise ArgumentError(f"rank {self.rank}: take: expected timeout_s as seconds >= 0, got {timeout_s!r}")
        with self._known.changed:
            self._known.changed.wait_for(lambda: self._inbox or self._over, timeout_s)
            self._check("take")
            return self._inbox.popleft() if self._inbox else None

    def drop(self, rank: int, why: str) -> None:
        """End a rank, and treat it as dead everywhere from now on.

        A process is killed. A thread can't be: its communicator fails, and its lifeline raises.
        """
        self._check_rank("drop", rank)
        self._check("drop")
        self._send(rank, ParcelKind.DROP, why.encode())

    # ------------------------------------------------------------------------------------- communicators of the living

    def regroup(self, living: Sequence[int], generation: int) -> Any:
        """A communicator of these ranks, in order; all of them call it, and wait for each other.

        The communicator that it gave before is closed. A new one fails as soon as one of its ranks dies.

        Args:
            living: Ranks in ascending order, this one among them.
            generation: A number above those before, the same on all of them.

        Raises:
            ArgumentError: living is no such list, or generation is not above the last one.
            RankFailedError: one of them is dead, dies meanwhile, has left or gave up.
            CollectiveTimeoutError: one does not come in time; it is named.
            CollectiveMismatchError: the ranks were given different lists.
        """
        members = self._checked(living, generation)
        self._check("regroup")
        self._part(generation)
        tell = functools.partial(_bring, self._send)
        assembly = Assembly(self.rank, members, generation, self._known, tell, self.timeout_s)
        group = Group(members, members.index(self.rank), members)
        comm = None
        try:
            assembly.exchange(b"")  # all are there, and were told the same
            comm = self._begin(group, assembly)
            assembly.exchange(b"")  # nobody goes on before all have one
        except BaseException as error:
            self._give_up(assembly, error)
            if comm is not None:
                comm.close()
            raise
        if len(members) < self.world_size:
            comm.group, comm._ranks = group.name, members
        with self._known.changed:
            self._comm, self._living = comm, members
            why = self._known.why_failed(members, generation)
        if why:
            comm._fail(RankFailedError(why))
        return comm

    def break_off(self, generation: int, why: str) -> None:
        """End, from another thread, what waits in `regroup` or in the calls of a communicator of a generation.

        Args:
            generation: It and those before it end, also one that has not begun yet.
            why: What these calls raise.
        """
        known = self._known
        with known.changed:
            if generation > known.broken_off[0]:
                known.broken_off = generation, why
            known.changed.notify_all()
        self._look_after_comm()

    def _checked(self, living: Sequence[int], generation: int) -> tuple[int, ...]:
        members = tuple(as_integer("regroup", "each of living", rank, 0, self.world_size) for rank in living)
        if list(members) != sorted(set(members)) or self.rank not in members:
            raise ArgumentError(
                f"rank {self.rank}: regroup: expected ranks in ascending order with rank {self.rank} among them, got "
                f"{list(living)}"
            )
        as_integer("regroup", "generation", generation, self._generation + 1)
        return members

    def _part(self, generation: int) -> None:
        """Close the communicator of before."""
        with self._known.changed:
            comm, self._comm, self._living = self._comm, None, ()
            self._generation = generation
            self._known.forget_before(generation)
        if comm is not None:
            comm.close()

    def _give_up(self, assembly: Assembly, error: BaseException) -> None:
        """Let those who wait for this rank know that it does not come."""
        told = json.dumps([assembly.generation, str(error) or repr(error)]).encode()
        for rank in assembly.living:
            if rank != self.rank and not self._over:
                self._send(rank, ParcelKind.GAVE_UP, told)

    # ----------------------------------------------------------------------------------------- what comes from others

    def hear(self, source: int, kind: ParcelKind, data: bytes) -> None:
        """A parcel has come; for who brings them."""
        known = self._known
        with known.changed:
            if kind is ParcelKind.LETTER and not self._over:
                body = data[1:]
                self._inbox.append(Letter(source, body if data[:1] == _BYTES else decode_object(body)))
            elif kind is ParcelKind.BROUGHT:
                brought = Brought.unpacked(data)
                known.brought[brought.generation, brought.step, source] = brought
            elif kind is ParcelKind.GAVE_UP:
                generation, why = json.loads(data)
                known.gave_up.setdefault(generation, (source, why))
            elif kind is ParcelKind.LEFT:
                known.left[source] = "has closed its lifeline"
            known.changed.notify_all()
        if kind is ParcelKind.GAVE_UP:
            self._look_after_comm()

    def hear_death(self, rank: int, error: str, cause: BaseException | None = None) -> None:
        """A rank is dead; for who sees it. Of one that has closed its lifeline nobody needs to know."""
        with self._known.changed:
            if rank in self._known.dead or rank in self._known.left:
                return
            self._known.dead[rank] = error
            self._inbox.append(Death(rank, error, cause))
            self._known.changed.notify_all()
        self._look_after_comm()

    def end(self, why: str) -> None:
        """This rank takes part no more: every later call raises this; for who ends it."""
        with self._known.changed:
            self._over = self._over or why
            comm = self._comm
            told = f"rank {self.rank} is dead: {why}"
            self._known.broken_off = max(self._known.broken_off[0], self._generation), told
            self._known.changed.notify_all()
        if comm is not None:
            comm._fail(RankFailedError(told))

    def _look_after_comm(self) -> None:
        """Fail the present communicator where one of its ranks can't come any more."""
        with self._known.changed:
            comm, why = self._comm, self._known.why_failed(self._living, self._generation)
        if comm is not None and why:
            comm._fail(RankFailedError(why))

    # ------------------------------------------------------------------------------------------------------------- ends

    def close(self) -> None:
        """Take part no more, which is no death; idempotent. Closes the present communicator too.

        Letters that others post from now on are dropped, and a `regroup` that waits for this rank raises there.
        """
        with self._known.changed:
            is_first, self._over = not self._over, self._over or "it has closed its lifeline"
            comm, self._comm = self._comm, None
            self._inbox.clear()
            self._known.changed.notify_all()
        try:
            if comm is not None:
                comm.close()
        finally:
            for rank in [*self.living, OUTSIDE] if is_first else ():
                if rank != self.rank:
                    self._send(rank, ParcelKind.LEFT, b"")

    def _check(self, who: str) -> None:
        if self._over:
            raise RankFailedError(f"rank {self.rank}: {who}: expected a rank that takes part, but {self._over}")

    def _check_rank(self, who: str, rank: int) -> None:
        as_integer(f"rank {self.rank}: {who}", "rank", rank, OUTSIDE, self.world_size)


def who_left(lifeline: Lifeline) -> dict[int, str]:
    """The ranks that have closed theirs, as this one knows, in words."""
    known = lifeline._known
    with known.changed:
        return dict(known.left)


def _bring(send: Send, rank: int, brought: Brought) -> None:
    send(rank, ParcelKind.BROUGHT, brought.packed())
