"""Communicators of one's own go through the contract: a wrapper, and a transport that only moves bytes."""

import queue
import time
from collections import defaultdict, deque

import numpy as np
import pytest

from minigrad.distributed import (
    FaultInjecting,
    Front,
    Recording,
    ReduceOp,
    SoloCommunicator,
    Wrapper,
    collectives,
    run,
)
from minigrad.distributed.comm.headers import departed, doing, given_up, mismatch, timed_out
from minigrad.distributed.comm.point_to_point import unanswerable, unanswered, unlike
from minigrad.errors import ArgumentError
from minigrad.testing import check_communicator
from minigrad.testing.contract import CASES

SHORT = [name for name, case in CASES.items() if case.timeout_s > 1.0 and not name.startswith("all_reduce")]


class BytesCounted(Wrapper):
    """Counts the bytes that this rank hands in, by kind of collective."""

    def __init__(self, comm):
        super().__init__(comm)
        self.nbytes = {}

    def around(self, call, arrays, make):
        self.nbytes[call.kind] = self.nbytes.get(call.kind, 0) + call.nbytes
        return make()


def test_a_wrapper_of_ones_own_keeps_the_contract():
    counted = []

    def world(body, world_size, timeout_s):
        def on_rank(comm):
            counted.append(BytesCounted(comm))
            body(counted[-1])

        run(on_rank, world_size, timeout_s=timeout_s)

    check_communicator(world, sizes=(2,), cases=[name for name in CASES if CASES[name].timeout_s > 1.0])
    assert sum(comm.nbytes.get("all_reduce", 0) for comm in counted) > 64 * 1024 * 1024


class Letter:
    """A call of a Mail."""

    span = None

    def __init__(self, comm, header, finish):
        self.comm, self.header, self.finish = comm, header, finish

    def done(self):
        return self.header.seq < self.comm.over

    def wait(self, host=False):
        while not self.done():
            self.comm.finish_next()


class Parcel:
    """A message of a Mail, or the place of one."""

    span = None

    def __init__(self, comm, envelope, array):
        self.comm, self.envelope, self.array, self.over = comm, envelope, array, False

    def done(self):
        self.comm.listen()
        if not self.over:
            self.comm.failure.raise_on(self.comm.rank)
            if self.envelope.other in self.comm.left:
                known = f"closed its communicator and {self.comm.known(self.envelope.other)}"
                self.comm.end(unanswerable(self.envelope, known))
        return self.over

    def wait(self, host=False):
        until = time.monotonic() + self.comm.timeout_s
        while not self.done():
            if time.monotonic() >= until:
                tags = [] if self.envelope.sends else [tag for src, _, tag in self.comm.here]
                known = self.comm.known(self.envelope.other)
                self.comm.end(unanswered(self.envelope, self.comm.timeout_s, known, tags, {}))
            time.sleep(1e-3)


class Mail(Front):
    """Ranks that write to each other: each tells all what it calls and what it has, and adds up by itself."""

    def __init__(self, rank, inboxes, rooms, timeout_s, clock=None):
        super().__init__(rank, len(inboxes), timeout_s=timeout_s, clock=clock)
        self.inboxes, self.rooms, self.left, self.over = inboxes, rooms, set(), 0
        self.letters, self.parent = deque(), None  # not answered by all yet; what this was split off
        self.came = [deque() for _ in inboxes]  # what each rank called, and had, beyond `over`
        self.last = [deque(maxlen=3) for _ in inboxes]  # calls
        self.sent, self.asked, self.here = defaultdict(deque), defaultdict(deque), {}

    def known(self, rank):
        return doing(self.last[rank])

    def write(self, kind, what, data=b""):
        for inbox in self.inboxes:
            inbox.put((self.rank, kind, what, data))

    def finish_next(self):
        letter, until = self.letters[0], time.monotonic() + self.timeout_s
        while not all(self.came):
            self.read(letter.header, until)
        calls = [came.popleft() for came in self.came]
        other = next((rank for rank, call in enumerate(calls) if call[0] != calls[0][0]), None)
        if other is not None and not all(given_up(text) for text, _ in calls):
            self.end(mismatch((0, calls[0][0]), (other, calls[other][0])))
        letter.finish([data for _, data in calls])
        self.letters.popleft()
        self.over += 1

    def read(self, header, until):
        absent = {rank: self.known(rank) for rank, came in enumerate(self.came) if not came}
        try:
            patience_s = 0.05 if self.parent or self.groups else self.timeout_s
            rank, kind, what, data = self.inboxes[self.rank].get(timeout=min(patience_s, until - time.monotonic()))
        except (queue.Empty, ValueError):
            if time.monotonic() >= until:
                self.end(timed_out(header, self.world_size, self.timeout_s, absent, dict.fromkeys(absent, "")))
            for other in (*self.groups, *[self.parent] * (self.parent is not None)):
                other.listen()
            return self.failure.raise_on(self.rank)
        self.take(header, absent, rank, kind, what, data)
        self.failure.raise_on(self.rank)

    def listen(self):
        """Take in what has come, where nobody waits for a call."""
        while not self.inboxes[self.rank].empty():
            self.take("", (), *self.inboxes[self.rank].get())
        if self.parent:
            self.parent.listen()

    def take(self, header, absent, rank, kind, what, data):
        if kind == "failed":
            self.failure.set(what)
        elif kind == "left":
            self.left.add(rank)
            if rank in absent:
                self.end(departed(header, self.world_size, {rank: f"closed its communicator and {self.known(rank)}"}))
        elif kind == "called":
            self.came[rank].append((what, data))
            self.last[rank].appendleft(what)
        elif kind == "wrote":
            self.last[rank].appendleft(str(what))
            if what.sends and what.dst == self.rank:
                self.here.setdefault(what.key, deque()).append((what, data))
                self.deliver(what.key)
        elif kind == "taken" and what[0] == self.rank:
            self.sent[what].popleft().over = True

    def _message(self, envelope, array):
        parcel = Parcel(self, envelope, array)
        (self.sent if envelope.sends else self.asked)[envelope.key].append(parcel)
        self.write("wrote", envelope, array.tobytes() if envelope.sends else b"")
        self.listen()
        if not envelope.sends:
            self.deliver(envelope.key)
        return parcel

    def deliver(self, key):
        asked = self.asked[key]
        while asked and self.here.get(key) and key[0] not in self.left:
            (envelope, data), parcel = self.here[key].popleft(), asked.popleft()
            if not self.here[key]:
                del self.here[key]
            if not envelope.fits(parcel.envelope):
                self.end(unlike(envelope, parcel.envelope))
            parcel.array.reshape(-1)[...] = np.frombuffer(data, parcel.array.dtype)
            parcel.over = True
            self.write("taken", key)

    def end(self, error):
        self._fail(error)
        self.failure.raise_on(self.rank)

    def start(self, what, array, data, finish):
        self.letters.append(Letter(self, self._next(what, array), finish))
        self.write("called", str(self.letters[-1].header), data)
        return self.letters[-1]

    def _reduce(self, what, array, op, weight=None):
        def finish(parts):
            arrays = [np.frombuffer(part, array.dtype).copy() for part in parts]
            array.reshape(-1)[...] = collectives.reduced(arrays, op)

        return self.start(what, array, array.tobytes(), finish)

    def _broadcast(self, what, array, root):
        def finish(parts):
            array.reshape(-1)[...] = np.frombuffer(parts[root], array.dtype)

        return self.start(what, array, array.tobytes(), finish)

    def _reduce_scatter(self, what, output, source, op):
        def finish(parts):
            rows = [np.frombuffer(part, source.dtype).reshape(self.world_size, -1)[self.rank].copy() for part in parts]
            output.reshape(-1)[...] = collectives.reduced(rows, op)

        return self.start(what, source, source.tobytes(), finish)

    def _all_gather(self, what, output, source):
        def finish(parts):
            output.reshape(-1)[...] = np.frombuffer(b"".join(parts), output.dtype)

        return self.start(what, source, source.tobytes(), finish)

    def _meet(self, what):
        return self.start(what, None, b"", lambda parts: None)

    def _split(self, group, exchange):
        if group is None:
            return None
        exchange(b"")  # all have made as many calls here
        new = [queue.Queue() for _ in group.ranks], {}
        made = Mail(group.rank, *self.rooms.setdefault((self.seq, group.ranks), new), self.timeout_s, self.clock)
        made.parent = self
        return made

    def _tell(self, error):
        self.write("failed", error)

    def _leave(self):
        super()._leave()
        self.write("left", "")


def mail(body, world_size, timeout_s):
    """A world of threads, which use what `run` gives them for nothing but their rank."""
    inboxes, rooms = [queue.Queue() for _ in range(world_size)], {}  # of groups, by number of the call
    run(lambda comm: body(Mail(comm.rank, inboxes, rooms, timeout_s)), world_size, timeout_s=timeout_s + 5.0)


def test_a_transport_of_ones_own_keeps_the_contract():
    check_communicator(mail, sizes=(3,), cases=SHORT)
    check_communicator(mail, sizes=(2,), cases=[name for name in CASES if name not in SHORT])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("base", [SoloCommunicator, Wrapper])
def test_what_overrides_all_reduce_alone_sees_weighted_sums_too(base, dtype):
    class Doubling:
        def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
            array *= 2
            return super().all_reduce(array, op, layout)

    class Doubled(Doubling, base):
        pass

    class Said(Doubled):
        adds_weighted = True

    comm = Doubled() if base is SoloCommunicator else Doubled(SoloCommunicator())
    assert not comm.adds_weighted and not Wrapper(comm).adds_weighted and Said.adds_weighted
    for outer in (comm, Wrapper(comm), Recording(FaultInjecting(Wrapper(comm), []))):
        array = np.ones(3, dtype)
        outer.weighted_all_reduce(array, np.array([0.5])).wait()
        assert array.tolist() == [1.0] * 3


def test_a_transport_is_left_once():
    class Counted(SoloCommunicator):
        left = 0

        def _leave(self):
            self.left += 1

    comm = Counted()
    comm.close()
    comm.close()
    assert comm.left == 1


def test_what_does_not_keep_it_is_named():
    class Silent(Wrapper):
        def broadcast(self, array, root=0):
            return self.inner.broadcast(array, 0)

    def world(body, world_size, timeout_s):
        run(lambda comm: body(Silent(comm)), world_size, timeout_s=timeout_s)

    with pytest.raises(AssertionError, match="^broadcast_from_each_root, with 2 ranks: AssertionError"):
        check_communicator(world, sizes=[2], cases=["broadcast_from_each_root"])
    with pytest.raises(ArgumentError, match="expected cases of all_reduce-float16, .*, got nothing"):
        check_communicator(world, cases=["nothing"])
