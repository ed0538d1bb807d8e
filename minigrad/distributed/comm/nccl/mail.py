"""Messages between ranks on GPUs. NCCL knows no tags, and waits for ever for a message that does not come.

So a message is handed to NCCL once its other end is known. Each rank tells rank 0 what it sends and asks for; rank 0
finds which two belong together, and tells these two ranks, in one order for all. A thread of each hands what it is told
to NCCL, on a communicator of the two ranks and a stream of their own: so it does not matter what else the ranks call
meanwhile, and the first message of all that are under way has both of its ends at hand.
"""

from __future__ import annotations

import json
import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, Optional

from minigrad.backend.capturing import refuse_in_capture
from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import address_of
from minigrad.backend.nccl import BYTE, problem_of
from minigrad.backend.stream import has_happened, streams_of
from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.nccl.handle import Handle
from minigrad.distributed.comm.nccl.messages import Kind
from minigrad.distributed.comm.nccl.messages import Message as Told
from minigrad.distributed.comm.nccl.progress import Progress
from minigrad.distributed.comm.nccl.world import World
from minigrad.distributed.comm.point_to_point import Envelope, PointToPoint, Post, unanswerable, unanswered, unlike
from minigrad.distributed.comm.protocol import Work
from minigrad.errors import DistributedError

_SPINS, _NAP_S, _LONGEST_NAP_S = 200, 2e-5, 1e-3
_GRACE_S = 2.0  # NCCL may hear of another rank's end before that rank's own words arrive


class _Entry(Post):
    """One end of a message.

    Attributes:
        ready: The event on the stream of who sent it, or asked for it, before which its array may not be used.
        event: That after which the message was taken; None where NCCL does not have it yet.
        began_s: When NCCL got it.
    """

    __slots__ = ("ready", "event", "began_s")

    def __init__(self, envelope: Envelope, array: Any, ready: Any) -> None:
        super().__init__(envelope, array)
        self.ready, self.event, self.began_s = ready, None, 0.0


class _Matches:
    """At rank 0: what ranks have sent and asked for, of which the other end is not known yet."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, tuple[int, int, int]], deque[tuple[int, Envelope]]] = {}

    def find(self, number: int, envelope: Envelope) -> tuple[int, Envelope] | None:
        """The other end of a message, and its number; None where the message has to wait for that."""
        other = "recv" if envelope.sends else "send"
        waiting = self._waiting.get((other, envelope.key))
        if not waiting:
            self._waiting.setdefault((envelope.kind, envelope.key), deque()).append((number, envelope))
            return None
        found = waiting.popleft()
        if not waiting:
            del self._waiting[other, envelope.key]
        return found


class _Pair:
    """NCCL's communicator of this rank and another one, and the stream of their messages."""

    def __init__(self, handle: Handle, stream: Any) -> None:
        self.handle, self.stream = handle, stream


class NcclMail:
    """The messages of one rank under way. Methods that take what was told are the control thread's.

    Args:
        world: What is known of the ranks, and the connections.
        device: This rank's GPU.
        nccl: The module cupy.cuda.nccl, or a stand-in.
        streams: That for cupy.cuda, or None.
    """

    def __init__(self, world: World, device: Device, nccl: Any, streams: Any) -> None:
        self._world, self._failure, self._device, self._nccl = world, world.failure, device, nccl
        self._streams = streams if streams is not None else streams_of(device)
        self._count, self._open = 0, dict[int, _Entry]()  # by number, those whose other end is not known
        self._matches = _Matches()
        self._here: dict[int, dict[int, int]] = {}  # by rank and number, the tags of what others have sent
        self._ids: dict[int, bytes] = {}  # of NCCL's communicators with lower ranks
        self._pairs: dict[int, _Pair] = {}
        self._launched: list[_Entry] = []
        self._queue = queue.SimpleQueue[Optional[_Entry]]()
        self._thread: Any = None
        self._is_ended = False

    @property
    def takers(self) -> dict[Kind, Callable[[Told], None]]:
        """What takes the messages of the control channel that tell of these."""
        return {Kind.POST: self.take_post, Kind.MATCH: self.take_match, Kind.PAIR_ID: self.take_id}

    # ------------------------------------------------------------------------------------------------ for the caller

    def add(self, envelope: Envelope, array: Array) -> _Entry:
        """Tell rank 0 of a message; never waits."""
        with self._device.current():
            ready = self._streams.Event(disable_timing=True)
            ready.record(self._streams.get_current_stream())
        entry = _Entry(envelope, array, ready)
        with self._failure.changed:
            number, self._count = self._count, self._count + 1
            self._open[number] = entry
        told = Told(Kind.POST, self._world.rank, number, json.dumps(envelope))
        if self._world.rank == 0:
            with self._failure.changed:
                self.take_post(told)
        else:
            self._world.star.post(told)
        return entry

    def is_over(self, entry: _Entry) -> bool:
        """Whether a message was taken; raises where it never will be."""
        if entry.over:
            return True
        self._failure.raise_on(self._world.rank)
        if self._is_lost(entry):
            self._end(unanswerable(entry.envelope, *self._known(entry.envelope)))
        if entry.event is not None:
            with self._device.current():
                entry.over = has_happened(entry.event, self._streams)
        return entry.over

    def wait(self, entry: _Entry, host: bool) -> None:
        """Wait until the other end is known, then order the caller's stream; with host=True until it was taken.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        failure, world = self._failure, self._world
        with failure.changed:
            came = failure.changed.wait_for(lambda: self._is_settled(entry), world.timeout_s)
        if not came:
            known, tags = self._known(entry.envelope)
            known = "has, but NCCL has not started between the two" if entry.met else known
            lines = {**{r: peer.line for r, peer in enumerate(world.peers)}, world.rank: world.line()}
            self._end(unanswered(entry.envelope, world.timeout_s, known, tags, lines))
        if entry.event is None:
            self.is_over(entry)  # which raises why
        with self._device.current():
            self._streams.get_current_stream().wait_event(entry.event)
        misses = 0
        while host and not self.is_over(entry):
            misses += 1
            if misses > _SPINS:
                time.sleep(min(_LONGEST_NAP_S, _NAP_S * (misses - _SPINS)))
        failure.raise_on(world.rank)  # an aborted message also counts as taken

    def _is_settled(self, entry: _Entry) -> bool:
        return entry.event is not None or self._failure.error is not None or self._is_lost(entry)

    def _is_lost(self, entry: _Entry) -> bool:
        world = self._world
        cut = world.rank != 0 and world.star.is_cut
        return not entry.met and (cut or world.peers[entry.envelope.other].left_after is not None)

    def _known(self, envelope: Envelope) -> tuple[str, list[int]]:
        tags = [] if envelope.sends else list(self._here.get(envelope.src, {}).values())
        return self._world.peers[envelope.other].known, tags

    def _end(self, error: DistributedError) -> NoReturn:
        self._world.fail(error)
        self._failure.raise_on(self._world.rank)
        raise error

    # ---------------------------------------------------------------------------------------- for the control thread

    def take_post(self, told: Told) -> None:
        """A rank sends, or asks for, a message; it holds `Failure.changed`, as in all of these."""
        envelope = Envelope(*json.loads(told.text))
        if envelope.sends and envelope.dst == self._world.rank:
            self._here.setdefault(envelope.src, {})[told.number] = envelope.tag
        if self._world.rank == 0:
            self._match(told, envelope)

    def _match(self, told: Told, envelope: Envelope) -> None:
        """At rank 0: find the other end of a message, and tell the two ranks."""
        if self._world.peers[envelope.src].left_after is not None:
            return  # what it sent is gone with it; the other rank sees that
        if envelope.sends and envelope.dst != 0:
            self._world.star.post(told, to=envelope.dst)  # which can say then what it was sent
        found = self._matches.find(told.number, envelope)
        if found is None:
            return
        ends = [(told.number, envelope), found]
        match = Told(Kind.MATCH, 0, 0, json.dumps(ends if envelope.sends else ends[::-1]))
        for rank in (envelope.src, envelope.dst):
            if rank == 0:
                self.take_match(match)
            else:
                self._world.star.post(match, to=rank)

    def take_match(self, told: Told) -> None:
        """Rank 0 has found the other end of one of this rank's messages."""
        (sent, told_sent), (taken, told_taken) = json.loads(told.text)
        sending, taking = Envelope(*told_sent), Envelope(*told_taken)
        is_mine = sending.src == self._world.rank
        if not is_mine:
            self._here[sending.src].pop(sent)
        entry = self._open.pop(sent if is_mine else taken)
        if not sending.fits(taking):
            self._world.fail(unlike(sending, taking))
            return
        entry.met = True
        if self._thread is None:
            self._thread = new_thread(self._serve, name=f"mail-{self._world.rank}")
            self._thread.start()
        self._queue.put(entry)

    def take_id(self, told: Told) -> None:
        """Another rank has begun a communicator of NCCL's with this one; rank 0 passes that on."""
        if told.number == self._world.rank:
            self._ids[told.rank] = told.data
        else:
            self._world.star.post(told, to=told.number)

    def watch(self) -> None:
        """Look after what NCCL has: once in a while, the control thread does."""
        with self._failure.changed, self._device.current():
            self._launched = [entry for entry in self._launched if not has_happened(entry.event, self._streams)]
        for entry in self._launched[:1]:
            late_s, other = time.monotonic() - entry.began_s, entry.envelope.other
            known = self._known(entry.envelope)
            if late_s > _GRACE_S and self._world.peers[other].left_after is not None:
                self._world.fail(unanswerable(entry.envelope, *known))
            elif late_s > _GRACE_S and (problem := self._pairs[other].handle.problem()):
                self._world.fail(DistributedError(f"{entry.envelope}: expected NCCL to go on, got {problem}"))
            elif late_s > self._world.timeout_s:
                self._world.fail(unanswered(entry.envelope, self._world.timeout_s, *known, {}))

    def end(self, abort: bool) -> None:
        """End NCCL's communicators; see `Handle.end`."""
        with self._failure.changed:
            self._is_ended, pairs = True, list(self._pairs.values())
        for pair in pairs:
            pair.handle.end(abort)

    # ------------------------------------------------------------------------------------------- for the mail thread

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            try:
                self._launch(entry)
            except DistributedError as error:
                self._world.fail(error)
            except BaseException as error:
                self._world.fail(DistributedError(f"{entry.envelope}: its launch raised {error!r}"))

    def _launch(self, entry: _Entry) -> None:
        envelope, array = entry.envelope, entry.array
        pair = self._pairs.get(envelope.other) or self._begin(envelope.other)
        comm, peer, problem = pair.handle.comm, int(envelope.other > self._world.rank), ""
        if comm is None:
            return  # ended meanwhile
        with self._device.current():
            pair.stream.wait_event(entry.ready)
            if array.size:
                arguments = address_of(array), int(array.nbytes), BYTE, peer, pair.stream.ptr
                problem = problem_of(self._nccl, lambda: getattr(comm, envelope.kind)(*arguments))
            event = self._streams.Event(disable_timing=True)
            event.record(pair.stream)
        if problem:
            self._world.await_failure(_GRACE_S)
            raise DistributedError(f"{envelope}: expected NCCL to take it, got {problem}")
        with self._failure.changed:
            entry.began_s, entry.event = time.monotonic(), event
            self._launched.append(entry)
            self._failure.changed.notify_all()

    def _begin(self, other: int) -> _Pair:
        """Start NCCL's communicator with another rank, which does so too; the lower of the two ranks makes its id."""
        world, handle, problems = self._world, Handle(self._nccl, self._device), list[BaseException]()
        with self._device.current():
            pair = _Pair(handle, self._streams.Stream(non_blocking=True))
        with self._failure.changed:
            self._failure.raise_on(world.rank)
            if self._is_ended:
                return pair
            self._pairs[other] = pair
        if world.rank < other:
            unique = bytes(self._nccl.get_unique_id())
            world.star.post(Told(Kind.PAIR_ID, world.rank, other, "", unique), to=other if world.rank == 0 else None)
        else:
            with self._failure.changed:
                self._failure.changed.wait_for(lambda: other in self._ids or self._failure.error, world.timeout_s)
                self._failure.raise_on(world.rank)
                unique = self._ids[other]
        handle.make((2, unique, int(world.rank > other)), problems)
        if problems:
            raise DistributedError(f"messages with rank {other}: expected NCCL to start, got {problems[0]}")
        return pair

    # ------------------------------------------------------------------------------------------------------- ends

    def finish(self) -> bool:
        """Wait for what NCCL has; False where it does not end well."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(_GRACE_S)
        try:
            for entry in list(self._launched):
                self.wait(entry, host=True)
        except DistributedError:
            return False
        return self._thread is None or not self._thread.is_alive()


class _NcclMessage:
    """One end of a message under way; its array is kept until it was taken."""

    __slots__ = ("_mail", "_entry")
    span = None

    def __init__(self, mail: NcclMail, entry: _Entry) -> None:
        self._mail, self._entry = mail, entry

    def done(self) -> bool:
        """Whether the message was taken."""
        return self._mail.is_over(self._entry)

    def wait(self, host: bool = False) -> None:
        """Wait until the other end is known, then order the caller's stream after it; with host=True block."""
        self._mail.wait(self._entry, host)


class NcclMessages(PointToPoint):
    """The messages of a `NcclCommunicator`."""

    mail: NcclMail
    _progress: Progress

    def _message(self, envelope: Envelope, array: Array) -> Work:
        refuse_in_capture("send or recv", "a message, which the host matches to another rank's", "use a collective")
        self._progress.mailed += 1
        return _NcclMessage(self.mail, self.mail.add(envelope, array))
