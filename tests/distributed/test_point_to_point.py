"""Messages from rank to rank, beside what `minigrad.testing.messages` asks of every communicator."""

import itertools
import multiprocessing
import threading
import time

import numpy as np
import pytest

from minigrad import distributed
from minigrad.distributed import Fault, FaultInjecting, Recording, run
from minigrad.distributed.comm.point_to_point import Envelope, unanswered
from minigrad.distributed.comm.shm.mailbox import MOST_MESSAGES
from minigrad.errors import ArgumentError, CollectiveTimeoutError, InjectedFaultError, RankFailedError
from minigrad.testing import RingAllReduce
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.worlds import run_nccl, run_processes, run_ranks

TIMEOUT_S = 10.0


def to_the_other(comm, array, tag=0):
    """The array of the other of two ranks."""
    taken = np.empty_like(array)
    work = comm.send(array, 1 - comm.rank, tag)
    comm.recv(taken, 1 - comm.rank, tag).wait()
    work.wait()
    return taken


@pytest.mark.parametrize("tags, got", [({3}, "nothing"), ({3, 5}, "what it sent with tag 5 instead")])
def test_a_message_that_comes_as_its_receiver_gives_up_is_no_other(tags, got):
    error = unanswered(Envelope("recv", 1, 0, 3, "float64", 2), 1.5, "is here", tags, {})
    assert f"expected rank 1 to send it within 1.5 s, got {got}: rank 1 is here" in str(error)


def test_wrappers_see_both_ends():
    def body(comm):
        comm = Recording(FaultInjecting(comm, [Fault("delay", rank=1, kind="recv", delay_s=0.01)]))
        to_the_other(comm, np.ones(3, np.float32), tag=6)
        return [(call.kind, call.detail, call.dtype, call.count, call.nbytes) for call in comm.calls]

    for rank, calls in enumerate(run(body, 2)):
        other = 1 - rank
        assert calls == [
            ("send", f"to {other}, tag 6", "float32", 3, 12),
            ("recv", f"from {other}, tag 6", "float32", 3, 12),
        ]


# ------------------------------------------------------------------------------------------------------- processes


def test_a_message_can_be_taken_while_its_sender_computes():
    """Here it waits for word that it was taken, which does not come through the communicator."""
    taken = multiprocessing.get_context("fork").Event()

    def body(comm):
        array = np.full(300_000, comm.rank + 1.0)
        if comm.rank == 0:
            work = comm.send(array, 1)
            assert taken.wait(TIMEOUT_S)
            work.wait()
        else:
            comm.recv(array, 0).wait()
            taken.set()
        return array.tolist() == [1.0] * 300_000

    assert run_processes(body, 2, TIMEOUT_S) == [True, True]


def test_memory_of_messages_is_used_again():
    """Also where one in the middle is taken later than those behind it; and so many can be on their way."""

    def body(comm):
        mail, other = comm.mail, 1 - comm.rank
        early = comm.send(np.full(1000, 5.0), other, tag=9)
        for i in range(5 * MOST_MESSAGES // 4):
            assert to_the_other(comm, np.full(500, float(i)))[0] == i
            if i == MOST_MESSAGES // 2:
                late = np.empty(1000)
                comm.recv(late, other, tag=9).wait()
                early.wait()
        assert late.tolist() == [5.0] * 1000 and mail._places.end <= mail._mine.front_bytes + 4 * 8064
        works = [comm.send(np.ones(1), other) for _ in range(MOST_MESSAGES)]
        with pytest.raises(ArgumentError, match="expected at most 1,024 messages to rank . that it has not taken"):
            comm.send(np.ones(1), other)
        comm.barrier()
        for _ in works:
            comm.recv(np.empty(1), other).wait()
        for work in works:
            work.wait()
        assert mail._places.end == mail._mine.front_bytes
        return True

    assert run_processes(body, 2, TIMEOUT_S) == [True, True]


def test_a_rank_takes_a_message_in_a_collective_for_its_sender_to_come_to_it():
    def body(comm):
        array = np.full(3, float(comm.rank))
        if comm.rank == 1:
            work = comm.recv(array, 0)
        comm.barrier()
        if comm.rank == 0:
            comm.send(array, 1).wait()
        comm.barrier()
        if comm.rank == 1:
            assert work.done()
        return array.tolist()

    for kind in ("threads", "shm"):
        assert run_ranks(kind, body, 2, TIMEOUT_S) == [[0.0] * 3] * 2


# ------------------------------------------------------------------------------------------------------ over NCCL


class Streams:
    """The part of cupy.cuda that concerns streams, which takes notes: what was done, by address of the stream."""

    def __init__(self):
        self.notes, self.here, self.made = [], threading.local(), itertools.count(1)
        notes, made = self.notes, self.made

        class Event:
            done = True

            def __init__(self, disable_timing):
                pass

            def record(self, stream):
                notes.append(("record", stream.ptr, self))

        class Stream:
            def __init__(self, non_blocking=False):
                self.ptr = next(made)

            def wait_event(self, event):
                notes.append(("wait", self.ptr, event))

        self.Event, self.Stream = Event, Stream

    def get_current_stream(self):
        """A thread's own."""
        if not hasattr(self.here, "stream"):
            self.here.stream = self.Stream()
        return self.here.stream

    def submit(self, stream, work):
        """NCCL gets some work."""
        self.notes.append(("nccl", stream, None))
        work()


def test_nccl_moves_a_message_on_a_stream_of_its_own_with_an_edge_from_the_callers_and_one_back():
    streams = Streams()

    def body(comm):
        to_the_other(comm, np.ones(3))
        return streams.get_current_stream().ptr

    fake = FakeNccl(submit=streams.submit, timeout_s=TIMEOUT_S)
    callers = run_nccl(body, 2, TIMEOUT_S, fake, streams=streams)
    mails = {stream for what, stream, _ in streams.notes if what == "nccl"}
    assert len(mails) == 2 and not mails & set(callers)
    for mail in mails:
        did = [(at, what, event) for at, (what, stream, event) in enumerate(streams.notes) if stream == mail]
        assert [what for _, what, _ in did] == ["wait", "nccl", "record"] * 2
        for (began, _, ready), _, (ended, _, over) in (did[:3], did[3:]):
            before = [stream for what, stream, event in streams.notes[:began] if (what, event) == ("record", ready)]
            after = [stream for what, stream, event in streams.notes[ended:] if (what, event) == ("wait", over)]
            assert len(before) == 1 and set(before) == set(after) and set(before) <= set(callers)


def test_a_message_of_two_ranks_needs_no_third():
    """Which has left, or is in the middle of something else."""

    def body(comm):
        comm.barrier()
        if comm.rank == 2:
            comm.close()
            return None
        time.sleep(0.2)
        return to_the_other(comm, np.full(2, float(comm.rank))).tolist()

    for kind in ("nccl", "shm", "threads"):
        assert run_ranks(kind, body, 3, TIMEOUT_S) == [[1.0] * 2, [0.0] * 2, None]


# ---------------------------------------------------------------------------------------------------------- the ring


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_ring_sends_each_byte_twice_but_for_one_part(dtype):
    """And all ranks have the same bits, near those of other communicators."""

    def body(comm):
        ring, array = RingAllReduce(Recording(comm)), np.random.default_rng(comm.rank).standard_normal(999)
        mine, theirs = array.astype(dtype), array.astype(dtype)
        ring.all_reduce(mine, layout="a bucket").wait()
        comm.all_reduce(theirs).wait()
        np.testing.assert_allclose(mine.astype(float), theirs.astype(float), rtol=1e-3, atol=1e-3)
        return mine.tobytes(), ring.inner.bytes_of("send")

    bits, sent = zip(*run(body, 3))
    assert len(set(bits)) == 1 and set(sent) == {4 * 999 // 3 * 4}


def test_a_ring_whose_ranks_differ_in_layout_is_told_of_both():
    def body(comm):
        RingAllReduce(comm).all_reduce(np.ones(4), layout="a" if comm.rank else "b")

    with pytest.raises(CollectiveTimeoutError, match="expected rank . to send it within 0.3 s, got what it sent with"):
        run(body, 2, timeout_s=0.3)


# ------------------------------------------------------------------------------------------------- by PyTorch's names


def test_messages_by_name():
    def body(comm):
        rank, size = comm.rank, comm.world_size
        right, left = (rank + 1) % size, (rank - 1) % size
        mine, theirs, third = np.full(3, rank), np.empty(3, int), np.empty(3, int)
        works = distributed.batch_isend_irecv(
            [
                distributed.P2POp(distributed.isend, mine, right),
                distributed.P2POp(op=distributed.irecv, tensor=theirs, peer=left, group=comm),
            ]
        )
        for work in works:
            work.wait()
        assert all(work.is_completed() for work in works) and theirs.tolist() == [left] * 3
        if rank == 1:
            distributed.send(mine, dst=2, tag=4)
        if rank == 2:
            assert distributed.recv(third, src=1, tag=4) == 1 and third.tolist() == [1] * 3
        group = comm.split(None if rank == 0 else 0, -rank)
        if rank == 1:
            distributed.send(mine, 2, group=group)
            assert distributed.recv(third, group=group, group_src=0) == 2 and third.tolist() == [2] * 3
        if rank == 2:
            assert distributed.recv(third, 1, group=group) == 1
            distributed.isend(mine, group=group, group_dst=1).wait()
            with pytest.raises(ArgumentError, match=r"isend: .*dst .* global ranks \[2, 1\], got 0"):
                distributed.isend(mine, 0, group=group)
        comm.barrier()
        return True

    assert run(body, 3, timeout_s=TIMEOUT_S) == [True] * 3


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "fault, kind, words",
    [
        (Fault("raise", rank=1, kind="send"), InjectedFaultError, "rank 1: send: injected: raise on rank 1"),
        (Fault("drop", rank=1, kind="send"), RankFailedError, "expected rank 1 to send it, got nothing: rank 1 has"),
        (Fault("corrupt", rank=0, kind="recv"), ArgumentError, "expected after=True for corrupt .*, got a recv"),
        (Fault("nan", rank=0, kind="send", after=True), ArgumentError, "expected after=False for nan .*, got a send"),
    ],
    ids=lambda value: getattr(value, "action", ""),
)
def test_faults_of_messages(fault, kind, words):
    def body(comm):
        to_the_other(FaultInjecting(comm, [fault]), np.ones(3))

    with pytest.raises(kind, match=words):
        run(body, 2, timeout_s=0.3)


def test_a_message_that_is_spoilt_on_its_way_or_late():
    def body(comm):
        faults = [Fault("nan", rank=0, kind="send"), Fault("nan", rank=0, kind="recv", after=True, element=1)]
        comm = FaultInjecting(comm, [*faults, Fault("reorder", rank=1, kind="send", call=0)])
        return to_the_other(comm, np.ones(2)).tolist()

    (_, spoilt), (also, _) = run(body, 2, timeout_s=TIMEOUT_S)
    assert np.isnan([spoilt, also]).all()
